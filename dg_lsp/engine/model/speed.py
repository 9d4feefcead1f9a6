"""Measure a loaded model's passes beside the least time that its device's memory needs, and count what else fits there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dg_lsp.engine.model import memory
from dg_lsp.engine.model.fit.geometry import Geometry
from dg_lsp.engine.model.tree import ROOT, Tree

COPIED = 1 << 28  # bytes; more than any cache has
N_COPIES, N_PASSES = 5, 40


@dataclass(frozen=True, slots=True)
class Speed:
    """What a pass over one token takes at the median.

    `floor_ms` is what reading the weights of one token takes at the speed of a copy. `free_bytes` are None if unknown, and
    `tokens_that_fit` is how many tokens' keys and values they are.
    """

    floor_ms: float
    pass_ms: float
    free_bytes: int | None
    tokens_that_fit: int | None

    @property
    def tokens_per_s(self) -> float:
        """How many tokens a second a draft without branches writes."""
        return 1000 / self.pass_ms


def share_read(shape: Geometry) -> float:
    """Return the share of the weights that a pass over one token reads: few experts, and of the vocabulary only the head."""
    idle = shape.n_experts * (1 - shape.experts_at_once / shape.experts) if shape.experts else 0.0
    embedding = shape.vocabulary * shape.hidden if shape.has_head else 0
    return 1 - (idle + embedding) / shape.n_weights


@torch.inference_mode()
def measured(passes: Any, device: str, n_prefix: int) -> Speed:
    """Return the speed of a model that writes from left to right behind a prefix of so many tokens."""

    def ms(work: Callable[[], object], n: int) -> float:
        times = list[float]()
        for _ in range(n):
            began = time.perf_counter()
            work()
            if device.startswith("cuda"):
                torch.cuda.synchronize(device)
            times.append(1000 * (time.perf_counter() - began))
        return statistics.median(times)

    copied = torch.zeros(2, COPIED, dtype=torch.uint8, device=device)
    bytes_per_ms = 2 * COPIED / ms(lambda: copied[0].copy_(copied[1]), N_COPIES)
    copied = copied[:0]
    hidden, kv = passes.encode(torch.arange(n_prefix, device=device)[None] % passes.n_vocabulary)
    tree, node = Tree(passes, kv, n_prefix - 1, hidden[0, -1], buffers=passes.buffers), ROOT

    def draft() -> None:
        nonlocal node
        [[node]] = tree.grow([(node, [node % passes.n_vocabulary])])
        passes.logits(tree.hidden([node])).argmax(-1).tolist()

    pass_ms, free = ms(draft, N_PASSES), memory.free_bytes(device)
    n_tokens = None if free is None else int(free * memory.SHARE) // memory.cost(passes).prefix_token
    return Speed(passes.n_bytes() * share_read(passes.geometry) / bytes_per_ms, pass_ms, free, n_tokens)
