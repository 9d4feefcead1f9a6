"""The generated language of the benchmark on lengths: its answers are determined, though their lengths look ambiguous."""

from __future__ import annotations

import re
from itertools import islice

import pytest

from dg_lsp.engine.model.vocabulary import Vocabulary
from tests.benchmarks.worlds import language, training
from tests.benchmarks.worlds.language import COUNTS, CYCLES, MAX_ANSWER, Hole

HOLES = {kind: list(islice(language.holes(7, kind), 400)) for kind in ("line", "block")}


def fillings(hole: Hole) -> set[str]:
    """All that can stand in a hole so that the whole counts as its declaration says."""
    bracket = "(" if hole.kind == "line" else "{"
    begin = max(match.end() for match in re.finditer(rf"^(?:=\d)?\{bracket}", hole.prefix, re.MULTILINE))
    end = min(match.start() for match in re.finditer(r"\.[A-P][)}](?:>\d)?;\n", hole.suffix))
    behind = re.match(r"...>(\d)", hole.suffix[end:])
    declaration = re.search(rf"#{behind[1] if behind else hole.prefix[begin - 2]}(.)(.)\n", hole.prefix)
    assert declaration
    cycle = next(index for index, letters in enumerate(CYCLES) if declaration[1] in letters)
    head, tail = hole.prefix[begin:], hole.suffix[: end + 2]
    possible = set()
    for n_letters in range(3, 45):
        body, last = language.counted(
            cycle, CYCLES[cycle].index(declaration[1]), COUNTS.index(declaration[2]), n_letters, hole.kind
        )
        whole = f"{body}.{last}"
        if whole.startswith(head) and whole.endswith(tail) and len(whole) > len(head) + len(tail):
            possible.add(whole[len(head) : len(whole) - len(tail)])
    return {filling for filling in possible if len(filling) <= MAX_ANSWER[hole.kind]}


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
