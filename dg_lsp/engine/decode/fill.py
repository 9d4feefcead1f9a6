"""The constant input of a fill: the part of a request for one canvas, which every stage reads and none changes.

Knows requests, layouts and token ids. Knows nothing of rows or tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dg_lsp.core import calibration, placeholders, repeats
from dg_lsp.core.calibration import Calibration, HolePosition
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.decode import layout
from dg_lsp.engine.decode.layout import Sheet
from dg_lsp.engine.model.family import Family
from dg_lsp.engine.model.loading import Loaded
from dg_lsp.engine.model.profile import Profile
from dg_lsp.engine.model.vocabulary import Vocabulary


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
    special, pieces = loaded.vocabulary.special, loaded.vocabulary.pieces
    n_logits = loaded.passes.n_vocabulary
    regular = tuple(token for token, piece in enumerate(pieces) if piece and token not in special)
    return GapTokens(regular, (*special, *range(loaded.vocabulary.size, n_logits)), n_logits)


@dataclass(frozen=True, slots=True)
class FillInput:
    """The part of a request for one canvas: its text, its tokens, the model that fills it and the enabled parts."""

    request: InfillRequest
    sheet: Sheet
    loaded: Loaded
    tokens: GapTokens
    switches: Switches
    calibration: Calibration | None = None

    @property
    def profile(self) -> Profile:
        """The checkpoint's settings."""
        return self.loaded.profile

    @property
    def vocabulary(self) -> Vocabulary:
        """The checkpoint's vocabulary."""
        return self.loaded.vocabulary

    @property
    def passes(self) -> Family:
        """The model's two passes."""
        return self.loaded.passes

    @property
    def proposers(self) -> tuple[str, ...]:
        """The names of the proposers for this kind of hole, in their order."""
        return self.profile.block if self.is_block else self.profile.line

    @property
    def is_whole(self) -> bool:
        """Whether the canvas is the whole text, so that nothing is encoded before it."""
        return not self.sheet.kv

    @property
    def n_holes(self) -> int:
        """The number of holes on the canvas."""
        return len(self.request.holes)

    @property
    def is_block(self) -> bool:
        """Whether any hole may contain several lines."""
        return any(hole.block for hole in self.request.holes)

    @property
    def needed(self) -> tuple[str, ...]:
        """The names that only the answer can bind, for a model that drafts whole lines and knows what names mean."""
        is_one = self.n_holes == 1 and self.sheet.heals_by_parts and self.switches.needed
        return self.request.holes[0].needed if is_one else ()

    @property
    def position(self) -> HolePosition:
        """The hole's position, which the ranking distinguishes."""
        return calibration.position(self.request)

    @property
    def heal_text(self) -> str:
        """The characters of the first gap's first token that are already typed."""
        return self.sheet.heal.decode("utf-8", "ignore")

    @property
    def delete(self) -> int | None:
        """The token that shrinks a gap, or None if the checkpoint has none or it is disabled."""
        return self.sheet.delete if self.switches.delete else None

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
        is_body = self.request.holes[0].kind in ("body", "marker")
        return placeholders.says_nothing(text) if is_body else not text.strip()

    @property
    def tail(self) -> tuple[int, ...]:
        """The held tokens after the last gap."""
        return self.sheet.tail if self.switches.held_suffix else ()

    def gap_lengths(self) -> tuple[int, ...]:
        """Return the gap lengths to try: the profile's lengths that fit the canvas."""
        if self.switches.gap:
            return (self.switches.gap,)
        lengths = self.profile.block_gaps if self.is_block else self.profile.line_gaps
        fitting = tuple(length for length in lengths if length <= self.longest_gap)
        return fitting or (max(self.longest_gap, 1),)

    @property
    def may_go_on(self) -> bool:
        """Whether an answer may take several canvases: for a single block without a fixed gap length."""
        is_whole_block = self.n_holes == 1 and self.is_block and not self.switches.gap
        return is_whole_block and self.switches.noise and self.profile.max_canvases > 1

    @property
    def longest_gap(self) -> int:
        """The most positions of the canvas for each gap."""
        fixed = len(self.sheet.tail) + sum(map(len, self.sheet.between))
        return (self.profile.canvas_tokens - fixed) // self.n_holes
