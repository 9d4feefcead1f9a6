"""Take the denoising steps of one request, alone or in passes that several requests share.

A `Steps` is a denoiser on its prefix. It steps alone, in fixed buffers if the device has them, unless `Stepper.predict` has
computed its logits with those of others. Knows denoisers, decoders, memory and the pace. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from dg_lsp.engine.common.pace import Pace
from dg_lsp.engine.diffusion.denoising.denoise import DecoderInput, Denoiser
from dg_lsp.engine.diffusion.denoising.fixed_step import FixedSteps
from dg_lsp.engine.diffusion.denoising.stack import LocalDecoder, PrefixRows, Stack, joined
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.model import memory
from dg_lsp.engine.model.memory import Headroom
from dg_lsp.engine.model.prefix_cache import KV


class Steps:
    """The steps of one denoiser on one prefix. An `is_open` canvas has one row, which goes on after it has settled.

    `on_shared` receives the milliseconds of passes shared with other requests.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        decoder: LocalDecoder,
        stepper: Stepper,
        *,
        is_open: bool = False,
        on_shared: Callable[[float], None] = lambda _ms: None,
    ) -> None:
        self.denoiser, self.decoder, self._stepper = denoiser, decoder, stepper
        # The prefix has `length` tokens, and the canvas `width` positions.
        self.length, self.width = decoder.kv[0][0].shape[2], denoiser.canvas.ids.shape[1]
        self.is_open, self._on_shared = is_open, on_shared
        self._is_waiting = False
        self._logits: Tensor | None = None  # of the next step, if a shared pass computed them

    @property
    def n_live(self) -> int:
        """The number of rows that wait for a step; 0 between steps."""
        return len(self._rows()) if self._is_waiting else 0

    def _rows(self) -> list[int]:
        return [0] if self.is_open else self.denoiser.live

    def take_one(self) -> Generator[None, None, None]:
        """Take one step, after a pause in which a pass may be shared with other requests."""
        self._is_waiting = True
        yield
        self._is_waiting = False
        logits, self._logits = self._logits, None
        if logits is not None:
            self.denoiser.take(self._rows(), logits)
            return
        self.leave()
        self._stepper.step(self)

    def leave(self) -> None:
        """Stop stepping with other requests; drop the shared stack if these rows are part of it."""
        self._stepper.leave(self.decoder.kv)

    # Called for a shared pass.

    def ask(self) -> DecoderInput:
        """Return the decoder's input for the waiting rows, and drop this request's own stack."""
        self.decoder.stack = None  # memory may not have room for it beside the shared stack
        return self.denoiser.ask(self._rows())

    def take(self, logits: Tensor, milliseconds: float) -> None:
        """Take the logits [G, V] for the input of `ask`; the next step uses them."""
        self._logits = logits
        self._on_shared(milliseconds)


class Stepper:
    """Takes the steps of one model's canvases: of one canvas alone, or of several requests in one pass on a stack of prefixes.

    A stack serves exactly the rows it was built for, so it is useless once one of its requests has ended or steps alone.
    """

    def __init__(self, passes: Passes, headroom: Headroom, pace: Pace, max_rows: int, fixed: FixedSteps | None) -> None:
        """Start without a stack.

        `max_rows` is the maximum number of a request's rows in one pass. `fixed` are the buffers for steps of one canvas; None
        on a CPU, where they gain nothing.
        """
        self._passes, self._headroom, self._pace, self._max_rows, self.fixed = passes, headroom, pace, max_rows, fixed
        self._stack: Stack | None = None

    def step(self, steps: Steps) -> None:
        """Take one step of all live rows, in one pass if memory has room. The result of an open canvas is there at the end."""
        denoiser, decoder, is_open = steps.denoiser, steps.decoder, steps.is_open
        rows, most = ([0], 1) if is_open else (denoiser.live, self.rows_at_once(steps.length, steps.width))
        began = self._pace.clock()
        if self.fixed is None or len(rows) > most or not self.fixed.step(denoiser, decoder, rows):
            if is_open:  # it goes on after it has settled
                denoiser.step_rows(rows, decoder)
            else:
                denoiser.step(decoder, most)
        self._pace.note("step", len(rows) * steps.width, (self._pace.clock() - began) * 1000)

    def clear(self) -> None:
        """Drop the buffers."""
        if self.fixed is not None:
            self.fixed.clear()

    @property
    def bytes(self) -> int:
        """The number of bytes of the stack."""
        return self._stack.bytes if self._stack else 0

    def rows_at_once(self, prefix_tokens: int, canvas_tokens: int) -> int:
        """Return the maximum number of a request's rows in one pass."""
        return self._headroom.rows_at_once(prefix_tokens, canvas_tokens, self._max_rows)

    def fitting(self, waiting: Sequence[Steps | None], max_rows: int) -> list[int]:
        """Return the indexes of the steps for one pass: the first and those that fit with it; none if the first can't step.

        An entry is None if its task's next unit is not a denoising step. Canvases of about the same width step together,
        with at most `max_rows` rows, as far as memory has room.
        """
        indexes: list[int] = []
        bucket = n_rows = prefix = width = 0
        free = self._headroom.free(self.bytes)
        for index, steps in enumerate(waiting):
            if steps is None and not index:
                break
            if steps is None:
                continue
            bucket = bucket if index else memory.width_bucket(steps.width)
            longest, widest = max(prefix, steps.length), max(width, steps.width)
            max_now = memory.rows_that_fit(free, self._headroom.cost.row(longest, widest), max_rows)
            if memory.width_bucket(steps.width) == bucket and n_rows + steps.n_live <= max_now:
                indexes.append(index)
                n_rows, prefix, width = n_rows + steps.n_live, longest, widest
            elif not index:
                break
        return indexes

    def predict(self, waiting: Sequence[Steps]) -> None:
        """Run one pass for the next step of all, and give each its logits."""
        began = self._pace.clock()
        positions = sum(steps.n_live for steps in waiting) * max(steps.width for steps in waiting)
        with torch.inference_mode():
            inputs = [steps.ask() for steps in waiting]
            logits = self._logits([steps.decoder.kv for steps in waiting], inputs, conditioned=waiting[0].decoder.conditioned)
            milliseconds = (self._pace.clock() - began) * 1000
            self._pace.note("step", positions, milliseconds)
            for steps, own in zip(waiting, logits, strict=True):
                steps.take(own, milliseconds)

    def _logits(self, prefixes: Sequence[KV], inputs: Sequence[DecoderInput], *, conditioned: bool) -> list[Tensor]:
        """Run one pass over all canvases, and return the logits [G, V] of each."""
        whole = joined(inputs)
        parts = [PrefixRows(kv, len(each.ids)) for kv, each in zip(prefixes, inputs, strict=True)]
        if self._stack is None or not self._stack.serves(parts, whole.ids.shape[1]):
            self._stack = None  # free the old stack first, because memory may not have room for two
            self._stack = Stack(parts, whole.ids.shape[1])
        logits = self._stack.logits(self._passes, whole, conditioned=conditioned)
        return list(torch.split(logits, [int(each.free.sum()) for each in inputs]))

    def leave(self, prefix: KV) -> None:
        """Drop the stack if the canvas on this prefix is part of it."""
        if self._stack is not None and any(part.kv is prefix for part in self._stack.parts):
            self._stack = None
