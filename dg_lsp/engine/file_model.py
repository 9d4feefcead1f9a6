"""What a file's own text says comes next: a cache of its token runs, mixed into the causal model.

A small model has seen little, the file at hand says much: names that only it uses, phrases that it repeats. Where the
last tokens stood in the file before, what followed them there is a prediction whose worth grows with the length of
the match (cache models: Grave et al., arXiv 1612.04426; the weight by match length is fitted on files of the training
packages). Knows token ids. Knows nothing of tensors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

MAX_MATCH = 16
MAX_PLACES = 96


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that followed the longest match with their shares, and the weight that they deserve beside the model."""

    shares: dict[int, float]
    weight: float


class FileModel:
    """The tokens of one file, around the hole, by what stands before them."""

    def __init__(self, before: Sequence[int], after: Sequence[int], *, full: float = 0.5, half_at: float = 4.0) -> None:
        # A token that is no token parts the two sides: nothing follows across the hole.
        self._ids = [*before, -1, *after]
        self._gap = len(before)
        self._full, self._half_at = full, half_at
        self._places: dict[int, list[int]] = defaultdict(list)
        for place, token in enumerate(self._ids[:-1]):
            if place + 1 != self._gap and place != self._gap:
                self._places[token].append(place)

    def guess(self, written: Sequence[int]) -> Guess:
        """Return what may come after the text before the hole and the tokens written so far."""
        tail = [*self._ids[max(0, self._gap - MAX_MATCH) : self._gap], *written][-MAX_MATCH:]
        if not tail:
            return Guess({}, 0.0)
        best, lengths = 0, []
        for place in reversed(self._places.get(tail[-1], ())[-MAX_PLACES:]):
            length = 1
            while length < len(tail) and place - length >= 0 and self._ids[place - length] == tail[-1 - length]:
                length += 1
            lengths.append((length, self._ids[place + 1]))
            best = max(best, length)
        if not best:
            return Guess({}, 0.0)
        counts: dict[int, float] = defaultdict(float)
        for length, token in lengths:
            # Shorter matches still count, each token of match less to a fourth of the weight.
            counts[token] += 4.0 ** (length - best)
        total = sum(counts.values())
        certainty = max(counts.values()) / total
        weight = self._full * best / (best + self._half_at) * certainty
        return Guess({token: count / total for token, count in counts.items()}, weight)
