"""The diffusion models' interface to serving: one answer from its request to its candidates, and how a model is loaded.

A task runs one request, on one canvas or on one canvas per hole in sequence. On each canvas, some ways propose texts for the
hole, one pass scores them all, and one scale ranks them. A proposer is a generator. It adds to the answer's proposals, and
yields after each uninterruptible unit of work. Knows the order of the stages. Knows nothing of how they work.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dg_lsp.core import calibration
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.common import answering, loading
from dg_lsp.engine.common.loading import Checkpoint, Loaded, LoadError
from dg_lsp.engine.common.local import LocalFiller
from dg_lsp.engine.common.pace import Timing
from dg_lsp.engine.common.question import Heads
from dg_lsp.engine.common.task import Answering, OnProgress
from dg_lsp.engine.diffusion import canvas, layout, search
from dg_lsp.engine.diffusion.fixed_step import FixedSteps
from dg_lsp.engine.diffusion.gemma import weights
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.generation import CanvasAnswer, CanvasRequest
from dg_lsp.engine.diffusion.layout import CanvasProfile, CanvasPrompt, Instruct, load_profile
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.fit import Precision
from dg_lsp.engine.model.recording import Buffers, Recorder
from dg_lsp.engine.model.room import MORE, PrefixEncoder
from dg_lsp.engine.model.weights.checkpoint import CheckpointError
from dg_lsp.engine.model.weights.fetch import Meter

PROPOSERS = (search.propose, canvas.propose, canvas.several)  # the search writes the causal draft too
"""The proposers after copies, in their order."""


def answer(of_canvas: CanvasRequest, prefixes: PrefixEncoder, timing: Timing, steps: FixedSteps) -> Answering:
    """Answer a request with one canvas: copies, what each proposer writes, their scores. No pass scores several holes."""
    room, tree = yield from answering.encoded(of_canvas, prefixes, timing)
    so_far = CanvasAnswer(of_canvas, room, tree, timing, steps)
    timing.switch("draft")
    so_far.proposals += answering.copied(of_canvas, say_something=False)  # as those that the probabilities were fitted with
    timing.switch("denoise")
    for propose in PROPOSERS:
        yield from propose(so_far)
    timing.switch("score")
    if of_canvas.n_holes > 1:
        return calibration.to_candidates(so_far.joint, None)
    if not so_far.proposals:
        return ()
    so_far.score()
    yield None
    return answering.ranked(of_canvas, so_far.proposals, so_far.n_steps)


class DiffusionFiller(LocalFiller):
    """A loaded diffusion model that fills requests; raises ValueError if its vocabulary lacks a token of its layout.

    `steps` has the buffers of denoising steps. Only a GPU records them: elsewhere launching a kernel costs little beside it.
    """

    loaded: Loaded[Passes, CanvasProfile]
    layout: Instruct

    def __init__(self, loaded: Loaded[Passes, CanvasProfile], *, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(loaded, Instruct(loaded.profile, loaded.vocabulary), loaded.profile.canvas_tokens, clock)
        self._heads = Heads()
        passes, free, is_gpu = loaded.passes, self.headroom.free, loaded.device.startswith("cuda")
        self.steps = FixedSteps(passes, free, recorder=Recorder() if is_gpu else None)
        passes.buffers = None
        if is_gpu:
            usual = loaded.profile.prefix_tokens + loaded.profile.suffix_tokens + 2 * MORE
            passes.buffers = Buffers(passes, free, Recorder("drafts and scores"), usual)

    def inputs(self, request: InfillRequest, left_ms: float = math.inf) -> CanvasRequest:
        """Return a request as the inputs of one canvas."""
        return CanvasRequest(request, self.prompt(request), self.loaded, self.calibrations.current())

    def prompt(self, request: InfillRequest, left_ms: float = math.inf) -> CanvasPrompt:
        """Return a request as a prompt, with what was shown of other files before."""
        return self.layout.lay_out(self._heads.kept(request))

    def answer(self, inputs: CanvasRequest, timing: Timing) -> Answering:
        return answer(inputs, self.prefixes, timing, self.steps)

    def fills_together(self, request: InfillRequest) -> bool:
        return layout.fits_one_canvas(request, self.loaded.profile, self.loaded.vocabulary)

    def trim(self) -> None:
        """Drop the buffers of steps too."""
        super().trim()
        self.steps.clear()


def load(opened: Checkpoint, dtype: str, on_progress: OnProgress) -> Loaded[Passes, CanvasProfile]:
    """Load and return the model of a checkpoint; raises LoadError and the errors of `common.loading.reported`."""
    name, folder, device = opened.name, opened.folder, opened.device
    profile = load_profile(opened.profile_folder)
    loading.check_dtype(dtype)
    if dtype == "int8":
        raise LoadError(f"{name} can't be loaded at int8; choose fp8 or int4")
    use = fit.Use(profile.prefix_tokens + profile.suffix_tokens, profile.canvas_tokens)
    choice = loading.choose(opened, use, asked=dtype, stored=weights.stored_precision(folder, opened.values))
    precision, opened.why["dtype"] = choice.precision, choice.why
    return Loaded.of(opened, Passes(_with_weights(folder, device, precision, on_progress)), profile, precision)


def _with_weights(folder: Path, device: str, precision: Precision, on_progress: OnProgress) -> Any:
    """Return the folder's model with its weights on a device. The folder is validated before anything is allocated."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # the engine reports the progress itself
    model, listed = weights.check(folder)
    meter = Meter("reading the weights", listed.n_bytes, on_progress, low=0.5)
    dtype = loading.wide_dtype(precision)
    model.config.dtype = model.config.text_config.dtype = dtype
    try:
        weights.fill(model, listed, device, precision, dtype, meter)
    except (CheckpointError, *loading.NO_ROOM):
        raise
    except Exception as error:  # the libraries may raise anything for values that they have not checked
        raise LoadError(f"{folder} can't be loaded as a DiffusionGemma checkpoint: {error}") from error
    return model.eval()
