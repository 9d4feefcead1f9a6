"""The generated language of the benchmark on lengths: its answers are determined, though their lengths look ambiguous."""

from __future__ import annotations

import re
from itertools import islice

import numpy as np
import pytest

from dg_lsp.engine.vocabulary import Vocabulary
from dg_lsp.train.objective import DELETE, EOS, N_SPECIAL
from tests.benchmarks.worlds import language, training
from tests.benchmarks.worlds.language import CYCLES, Hole

HOLES = {kind: list(islice(language.holes(7, kind), 400)) for kind in ("line", "block")}


def fillings(hole: Hole) -> set[str]:
    """All texts that make the hole's place a text that counts as its declaration says."""
    opened, closed = ("(", ")") if hole.kind == "line" else ("{", "}")
    begin = max(match.end() for match in re.finditer(rf"^(?:\d=[A-Z])?\{opened}", hole.prefix, re.MULTILINE))
    name_before = hole.prefix[begin - 2]
    if hole.kind == "line":
        end = hole.suffix.index(closed)
    else:
        end = next(m.start() + m.group().rindex(closed) for m in re.finditer(r"(\d\}|\})([A-Z]>\d)?;\n(?=\d=|[({]|$)", hole.suffix))
    behind = re.match(r"([A-Z])>", hole.suffix[end + 1 :])
    name = behind[1] if behind else name_before
    letter, number = re.search(rf"#{name} (.)(\d);", hole.prefix).groups()  # type: ignore[union-attr]
    cycle = next(index for index, letters in enumerate(CYCLES) if letter in letters)
    left, right = hole.prefix[begin:], hole.suffix[:end]
    found = set()
    for n_letters in range(4, 45):
        body, last = language.counted(cycle, CYCLES[cycle].index(letter), int(number), n_letters, hole.kind)
        whole = f"{body}{last}"
        if whole.startswith(left) and whole.endswith(right) and len(whole) > len(left) + len(right):
            found.add(whole[len(left) : len(whole) - len(right)])
    return found


@pytest.mark.parametrize("kind", ["line", "block"])
def test_every_hole_has_one_filling(kind: str) -> None:
    for hole in HOLES[kind]:
        assert fillings(hole) == {hole.answer}


@pytest.mark.parametrize(("kind", "longest"), [("line", 40), ("block", 64)])
def test_answers_have_many_lengths(kind: str, longest: int) -> None:
    lengths = {len(hole.answer) for hole in HOLES[kind]}
    assert len(lengths) >= 32
    assert min(lengths) == 1
    assert max(lengths) <= longest


@pytest.mark.parametrize("kind", ["line", "block"])
def test_heads_recur_and_lengths_look_ambiguous(kind: str) -> None:
    assert sum(hole.recurring for hole in HOLES[kind]) > 40
    assert sum(hole.ambiguous for hole in HOLES[kind]) > 120


def test_one_seed_yields_the_same_holes() -> None:
    assert list(islice(language.holes(3), 20)) == list(islice(language.holes(3), 20))


def test_a_token_is_a_character() -> None:
    vocabulary, text = Vocabulary(training.tokenizer()), language.ALPHABET
    assert vocabulary.encode(text) == training.encode(text)
    assert vocabulary.decode(training.encode(text)) == text
