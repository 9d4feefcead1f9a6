"""Time the experts of one layer of the 26B model: python tests/benchmarks/gpu_experts.py [DEVICE] [SIZE]

DEVICE is cuda or cpu. SIZE is `full` or `tiny`. Each way is timed as a recorded graph where that works, with the least time in
which the card can read the experts that the tokens use. `grouped_mm` is what the library uses. The last tables show other tiles
of the fused kernels, and products with 8-bit matrices. Ends with 1 if a fused result differs from the library's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from dg_lsp.engine.model import before_torch  # noqa: F401 -- before torch

# isort: split
import torch
import torch.nn.functional as F
from torch import Tensor

from dg_lsp.engine.diffusion.gemma import fused
from dg_lsp.engine.diffusion.gemma.fused import Bank, Tiles
from dg_lsp.engine.diffusion.gemma.quantised import Fp8Weight, NarrowLinear
from dg_lsp.engine.model.recording import Recorder
from tests.benchmarks import arguments
from tests.benchmarks.stages import TINY, Clock, Widths, rates

END = time.monotonic() + 60  # no other tiles are tried then, because each of them compiles a kernel
TOKENS = (1, 16, 64, 256, 2000)
TRIED = 64, 256  # tokens for which other tiles are tried
UP_TILES = Tiles(16, 32, 128), Tiles(16, 64, 128, 3), Tiles(32, 64, 128, 3)
DOWN_TILES = Tiles(16, 64, 64, 5), Tiles(16, 64, 128, 3), Tiles(32, 64, 64)
N_MATRICES = 12  # of a product, so that they don't fit into the card's cache
MOST_ERROR = 0.05  # of the largest value


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's experts with random weights, wide and in 8 bits."""

    gate_up: Tensor
    down: Tensor
    narrow: tuple[Bank, Bank]

    def grouped(self, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Return the outputs as the library computes them."""
        flat, order = ids.flatten().sort()
        counts = torch.histc(flat.float() if hidden.device.type == "cpu" else flat.int(), len(self.down), 0, len(self.down) - 1)
        ends = counts.cumsum(0, dtype=torch.int32)
        grouped_mm = getattr(torch.nn.functional, "grouped_mm", torch._grouped_mm)
        gate, up = grouped_mm(hidden[order // ids.shape[1]], self.gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
        out = grouped_mm(F.gelu(gate, approximate="tanh") * up, self.down.transpose(1, 2), offs=ends)
        weighted = out * weights.flatten()[order, None]
        return (
            torch.empty_like(weighted).index_copy_(0, order, weighted).view(len(hidden), -1, hidden.shape[1]).sum(1).to(hidden)
        )


class Table:
    """Prints each line when it is measured."""

    def __init__(self, device: str) -> None:
        self._clock = Clock(device, 9)
        self._is_cuda = device.startswith("cuda")

    def row(self, name: str, work: Callable[[], Tensor], floor_ms: float) -> Tensor | None:
        """Time `work` and print a line; return its result, or None if it failed, which the line says."""
        try:
            result, how = work(), "direct"
            replay: Callable[[], object] = work
            if self._is_cuda:
                work()
                try:
                    replay, how = Recorder().record(lambda: setattr(self, "_result", work())), "recorded"
                except RuntimeError as error:
                    how = f"direct ({str(error).splitlines()[0]})"
            ms = self._clock.ms(replay)
        except Exception as error:  # Triton and torch raise errors of many kinds
            print(f"{name:58} failed: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:120]}", flush=True)
            return None
        print(f"{name:58} {ms:8.3f} ms  floor {floor_ms:7.3f}  x{ms / floor_ms:.2f}  {how}", flush=True)
        return result


def routing(tokens: int, widths: Widths, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return random hidden states, experts and their weights."""
    hidden = torch.randn(tokens, widths.hidden, device=device).to(dtype)
    weights, ids = torch.rand(tokens, widths.experts, device=device).topk(widths.chosen)
    return hidden, ids, weights / weights.sum(-1, keepdim=True)


def build(widths: Widths, device: str, dtype: torch.dtype) -> Layer:
    gate_up = torch.empty(widths.experts, 2 * widths.expert, widths.hidden, device=device, dtype=dtype).normal_(0, 0.02)
    down = torch.empty(widths.experts, widths.hidden, widths.expert, device=device, dtype=dtype).normal_(0, 0.02)
    return Layer(gate_up, down, (Fp8Weight.of(gate_up).bank, Fp8Weight.of(down).bank))


@torch.inference_mode()
def main(device: str, size: str) -> int:
    widths = TINY if size == "tiny" else Widths()
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float16
    layer, table, failed = build(widths, device, dtype), Table(device), False
    bandwidth, flops = rates(device, dtype, widths)
    print(f"copies {bandwidth / 1e12:.2f} TB/s, multiplies {flops / 1e12:.0f} TFLOP/s")
    has_kernels = device.startswith("cuda") and fused._kernels() is not None
    if not has_kernels:
        print("the fused kernels need a GPU and Triton")
    one = 3 * widths.hidden * widths.expert

    def floor(tokens: int, n_bytes: int) -> float:
        touched = widths.experts * (1 - (1 - widths.chosen / widths.experts) ** tokens)
        return max(touched * one * n_bytes / bandwidth, 2 * tokens * widths.chosen * one / flops) * 1000

    for tokens in TOKENS if size == "full" else TOKENS[:3]:
        given = routing(tokens, widths, device, dtype)
        expected = table.row(f"{tokens} tokens, grouped_mm", partial(layer.grouped, *given), floor(tokens, 2))
        ways = {"fused": ((Bank(layer.gate_up), Bank(layer.down)), 2), "fused, 8-bit weights": (layer.narrow, 1)}
        for name, (banks, n_bytes) in ways.items() if has_kernels else ():
            work = partial(fused.compute, *given, *banks)
            found = table.row(f"{tokens} tokens, {name}", work, floor(tokens, n_bytes))
            if found is None or expected is None:
                failed = True
                continue
            error = float((found - expected).abs().max() / expected.abs().max())
            print(f"{'':58} differs from grouped_mm by {error:.4f} of the largest value")
            failed |= error > MOST_ERROR * (1 if n_bytes == 2 else 2)
    _linear(table, widths, device, dtype, bandwidth)
    if has_kernels and size == "full":
        _try_tiles(layer, table, widths, device, dtype, floor)
    return int(failed)


def _try_tiles(
    layer: Layer, table: Table, widths: Widths, device: str, dtype: torch.dtype, floor: Callable[[int, int], float]
) -> None:
    """Print the times of other tiles than those of the table, one kernel changed at a time."""
    wide = Bank(layer.gate_up), Bank(layer.down)
    for tokens in TRIED:
        given = routing(tokens, widths, device, dtype)
        for banks, n_bytes in ((wide, 2), (layer.narrow, 1)):
            up, down = fused.tiles_for(tokens * widths.chosen, widths.experts, is_narrow=n_bytes == 1)
            for pair in [*((other, down) for other in UP_TILES), *((up, other) for other in DOWN_TILES)]:
                if time.monotonic() > END:
                    print("no time for more tiles")
                    return
                which, tiles = ("up", pair[0]) if pair[1] == down else ("down", pair[1])
                label = f"{tiles.rows} x {tiles.columns} x {tiles.depth}, {tiles.stages} stages, {tiles.warps} warps"
                work = partial(fused.compute, *given, *banks, pair)
                table.row(f"{tokens} tokens, {8 * n_bytes} bits, {which} {label}", work, floor(tokens, n_bytes))


def _linear(table: Table, widths: Widths, device: str, dtype: torch.dtype, bandwidth: float) -> None:
    """Print the times of products with a matrix in 16 and in 8 bits."""
    n_out, n_in = widths.heads * widths.head, widths.hidden
    matrices = [torch.empty(n_out, n_in, device=device, dtype=dtype).normal_(0, 0.02) for _ in range(N_MATRICES)]
    narrow = [Fp8Weight.of(matrix) for matrix in matrices]
    layers = [NarrowLinear(each, (n_out, n_in)) for each in narrow]
    least = N_MATRICES * n_out * n_in / bandwidth * 1000
    for rows in (1, 64, 256):
        inputs = torch.randn(rows, n_in, device=device).to(dtype)
        name = f"{N_MATRICES} times {rows} x {n_in} x {n_out}"

        def each(product: Callable[[Any], Tensor], weights: Sequence[Any]) -> Tensor:
            return [product(weight) for weight in weights][-1]

        table.row(f"{name}, 16 bits", partial(each, partial(F.linear, inputs), matrices), 2 * least)
        widened = partial(lambda given, weight: F.linear(given, weight.dense(given.dtype)), inputs)
        table.row(f"{name}, 8 bits, widened", partial(each, widened, narrow), least)
        table.row(f"{name}, 8 bits, fused", partial(each, partial(lambda given, layer: layer(given), inputs), layers), least)


if __name__ == "__main__":
    sys.exit(main(*arguments.parsed(__doc__, device="cuda", size="full")))
