"""What other clients asked for and what they get, without an engine."""

from __future__ import annotations

import pytest

from dg_lsp.core.values import Candidate
from dg_lsp.engine import compat
from dg_lsp.engine.compat import Answer
from dg_lsp.wire.fields import Fields, WireError
from dg_lsp.wire.messages import Done

PREFIX = "def total(prices):\n    result = 0\n    for price in prices:\n        result += "
SUFFIX = "\n    return result\n"
# Of this only the first line is shown: the rest repeats what follows.
WRITTEN = "price\n    return result\n\n\ndef total(prices):\n"
LENGTHS = (5, 5, 7, 7, 3, 4, 6, len(WRITTEN) - 37)


def choice(candidate: Candidate, **more: object) -> dict[str, object]:
    """The one choice in OpenAI's answer to a request with these fields."""
    wish = compat.from_openai(Fields({"prompt": PREFIX, "suffix": SUFFIX, **more}))
    told = compat.to_openai(wish, Answer((candidate,), Done()), {}, lambda text: (text,))
    choices = told["choices"]
    assert isinstance(choices, list)
    return {**choices[0], "usage": told["usage"]}


@pytest.mark.parametrize("lengths", [(LENGTHS,), ()], ids=["lengths", "no lengths"])
def test_a_limit_counts_the_tokens_that_are_shown(lengths: tuple[tuple[int, ...], ...]) -> None:
    made = choice(Candidate((WRITTEN,), 0.5, (tuple([0.9] * len(LENGTHS)),), lengths=lengths), max_tokens=4)
    assert (made["text"], made["finish_reason"]) == ("price", "stop")
    usage = made["usage"]
    assert isinstance(usage, dict)
    assert usage["completion_tokens"] == 1


def test_the_chances_are_those_of_the_tokens_that_are_shown() -> None:
    chances = tuple(1 / (2 + idx) for idx in range(len(LENGTHS)))
    logs = choice(Candidate((WRITTEN,), 0.5, (chances,), lengths=(LENGTHS,)), logprobs=1)["logprobs"]
    assert isinstance(logs, dict)
    assert logs["tokens"] == ["price"]
    assert logs["token_logprobs"] == pytest.approx([-0.6931], abs=1e-4)


@pytest.mark.parametrize(("sent", "wanted"), [(0, True), (5, True), (True, True), (False, False), (None, False)])
def test_chances_are_told_to_those_who_ask(sent: object, wanted: bool) -> None:
    assert compat.from_openai(Fields({"prompt": "", "logprobs": sent})).logprobs is wanted


@pytest.mark.parametrize("sent", ["five", -3, 1.5, []])
def test_a_number_of_chances_that_is_none_is_named(sent: object) -> None:
    with pytest.raises(WireError, match="logprobs must "):
        compat.from_openai(Fields({"prompt": "", "logprobs": sent}))
