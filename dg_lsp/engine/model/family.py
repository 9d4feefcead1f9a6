"""Describe what decoding, caches and memory limits need from a loaded model of any family.

`passes.Passes` (DiffusionGemma) and `llama.LlamaPasses` (SmolLM2, Llama, Qwen2) provide it. It requires attention: keys and
values by position, which can be cropped anywhere, and passes with any visibility mask.

Shapes: R rows, N or L tokens, C canvas positions, H hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from dg_lsp.engine.model import fit

KV = list[tuple[Tensor, Tensor]]  # per layer: keys and values, each [R or 1, kv heads, L, head dimension]


class Family(Protocol):
    """The passes of one loaded model, and its sizes."""

    @property
    def geometry(self) -> fit.Geometry:
        """The model's sizes."""

    @property
    def n_vocabulary(self) -> int:
        """The number of logits, which may exceed the number of the tokenizer's tokens."""

    @property
    def value_bytes(self) -> int:
        """The bytes of one number in the keys and values."""

    def n_bytes(self) -> int:
        """Return the bytes of the weights."""

    def encode(self, ids: Tensor, past: KV | None = None) -> tuple[Tensor, KV]:
        """Return the last hidden states [R, L, H] of new tokens [R, L], and the keys and values of past and new tokens."""

    def extend(
        self, ids: Tensor, positions: Tensor, kv: KV, mask: Tensor, key_positions: Tensor, *, adapted: bool = False
    ) -> Tensor:
        """Return the last hidden states [N, H] of new tokens [N], each at its own position [N].

        The pass overwrites the last N places of `kv`. Token n sees the places in `mask` [N, L], whose positions are
        `key_positions` [L]: layers with a sliding window need them. The canvas adapter acts on the new tokens if `adapted`;
        families without one ignore that.
        """

    def decode(
        self,
        canvas: Tensor,
        kv: KV,
        soft: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        with_room: bool = False,
    ) -> Tensor:
        """Return the last hidden states [R, C, H] of a canvas [R, C] that attends to `kv` and, in both directions, to itself.

        `soft` [R, C, H] is the self-conditioning signal, which families without it ignore. `mask` is a boolean
        [R, 1, C, L + C]; without it, everything is visible. With `with_room`, the pass overwrites the last C positions of
        `kv` with the canvas's own keys and values. Llama and Qwen2 models also take an empty `kv`.
        """

    def soft(self, ids: Tensor, probabilities: Tensor) -> Tensor:
        """Return the self-conditioning signal [R, C, H] of the tokens `ids` [R, C, K] with their probabilities [R, C, K]."""

    def logits(self, hidden: Tensor, first: int = 0, last: int | None = None) -> Tensor:
        """Return the logits [..., V] in 32 bits, or only those of the tokens from `first` to `last`."""


def crop(kv: KV, length: int) -> KV:
    """Return the keys and values of the first `length` positions, as views."""
    return [(keys[:, :, :length], values[:, :, :length]) for keys, values in kv]
