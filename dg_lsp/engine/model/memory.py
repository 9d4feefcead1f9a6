"""Say whether a request fits in the free memory, and measure passes beside the speed of the memory.

The bytes of a row follow from the model's sizes (`fit`). The free memory comes from the device, or from the system for the
CPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dg_lsp.engine.model.fit import Cost, Geometry, machine
from dg_lsp.engine.model.prefix_cache import PrefixCache
from dg_lsp.engine.model.room import Room
from dg_lsp.engine.model.tree import ROOT, Tree

SHARE = 0.8  # the share of free memory to use: allocators round up, and other programs allocate too
KEPT_PREFIXES = 4  # full-length prefixes to keep, because an editor switches between a few files
MASK_BYTES = 32  # of one pair of a query and a key: a mask, widened for at most eight heads, as bits and as numbers


def cost(passes: Any) -> Cost:
    return Cost.of(passes.geometry, passes.value_bytes)


def cache_bytes(free: int | None, prefix: int, least: int) -> int:
    """Return the cache limit in bytes for prefixes of `prefix` bytes: a few prefixes, at most an eighth of free memory."""
    return least if free is None else max(least, min(KEPT_PREFIXES * prefix, free // 8))


def free_bytes(device: str) -> int | None:
    """Return the bytes that a model on the device can still allocate; None if unknown."""
    if device.startswith("cuda"):
        # Memory that the allocator reserves but does not use counts as free.
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return machine.free_bytes()


class Headroom:
    """The free memory on a model's device. A request of full size has `prefix_tokens` and `canvas_tokens`."""

    def __init__(self, device: str, cache: PrefixCache, cost: Cost, prefix_tokens: int, canvas_tokens: int) -> None:
        self._device, self.cache, self.cost = device, cache, cost
        self._usual = prefix_tokens * cost.prefix_token + cost.row(prefix_tokens, canvas_tokens)

    def free(self) -> int | None:
        """Return the bytes free for rows; None if unknown."""
        free = free_bytes(self._device)
        return None if free is None else free - max(0, self.cache.max_bytes - self.cache.bytes)

    def admits_request(self) -> bool:
        free = self.free()
        return free is None or self._usual <= free * SHARE


# --- How long a pass takes, beside the least time that the memory needs


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


def share_read(shape: Geometry) -> float:
    """Return the share of the weights that a pass over one token reads: few experts, and of the vocabulary only the head."""
    idle = shape.n_experts * (1 - shape.experts_at_once / shape.experts) if shape.experts else 0.0
    embedding = shape.vocabulary * shape.hidden if shape.has_head else 0
    return 1 - (idle + embedding) / shape.n_weights


@torch.inference_mode()
def measured_speed(passes: Any, device: str, n_prefix: int) -> Speed:
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
    room = Room(passes, n_prefix + N_PASSES)
    hidden = room.read([token % passes.n_vocabulary for token in range(n_prefix)])
    tree, node = Tree(room, n_prefix - 1, hidden[-1]), ROOT

    def draft() -> None:
        nonlocal node
        [[node]] = tree.grow([(node, [node % passes.n_vocabulary])])
        tree.logits([node]).argmax(-1).tolist()

    pass_ms, free = ms(draft, N_PASSES), free_bytes(device)
    n_tokens = None if free is None else int(free * SHARE) // cost(passes).prefix_token
    return Speed(passes.n_bytes() * share_read(passes.geometry) / bytes_per_ms, pass_ms, free, n_tokens)
