"""On a GPU the passes and the denoiser compute what they do on a processor, to the rounding of its products."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from dg_lsp.engine.denoise import Denoiser, Row, TokenLimits
from dg_lsp.engine.passes import Passes
from dg_lsp.engine.profile import Sampling
from dg_lsp.engine.stack import LocalDecoder
from dg_lsp.engine.tree import ROOT, Tree

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")]

LIMITS = TokenLimits(tuple(range(10, 110)), tuple(range(6)), delete=6)
ROWS = [
    Row((20,) * 8 + (40, 41), (True,) * 8 + (False,) * 2, 5, seed=1),
    Row((20,) * 5 + (50,), (True,) * 5 + (False,), 4, seed=2, greedy=False),
]


@pytest.fixture(scope="module")
def both(with_experts: Any) -> tuple[Passes, Passes]:
    """The passes of one model on the processor and on the GPU, in 32 bits."""
    torch.backends.cuda.matmul.allow_tf32 = False
    return Passes(with_experts), Passes(copy.deepcopy(with_experts).to("cuda"))


@torch.no_grad()
@pytest.mark.parametrize("length", [5, 9, 40])
def test_gpu_passes_equal_cpu_passes(both: tuple[Passes, Passes], length: int) -> None:
    ids = torch.arange(length)[None] + 10
    found = []
    for passes, device in zip(both, ("cpu", "cuda"), strict=True):
        hidden, kv = passes.encode(ids.to(device))
        canvas = torch.tensor([[11, 50, 60], [12, 13, 14]], device=device)
        kv = [(keys.expand(2, -1, -1, -1), values.expand(2, -1, -1, -1)) for keys, values in kv]
        tree = Tree(passes, [(keys[:1], values[:1]) for keys, values in kv], 1)
        found.append([hidden, passes.logits(passes.decode(canvas, kv)), tree.add([30, 31, 32], [ROOT, 0, 0])])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs.cpu(), ours, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_gpu_rows_equal_cpu_rows(both: tuple[Passes, Passes]) -> None:
    found = []
    for passes, device in zip(both, ("cpu", "cuda"), strict=True):
        kv = passes.encode(torch.arange(10, 40, device=device)[None])[1]
        denoiser = Denoiser(ROWS, LIMITS, Sampling(delete_entropy=3.0), 120, device)
        decoder = LocalDecoder(passes, kv)
        while not denoiser.done:
            denoiser.step(decoder)
        found.append([denoiser.read(row).ids for row in range(len(ROWS))])
    assert found[0] == found[1]
