"""How much memory is free, and how many rows fit in it.

What a row takes follows from the model's shape; what is free is asked of the device, or of the system where the device is
its processor. Knows sizes. Knows nothing of requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dg_lsp.engine import memory

if TYPE_CHECKING:
    from dg_lsp.engine.passes import Passes

SHARE = 0.8  # of what is free may be used: allocators round up, and others live there too
LOGIT_COPIES = 5  # in 32 bits and at once: logits, their softcap, probabilities, entropies, sums to draw by
KEPT_PREFIXES = 4  # of full length; an editor switches between a few files
HIDDEN_COPIES = 8  # of a position's hidden state while a layer is computed


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that one token takes: of a prefix, its keys and values; of a canvas, all that a step needs besides."""

    prefix_token: int
    canvas_token: int

    def row(self, prefix_tokens: int, canvas_tokens: int) -> int:
        """Return the bytes of one row of a pass: a copy of its prefix's keys and values, its canvas and its logits."""
        return prefix_tokens * self.prefix_token + canvas_tokens * self.canvas_token


def cost(passes: Passes) -> Cost:
    """Return what a token takes in a loaded model."""
    decoder, config = passes.decoder, passes.config
    size: int = decoder.embed_tokens.weight.element_size()
    kv: int = sum(2 * layer.self_attn.k_proj.out_features for layer in decoder.layers) * size
    widest = max(_widest(layer) for layer in decoder.layers)
    if any(passes.expert):
        widest += 3 * config.top_k_experts * config.moe_intermediate_size
    hidden: int = (HIDDEN_COPIES * config.hidden_size + widest) * size
    logits: int = LOGIT_COPIES * 4 * passes.model.lm_head.weight.shape[0]
    return Cost(kv, kv + hidden + logits)


def _widest(layer: Any) -> int:
    """Return how many values a position has at most at once within a layer: in attention, or in what feeds forward."""
    attention: int = 3 * layer.self_attn.q_proj.out_features + 2 * layer.self_attn.k_proj.out_features
    feed_forward: int = 3 * layer.mlp.gate_proj.out_features
    return max(attention, feed_forward)


def rows_that_fit(free: int | None, row: int, most: int) -> int:
    """Return how many rows of so many bytes may step in one pass: `most`, less where memory is short, always one.

    `free` is None where nobody can tell.
    """
    return most if free is None else max(1, min(most, int(free * SHARE) // max(row, 1)))


def cache_bytes(free: int | None, prefix: int, least: int) -> int:
    """Return how much memory encoded prefixes of so many bytes may keep: a few of them, an eighth of what is free at most."""
    return least if free is None else max(least, min(KEPT_PREFIXES * prefix, free // 8))


def width_bucket(width: int) -> int:
    """Return which canvases step together: those that padding to the widest makes no more than a little wider."""
    return -(-width // 32)


def free_bytes(device: str) -> int | None:
    """Return how much memory a model on the device can still get; None where nobody can tell."""
    if device.startswith("cuda"):
        # What the allocator keeps but nobody uses is as good as free.
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return memory.free_bytes()
