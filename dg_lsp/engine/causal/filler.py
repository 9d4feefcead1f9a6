"""The causal models' interface to serving.

The filler chooses the window of each request (`layout.Windows`): in a new place, one as long as there is time to read. Several
holes are filled in sequence. `answer.answer` has the stages of one answer.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import torch

from dg_lsp.core import edits
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.causal import edit, layout
from dg_lsp.engine.causal.answer import answer
from dg_lsp.engine.causal.edit import EditInputs
from dg_lsp.engine.causal.layout import MOST_LENGTHS, CausalInputs, CausalProfile, CausalPrompt, LeftToRight, Windows, Written
from dg_lsp.engine.common import loading
from dg_lsp.engine.common.answering import PREFILL_CHUNK
from dg_lsp.engine.common.drafts import LONGEST_DRAFT
from dg_lsp.engine.common.loading import Checkpoint, Loaded
from dg_lsp.engine.common.local import LocalFiller
from dg_lsp.engine.common.pace import Timing
from dg_lsp.engine.common.task import Answering, OnProgress
from dg_lsp.engine.model import fit, gpu, memory
from dg_lsp.engine.model.llama import Llama
from dg_lsp.engine.model.recording import Recorder
from dg_lsp.engine.model.room import MORE
from dg_lsp.engine.model.weights import checkpoint

MOST_WRITTEN = 4  # of the last answers, from which the next one's tokens are predicted
FIRST_SHARE = 0.3  # of the time for an answer, in which text is read for it; a longer window follows when nothing happens


class CausalFiller(LocalFiller):
    """A loaded causal model that fills requests; raises ValueError if its vocabulary lacks a token of its layout."""

    loaded: Loaded[Llama, CausalProfile]
    layout: LeftToRight
    quiet_s = 2.0

    def __init__(self, loaded: Loaded[Llama, CausalProfile], *, clock: Callable[[], float] = time.perf_counter) -> None:
        profile, vocabulary = loaded.profile, loaded.vocabulary
        # Half the memory, and rounded less than in the other type of 16 bits. A small model's take little.
        is_large = loaded.passes.geometry.n_weights > fit.SMALL
        cache_dtype = torch.float16 if is_large and loaded.passes.kv_dtype is torch.float32 else None
        super().__init__(loaded, layout.LAYOUTS[profile.layout](profile, vocabulary), LONGEST_DRAFT, clock, cache_dtype)
        if loaded.passes.buffers is not None:
            # Of the longest prefix, and so of shorter ones. Twice as many more: a tree's first pass may read as many tokens as
            # a room has behind its prompt, and has slots for more behind them.
            loaded.passes.buffers.record(MOST_LENGTHS * profile.prefix_tokens + profile.suffix_tokens + 2 * MORE)
        self._written = deque[Written](maxlen=MOST_WRITTEN)
        self.windows = Windows(self.layout, self.cache.known)

    def prompt(self, request: InfillRequest, left_ms: float = math.inf) -> CausalPrompt:
        """Return a request with one hole as a prompt, for an answer in the time left; without a deadline it is infinite."""
        if request.question is not None:
            return EditInputs(request, self.loaded).prompt
        chunk_ms = self.pace.expected_ms("prefill", PREFILL_CHUNK)
        n_tokens = PREFILL_CHUNK * FIRST_SHARE * left_ms / chunk_ms if chunk_ms else 0.0
        return self.windows.prompt(request, math.inf if left_ms == math.inf else n_tokens)

    def better_prompt(self, request: InfillRequest) -> CausalPrompt | None:
        return None if request.question is not None else self.windows.better_prompt(request)

    @property
    def edit_refusal(self) -> str:
        known = self.loaded.vocabulary.id(edits.SEPARATOR) is not None
        return "" if known else f"{self.loaded.name} writes no next edits: its vocabulary has no {edits.SEPARATOR}"

    def inputs(self, request: InfillRequest, left_ms: float = math.inf) -> CausalInputs | EditInputs:
        """Return a request with one hole as the inputs of its stages, for the time left."""
        if request.question is not None:
            return EditInputs(request, self.loaded)
        return CausalInputs(request, self.prompt(request, left_ms), self.loaded, self.calibrations.current(), self._written)

    def trim(self) -> None:
        super().trim()
        self._written.clear()

    def answer(self, inputs: CausalInputs | EditInputs, timing: Timing) -> Answering:
        if isinstance(inputs, EditInputs):
            return edit.answer(inputs, self.prefixes, timing)
        return answer(inputs, self.prefixes, timing)


def load(opened: Checkpoint, dtype: str, on_progress: OnProgress) -> Loaded[Llama, CausalProfile]:
    """Load and return the model of a checkpoint; raises LoadError and the errors of `common.loading.reported`."""
    default = CausalProfile("left" if opened.vocabulary.fim_tokens is None else "fim")
    profile = checkpoint.load_profile(opened.profile_folder, CausalProfile, default)
    use = fit.Use(MOST_LENGTHS * profile.prefix_tokens + profile.suffix_tokens, LONGEST_DRAFT)
    loaded = loading.load_llama(opened, profile, use, dtype, on_progress)
    if opened.device.startswith("cuda"):
        free = partial(memory.free_bytes, opened.device)
        loaded.passes.use_buffers(gpu.best(opened.device), free, Recorder("passes"))
    return loaded
