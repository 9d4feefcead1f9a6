"""Milliseconds of a causal model's passes on a GPU beside what memory allows: python benchmarks/gpu_causal.py

Random weights in published sizes. For each: a pass of 1 to 64 new tokens behind 768, with its logits and the likeliest tokens
read back, as a processor's pass runs it, in buffers, and recorded; the recorded part alone; the prefix; a draft. The floor is
the time to read the weights of the layers and the head once, at the rate at which the card copies. `--small` has a tiny model,
for a test on a processor.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from dg_lsp.engine.model import before_torch  # noqa: F401 -- before torch
from dg_lsp.engine.model.kv import KV

# isort: split
import numpy as np
import torch
from torch import Tensor

from dg_lsp.engine.common import drafts
from dg_lsp.engine.common.drafts import DraftSettings
from dg_lsp.engine.common.loading import set_up
from dg_lsp.engine.model import gpu, memory
from dg_lsp.engine.model.fit import LlamaSizes
from dg_lsp.engine.model.llama import Llama
from dg_lsp.engine.model.recording import ROWS, Buffers, Recorder
from dg_lsp.engine.model.room import MORE, Room
from dg_lsp.engine.model.tree import ROOT, Tree

BIASES = ("q_proj", "k_proj", "v_proj")
SIZES = {
    "0.5b": LlamaSizes(151_936, 896, 4864, 24, 14, 2, 64, 1e-6, 1e6, True, BIASES),
    "7b": LlamaSizes(152_064, 3584, 18_944, 28, 28, 4, 128, 1e-6, 1e6, False, BIASES),
}
SMALL = LlamaSizes(300, 64, 96, 2, 4, 2, 16, 1e-6, 1e6, True, BIASES)
PREFIX, DRAFT, BRANCHES = 768, 16, 4
REPEATS = 9
COPY_BYTES = 1 << 30


class RandomWeights(Mapping[str, Tensor]):
    """Random weights, each made when it is read, so that memory holds none of them twice."""

    def __init__(self, sizes: LlamaSizes, device: str) -> None:
        self._shapes, self._device = sizes.shapes(), device

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._shapes:
            raise KeyError(name)
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, device=self._device)
        return torch.randn(shape, device=self._device, dtype=torch.bfloat16).mul_(shape[1] ** -0.5)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


class Bench:
    """A device, and how functions are timed on it."""

    def __init__(self, device: str, n_repeats: int, n_copied: int) -> None:
        self.device, self.is_cuda, self._n_repeats = device, device.startswith("cuda"), n_repeats
        source = torch.zeros(n_copied, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        self.bytes_per_ms = 2 * n_copied / self.ms(lambda: target.copy_(source))

    def ms(self, work: Callable[[], object]) -> float:
        """Return the median milliseconds of a function, after it ran twice."""
        times = []
        for number in range(self._n_repeats + 2):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            if number > 1:
                times.append(1000 * (time.perf_counter() - began))
        return statistics.median(times)

    def wait(self) -> None:
        """Wait for the device."""
        if self.is_cuda:
            torch.cuda.synchronize()

    def used_mib(self) -> float:
        """Return the MiB that are in use on the device, by graphs too."""
        if not self.is_cuda:
            return 0.0
        free, total = torch.cuda.mem_get_info()
        return (total - free) / (1 << 20)


def passes(bench: Bench, name: str, sizes: LlamaSizes, kind: Any, prefix: int) -> None:
    """Print the passes of one model, beside the time to read its layers and its head once."""
    began = time.perf_counter()
    model = Llama(sizes, RandomWeights(sizes, bench.device), kind)
    recorder = Recorder("passes")
    chosen = gpu.best(bench.device)
    bench.wait()
    built_s = time.perf_counter() - began
    free = lambda: memory.free_bytes(bench.device) if bench.is_cuda else None  # noqa: E731
    outside = processor = None
    if kind == "plain":
        outside = Llama.__new__(Llama)
        outside.__dict__ |= model.__dict__
        outside.use_buffers(chosen, free, None)
        processor = Llama.__new__(Llama)
        processor.__dict__ |= model.__dict__ | {"_gpu": None, "buffers": None}
    model.use_buffers(chosen, free, recorder if bench.is_cuda else None)
    assert isinstance(model.buffers, Buffers)
    n_read = model.n_bytes() * memory.share_read(model.geometry)
    floor = n_read / bench.bytes_per_ms
    print(
        f"\n{name}: a pass reads {n_read / 1e9:.2f} GB, floor {floor:.2f} ms; {type(chosen).__name__}, built in {built_s:.1f} s"
    )
    ids = torch.randint(10, sizes.vocabulary - 1, (prefix,)).tolist()
    used = bench.used_mib()
    began = time.perf_counter()
    model.buffers.record(prefix + 2 * MORE)
    bench.wait()
    state = f"{recorder.n_recorded} graphs" if recorder.is_usable else f"NOT RECORDED: {recorder.reason}"
    print(f"recording: {time.perf_counter() - began:.1f} s, {bench.used_mib() - used:.0f} MiB, {state}")
    with torch.inference_mode():
        room = Room(model, prefix)
        hidden, kv = room.read(ids)[-1], room.kv
        n_flops = 2 * (n_read / (2 if kind == "plain" else 1) - model.n_vocabulary * sizes.hidden) * prefix
        print(
            f"prefix of {prefix}: {bench.ms(lambda: Room(model, prefix).read(ids)):.2f} ms ({n_flops / 1e12:.1f} TFLOP)",
            flush=True,
        )
        print("| new tokens | as on a processor | in buffers | recorded | times the floor | recorded part alone |")
        print("| ---: | ---: | ---: | ---: | ---: | ---: |")
        for n_rows in ROWS:
            columns = []
            for one in (processor, outside, model):
                if one is None:
                    columns.append("")
                    continue
                columns.append(f"{bench.ms(reading(one, kv, n_rows)):.2f}")
            alone = bench.ms(model.buffers.take(prefix + MORE)._graph(n_rows)._graph.run)
            times = float(columns[-1]) / floor
            print(f"| {n_rows} | {' | '.join(columns)} | {times:.2f} | {alone:.2f} |", flush=True)
        print(f"a new tree and its first pass: {bench.ms(lambda: first_pass(model, kv, hidden)):.2f} ms")
        n_passes = [0]
        draft_ms = bench.ms(lambda: n_passes.append(drafted(model, kv, hidden)))
        each = draft_ms / max(1, n_passes[-1])
        print(
            f"a draft of {DRAFT} tokens with {BRANCHES} branches: {draft_ms:.1f} ms, {n_passes[-1]} passes of {each:.2f}",
            flush=True,
        )


def after(model: Llama, kv: KV) -> Room:
    """Return a room that has read a prefix."""
    room = Room(model, kv[0][0].shape[2] + MORE)
    room.add(kv)
    return room


def reading(model: Llama, kv: KV, n_rows: int) -> Callable[[], object]:
    """Return a function that reads `n_rows` tokens after a prefix, and returns the likeliest next ones."""
    room = after(model, kv)
    length = len(room.positions)
    visible = np.tril(np.ones((n_rows, length + n_rows), dtype=np.bool_), length)

    def read() -> list[int]:
        hidden = room.read([11] * n_rows, range(length, length + n_rows), visible)
        room.keep(length)
        tokens: list[int] = model.logits(hidden).argmax(-1).tolist()
        return tokens

    return read


def first_pass(model: Llama, kv: Any, hidden: Tensor) -> None:
    """Read one token in a new tree."""
    room = after(model, kv)
    tree = Tree(room, 10, hidden)
    tree.logits(tree.grow([(ROOT, [11])])[0]).argmax(-1).tolist()


def drafted(model: Llama, kv: Any, hidden: Tensor) -> int:
    """Write a draft and its branches; return the number of passes."""
    room = after(model, kv)
    tree = Tree(room, 10, hidden)
    settings = DraftSettings(rows=1, most=DRAFT, banned=(0,), stops=(1,), end=1, branches=BRANCHES)
    return sum(1 for _ in drafts.drafts(tree, settings))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", default="0.5b,7b", help="some of: " + ", ".join(SIZES))
    parser.add_argument("--small", action="store_true")
    chosen = parser.parse_args(arguments)
    device: str = chosen.device
    if device.startswith("cuda") and not torch.cuda.is_available():
        print("torch finds no GPU; nothing was run")
        return 1
    set_up(device)
    torch.set_num_threads(1)
    began = time.perf_counter()
    sizes = {"small": SMALL} if chosen.small else {name: SIZES[name] for name in chosen.sizes.split(",")}
    bench = Bench(device, 2 if chosen.small else REPEATS, 1 << 16 if chosen.small else COPY_BYTES)
    card = torch.cuda.get_device_name(device) if bench.is_cuda else "a processor"
    print(f"{card}, torch {torch.__version__}; it copies {bench.bytes_per_ms / 1e9:.2f} TB/s")
    for name, own in sizes.items():
        passes(bench, name, own, "plain", 40 if chosen.small else PREFIX)
    *_, (name, largest) = sizes.items()
    passes(bench, f"{name} in 8 bits", largest, "int8-weights", 40 if chosen.small else PREFIX)
    print(f"took {time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
