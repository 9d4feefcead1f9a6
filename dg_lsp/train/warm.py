"""Start a run from an existing checkpoint with another vocabulary or fewer layers.

A token of both vocabularies keeps its embedding. A new token starts as the mean of the tokens that spelled it before
(vocabulary transfer; FVT, Gee et al. 2022, EMNLP industry track). A new layer starts as a copy of the one before it.
Norms of weight zero disable its two outputs, so that the deeper model computes the same as the shallower one.

This module knows weights and tokenizers, and nothing of data.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dg_lsp.engine.model import numpy_first  # noqa: F401 -- before torch

# isort: split
import torch
from tokenizers import Tokenizer
from torch import Tensor

from dg_lsp.engine.decode.canvas.stock import library_model
from dg_lsp.engine.model.loading import load_model
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.train.curve import START
from dg_lsp.train.schedule import Progress
from dg_lsp.train.shape import Shape, build
from dg_lsp.train.windows import N_SPECIAL

LAYERS = ".layers."
VISION = "vision"  # in the names of the vision tower and its projection
OUTPUTS = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")


def start(run: Path, checkpoint: str, shape: Shape) -> None:
    """Write the first `state.pt` into `run`, with the weights of `checkpoint`, for a model of `shape`.

    `start.json` beside it keeps the checkpoint's name, for the model card.

    Raises EvalError if the run already has a state, or if the checkpoint is wider or deeper than the shape.
    """
    file = run / "state.pt"
    if file.exists():
        raise EvalError(f"{file} exists, so this run has started; remove it to start again")
    loaded = load_model(checkpoint, device="cpu", dtype="float32")
    old: dict[str, Tensor] = library_model(loaded).state_dict()  # includes the weights that a dense model does not use
    model: Any = build(shape)
    new: dict[str, Tensor] = model.state_dict()
    n_old = loaded.diffusion.config.num_hidden_layers
    if n_old > shape.layers:
        raise EvalError(f"{checkpoint} has {n_old} layers, more than the {shape.layers} of the new model")
    rows = _embeddings(loaded.vocabulary, Vocabulary(Tokenizer.from_file(str(run / "tokenizer.json"))))
    for name, tensor in new.items():
        if VISION in name:
            continue  # never used, and loading leaves it out
        source, is_new = _source(name, n_old, shape.layers)
        value = old[source]
        if len(value.shape) == 2 and len(value) == loaded.vocabulary.size and ("embed_tokens" in name or "lm_head" in name):
            value = _transferred(value, rows)
        if value.shape != tensor.shape:
            raise EvalError(f"{checkpoint} does not fit: {name} is {tuple(value.shape)}, not {tuple(tensor.shape)}")
        tensor.copy_(torch.zeros_like(value) if is_new and name.endswith(OUTPUTS) else value)
    average = {name: item.detach().clone() for name, item in model.named_parameters() if item.requires_grad}
    torch.save({"model": new, "average": average, "optimizers": [], "progress": asdict(Progress())}, file)
    name = Path(checkpoint).name if Path(checkpoint).is_dir() else checkpoint
    (run / START).write_text(json.dumps({"weights": name}) + "\n", encoding="utf-8")


def _source(name: str, n_old: int, n_new: int) -> tuple[str, bool]:
    """Return the old name of a weight, and whether its layer is new. New layers go before the last one."""
    head, marker, tail = name.partition(LAYERS)
    if not marker:
        return name, False
    index, _, rest = tail.partition(".")
    if int(index) == n_new - 1:
        return f"{head}{LAYERS}{n_old - 1}.{rest}", False
    return f"{head}{LAYERS}{min(int(index), n_old - 2)}.{rest}", int(index) > n_old - 2


def _embeddings(old: Vocabulary, new: Vocabulary) -> list[tuple[int, ...]]:
    """Return, for each token of the new vocabulary, the old tokens that spell it; control tokens keep their ids."""
    by_piece = {piece: token for token, piece in enumerate(old.pieces) if piece}
    rows: list[tuple[int, ...]] = []
    for token, piece in enumerate(new.pieces):
        if token < N_SPECIAL or not piece:
            rows.append((token,))
        elif piece in by_piece:
            rows.append((by_piece[piece],))
        else:
            rows.append(_spelled(piece, by_piece))
    return rows


def _spelled(piece: bytes, by_piece: dict[bytes, int]) -> tuple[int, ...]:
    """Return the known tokens that spell the piece, the longest possible from left to right; every byte is a token."""
    tokens, at = [], 0
    while at < len(piece):
        end = next(end for end in range(len(piece), at, -1) if piece[at:end] in by_piece)
        tokens.append(by_piece[piece[at:end]])
        at = end
    return tuple(tokens)


def _transferred(weights: Tensor, rows: list[tuple[int, ...]]) -> Tensor:
    return torch.stack([weights[list(row)].mean(0) for row in rows])
