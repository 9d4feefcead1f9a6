"""The middle that a request with one hole asks for: which tokens it may have, and where it ends.

Knows sheets and token ids. Knows nothing of rows or tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from dg_lsp.core import repeats
from dg_lsp.core.values import Hole
from dg_lsp.engine.causal.layout import Sheet
from dg_lsp.engine.causal.passes import CausalLlama
from dg_lsp.engine.causal.profile import Profile
from dg_lsp.engine.common.laid_out import LaidOut
from dg_lsp.engine.common.layout import next_after_typed
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.common.propose.file_model import FileModel

AHEAD_WEIGHT = 0.9  # of the file's repetitions, which only predict what to read ahead
AHEAD_CHANCE = 0.02  # the least at which they do: up to 16 rows take hardly longer than one, whose pass reads all weights


class Middle(LaidOut):
    """A laid out request with one hole."""

    sheet: Sheet
    loaded: Loaded[CausalLlama, Profile]

    @property
    def hole(self) -> Hole:
        """The request's only hole."""
        return self.request.holes[0]

    @property
    def takes_lines(self) -> bool:
        """Whether a draft may have several lines.

        In an empty line it may if the model itself ends an answer there: in the layout that it was trained with.
        """
        return self.hole.block or (self.hole.several and self.loaded.profile.layout == "fim")

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end a draft."""
        return frozenset({self.sheet.end}) if self.sheet.end is not None else self.vocabulary.special

    @cached_property
    def line_ends(self) -> frozenset[int]:
        """The tokens that end a draft within a line."""
        return frozenset() if self.takes_lines else frozenset(self.vocabulary.with_newline)

    @property
    def most_tokens(self) -> int:
        """The longest draft."""
        profile = self.loaded.profile
        return self.switches.gap or (profile.block_tokens if self.takes_lines else profile.line_tokens)

    @property
    def wants_likeliest(self) -> bool:
        """Whether one answer is asked for, and nothing but its likelihood and copies decide which."""
        return self.request.budget.candidates == 1 and not (self.needed or self.hole.instruction)

    @property
    def wants_first(self) -> bool:
        """Whether the first draft and copies are enough: one answer is wanted, and how often such a draft is right is known."""
        return self.wants_likeliest and self.loaded.profile.draft_calibration is not None and self.switches.sure

    @property
    def banned(self) -> list[int]:
        """The tokens that no draft has."""
        return [token for token in self.control if token not in self.ends]

    @property
    def ahead(self) -> FileModel | None:
        """What the file repeats, which predicts tokens to read ahead."""
        return self.file_model(AHEAD_WEIGHT)

    def next_tokens(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens that may follow, because of what is already typed; empty means any."""
        return next_after_typed(self.vocabulary, self.sheet.heal, ids)

    def own_part(self, text: str) -> str:
        """Return the part of a draft that belongs to the hole: its line or lines, without a copy of the suffix."""
        text = repeats.before_suffix(text, self.request.suffix)
        return text if self.takes_lines else repeats.rest_of_line(text, self.request.suffix)
