"""Compute how many rows and requests fit in the free memory.

The bytes of a row follow from the model's sizes (`fit`). The free memory comes from the device, or from the system for the
CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dg_lsp.engine.model.fit import canvas_token_bytes, logit_bytes, machine

if TYPE_CHECKING:
    from dg_lsp.engine.model.prefix_cache import PrefixCache

SHARE = 0.8  # the share of free memory to use: allocators round up, and other programs allocate too
KEPT_PREFIXES = 4  # full-length prefixes to keep, because an editor switches between a few files
MASK_BYTES = 32  # of one pair of a query and a key: a mask, widened for at most eight heads, as bits and as numbers


@dataclass(frozen=True, slots=True)
class Cost:
    """The bytes of one token: for a prefix, its keys and values; for a canvas, everything a step needs.

    `logit_token` is the part of `canvas_token` for the logits.
    """

    prefix_token: int
    canvas_token: int
    logit_token: int = 0

    def row(self, prefix_tokens: int, canvas_tokens: int) -> int:
        """Return the bytes of one row in a pass: a copy of its prefix's keys and values, its canvas and its logits."""
        return prefix_tokens * self.prefix_token + canvas_tokens * self.canvas_token


def cost(passes: Any) -> Cost:
    """Return the bytes that a token needs in a loaded model."""
    shape, size = passes.geometry, passes.value_bytes
    return Cost(shape.kv_per_token * size, canvas_token_bytes(shape, size), logit_bytes(shape))


def rows_that_fit(free: int | None, row: int, most: int) -> int:
    """Return how many rows of `row` bytes fit in one pass: at most `most`, fewer if memory is short, at least one.

    `free` is in bytes, None if unknown.
    """
    return most if free is None else max(1, min(most, int(free * SHARE) // max(row, 1)))


def cache_bytes(free: int | None, prefix: int, least: int) -> int:
    """Return the cache limit in bytes for prefixes of `prefix` bytes: a few prefixes, at most an eighth of free memory."""
    return least if free is None else max(least, min(KEPT_PREFIXES * prefix, free // 8))


def fixed_bytes(free: int) -> int:
    """Return the limit in bytes for the buffers and graphs of steps in fixed buffers: a quarter of the free memory."""
    return free // 4


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

    def rows_at_once(self, prefix_tokens: int, canvas_tokens: int, most: int) -> int:
        """Return the number of a request's rows in one pass, at most `most`."""
        return rows_that_fit(self.free(), self.cost.row(prefix_tokens, canvas_tokens), most)

    def admits_request(self) -> bool:
        """Return whether another request of full size fits beside the running ones."""
        free = self.free()
        return free is None or self._usual <= free * SHARE
