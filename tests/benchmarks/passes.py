"""Measure the passes of a Llama or Qwen2 folder by their number of rows: python tests/benchmarks/passes.py FOLDER

For each number of threads and rows, one line: the milliseconds of a whole pass after a prefix (embedding, layers, attention
over the prefix, head), of its layers alone, of the products with weights from memory, and of the head. Each is the fastest of
several runs, because other programs only add time. With one thread, times are the processor's, to which they add less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.causal.filler import CausalLlama
from dg_lsp.engine.model.tree import Tree
from dg_lsp.engine.model.weights.llama import Inputs

ROWS = (1, 8, 16, 32, 64, 256)


def fastest_ms(call: Callable[[], object], seconds: float, clock: Callable[[], float]) -> float:
    """Return the milliseconds of the fastest call within some seconds."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        began = clock()
        call()
        best = min(best, clock() - began)
        if time.perf_counter() > end:
            return best * 1000


def products(passes: CausalLlama, n_rows: int) -> Callable[[], object]:
    """Return a call that multiplies rows by all matrices of the layers."""
    sizes = passes.sizes
    widths = {sizes.hidden, sizes.heads * sizes.head_dim, sizes.feed_forward}
    inputs = {width: Inputs(torch.randn(n_rows, width)) for width in widths}

    def call() -> None:
        for layer in passes.layers:
            for linear, width in (
                (layer.queries_keys_values, sizes.hidden),
                (layer.out, sizes.heads * sizes.head_dim),
                (layer.gate_up, sizes.hidden),
                (layer.down, sizes.feed_forward),
            ):
                linear.matrix.times(inputs[width], None)

    return call


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="", help="precision; default: the best of this machine")
    parser.add_argument("--prefix", type=int, default=400, help="tokens of the prefix")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each number")
    options = parser.parse_args()
    loaded = load_model(options.folder, device="cpu", dtype=options.dtype)
    passes = loaded.passes
    assert isinstance(passes, CausalLlama)
    print(f"{loaded.name}: {loaded.dtype}, {passes.n_bytes() / 1e6:.0f} MB of weights, prefix of {options.prefix} tokens")
    print("threads rows    pass  layers  products  head   ms")
    for threads in options.threads:
        torch.set_num_threads(threads)
        clock = time.process_time if threads == 1 else time.perf_counter
        ids = torch.randint(0, passes.n_vocabulary // 2, (1, options.prefix))
        with torch.inference_mode():
            encoding = fastest_ms(lambda ids=ids: passes.encode(ids), options.seconds, clock)  # type: ignore[misc]
            _, kv = passes.encode(ids)
            for n_rows in options.rows:
                room = [tuple(torch.cat([side, side[:, :, :1].expand(-1, -1, n_rows, -1)], 2) for side in pair) for pair in kv]
                places = torch.arange(options.prefix + n_rows)
                mask = places[None] <= places[options.prefix :, None]
                call = (torch.arange(100, 100 + n_rows), places[options.prefix :], room, mask, places)
                hidden = passes.extend(*call)  # type: ignore[arg-type]
                layers = fastest_ms(lambda call=call: passes.extend(*call), options.seconds, clock)  # type: ignore[misc]
                head = fastest_ms(lambda hidden=hidden: passes.logits(hidden), options.seconds, clock)  # type: ignore[misc]
                alone = fastest_ms(products(passes, n_rows), options.seconds, clock)
                print(f"{threads:7} {n_rows:4} {layers + head:7.1f} {layers:7.1f} {alone:9.1f} {head:5.1f}", flush=True)
            tree = fastest_ms(lambda kv=kv: Tree(passes, kv, 1), options.seconds, clock)  # type: ignore[misc]
        print(f"{threads:7} prefix {encoding:7.1f} ms, tree's buffers {tree:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
