"""The menu of code actions at a cursor, and what filling does with the engine's answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dg_lsp.client.port import Engine
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core import values
from dg_lsp.core.confidence import Threshold, is_sure
from dg_lsp.core.values import Calibrated, Candidate, Confidence, Document, Hole, InfillRequest, Ranked, Span
from dg_lsp.infill import fill
from dg_lsp.infill.fill import FillResult
from dg_lsp.server import running
from tests import marked

ROWS = marked.rows(Path(__file__).with_name("actions.txt"))


def read(text: str, language: str = "python") -> tuple[Document, Span]:
    """Return the document of a text that is marked with `$0`, or with two for a selection."""
    parts = text.split("$0")
    return Document("file:///a", language, "".join(parts)), Span(len(parts[0]), len("".join(parts[:-1])))


def menu(text: str, language: str = "python", only: list[str] | None = None) -> list[str]:
    document, span = read(text, language)
    return [action.title for action in running.offered(document, syntaxes.of(document), span, only)]


@pytest.mark.parametrize(("text", "titles"), ROWS["menu in Python"])
def test_the_menu_in_python(text: str, titles: str) -> None:
    assert " | ".join(menu(text)) == titles


@pytest.mark.parametrize(("text", "language", "titles"), ROWS["menu"])
def test_the_menu_in_other_languages(text: str, language: str, titles: str) -> None:
    assert " | ".join(menu(text, language)) == titles


@pytest.mark.parametrize(("only", "titles"), ROWS["kinds"])
def test_menu_has_only_the_requested_kinds(only: str, titles: str) -> None:
    assert " | ".join(menu("$0# FILL\n# FILL\n", only=[only])) == titles


SURE = Calibrated(0.9)


class Answering:
    """Answers each request with the texts for it, in turn, the last ones again and again."""

    def __init__(self, *answers: str | tuple[str, ...], confidence: Confidence = SURE) -> None:
        self.confidence = confidence
        self.requests: list[InfillRequest] = []
        self._answers = [(answer,) if isinstance(answer, str) else answer for answer in answers]

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        self.requests.append(request)
        texts = self._answers[min(len(self.requests), len(self._answers)) - 1]
        return (Candidate(texts, self.confidence),)


def done(what: str, text: str, engine: Answering, language: str = "python") -> tuple[str, FillResult]:
    """Return the text after the action, and what it came to."""
    document, span = read(text, language)
    syntax = syntaxes.of(document)

    async def engine_for(group: tuple[Hole, ...]) -> Engine:
        return engine

    attempts = running.attempts(what, document, syntax, span)
    filling = fill.Filling(document, syntax, is_file=False, repairs=what == "repair")
    result = asyncio.run(fill.fill(attempts, filling, engine_for))
    return values.apply(document.text, result.edits), result


@pytest.mark.parametrize(
    ("confidence", "caution"),
    [
        (Calibrated(0.9), ""),
        (Calibrated(0.04), "best guess, 4 %"),
        (Ranked(0), ""),
        (Ranked(0, doubted=True), "best guess, doubted"),
    ],
)
def test_an_uncertain_fill_has_a_caution(confidence: Confidence, caution: str) -> None:
    engine = Answering("return a", confidence=confidence)
    _, result = done("body", "def f(a):\n    $0raise NotImplementedError\n", engine)
    assert result.caution(Threshold(0.15, n_best=1)) == caution
    assert bool(caution) is not is_sure(confidence, Threshold(0.15, n_best=1))


def test_several_holes_of_one_window_are_one_request() -> None:
    engine = Answering(("return 1", "return 2"))
    text, _ = done("all", "def f():\n    raise NotImplementedError$0\n\n\ndef g():\n    raise NotImplementedError\n", engine)
    assert text == "def f():\n    return 1\n\n\ndef g():\n    return 2\n"
    assert len(engine.requests) == 1


def test_holes_that_fail_together_are_retried_one_by_one() -> None:
    engine = Answering(("return (", "return 2"), "return (", "return 2")
    text, result = done(
        "all", "def f():\n    raise NotImplementedError$0\n\n\ndef g():\n    raise NotImplementedError\n", engine
    )
    assert text == "def f():\n    raise NotImplementedError\n\n\ndef g():\n    return 2\n"
    assert len(result.edits) == 1
    assert result.n_holes == 2
    assert result.reasons


def test_repair_keeps_only_answers_that_reduce_syntax_errors() -> None:
    text, _ = done("repair", "def f(:$0\n    return 1\n", Answering("):", "def f():\n    return 1"))
    document = Document("file:///a", "python", text)
    syntax = syntaxes.of(document)
    assert syntax is not None
    assert not syntax.errors
    _, result = done("repair", "x = (1$0\ny = 2\n", Answering("(("))
    assert result.edits == ()
    assert result.reasons


@pytest.mark.parametrize(("what", "text", "language", "answer", "expected"), ROWS["actions"])
def test_what_an_action_makes_of_an_answer(what: str, text: str, language: str, answer: str, expected: str) -> None:
    filled, result = done(what, text, Answering(answer), language)
    assert (filled, result.reasons) == (expected, ())


def test_an_action_without_a_hole_gives_a_reason() -> None:
    assert done("body", "x = 1$0\n", Answering("y"))[1].reasons == ("there is nothing to fill",)


def test_an_action_that_does_not_exist_is_refused() -> None:
    document, span = read("$0")
    with pytest.raises(ValueError, match="unknown action 'dance'"):
        running.attempts("dance", document, None, span)
