"""The causal passes of SmolLM2, Llama, Qwen2 and Qwen2.5-Coder checkpoints.

They equal those of transformers' `LlamaForCausalLM` and `Qwen2ForCausalLM`; a test checks it.

Shapes: R rows, N tokens, L places of the keys, H hidden.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from dg_lsp.engine.model import matmul, memory
from dg_lsp.engine.model.fit.geometry import LlamaSizes
from dg_lsp.engine.model.gpu import operations
from dg_lsp.engine.model.gpu.buffers import Buffers
from dg_lsp.engine.model.gpu.operations import Operations
from dg_lsp.engine.model.gpu.passes import GpuPasses
from dg_lsp.engine.model.llama import Llama
from dg_lsp.engine.model.prefix_cache import KV
from dg_lsp.engine.model.recording import Recorder
from dg_lsp.engine.model.weights.llama_files import Weight


class CausalLlama(Llama):
    """The passes of one loaded model. `buffers` has room for trees on a GPU; None elsewhere."""

    buffers: Buffers | None = None
    _gpu: GpuPasses | None = None

    def __init__(self, sizes: LlamaSizes, weights: Mapping[str, Weight], kind: matmul.Kind) -> None:
        super().__init__(sizes, weights, kind)
        if self._device.type == "cuda":
            free = functools.partial(memory.free_bytes, str(self._device))
            self.use_buffers(operations.best(str(self._device)), free, Recorder("passes"))

    def use_buffers(self, chosen: Operations, free: Callable[[], int | None], recorder: Recorder | None) -> None:
        """Let one row's passes be those of a GPU, with trees in buffers. `free` returns the device's free bytes if known."""
        if self._head.whole is not None:
            self._gpu = GpuPasses(self.sizes, self._embed, self.layers, self._norm, self._head.whole, self.kv_dtype, chosen)
            self.buffers = Buffers(self._gpu, free, recorder)

    def encode(self, ids: Tensor, past: KV | None = None) -> tuple[Tensor, KV]:
        if self._gpu is not None and len(ids) == 1:
            with torch.no_grad():
                return self._gpu.encode(ids, past)
        n_past, n_new = past[0][0].shape[2] if past else 0, ids.shape[1]
        positions = torch.arange(n_past, n_past + n_new, device=ids.device)
        mask = None
        causal = n_new > 1 and (n_past == 0 or self.takes_blocks(n_new))
        if n_new > 1 and not causal:
            mask = torch.arange(n_past + n_new, device=ids.device)[None] <= positions[:, None]
            mask = mask[None, None]
        with torch.no_grad():
            return self._pass(ids, positions[None], past, mask, causal=causal)

    def logits(self, hidden: Tensor, first: int = 0, last: int | None = None) -> Tensor:
        if self._gpu is None:
            return super().logits(hidden, first, last)
        with torch.no_grad():
            flat = hidden.reshape(-1, hidden.shape[-1])
            found = self._gpu.logits(flat, first, self.n_vocabulary if last is None else min(last, self.n_vocabulary))
            return found.view(*hidden.shape[:-1], -1)

    def extend(self, ids: Tensor, positions: Tensor, kv: KV, mask: Tensor, key_positions: Tensor) -> Tensor:
        del key_positions  # every layer sees the whole prefix
        with torch.no_grad():
            return self._pass(ids[None], positions[None], kv, mask[None, None], with_room=True)[0][0]
