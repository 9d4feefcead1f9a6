"""One canvas's worth of a request as a value: what every stage of a fill reads and none of them changes.

Knows requests, layouts and token ids. Knows nothing of rows or tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine import calibration, layout
from dg_lsp.engine.calibration import Calibration, HolePosition
from dg_lsp.engine.layout import Sheet
from dg_lsp.engine.model import Loaded
from dg_lsp.engine.passes import Passes
from dg_lsp.engine.profile import Profile
from dg_lsp.engine.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Switches:
    """Parts that a benchmark turns off to see what they are worth."""

    held_suffix: bool = True
    conditioning: bool = True
    copy: bool = True
    causal: bool = True
    file: bool = True
    noise: bool = True
    delete: bool = True
    scorer: bool = True
    gap: int = 0  # a fixed gap length, for an oracle's; 0: the profile's


@dataclass(frozen=True, slots=True)
class GapTokens:
    """Which tokens of a model a gap may hold: `regular` ones are drawn as noise, `unwritable` ones are never written.

    `n_logits` counts the model's logits, which may be more than its tokenizer has tokens.
    """

    regular: tuple[int, ...]
    unwritable: tuple[int, ...]
    n_logits: int


def gap_tokens(loaded: Loaded) -> GapTokens:
    """Return which tokens of a model a gap may hold."""
    special, pieces = loaded.vocabulary.special, loaded.vocabulary.pieces
    n_logits: int = loaded.passes.model.lm_head.weight.shape[0]
    regular = tuple(token for token, piece in enumerate(pieces) if piece and token not in special)
    return GapTokens(regular, (*special, *range(loaded.vocabulary.size, n_logits)), n_logits)


@dataclass(frozen=True, slots=True)
class Fill:
    """One canvas's worth of a request: its text, its tokens, the model that fills it and the parts in use."""

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
        """The checkpoint's tokens."""
        return self.loaded.vocabulary

    @property
    def passes(self) -> Passes:
        """The model's two passes."""
        return self.loaded.passes

    @property
    def n_holes(self) -> int:
        """How many holes the canvas has."""
        return len(self.request.holes)

    @property
    def is_block(self) -> bool:
        """Whether a hole may hold several lines."""
        return any(hole.block for hole in self.request.holes)

    @property
    def position(self) -> HolePosition:
        """Where the hole stands, as the ranking tells places apart."""
        return calibration.position(self.request)

    @property
    def heal_text(self) -> str:
        """The characters already typed of the first gap's first token."""
        return self.sheet.heal.decode("utf-8", "ignore")

    @property
    def delete(self) -> int | None:
        """The token that shrinks a gap, None where the checkpoint has none or it is switched off."""
        return self.sheet.delete if self.switches.delete else None

    def first_tokens(self) -> tuple[int, ...]:
        """Return the tokens that may begin the first gap; empty when any may."""
        return layout.allowed_first(self.vocabulary, self.sheet.heal)

    def banned_tokens(self) -> tuple[int, ...]:
        """Return the tokens a gap never holds: control tokens, and line ends where the hole ends with its line."""
        banned = tuple(token for token in self.tokens.unwritable if token != self.delete)
        return banned if self.is_block else banned + self.vocabulary.with_newline

    def gap_lengths(self) -> tuple[int, ...]:
        """Return the gap lengths to try: those of the profile that fit the canvas."""
        if self.switches.gap:
            return (self.switches.gap,)
        lengths = self.profile.block_gaps if self.is_block else self.profile.line_gaps
        n_free = self.profile.canvas_tokens - len(self.sheet.tail) - sum(map(len, self.sheet.between))
        fitting = tuple(length for length in lengths if length * self.n_holes <= n_free)
        return fitting or (max(n_free // self.n_holes, 1),)
