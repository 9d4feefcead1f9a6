"""A row says the same beside others as alone: canvases of several lengths on one prefix, all at once or in slices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dg_lsp.engine.diffusion.denoise import CanvasState, Denoiser, Row, TokenLimits
from dg_lsp.engine.diffusion.fixed_step import LocalDecoder
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.layout import Sampling
from dg_lsp.engine.model.prefix_cache import KV
from tests.engine.filler_kit import a_prefix

pytestmark = pytest.mark.usefixtures("without_gradients")

LIMITS = TokenLimits(tuple(range(10, 110)), tuple(range(6)), (30, 31, 32))
SAMPLING = Sampling(line_steps=6, stop_entropy=0.5)  # loose: rows settle apart


def canvases(number: int) -> list[Row]:
    """Rows of one request: noise and a draft, widths and step counts of its own."""
    gap = 5 + 2 * number
    return [
        Row((20,) * gap + (40, 41, 42), (True,) * gap + (False,) * 3, 6 - number, seed=number),
        Row((21, 22, 23, 6, 6, 40), (True,) * 5 + (False,), 3, seed=number + 9, draft=True),
        Row((20,) * 4 + (50, 40), (True,) * 4 + (False,) * 2, 4, seed=number + 20, greedy=False),
    ]


# Shorter than the window of 8, as long, and far longer.
@pytest.mark.parametrize("length", [3, 8, 40])
def test_logits_equal_those_of_a_pass_without_room(with_experts: Any, length: int) -> None:
    passes = Passes(with_experts)
    kv = a_prefix(passes, length)
    denoiser, decoder = Denoiser(canvases(0), LIMITS, SAMPLING, 120), LocalDecoder(passes, kv)
    for _ in range(2):  # at the second step, conditioning differs from row to row
        asked = denoiser.ask(denoiser.live)
        found, expected = decoder.logits(asked), logits(passes, kv, asked)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
        denoiser.take(denoiser.live, expected.clone())


def logits(passes: Passes, kv: KV, rows: CanvasState) -> torch.Tensor:
    """What the decoder says to rows that step alone, by the passes that are held equal to the library's."""
    n_past = kv[0][0].shape[2]
    mask = torch.cat([torch.ones(len(rows.ids), n_past, dtype=torch.bool), rows.used], 1)
    hidden = passes.decode(
        rows.ids,
        kv,
        passes.soft(rows.top_ids, rows.top_chances),
        positions=n_past + (rows.used.cumsum(1) - 1).clamp(min=0),
        mask=mask[:, None, None].expand(-1, 1, rows.ids.shape[1], -1),
    )
    return passes.logits(hidden[rows.free])


def test_rows_that_step_in_slices_write_the_same(with_experts: Any) -> None:
    passes = Passes(with_experts)
    kv, rows = a_prefix(passes, 30), [*canvases(0), *canvases(1)]
    readings = []
    for most in (0, 1, 4):
        denoiser = Denoiser(rows, LIMITS, SAMPLING, 120)
        decoder = LocalDecoder(passes, kv)
        while not denoiser.done:
            denoiser.step(decoder, most)
        readings.append([denoiser.read(index).ids for index in range(len(rows))])
    assert readings[1:] == readings[:1] * 2


def test_the_room_of_rows_serves_fewer_of_the_same_width(with_experts: Any) -> None:
    passes = Passes(with_experts)
    decoder = LocalDecoder(passes, a_prefix(passes, 5))
    sizes = list[int]()
    for rows, width in ((3, 8), (2, 8), (4, 8), (4, 9), (1, 8)):
        decoder.make_room(rows, width)
        sizes.append(decoder.bytes)
    one = sizes[0] // (3 * 13)
    assert sizes == [one * 3 * 13, one * 3 * 13, one * 4 * 13, one * 4 * 14, one * 13]
