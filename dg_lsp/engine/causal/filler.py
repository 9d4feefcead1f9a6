"""The causal models' interface to serving.

Some ways propose texts for the middle, one pass scores them all, and one scale ranks them:

    request -> Prompt, in CausalInputs -> Generation (the encoded prompt)
    each proposer -> Proposal, ...
    all Proposals -> a causal pass over their tree (`Scorer`) -> ranked (rank.py, core.calibration) -> Candidate, ...

A proposer is a generator. It adds to the generation's proposals, and yields after each uninterruptible unit of work.
Several holes are filled in sequence. Knows the order of the stages. Knows nothing of how they work.

It chooses the window of each request (`windows`): in a new place, one as long as there is time to read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import torch

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.causal import drafting, layout
from dg_lsp.engine.causal.generation import Generation
from dg_lsp.engine.causal.layout import CausalInputs, LeftToRight, Profile, Prompt, load_profile
from dg_lsp.engine.causal.passes import CausalLlama
from dg_lsp.engine.causal.windows import MOST_LENGTHS, Windows
from dg_lsp.engine.common import loading
from dg_lsp.engine.common.drafts import LONGEST_DRAFT
from dg_lsp.engine.common.loading import Checkpoint, Loaded
from dg_lsp.engine.common.local import PREFILL_CHUNK, LocalFiller
from dg_lsp.engine.common.pace import Timing
from dg_lsp.engine.common.task import OnProgress
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.tree import ROOM

PROPOSERS = (("draft", partial(Generation.propose_copies, say_something=True)), ("draft", drafting.propose))
"""Each proposer, in the order in which they run, with the stage that its time counts for."""
FIRST_SHARE = 0.6  # of the time for an answer that may pass before the first token of a draft


class CausalFiller(LocalFiller):
    """A loaded causal model that fills requests; raises ValueError if its vocabulary lacks a token of its layout."""

    loaded: Loaded[CausalLlama, Profile]
    layout: LeftToRight
    quiet_s = 2.0

    def __init__(self, loaded: Loaded[CausalLlama, Profile], *, clock: Callable[[], float] = time.perf_counter) -> None:
        profile, vocabulary = loaded.profile, loaded.vocabulary
        # Half the memory, and rounded less than in the other type of 16 bits.
        cache_dtype = torch.float16 if loaded.passes.kv_dtype is torch.float32 else None
        super().__init__(loaded, layout.for_profile(profile, vocabulary), LONGEST_DRAFT, clock, cache_dtype)
        self._record(loaded.passes, profile)
        self.windows = Windows(self.layout, self.cache.known)

    def _record(self, passes: CausalLlama, profile: Profile) -> None:
        """Record the passes behind the longest prefix, and so behind shorter ones, before the first request."""
        # Twice the room: a tree's first pass may read as many tokens as a room has, and has places for more behind them.
        n_places = MOST_LENGTHS * profile.prefix_tokens + profile.suffix_tokens + 2 * ROOM
        if passes.buffers is not None:  # with two trees in the layout "fim": one reads on after the left side alone
            passes.buffers.record(n_places, 2 if profile.layout == "fim" else 1)

    def prompt(self, request: InfillRequest, left_ms: float = math.inf) -> Prompt:
        """Return a request with one hole as a prompt, for an answer in the time left; without a deadline it is infinite."""
        chunk_ms = self.pace.expected_ms("prefill", PREFILL_CHUNK)
        n_tokens = PREFILL_CHUNK * FIRST_SHARE * left_ms / chunk_ms if chunk_ms else 0.0
        return self.windows.prompt(request, math.inf if left_ms == math.inf else n_tokens)

    def better_prompt(self, request: InfillRequest) -> Prompt | None:
        return self.windows.better_prompt(request)

    def inputs(self, request: InfillRequest, left_ms: float = math.inf) -> CausalInputs:
        """Return a request with one hole as the inputs of its stages, for the time left."""
        return CausalInputs(request, self.prompt(request, left_ms), self.loaded, self.calibrations.current())

    def generation(self, request: InfillRequest, timing: Timing) -> Generation:
        generation = Generation(self.inputs(request, timing.budget.left_ms()), timing, self.prefixes)
        generation.proposers = PROPOSERS
        return generation


def load(opened: Checkpoint, dtype: str, on_progress: OnProgress) -> Loaded[CausalLlama, Profile]:
    """Load and return the model of a checkpoint; raises LoadError and the errors of `common.loading.reported`."""
    profile = load_profile(opened.profile_folder, fills_in=opened.vocabulary.fim_tokens is not None)
    use = fit.Use(MOST_LENGTHS * profile.prefix_tokens + profile.suffix_tokens, LONGEST_DRAFT)
    return loading.load_llama(opened, CausalLlama, profile, use, dtype, on_progress)
