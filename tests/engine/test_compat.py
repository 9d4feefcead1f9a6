"""What other clients asked for and what they get, without an engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dg_lsp.core import polish, syntax
from dg_lsp.core.values import Calibrated, Candidate, Document
from dg_lsp.engine.serve import compat
from dg_lsp.engine.serve.compat import Outcome
from dg_lsp.wire.messages import Done, Fields, WireError
from tests.engine.test_guess import CODE, FOREIGN, cut

PREFIX = "def total(prices):\n    result = 0\n    for price in prices:\n        result += "
SUFFIX = "\n    return result\n"
# Of this only the first line is shown: the rest repeats what follows.
WRITTEN = "price\n    return result\n\n\ndef total(prices):\n"
LENGTHS = (5, 5, 7, 7, 3, 4, 6, len(WRITTEN) - 37)


def choice(candidate: Candidate, **more: object) -> dict[str, object]:
    """The one choice in OpenAI's answer to a request with these fields."""
    completion = compat.from_openai(Fields({"prompt": PREFIX, "suffix": SUFFIX, **more}))
    answer = compat.to_openai(completion, Outcome((candidate,), Done("finished")), {}, lambda text: (text,))
    choices = answer["choices"]
    assert isinstance(choices, list)
    return {**choices[0], "usage": answer["usage"]}


@pytest.mark.parametrize("lengths", [(LENGTHS,), ()], ids=["lengths", "no lengths"])
def test_max_tokens_counts_the_polished_tokens(lengths: tuple[tuple[int, ...], ...]) -> None:
    first_choice = choice(Candidate((WRITTEN,), Calibrated(0.5), (tuple([0.9] * len(LENGTHS)),), lengths=lengths), max_tokens=4)
    assert (first_choice["text"], first_choice["finish_reason"]) == ("price", "stop")
    usage = first_choice["usage"]
    assert isinstance(usage, dict)
    assert usage["completion_tokens"] == 1


def test_confidences_are_those_of_the_polished_tokens() -> None:
    chances = tuple(1 / (2 + idx) for idx in range(len(LENGTHS)))
    logs = choice(Candidate((WRITTEN,), Calibrated(0.5), (chances,), lengths=(LENGTHS,)), logprobs=1)["logprobs"]
    assert isinstance(logs, dict)
    assert logs["tokens"] == ["price"]
    assert logs["token_logprobs"] == pytest.approx([-0.6931], abs=1e-4)


@pytest.mark.parametrize(("value", "is_sent"), [(0, True), (5, True), (True, True), (False, False), (None, False)])
def test_logprobs_are_sent_only_on_request(value: object, is_sent: bool) -> None:
    assert compat.from_openai(Fields({"prompt": "", "logprobs": value})).logprobs is is_sent


@pytest.mark.parametrize("value", ["five", -3, 1.5, []])
def test_an_invalid_logprobs_value_is_named(value: object) -> None:
    with pytest.raises(WireError, match="logprobs must "):
        compat.from_openai(Fields({"prompt": "", "logprobs": value}))


def asked(kind: str, before: str, after: str) -> compat.CompletionRequest:
    """Return a request for the rest of a line in either shape."""
    if kind == "openai":
        return compat.from_openai(Fields({"prompt": before, "suffix": after}))
    return compat.from_llama(Fields({"input_prefix": before, "input_suffix": after}))


def text_of(completion: compat.CompletionRequest, answer_text: str) -> object:
    """What the client gets where the model wrote this."""
    answer = Outcome((Candidate((answer_text,), Calibrated(0.5)),), Done("finished"))
    if completion.ask.client == "llama.cpp":
        return compat.to_llama(completion, answer, "embedded")["content"]
    choices = compat.to_openai(completion, answer, {}, lambda text: (text,))["choices"]
    assert isinstance(choices, list)
    return choices[0]["text"]


# What ends the line at the cursor of the example, and what breaks it.
ENDS = {
    **dict.fromkeys(CODE, ("price;", "price * (1")),
    "tsx": ("const n = 1;", "const n = (1"),
    "php": ("$price;", "$price * (1"),
    "bash": ("price", "price))) (("),
    **dict.fromkeys(("python", "go", "ruby", "lua"), ("price", "price * (1")),
}


@pytest.mark.parametrize("kind", ["openai", "llama"])
@pytest.mark.parametrize("name", CODE)
def test_answers_are_polished_by_the_grammar_of_the_text(name: str, kind: str) -> None:
    before, after = cut(CODE[name])
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
@pytest.mark.parametrize("name", FOREIGN)
def test_answers_in_an_unknown_language_are_kept(name: str, kind: str) -> None:
    completion = asked(kind, *cut(FOREIGN[name]))
    assert completion.ask.request.language == ""
    assert text_of(completion, "price + * 1") == "price + * 1"


@pytest.mark.parametrize("answer_text", ["price", "price + )"])
def test_a_long_text_is_parsed_only_near_the_cursor(answer_text: str) -> None:
    before, after = cut(CODE["python"])
    other = f"{before}0{after}\n\n" * 600
    completion = asked("openai", other + before, f"{after}\n\n{other}")
    tree = compat._syntax(
        Document("", "python", completion.ask.request.prefix + completion.ask.request.suffix), len(other + before)
    )
    assert tree is not None
    assert 0 < len(tree.parsed) < 20_000 < len(tree.text)
    assert text_of(completion, answer_text) == ("price" if answer_text == "price" else "")


def test_the_best_useful_candidate_is_sent() -> None:
    before, after = cut(CODE["python"])
    candidates = tuple(Candidate((answer_text,), Calibrated(0.5)) for answer_text in ("price * (1", "price", "price + 1", "2"))
    for kind, n in (("openai", 1), ("openai", 2), ("llama", 1)):
        completion = replace(asked(kind, before, after), n=n)
        assert completion.ask.request.budget.candidates > 1
        choices = compat.to_openai(completion, Outcome(candidates, Done("finished")), {}, lambda text: (text,))["choices"]
        assert isinstance(choices, list)
        assert [each["text"] for each in choices] == ["price", "price + 1"][:n]


def test_the_paths_of_extra_files_help_to_guess_the_language() -> None:
    fields = {"input_prefix": "def total(prices):\n    return ", "input_extra": [{"filename": "shop.py", "text": "x = 1"}]}
    assert compat.from_llama(Fields(fields)).ask.request.language == "python"
    assert compat.from_llama(Fields({**fields, "input_extra": []})).ask.request.language == ""


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
