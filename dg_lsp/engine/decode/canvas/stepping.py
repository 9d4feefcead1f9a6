"""Take the denoising steps of one canvas and measure them, in fixed buffers if the device has them.

Knows denoisers, decoders and the pace. Knows nothing of requests.
"""

from __future__ import annotations

from dg_lsp.engine.decode.canvas.denoise import Denoiser
from dg_lsp.engine.decode.canvas.fixed_steps import FixedSteps
from dg_lsp.engine.decode.canvas.stack import LocalDecoder
from dg_lsp.engine.decode.pace import Pace


class Stepper:
    """Takes steps on one prefix. `fixed` are the buffers for it; None on a CPU, where they gain nothing."""

    def __init__(self, pace: Pace, fixed: FixedSteps | None) -> None:
        self._pace, self.fixed = pace, fixed

    def step(self, denoiser: Denoiser, decoder: LocalDecoder, max_rows: int = 0) -> None:
        """Take one step of all live rows, with one pass per `max_rows` rows (0: one pass for all)."""
        rows = denoiser.running
        began, is_behind = self._pace.clock(), denoiser.n_pending > 0
        is_one_pass = not max_rows or len(rows) <= max_rows
        if self.fixed is None or not is_one_pass or not self.fixed.step(denoiser, decoder, rows):
            denoiser.step(decoder, max_rows)
        if is_behind or not denoiser.n_pending:  # else the step was only queued, and the next call waits for it
            self._note(denoiser, len(rows), began)

    def step_open(self, denoiser: Denoiser, decoder: LocalDecoder) -> None:
        """Take one step of an open canvas, which goes on after it has settled; the result is there at the end."""
        began = self._pace.clock()
        if self.fixed is None or not self.fixed.step(denoiser, decoder, [0], lag=0):
            denoiser.step_rows([0], decoder)
        self._note(denoiser, 1, began)

    def _note(self, denoiser: Denoiser, n_rows: int, began: float) -> None:
        self._pace.note("step", n_rows * denoiser.canvas.ids.shape[1], (self._pace.clock() - began) * 1000)
