"""The part of a request for one canvas: its text, its tokens, and the gaps that it leaves open.

Every stage reads it, and none changes it. Knows requests, layouts and token ids. Knows nothing of rows or tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from dg_lsp.core import extent, place
from dg_lsp.engine.common.inputs import RequestInputs
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.layout import Prompt
from dg_lsp.engine.diffusion.profile import Profile


class CanvasRequest(RequestInputs):
    """The laid out part of a request for one canvas."""

    prompt: Prompt
    loaded: Loaded[Passes, Profile]

    @property
    def profile(self) -> Profile:
        """The model's settings."""
        return self.loaded.profile

    @property
    def may_exceed(self) -> bool:  # type: ignore[override]
        """Whether what the model writes may have more than the hole's part."""
        return self.profile.line_ends

    @property
    def n_holes(self) -> int:
        """The number of holes, each with a gap of its own."""
        return len(self.request.holes)

    @property
    def n_logits(self) -> int:
        """The number of the model's logits, which may exceed the number of the tokenizer's tokens."""
        return self.loaded.passes.n_vocabulary

    @property
    def n_steps(self) -> int:
        """The maximum number of a row's steps."""
        sampling = self.profile.sampling
        return self.request.budget.steps or (sampling.block_steps if self.is_block else sampling.line_steps)

    @property
    def tail(self) -> tuple[int, ...]:
        """The held tokens after the last gap."""
        return self.prompt.tail

    @property
    def delete(self) -> int | None:
        """The token that shrinks a gap, or None if the checkpoint has none."""
        return self.prompt.delete

    @property
    def longest_gap(self) -> int:
        """The most positions of a gap."""
        n_fixed = len(self.prompt.tail) + sum(map(len, self.prompt.between))
        return (self.profile.canvas_tokens - n_fixed) // self.n_holes

    def next_tokens(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens that may follow in the first gap: one that starts with what is typed; empty means any."""
        return () if ids or not self.prompt.heal else self.vocabulary.starting_with(self.prompt.heal)

    def banned_tokens(self) -> tuple[int, ...]:
        """Return the tokens that a gap never contains: control tokens, and line ends unless the gap may write them."""
        banned = tuple(token for token in self.control if token != self.delete)
        return banned if self.is_block or self.profile.line_ends else banned + self.vocabulary.with_newline

    def of_canvas(self, text: str, hole_idx: int) -> str:
        """Return the part of a canvas's text for a hole: its line, or the text before the suffix if no suffix is held."""
        if not self.profile.line_ends:
            return text
        request, is_last = self.request, hole_idx == self.n_holes - 1
        here = place.between("", (*request.between, request.suffix)[hole_idx])
        bounds = extent.of(request.holes[hole_idx], here, request.language)
        return bounds.of_canvas(text, is_held=not is_last or bool(self.tail))

    def gap_lengths(self) -> tuple[int, ...]:
        """Return the gap lengths to try: the profile's lengths that fit the canvas."""
        lengths = self.profile.block_gaps if self.is_block else self.profile.line_gaps
        fitting = tuple(length for length in lengths if length <= self.longest_gap)
        return fitting or (max(self.longest_gap, 1),)
