"""The constant input of a fill: the part of a request for one canvas, which every stage reads and none changes.

It includes what the file repeats. A small model knows little, but the file itself contains its own names and repeated phrases.
If the last tokens occurred before in the file, the token after them is a prediction. Its weight grows with the length of the
match (cache models: Grave et al., arXiv 1612.04426). The weight by match length is fitted on files of the training packages.
Knows requests, layouts and token ids. Knows nothing of rows or tensors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dg_lsp.core import calibration, placeholders, repeats
from dg_lsp.core.calibration import Calibration
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.decode import layout
from dg_lsp.engine.decode.layout import Sheet
from dg_lsp.engine.model.loading import Loaded

MAX_MATCH = 16
MAX_PLACES = 96
NO_TOKEN = -1  # separates the two sides of the hole, and files
OUTSIDE = -2


@dataclass(frozen=True, slots=True)
class Switches:
    """The parts of a fill that a benchmark can disable to measure their effect."""

    held_suffix: bool = True
    conditioning: bool = True
    copy: bool = True
    causal: bool = True
    file: bool = True
    noise: bool = True
    delete: bool = True
    scorer: bool = True
    needed: bool = True
    gap: int = 0  # a fixed gap length, such as an oracle's; 0: the profile's lengths


@dataclass(frozen=True, slots=True)
class GapTokens:
    """The tokens of a gap: `regular` ones are drawn as noise, `unwritable` ones are never written.

    `n_logits` is the number of the model's logits, which may exceed the number of the tokenizer's tokens.
    """

    regular: tuple[int, ...]
    unwritable: tuple[int, ...]
    n_logits: int


def gap_tokens(loaded: Loaded) -> GapTokens:
    """Return the tokens that a model's gaps may contain."""
    vocabulary, n_logits = loaded.vocabulary, loaded.passes.n_vocabulary
    return GapTokens(vocabulary.regular, (*vocabulary.special, *range(vocabulary.size, n_logits)), n_logits)


class FillInput:
    """The part of a request for one canvas: its text, its tokens, the model that fills it and the enabled parts.

    Its attributes are what proposers, scorer and ranker need. They are derived once, because a fill reads them at every token.

    `heal_text` are the characters of the first gap's first token that are already typed, and `tail` the held tokens after the
    last gap. `delete` is the token that shrinks a gap, or None if the checkpoint has none or it is disabled. A row has at most
    `n_steps`, and the canvas at most `longest_gap` positions for each gap. `needed` are the names that only the answer can
    bind, for a model that drafts whole lines and knows what names mean. A draft ends with one of the tokens `ends`, or of
    `line_ends` within a line.

    Drafts are copied from `prefix`, `suffix` and the `related` texts. For a body these have no placeholders: a file with many
    holes repeats its placeholders, so they would be what most drafts of a body say, and all such drafts are useless.
    """

    def __init__(
        self,
        request: InfillRequest,
        sheet: Sheet,
        loaded: Loaded,
        tokens: GapTokens,
        switches: Switches,
        weights: Calibration | None = None,
    ) -> None:
        """Set all attributes, which never change; `weights` is the current calibration."""
        self.request, self.sheet, self.loaded, self.tokens, self.switches = request, sheet, loaded, tokens, switches
        self.profile, self.vocabulary, self.passes, self.calibration = loaded.profile, loaded.vocabulary, loaded.passes, weights
        self.n_holes, self.position = len(request.holes), calibration.position(request)
        self.is_block = any(hole.block for hole in request.holes)
        sampling = self.profile.sampling
        self.n_steps = request.budget.steps or (sampling.block_steps if self.is_block else sampling.line_steps)
        self.is_body = request.holes[0].kind in ("body", "marker")
        self.heal_text = sheet.heal.decode("utf-8", "ignore")
        self.tail = sheet.tail if switches.held_suffix else ()
        self.delete = sheet.delete if switches.delete else None
        n_fixed = len(sheet.tail) + sum(map(len, sheet.between))
        self.longest_gap = (self.profile.canvas_tokens - n_fixed) // self.n_holes
        self.ends = frozenset({sheet.end}) if sheet.end is not None else loaded.vocabulary.special
        self.line_ends = frozenset[int]() if self.is_block else frozenset(loaded.vocabulary.with_newline)
        needs_names = self.n_holes == 1 and sheet.heals_by_parts and switches.needed
        self.needed = request.holes[0].needed if needs_names else ()
        sources = (request.prefix, request.suffix, *(snippet.text for snippet in request.related))
        self.prefix, self.suffix, *self.related = map(placeholders.removed, sources) if self.is_body else sources

    def next_tokens(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens that may follow in the first gap, because of what is already typed; empty means any."""
        heal = self.sheet.heal
        if not self.sheet.heals_by_parts:
            return () if ids else layout.allowed(self.vocabulary, heal, by_parts=False)
        n_written = len(self.vocabulary.bytes_of(ids)) if ids else 0
        if ids and n_written == len(heal) and heal[-1:] in (b" ", b"\t"):
            return self.vocabulary.without_blank_start  # typed white space, such as an indentation, is not made longer
        return layout.allowed(self.vocabulary, heal[n_written:], by_parts=True)

    def banned_tokens(self) -> tuple[int, ...]:
        """Return the tokens that a gap never contains: control tokens, and line ends unless the gap may write them."""
        banned = tuple(token for token in self.tokens.unwritable if token != self.delete)
        return banned if self.is_block or self.profile.line_ends else banned + self.vocabulary.with_newline

    def of_canvas(self, text: str, hole_idx: int) -> str:
        """Return the part of a canvas's text for a hole: its line, or the text before the suffix if no suffix is held."""
        hole, request = self.request.holes[hole_idx], self.request
        if not self.profile.line_ends:
            return text
        if not hole.block:
            return repeats.rest_of_line(text, (*request.between, request.suffix)[hole_idx])
        is_open = hole_idx == self.n_holes - 1 and not self.tail
        return repeats.before_suffix(text, request.suffix) if is_open else text

    def of_draft(self, text: str) -> str:
        """Return the part of a draft for the only hole: its line or lines, without a copy of the suffix."""
        if not self.profile.line_ends:
            return text
        text = repeats.before_suffix(text, self.request.suffix)
        return text if self.is_block else repeats.rest_of_line(text, self.request.suffix)

    def says_nothing(self, text: str) -> bool:
        """Return whether a text is blank, or no body where a body is asked for."""
        return placeholders.says_nothing(text) if self.is_body else not text.strip()

    def gap_lengths(self) -> tuple[int, ...]:
        """Return the gap lengths to try: the profile's lengths that fit the canvas."""
        if self.switches.gap:
            return (self.switches.gap,)
        lengths = self.profile.block_gaps if self.is_block else self.profile.line_gaps
        fitting = tuple(length for length in lengths if length <= self.longest_gap)
        return fitting or (max(self.longest_gap, 1),)

    def file_model(self, weight: float) -> FileModel | None:
        """Return the model of the text around the hole, with this weight beside the causal model; None if it has none.

        Healed tokens are omitted, because the gap writes them.
        """
        if self.n_holes > 1 or not weight or not self.switches.file:
            return None
        profile, encode = self.profile, self.vocabulary.encode
        before = encode(self.prefix[-profile.file_chars :])
        return FileModel(
            before[: len(before) - len(self.sheet.heal_ids)],
            encode(self.suffix[: profile.file_chars]),
            related=[encode(text) for text in reversed(self.related)],
            full=weight,
            half_at=profile.file_half_at,
        )


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
