"""Where a suggestion is cut before its first uncertain token."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dg_lsp.core import syntax
from dg_lsp.core.values import Budget, Calibrated, Candidate
from dg_lsp.infill import pipeline, unsure
from dg_lsp.infill.pipeline import FileContext
from tests.fakes import drawn


@pytest.mark.parametrize(
    ("text", "confidences", "expected"),
    [
        ("a\nb\nc", (0.9, 0.9, 0.9, 0.9, 0.9), []),
        ("aaaa\nbbbb\ncccc", (0.9, 0.9, 0.01), ["aaaa\nbbbb", "aaaa"]),
        ("aaaa\nbbbb\ncccc", (0.9, 0.01, 0.9), ["aaaa"]),
        ("aaaa\nbbbb", (0.01, 0.9), []),
        ("aaaa", (0.9, 0.01), []),
        ("", (), []),
    ],
)
def test_an_answer_ends_before_its_first_uncertain_line(text: str, confidences: tuple[float, ...], expected: list[str]) -> None:
    assert list(unsure.cuts(text, unsure.doubt(Candidate((text,), Calibrated(0.9), (confidences,)), text, "", 0.1))) == expected


@pytest.mark.parametrize(
    ("raw", "lead", "text", "tokens", "expected"),
    [
        # Each token in brackets, an uncertain one with a question mark.
        (
            "x = f(a) + b",
            "",
            "x = f(a) + b",
            "[x][ =][ f][(a)][ +][? b]",
            ["x = f(a) +", "x = f(a)", "x = f(a", "x = f(", "x = f", "x ="],
        ),
        ("f(a)\ng(b)", "\n    ", "\n    f(a)\ng(b)", "[f][(a)][\n][g][?(b)]", ["\n    f(a)\ng", "\n    f(a)"]),
        ("f(a)\ng(b)", "\n    ", "\n    f(a)", "[f][(a)][\n][g][?(b)]", []),
        ("f(a)", "", "f(a)", "[?f][(a)]", []),
        ('f("a")', "", 'f("a")', '[f][("][?a")]', ["f(", "f"]),
        ("(a)", "", "(a)", "[(][?a][)]", []),
    ],
)
def test_an_answer_ends_before_its_first_uncertain_token(
    raw: str, lead: str, text: str, tokens: str, expected: list[str]
) -> None:
    pieces = re.findall(r"\[(\??)([^\]]*)\]", tokens)
    assert "".join(token for _, token in pieces) == raw
    lengths = tuple(len(token) for _, token in pieces)
    confidences = tuple(0.01 if mark else 0.9 for mark, _ in pieces)
    doubt = unsure.doubt(Candidate((raw,), Calibrated(0.9), (confidences,), lengths=(lengths,)), text, lead, 0.1)
    assert doubt is None or doubt.is_exact
    ends = [match.end() for match in re.finditer(r'\w+|[^\w\s"]|"[^"]*"', text)]
    assert list(unsure.cuts(text, doubt, ends)) == expected


def test_an_answer_that_polishing_changed_is_cut_by_estimate() -> None:
    candidate = Candidate(("aa\nbb\ncc",), Calibrated(0.9), ((0.9, 0.9, 0.9, 0.9, 0.01),), lengths=((2, 1, 2, 1, 2),))
    assert unsure.doubt(candidate, "    aa\n    bb\n    cc", "", 0.1) == unsure.Doubt(16, is_exact=False)


def answer(text: str, candidates: list[Candidate], parsed: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the suggestions for the drawn hole, each cut before its first uncertain token; note what is parsed for them."""
    document, holes = drawn(text, language="python")
    request = pipeline.to_request(document, holes, FileContext(budget=Budget(candidates=len(candidates))))
    parse, tree = syntax.parse, syntax.of(document)

    def noted(text: str, *rest: Any, **more: Any) -> Any:
        parsed.append(text)
        return parse(text, *rest, **more)

    monkeypatch.setattr(syntax, "parse", noted)
    found = pipeline.to_answer(request, candidates, document, syntax=tree, token_threshold=0.1)
    return [suggestion.text for suggestion in found.suggestions]


def test_no_text_is_parsed_twice_for_its_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    unsure_of_last = Candidate(("f(a) + g(b)",), Calibrated(0.9), ((0.9, 0.9, 0.9, 0.01),), lengths=((1, 3, 3, 4),))
    parsed: list[str] = []
    assert answer("x = ⟦⟧\n", [unsure_of_last], parsed, monkeypatch) == ["f(a)"]
    assert parsed == list(dict.fromkeys(parsed))
    assert {"x = f(a) + g(b)\n", "x = f(a)\n"} <= set(parsed)


def test_suggestions_that_are_equal_once_they_are_cut_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = [
        Candidate((text,), Calibrated(0.9), ((0.9, 0.9, 0.9, chance),), lengths=((1, 3, 3, 4),))
        for text, chance in (("f(a) + g(b)", 0.01), ("f(a) + h(c)", 0.01), ("f(a) - h(c)", 0.9))
    ]
    assert answer("x = ⟦⟧\n", candidates, [], monkeypatch) == ["f(a)", "f(a) - h(c)"]
