"""What other clients asked for and what they get, without an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dg_lsp.core import languages, polish, syntax
from dg_lsp.core.values import Calibrated, Candidate, Document
from dg_lsp.engine.serve import compat
from dg_lsp.wire.messages import Done, Fields
from tests import marked

CODE = marked.drawings(Path(__file__).parent / "prompts" / "code.txt")  # a function in each language, with a cursor in it
PREFIX = "def total(prices):\n    result = 0\n    for price in prices:\n        result += "
SUFFIX = "\n    return result\n"
# Of this only the first line is shown: the rest repeats what follows.
WRITTEN = "price\n    return result\n\n\ndef total(prices):\n"
LENGTHS = (5, 5, 7, 7, 3, 4, 6, len(WRITTEN) - 37)


def choices(completion: compat.CompletionRequest, *candidates: Candidate) -> list[dict[str, object]]:
    """The choices of OpenAI's answer."""
    [answer] = compat.answers(completion, candidates, Done("finished"), {"model": "embedded"})
    assert isinstance(answer["choices"], list)
    return answer["choices"]


@pytest.mark.parametrize("lengths", [(LENGTHS,), ()], ids=["lengths", "no lengths"])
def test_max_tokens_counts_the_polished_tokens(lengths: tuple[tuple[int, ...], ...]) -> None:
    completion = compat.from_openai(Fields({"prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 4}))
    candidate = Candidate((WRITTEN,), Calibrated(0.5), (tuple([0.9] * len(LENGTHS)),), lengths=lengths)
    [answer] = compat.answers(completion, [candidate], Done("finished"), {})
    assert choices(completion, candidate) == [{"index": 0, "text": "price", "finish_reason": "stop", "logprobs": None}]
    assert isinstance(answer["usage"], dict)
    assert answer["usage"]["completion_tokens"] == 1


def example(name: str) -> tuple[str, str]:
    """Return the text on both sides of the cursor in a language's example, which declares the language."""
    before, _, after = CODE[name].partition("$0")
    return f"{languages.row(name).line_comments[0]} language: {name}\n{before}", after


def asked(kind: str, before: str, after: str) -> compat.CompletionRequest:
    """Return a request for the rest of a line in either shape."""
    if kind == "openai":
        return compat.from_openai(Fields({"prompt": before, "suffix": after}))
    return compat.from_llama(Fields({"input_prefix": before, "input_suffix": after}))


def text_of(completion: compat.CompletionRequest, answer_text: str) -> object:
    """What the client gets where the model wrote this."""
    candidate = Candidate((answer_text,), Calibrated(0.5))
    if completion.ask.client == "llama.cpp":
        return compat.answers(completion, [candidate], Done("finished"), {"model": "embedded"})[0]["content"]
    return choices(completion, candidate)[0]["text"]


# What ends the line at the cursor of the example, and what breaks it.
ENDS = {
    **dict.fromkeys(CODE, ("price;", "price * (1")),
    "tsx": ("const n = 1;", "const n = (1"),
    "php": ("$price;", "$price * (1"),
    **dict.fromkeys(("python", "go", "ruby", "lua", "bash"), ("price", "price * (1")),
}


@pytest.mark.parametrize("kind", ["openai", "llama"])
@pytest.mark.parametrize("name", CODE)
def test_answers_are_polished_by_the_grammar_of_the_text(name: str, kind: str) -> None:
    before, after = example(name)
    completion = asked(kind, before, after)
    request = completion.ask.request
    assert request.language == name
    for answer_text in ENDS[name]:
        document = Document("", name, before + after)
        polished = polish.to_edits(
            Candidate((answer_text,), Calibrated(0.5)), request.holes, document, syntax=syntax.of(document)
        )
        assert text_of(completion, answer_text) == "".join(edit.text for edit in polished.edits)
    assert [text_of(completion, answer_text) for answer_text in ENDS[name]] == [ENDS[name][0], ""]


@pytest.mark.parametrize("kind", ["openai", "llama"])
@pytest.mark.parametrize("before", ["def total(prices):\n    price = ", "# language: cobol\n    MOVE "])
def test_answers_in_an_unknown_language_are_kept(before: str, kind: str) -> None:
    completion = asked(kind, before, "\n")
    assert completion.ask.request.language == ""
    assert text_of(completion, "price + * 1") == "price + * 1"


def test_the_best_useful_candidate_is_sent() -> None:
    before, after = example("python")
    candidates = tuple(Candidate((answer_text,), Calibrated(0.5)) for answer_text in ("price * (1", "price", "price + 1", "2"))
    for kind, n in (("openai", 1), ("openai", 2), ("llama", 1)):
        completion = replace(asked(kind, before, after), n=n)
        assert completion.ask.request.budget.candidates > 1
        expected = ["price", "price + 1"][:n]
        if kind == "openai":
            assert [each["text"] for each in choices(completion, *candidates)] == expected
        else:
            [body] = compat.answers(completion, candidates, Done("finished"), {"model": "embedded"})
            assert [body["content"]] == expected


INDENTED = {
    "python": ("def total(items):\n", "    return sum(items)\n", "check(items)", "    check(items)\n"),
    "ruby": ("def total(items)\n  n = 0\n  items.each do |item|\n", "    puts item\n  end\nend\n", "n += 1", "    n += 1\n"),
    "typescript": ("interface Item {\n  name: string;\n", "  price: number;\n}\n", "size: number;", "  size: number;\n"),
    "bash": ("add() {\n  local price=$1\n", '  echo "$price"\n}\n', "price=2", "  price=2\n"),
    "crlf": ("def total(items):\r\n", "    return sum(items)\r\n", "check(items)", "    check(items)\r\n"),
    "none": ("on:\n  push:\n", "    branches: [main]\n", "tags: [v1]", "    tags: [v1]\n"),
}


@pytest.mark.parametrize("kind", ["openai", "llama"])
@pytest.mark.parametrize("name", INDENTED)
def test_before_the_code_of_a_line_an_answer_is_a_line_of_its_own(name: str, kind: str) -> None:
    before, after, written, expected = INDENTED[name]
    completion = asked(kind, before, after)
    assert completion.ask.request.suffix.startswith("\n")
    assert text_of(completion, written) == expected


@pytest.mark.parametrize("more", [{"stop": ["\n"]}, {"max_tokens": 2}])
def test_a_truncated_answer_never_joins_the_line_after_it(more: dict[str, object]) -> None:
    before, after, written, _ = INDENTED["python"]
    completion = compat.from_openai(Fields({"prompt": before, "suffix": after, **more}))
    assert text_of(completion, written) == ""
