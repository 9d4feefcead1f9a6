"""The middle that a request with one hole asks for: which tokens it may have, and where it ends.

Knows prompts and token ids. Knows nothing of rows or tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from dg_lsp.core.calibration import Calibration
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.causal.layout import Prompt
from dg_lsp.engine.causal.passes import CausalLlama
from dg_lsp.engine.causal.profile import Profile
from dg_lsp.engine.common.inputs import RequestInputs
from dg_lsp.engine.common.layout import next_after_typed
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.common.propose.file_model import FileModel

AHEAD_WEIGHT = 0.9  # of the file's repetitions, which only predict what to read ahead
AHEAD_CHANCE = 0.02  # the least at which they do: up to 16 rows take hardly longer than one, whose pass reads all weights


class Middle(RequestInputs):
    """A laid out request with one hole.

    A draft has at most `most_tokens`. `wants_likeliest`: one answer is asked for, and nothing but its likelihood and copies
    decide which.
    `wants_first`: the first draft and copies are enough, because it is also known how often such a draft is right.
    """

    prompt: Prompt
    loaded: Loaded[CausalLlama, Profile]

    def __init__(
        self,
        request: InfillRequest,
        prompt: Prompt,
        loaded: Loaded[CausalLlama, Profile],
        weights: Calibration | None,
    ) -> None:
        profile = loaded.profile
        # The model itself ends an answer in the layout that it was trained with.
        super().__init__(request, prompt, loaded, weights, knows_end=profile.layout == "fim")
        self.most_tokens = profile.block_tokens if self.bounds.takes_lines else profile.line_tokens
        self.wants_likeliest = request.budget.candidates == 1 and not (self.needed or self.hole.instruction)
        self.wants_first = self.wants_likeliest and profile.draft_calibration is not None

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
        return next_after_typed(self.vocabulary, self.prompt.heal, ids)
