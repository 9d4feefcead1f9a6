"""How a training run advances with the tokens it has seen: stages, rates, window lengths, batch sizes.

Tokens, not minutes: a run at low priority, or on another machine, takes the same path. Knows numbers alone.
"""

from __future__ import annotations

from dataclasses import dataclass

WARM_STEPS = 100
MIXED_RATE = 0.6  # of the causal stage's
LAST_RATE = 0.02  # of the full rate, at the end of the cool-down


@dataclass(slots=True)
class Progress:
    """Where a run stands: tokens and steps of each stage, steps of this leg, and minutes of work over all legs."""

    causal_tokens: int = 0
    mixed_tokens: int = 0
    causal_steps: int = 0
    mixed_steps: int = 0
    minutes: float = 0.0

    @property
    def tokens(self) -> int:
        """All tokens seen."""
        return self.causal_tokens + self.mixed_tokens


@dataclass(frozen=True, slots=True)
class Schedule:
    """What to do at which token. The rate is constant until `cool_tokens` before the end, then falls linearly.

    `grow_tokens` is how many tokens pass until a step takes one more part, up to `parts`.
    """

    causal_tokens: int = 100_000_000
    mixed_tokens: int = 25_000_000
    cool_tokens: int = 8_000_000
    long_share: float = 0.15  # of the causal tokens are read in long windows
    late_long_share: float = 0.5  # the same in the last third of the causal stage
    parts: int = 4
    grow_tokens: int = 8_000_000
    self_conditioning_from: float = 0.4  # of the mixed stage

    def is_causal(self, progress: Progress) -> bool:
        """Return whether the causal stage still runs."""
        return progress.causal_tokens < self.causal_tokens

    def is_done(self, progress: Progress) -> bool:
        """Return whether both stages are over."""
        return not self.is_causal(progress) and progress.mixed_tokens >= self.mixed_tokens

    def rate(self, progress: Progress, leg_steps: int) -> float:
        """Return the learning rate as a share of the full one; every leg warms up anew, as a stage does."""
        causal = self.is_causal(progress)
        steps = min(leg_steps, progress.causal_steps if causal else progress.mixed_steps)
        left = max(self.causal_tokens - progress.causal_tokens, 0) + self.mixed_tokens - progress.mixed_tokens
        cool = min(1.0, max(LAST_RATE, left / max(self.cool_tokens, 1)))
        return (1.0 if causal else MIXED_RATE) * min(1.0, (steps + 1) / WARM_STEPS) * cool

    def long_windows(self, progress: Progress) -> float:
        """Return the share of causal tokens to read in long windows now."""
        late = progress.causal_tokens >= self.causal_tokens * 2 / 3
        return self.late_long_share if late else self.long_share

    def parts_per_step(self, progress: Progress) -> int:
        """Return how many parts one step adds up: batches grow as the loss falls."""
        return min(self.parts, 1 + progress.tokens // max(self.grow_tokens, 1))

    def is_conditioned(self, progress: Progress) -> bool:
        """Return whether canvases may be conditioned by a first pass."""
        return progress.mixed_tokens >= self.mixed_tokens * self.self_conditioning_from
