"""Step the canvases of several requests in one pass: select those that fit, and run the pass.

Knows canvases, memory and the shared stack. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dg_lsp.engine.decode.propose.canvas import CanvasTask
from dg_lsp.engine.decode.resources import Resources
from dg_lsp.engine.model import room


def fitting(canvases: Sequence[CanvasTask | None], resources: Resources, max_rows: int) -> list[int]:
    """Return the indexes of the canvases for one pass: the first and those that fit with it; none if the first can't step.

    A canvas is None if its task's next unit is not a denoising step. Canvases of about the same width step together, with at
    most `max_rows` rows, as far as memory has room.
    """
    indexes: list[int] = []
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
            indexes.append(index)
            n_rows, prefix, width = n_rows + canvas.n_live, longest, widest
        elif not index:
            break
    return indexes


def predict(canvases: Sequence[CanvasTask], resources: Resources) -> None:
    """Run one pass for the next step of all canvases, and give each canvas its logits."""
    clock = resources.pace.clock
    began, positions = clock(), sum(canvas.n_live for canvas in canvases) * max(canvas.width for canvas in canvases)
    conditioned = canvases[0].fill.switches.conditioning
    with torch.inference_mode():
        inputs = [canvas.ask() for canvas in canvases]
        prefixes = [canvas.kv for canvas in canvases]
        logits = resources.shared_stack.logits(prefixes, inputs, conditioned=conditioned)
        milliseconds = (clock() - began) * 1000
        resources.pace.note("step", positions, milliseconds)
        for canvas, own in zip(canvases, logits, strict=True):
            canvas.take(own, milliseconds)
