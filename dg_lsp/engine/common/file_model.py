"""Predict the next token from what the text around a hole repeats.

A small model knows little, but the file itself contains its own names and repeated phrases. If the last tokens occurred before
in the file, the token after them is a prediction. Its weight grows with the length of the match (cache models: Grave et al.,
arXiv 1612.04426). The weight by match length is fitted on files of the training packages. Knows token ids alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_MATCH = 16
MAX_PLACES = 96
NO_TOKEN = -1  # separates the two sides of the hole, and files
OUTSIDE = -2


@dataclass(frozen=True, slots=True)
class Guess:
    """The tokens after the matches with their shares, and their weight beside the model."""

    shares: dict[int, float]
    weight: float


NOTHING = Guess({}, 0.0)


class FileModel:
    """The tokens of one file around the hole and of `related` files, searchable by the tokens before them."""

    def __init__(
        self,
        before: Sequence[int],
        after: Sequence[int],
        *,
        related: Sequence[Sequence[int]] = (),
        full: float = 0.5,
        half_at: float = 4.0,
    ) -> None:
        self._before = tuple(before[-MAX_MATCH:])
        # Separators prevent matches across the hole or across files. The file itself comes last, because later places win.
        others = [token for text in related for token in (*text, NO_TOKEN)]
        self._ids = np.array([*[OUTSIDE] * MAX_MATCH, *others, *before, NO_TOKEN, *after], dtype=np.int64)
        self._full, self._half_at = full, half_at
        self._places: dict[int, NDArray[np.int64]] = {}
        self._guesses: dict[tuple[int, ...], Guess] = {}

    def guess(self, gap_ids: Sequence[int]) -> Guess:
        """Return a guess of the next token, after the text before the hole and the tokens written in it."""
        tail = (*self._before, *gap_ids)[-MAX_MATCH:]
        if not tail:
            return NOTHING
        if (known := self._guesses.get(tail)) is not None:
            return known
        places = self._places.get(tail[-1])
        if places is None:  # the last places of the token that have a next token, latest first
            places = np.flatnonzero(self._ids[:-1] == tail[-1])
            places = self._places[tail[-1]] = places[self._ids[places + 1] != NO_TOKEN][-MAX_PLACES:][::-1]
        guess = NOTHING
        if len(places):
            # The length of each place's agreement with the tail, backwards from its last token.
            stretches = self._ids[places[:, None] - np.arange(len(tail))]
            lengths = np.logical_and.accumulate(stretches == np.array(tail[::-1]), axis=1).sum(axis=1)
            best = int(lengths.max())
            counts: dict[int, float] = defaultdict(float)
            for length, token in zip(lengths.tolist(), self._ids[places + 1].tolist(), strict=True):
                # Shorter matches count too; each missing token divides the weight by four.
                counts[token] += 4.0 ** (length - best)
            total = sum(counts.values())
            weight = self._full * best / (best + self._half_at) * (max(counts.values()) / total)
            guess = Guess({token: count / total for token, count in counts.items()}, weight)
        self._guesses[tail] = guess
        return guess

    def continuation(self, gap_ids: Sequence[int], *, most: int, least_chance: float, stops: Collection[int]) -> list[int]:
        """Return at most `most` next tokens, as long as their joint weight is at least `least_chance`."""
        ahead: list[int] = []
        chance = 1.0
        while len(ahead) < most:
            guess = self.guess([*gap_ids, *ahead])
            chance *= guess.weight
            if chance < least_chance:
                break
            ahead.append(max(guess.shares, key=guess.shares.__getitem__))
            if ahead[-1] in stops:
                break
        return ahead
