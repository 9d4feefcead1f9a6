"""One pass for the canvases of several requests: which of them fit in it, and the step that they take in it.

Knows canvases, memory and the shared stack. Knows nothing of requests.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from dg_lsp.engine import room
from dg_lsp.engine.local.canvas import CanvasTask
from dg_lsp.engine.local.resources import Resources


def fitting(canvases: Sequence[CanvasTask | None], resources: Resources, max_rows: int) -> list[int]:
    """Return which canvases step in one pass: the first and what fits beside it; none when the first can't step.

    None stands for a task whose next unit is no denoising step. Canvases of about one width step together, no more than
    `max_rows` rows of them, and no more than memory has room for.
    """
    chosen: list[int] = []
    bucket = n_rows = prefix = width = 0
    headroom, shared_stack = resources.headroom, resources.shared_stack
    free = headroom.free(shared_stack.bytes)
    for index, canvas in enumerate(canvases):
        if canvas is None and not index:
            break
        if canvas is None:
            continue
        bucket = bucket if index else room.width_bucket(canvas.width)
        longest, widest = max(prefix, canvas.length), max(width, canvas.width)
        max_now = room.rows_that_fit(free, headroom.cost.row(longest, widest), max_rows)
        if room.width_bucket(canvas.width) == bucket and n_rows + canvas.n_live <= max_now:
            chosen.append(index)
            n_rows, prefix, width = n_rows + canvas.n_live, longest, widest
        elif not index:
            break
    return chosen


def predict(canvases: Sequence[CanvasTask], resources: Resources) -> None:
    """Find the logits of the canvases' next steps in one pass, and give each canvas its own."""
    began = time.perf_counter()
    conditioned = canvases[0].fill.switches.conditioning
    with torch.inference_mode():
        inputs = [canvas.ask() for canvas in canvases]
        prefixes = [canvas.kv for canvas in canvases]
        logits = resources.shared_stack.logits(prefixes, inputs, conditioned=conditioned)
        for canvas, own in zip(canvases, logits, strict=True):
            canvas.take(own, (time.perf_counter() - began) * 1000)
