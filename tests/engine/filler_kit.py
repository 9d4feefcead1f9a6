"""What the tests of the models of this process share: passes of tiny models, what the library says, and recorders."""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch import Tensor

from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.model import matmul
from dg_lsp.engine.model.fit import gemma_sizes, llama_sizes
from dg_lsp.engine.model.gpu import PLAIN
from dg_lsp.engine.model.kv import KV
from dg_lsp.engine.model.llama import Llama
from dg_lsp.engine.model.recording import Buffers, Recorder, Work
from dg_lsp.engine.model.room import Room
from dg_lsp.engine.model.tree import Tree
from dg_lsp.engine.model.weights.llama import llama_name
from tests import checkpoints

MODELS = (*checkpoints.LLAMAS, "experts")
Way = Literal["processor", "buffers", "recorded", "refused"]
WAYS: tuple[Way, ...] = ("processor", "buffers", "recorded", "refused")
"""How passes run: as on a processor, or in buffers as on a GPU, without a recorder, with one, or with one that fails."""


@functools.cache
def model_of(name: str) -> Any:
    """Return one of the library's models, whose weights no test changes."""
    return checkpoints.with_experts() if name == "experts" else checkpoints.llama(name)


def recorder_of(way: Way) -> Recorder | None:
    return WorkingRecorder() if way == "recorded" else FailingRecorder("passes") if way == "refused" else None


def passes_of(
    name: str, way: Way = "processor", recorder: Recorder | None = None, kind: matmul.Kind = "plain", usual: int = 0
) -> Any:
    """Return the passes of a model, which run this way and multiply in this way. Only a Llama has kinds of products."""
    model, recorder = model_of(name), recorder or recorder_of(way)
    values, weights = model.config.to_dict(), model.state_dict()
    if name == "experts":
        gemma = Passes(model)
        gemma.buffers = None if way == "processor" else Buffers(gemma, lambda: None, recorder, usual)
        return gemma
    if name == "encoder":  # whose passes use no buffers
        sizes = gemma_sizes(values)
        weights = {llama_name(name): weights[name] for name in sizes.shapes()}
    else:
        sizes = llama_sizes(values)
    passes = Llama(sizes, dict(weights), kind)
    if way != "processor":
        passes.use_buffers(PLAIN, lambda: None, recorder)
    return passes


def library_logits(model: Any, ids: Tensor) -> Tensor:
    """Return what the library's model says: all of it, or the encoder of a DiffusionGemma with the model's head."""
    with torch.inference_mode():
        if model.config.model_type != "diffusion_gemma":
            logits: Tensor = model(ids).logits
            return logits
        cap: float = model.config.text_config.final_logit_softcapping
        hidden: Tensor = model.lm_head(model.model.encoder(input_ids=ids).last_hidden_state)
        return torch.tanh(hidden / cap) * cap


def ids_of(rows: int, length: int) -> Tensor:
    """Return random tokens that all the models have."""
    return torch.randint(10, 110, (rows, length), generator=torch.Generator().manual_seed(length))


def room_of(passes: Any, ids: Tensor, more: int = 0) -> Room:
    """Return a room that has read a text [1, N], with `more` slots."""
    room = Room(passes, ids.shape[1] + more)
    room.read(ids[0].tolist())
    return room


def hidden_of(passes: Any, ids: Tensor) -> Tensor:
    """Return the last hidden states [1, N, H] of a text [1, N]."""
    return Room(passes, ids.shape[1]).read(ids[0].tolist())[None]


def tree_of(passes: Any, ids: Tensor, *, knows_root: bool = False) -> Tree:
    """Return the tree after a text [1, N], which reads the last token again or knows what the model says after it."""
    n_read = ids.shape[1] - (not knows_root)
    room = Room(passes, ids.shape[1])
    hidden = room.read(ids[0, :n_read].tolist())[-1] if n_read else None
    return Tree(room, int(ids[0, -1]), hidden if knows_root else None)


def a_prefix(passes: Passes, length: int) -> KV:
    return room_of(passes, ids_of(1, length)).kv


class WorkingRecorder(Recorder):
    """A recorder whose graphs are the functions themselves."""

    def record(self, work: Work) -> Work:
        return work


class FailingRecorder(Recorder):
    """A recorder that fails as CUDA does when a function waits for the device."""

    def record(self, work: Work) -> Work:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile with TORCH_USE_CUDA_DSA")
