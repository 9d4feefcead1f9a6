"""The path from holes to edits, with an engine that knows its answers."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from dg_lsp.core import excerpt, holes, polish, syntax
from dg_lsp.core.polish import Suggestion
from dg_lsp.core.values import Budget, Calibrated, Candidate, Document, Hole, InfillRequest, Ranked, Snippet, Span, apply
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import FileContext, InfillAnswer
from tests import marked
from tests.fakes import Filling, drawn

ROWS = marked.rows(Path(__file__).with_name("pipeline.txt"))

THREE = FileContext(budget=Budget(candidates=3))


def infilled(engine: Any, text: str, settings: FileContext | None = None) -> tuple[InfillAnswer, list[str]]:
    """Return the answer for the drawn holes of a Python text, and the text with each of its suggestions."""
    document, holes = drawn(text, language="python")
    tree = syntax.of(document)
    settings = settings or FileContext(budget=Budget(candidates=4))
    answer = asyncio.run(pipeline.infill(engine, document, holes, settings, syntax=tree))
    return answer, [apply(document.text, suggestion.edits) for suggestion in answer.suggestions]


PYTHON, TYPESCRIPT = "def f(xs):\n    |\n    for x in xs:\n        total += x\n", "function f() {\n  |\n  return x;\n}\n"


@pytest.mark.parametrize(
    ("uri", "language", "marked", "needed"),
    [
        ("file:///x/a.py", "python", PYTHON, ("total",)),
        ("vscode-notebook-cell:///x/a.ipynb#1", "python", PYTHON, ()),
        ("file:///x/BUILD", "python", PYTHON, ()),
        ("file:///x/a.ts", "typescript", TYPESCRIPT, ("x",)),
        ("vscode-notebook-cell:///x/a.ipynb#1", "typescript", TYPESCRIPT, ()),
    ],
)
def test_holes_know_what_the_code_after_them_needs(uri: str, language: str, marked: str, needed: tuple[str, ...]) -> None:
    at, document = marked.index("|"), Document(uri, language, marked.replace("|", ""))
    hole = Hole(Span(at, at), "cursor")
    request = pipeline.to_request(document, (hole,), FileContext(), syntax=syntax.of(document))
    assert request.holes[0].needed == needed
    assert pipeline.to_request(document, (hole,), FileContext()).holes[0].needed == ()


def test_dropped_candidates_have_reasons() -> None:
    answer, texts = infilled(Filling("f(", "", "1 ", "g("), "x = ⟦⟧\n")
    assert texts == ["x = 1\n"]
    assert answer.dropped == ("adds a syntax error", "is blank", "adds a syntax error")


def test_a_dropped_candidate_is_replaced_by_a_worse_one() -> None:
    engine = Filling("f(", "", "1", "2", "3")
    _, texts = infilled(engine, "x = ⟦⟧\n", FileContext(budget=Budget(candidates=2)))
    assert texts == ["x = 1\n", "x = 2\n"]
    assert [request.budget for request in engine.requests] == [Budget(candidates=2, spares=pipeline.SPARES)]


def test_candidates_with_equal_edits_are_merged() -> None:
    answer, texts = infilled(Filling("1", "1  ", "2"), "x = ⟦⟧\n")
    assert texts == ["x = 1\n", "x = 2\n"]
    assert answer.suggestions[0].confidence == Calibrated(0.9), "that of the better one"


def test_a_name_that_another_file_may_bind_ranks_last() -> None:
    document, holes = drawn("function f(x) {\n  return ⟦⟧;\n}\n", language="javascript")
    for is_file, order in ((True, ["x", "x + 1", "y"]), (False, ["y", "x", "x + 1"])):
        engine = Filling("y", "x", "x + 1")
        answer = asyncio.run(pipeline.infill(engine, document, holes, THREE, syntax=syntax.of(document), is_file=is_file))
        assert [suggestion.edits[0].text for suggestion in answer.suggestions] == order


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        (("y", "1"), ("x", "2"), [("y", "1"), ("x", "2")]),  # a name that another file may bind
        (("x", ""), ("x", "2"), []),
    ],
)
def test_the_best_texts_of_holes_that_were_filled_in_turn_come_first_or_there_is_no_answer(
    first: tuple[str, str], second: tuple[str, str], order: list[tuple[str, str]]
) -> None:
    class InTurn:
        async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
            return tuple(Candidate(texts, alone=(Ranked(), Ranked())) for texts in (first, second))

    document, holes = drawn("function f(x) {\n  return ⟦⟧ + ⟦⟧;\n}\n", language="javascript")
    answer = asyncio.run(pipeline.infill(InTurn(), document, holes, THREE, syntax=syntax.of(document), is_file=True))
    assert all(suggestion.of_holes == (Ranked(), Ranked()) for suggestion in answer.suggestions)
    assert [tuple(edit.text for edit in suggestion.edits) for suggestion in answer.suggestions] == order


def test_no_suggestion_has_a_reason() -> None:
    answer, _ = infilled(Filling("f(", "g(", ""), "x = ⟦⟧\n")
    assert answer.reason == "the answer adds a syntax error; another is blank"
    answer, _ = infilled(Filling(), "x = ⟦⟧\n")
    assert answer.reason == "the model has no answer"


def test_the_engine_is_asked_as_the_settings_say() -> None:
    engine = Filling("1")
    snippet = Snippet("b.py", "y = 2\n")
    settings = FileContext(window_chars=5, budget=Budget(ms=7, candidates=2), seed=3, path="a.py", related=(snippet,))
    infilled(engine, "a = 1\nb = 2\nx = ⟦⟧\n", settings)
    (request,) = engine.requests
    assert (request.prefix, request.suffix, request.path, request.seed) == ("x = ", "\n", "a.py", 3)
    assert request.budget == Budget(ms=7, candidates=2, spares=pipeline.SPARES)
    assert request.related == (snippet,)


def test_a_request_shows_the_paragraphs_that_resemble_the_lines_around_its_place() -> None:
    uses = [f"{name} = 1\n{name}(2)\n{name}(3)\n{name}(4)\n" for name in ("alpha", "gamma")]
    nearby = (Snippet("a.py", uses[0]), Snippet("b.py", uses[1]), Snippet("c.py", "other = 1\n"))
    text = "alpha()\n" + "\n" * 4 + "gamma()\n⟦⟧\n"

    def shown(related_chars: int = 6_000) -> list[str]:
        engine = Filling("1")
        infilled(engine, text, FileContext(nearby=nearby, related_chars=related_chars))
        return [snippet.path for snippet in engine.requests[0].related]

    assert shown() == ["b.py", "a.py"]
    assert shown(related_chars=0) == []


def test_other_tasks_run_between_two_candidates_and_before_each_cut() -> None:
    document, holes = drawn("x = ⟦⟧\n")
    request = pipeline.to_request(document, holes, FileContext(budget=Budget(candidates=3)))
    candidates = [Candidate((text,), Calibrated(0.5)) for text in ("one", "two", "three")]

    async def n_turns(token_threshold: float) -> int:
        polishing = asyncio.ensure_future(pipeline.to_answer(request, candidates, document, token_threshold=token_threshold))
        n = 0
        while not polishing.done():
            await asyncio.sleep(0)
            n += 1
        assert len(polishing.result().suggestions) == len(candidates)
        return n

    n_uncut = asyncio.run(n_turns(0))
    assert n_uncut >= len(candidates)
    assert asyncio.run(n_turns(0.1)) == n_uncut + len(candidates)


@pytest.mark.parametrize("is_long", [False, True])
def test_candidates_of_a_long_document_are_polished_in_a_thread(is_long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, to_edits = set[bool](), polish.to_edits

    def recorded(*args: Any, **options: Any) -> Suggestion:
        threads.add(threading.current_thread() is threading.main_thread())
        return to_edits(*args, **options)

    monkeypatch.setattr(polish, "to_edits", recorded)
    text = "x = ⟦⟧\n" + "y = 2\n" * (excerpt.LONG_CHARS // 5 if is_long else 1)
    assert infilled(Filling("1"), text)[0].suggestions
    assert threads == {not is_long}


def test_without_a_hole_no_request_is_sent() -> None:
    engine = Filling("1")
    assert infilled(engine, "x = 1\n") == (InfillAnswer(), [])
    assert engine.requests == []


def test_a_window_has_text() -> None:
    with pytest.raises(ValueError, match="window_chars must be at least 1, not 0"):
        FileContext(window_chars=0)


@pytest.mark.parametrize(("language", "text", "answer", "expected"), ROWS["filled"])
def test_holes_of_a_document_are_filled(language: str, text: str, answer: str, expected: str) -> None:
    document = Document("", language, text)
    tree = syntax.of(document)
    holes_of_document = holes.in_document(document, tree, frozenset({"bodies", "markers"}))
    result = asyncio.run(pipeline.infill(Filling(answer), document, holes_of_document, FileContext(), syntax=tree))
    assert apply(text, result.suggestions[0].edits) == expected
