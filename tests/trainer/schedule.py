"""Schedule a training run by the tokens it has seen: stages, learning rates, window lengths, batch sizes.

The schedule counts tokens, not minutes, so that a run at low priority or on another machine takes the same path. This
module knows only numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

WARM_STEPS = 100  # of a stage
WARM_LEG_STEPS = 10  # of a run that continues, whose optimizers are restored
MIXED_RATE = 0.6  # a fraction of the causal stage's rate
LAST_RATE = 0.02  # a fraction of the full rate, at the end of the cool-down


@dataclass(slots=True)
class Progress:
    """The progress of a run: tokens and steps of each stage, and minutes of work over all legs."""

    causal_tokens: int = 0
    mixed_tokens: int = 0
    causal_steps: int = 0
    mixed_steps: int = 0
    minutes: float = 0.0

    @property
    def tokens(self) -> int:
        """The number of tokens seen in both stages."""
        return self.causal_tokens + self.mixed_tokens


@dataclass(frozen=True, slots=True)
class Schedule:
    """What to do at each number of tokens. The rate is constant until `cool_tokens` before the end, then falls linearly.

    Every `grow_tokens` tokens, a step takes one more part, up to `parts`. A step of the mixed stage has at least two.
    """

    causal_tokens: int = 100_000_000
    mixed_tokens: int = 25_000_000
    cool_tokens: int = 8_000_000
    long_share: float = 0.15  # the fraction of causal tokens read in long windows
    late_long_share: float = 0.5  # the same in the last third of the causal stage
    parts: int = 4
    grow_tokens: int = 8_000_000
    self_conditioning_from: float = 0.4  # the fraction of the mixed stage after which self-conditioning starts

    def is_causal(self, progress: Progress) -> bool:
        """Return whether the run is in the causal stage."""
        return progress.causal_tokens < self.causal_tokens

    def is_done(self, progress: Progress) -> bool:
        """Return whether both stages are over."""
        return not self.is_causal(progress) and progress.mixed_tokens >= self.mixed_tokens

    def rate(self, progress: Progress, leg_steps: int) -> float:
        """Return the learning rate as a fraction of the full rate. It warms up in every stage, and briefly in every leg."""
        causal = self.is_causal(progress)
        steps = progress.causal_steps if causal else progress.mixed_steps
        warm = min(1.0, (steps + 1) / WARM_STEPS, (leg_steps + 1) / WARM_LEG_STEPS)
        left = max(self.causal_tokens - progress.causal_tokens, 0) + self.mixed_tokens - progress.mixed_tokens
        cool = min(1.0, max(LAST_RATE, left / max(self.cool_tokens, 1)))
        return (1.0 if causal else MIXED_RATE) * warm * cool

    def long_windows(self, progress: Progress) -> float:
        """Return the current fraction of causal tokens to read in long windows."""
        late = progress.causal_tokens >= self.causal_tokens * 2 / 3
        return self.late_long_share if late else self.long_share

    def parts_of_step(self, progress: Progress) -> tuple[bool, ...]:
        """Return the parts whose gradients a step adds up: true for causal windows, false for canvases.

        Batches grow as the loss falls. In the mixed stage one part has canvases and all others have causal windows, at least
        one of them: with none, the causal pass got worse, and with three, it and the canvases were better than with one
        (docs/decisions/0002).
        """
        parts = min(self.parts, 1 + progress.tokens // max(self.grow_tokens, 1))
        return (True,) * parts if self.is_causal(progress) else (False, *[True] * max(1, parts - 1))

    def is_conditioned(self, progress: Progress) -> bool:
        """Return whether canvases may be conditioned by a first pass."""
        return progress.mixed_tokens >= self.mixed_tokens * self.self_conditioning_from
