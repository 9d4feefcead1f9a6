"""Where a suggestion is cut before its first uncertain token."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dg_lsp.core import extent, holes, syntax, values
from dg_lsp.core.values import Budget, Calibrated, Candidate, Document, Hole
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import FileContext
from tests import marked
from tests.fakes import drawn

ROWS = marked.rows(Path(__file__).with_name("unsure.txt"))


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
    assert list(extent.cuts(text, extent.doubt(Candidate((text,), Calibrated(0.9), (confidences,)), text, 0.1))) == expected


@pytest.mark.parametrize(("raw", "text", "tokens", "expected"), ROWS["tokens"])
def test_an_answer_ends_before_its_first_uncertain_token(raw: str, text: str, tokens: str, expected: str) -> None:
    pieces = re.findall(r"\[(\??)([^\]]*)\]", tokens)
    assert "".join(token for _, token in pieces) == raw
    lengths = tuple(len(token) for _, token in pieces)
    confidences = tuple(0.01 if mark else 0.9 for mark, _ in pieces)
    doubt = extent.doubt(Candidate((raw,), Calibrated(0.9), (confidences,), lengths=(lengths,)), text, 0.1)
    assert doubt is None or doubt.is_exact
    ends = [match.end() for match in re.finditer(r'\w+|[^\w\s"]|"[^"]*"', text)]
    assert " | ".join(extent.cuts(text, doubt, ends)) == expected


def test_an_answer_that_polishing_changed_is_cut_by_estimate() -> None:
    candidate = Candidate(("aa\nbb\ncc",), Calibrated(0.9), ((0.9, 0.9, 0.9, 0.9, 0.01),), lengths=((2, 1, 2, 1, 2),))
    assert extent.doubt(candidate, "    aa\n    bb\n    cc", 0.1) == extent.Doubt(16, is_exact=False)


def answer(text: str, candidates: list[Candidate], parsed: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the suggestions for the drawn hole, each cut before its first uncertain token; note what is parsed for them."""
    document, holes = drawn(text, language="python")
    request = pipeline.to_request(document, holes, FileContext(budget=Budget(candidates=len(candidates))))
    parse, tree = syntax.parse, syntax.of(document)

    def noted(text: str, *rest: Any, **more: Any) -> Any:
        parsed.append(text)
        return parse(text, *rest, **more)

    monkeypatch.setattr(syntax, "parse", noted)
    found = asyncio.run(pipeline.to_answer(request, candidates, document, syntax=tree, token_threshold=0.1))
    return [suggestion.text for suggestion in found.suggestions]


def test_no_text_is_parsed_twice_for_its_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    unsure_of_last = Candidate(("f(a) + g(b)",), Calibrated(0.9), ((0.9, 0.9, 0.9, 0.01),), lengths=((1, 3, 3, 4),))
    parsed: list[str] = []
    assert answer("x = ⟦⟧\n", [unsure_of_last], parsed, monkeypatch) == ["f(a)"]
    # Plain answers, with which a file that was broken is compared, are parsed once a request and in few lines.
    own = [text for text in parsed if "f(a)" in text]
    assert own == list(dict.fromkeys(own))
    assert {"x = f(a) + g(b)\n", "x = f(a)\n"} <= set(own)


def test_suggestions_that_are_equal_once_they_are_cut_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = [
        Candidate((text,), Calibrated(0.9), ((0.9, 0.9, 0.9, chance),), lengths=((1, 3, 3, 4),))
        for text, chance in (("f(a) + g(b)", 0.01), ("f(a) + h(c)", 0.01), ("f(a) - h(c)", 0.9))
    ]
    assert answer("x = ⟦⟧\n", candidates, [], monkeypatch) == ["f(a)", "f(a) - h(c)"]


@pytest.mark.parametrize(("language", "code", "tokens", "expected"), ROWS["cut answers"])
def test_a_cut_answer_is_written_and_judged_like_a_whole_one(language: str, code: str, tokens: str, expected: str) -> None:
    before, _, behind = code.partition("|")
    document = Document("file:///a.py", language, before + behind)
    hole = holes.at_cursor(document, len(before), syntax.of(document))
    assert written(document, hole, tokens.split("|")) == expected


def test_a_cut_text_of_documentation_is_closed() -> None:
    code = "def f(a):\n    ⟦⟧return a + 1\n"
    document, [drawn_hole] = drawn(code, language="python", indent="    ", lead='"""', trail='"""\n    ')
    hole = replace(drawn_hole, extent="block")
    text = written(document, hole, ["Return the next.\n", "    And more.\n", "    And less."])
    assert text == 'def f(a):\n    """Return the next.\n    And more."""\n    return a + 1\n'


def written(document: Document, hole: Hole, tokens: list[str]) -> str:
    """Return the document with the suggestion that is left of these tokens, the last of them uncertain."""
    confidences = (*(0.9 for _ in tokens[1:]), 0.01)
    candidate = Candidate(("".join(tokens),), Calibrated(0.9), (confidences,), lengths=(tuple(map(len, tokens)),))
    request, tree = pipeline.to_request(document, (hole,), FileContext()), syntax.of(document)
    found = asyncio.run(pipeline.to_answer(request, [candidate], document, syntax=tree, is_file=True, token_threshold=0.1))
    [suggestion] = found.suggestions
    return values.apply(document.text, suggestion.edits)
