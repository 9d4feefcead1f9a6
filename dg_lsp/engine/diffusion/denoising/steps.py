"""Take the denoising steps of one request: in fixed buffers if the device has them, else in as many passes as memory needs.

Knows denoisers, decoders, memory and the pace. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from dg_lsp.engine.common.pace import Pace
from dg_lsp.engine.diffusion.denoising.decoder import LocalDecoder
from dg_lsp.engine.diffusion.denoising.denoise import Denoiser
from dg_lsp.engine.diffusion.denoising.fixed_step import FixedSteps
from dg_lsp.engine.model.memory import Headroom


@dataclass(slots=True)
class Stepper:
    """Takes the steps of one model's canvases, with at most `max_rows` rows in one pass.

    `fixed` are the buffers for steps on a GPU; None on a CPU, where they gain nothing.
    """

    headroom: Headroom
    pace: Pace
    max_rows: int
    fixed: FixedSteps | None

    def step(self, steps: Steps) -> None:
        """Take one step of all live rows, in one pass if memory has room. The result of an open canvas is there at the end."""
        denoiser, decoder, width = steps.denoiser, steps.decoder, steps.width
        rows, most = denoiser.live, self.headroom.rows_at_once(decoder.length, width, self.max_rows)
        if steps.is_open:  # it goes on after it has settled
            rows, most = [0], 1
        began = self.pace.clock()
        if self.fixed is None or len(rows) > most or not self.fixed.step(denoiser, decoder, rows):
            if steps.is_open:
                denoiser.step_rows(rows, decoder)
            else:
                denoiser.step(decoder, most)
        self.pace.note("step", len(rows) * width, (self.pace.clock() - began) * 1000)


class Steps:
    """The steps of one denoiser on one prefix. An `is_open` canvas has one row, which goes on after it has settled."""

    def __init__(self, denoiser: Denoiser, decoder: LocalDecoder, stepper: Stepper, *, is_open: bool = False) -> None:
        self.denoiser, self.decoder, self._stepper, self.is_open = denoiser, decoder, stepper, is_open
        self.width = denoiser.canvas.ids.shape[1]

    def take_one(self) -> Generator[None, None, None]:
        """Take one step, after a pause."""
        yield
        self._stepper.step(self)
