"""Convert a GGUF file into the folder that the engine loads: config.json, tokenizer.json, and weights in int8.

Each matrix is stored as int8 [outputs, inputs] with one scale per output row, as `NAME.weight` and `NAME.weight_scale`; norms
and biases are float32. The names are those of transformers. One tensor at a time is in memory. An adapter that was trained
for the model is added to its matrices before they are rounded, so it costs nothing when the model runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dg_lsp.engine.model.fit.geometry import PROJECTIONS
from dg_lsp.engine.model.pull.gguf_file import GgufError, GgufFile, Tensor
from dg_lsp.engine.model.pull.tokens import tokenizer_values

QUANTISATION = "int8-rows"
FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
# Two copies of one matrix, each rounded for itself, differ by less than this share of its length.
SAME_MATRIX = 0.15
OnProgress = Callable[[str, float], None]

_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
EMBEDDING, HEAD, NORM = "token_embd.weight", "output.weight", "output_norm.weight"


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model."""

    family: str
    hidden: int
    inner: int
    layers: int
    heads: int
    groups: int
    vocabulary: int

    @property
    def head_dim(self) -> int:
        """The size of one attention head."""
        return self.hidden // self.heads

    def matrices(self) -> Mapping[str, tuple[int, int]]:
        """Return the shape [outputs, inputs] of each matrix of a layer, by its name in GGUF."""
        keys = self.groups * self.head_dim
        return {
            "attn_q": (self.hidden, self.hidden),
            "attn_k": (keys, self.hidden),
            "attn_v": (keys, self.hidden),
            "attn_output": (self.hidden, self.hidden),
            "ffn_gate": (self.inner, self.hidden),
            "ffn_up": (self.inner, self.hidden),
            "ffn_down": (self.hidden, self.inner),
        }


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor to write: its name in transformers, where it comes from, and for how many heads its rows are permuted.

    `low_rank` are an adapter's A [rank, inputs] and B [outputs, rank], whose product B A is added.
    """

    name: str
    tensor: Tensor
    permuted_heads: int = 0
    low_rank: tuple[Any, Any] | None = None


def convert(
    path: Path, folder: Path, on_progress: OnProgress = lambda _text, _share: None, *, adapter: Path | None = None
) -> None:
    """Write the converted model of a GGUF file into an existing, empty folder. Raises GgufError or OSError.

    `adapter` is a file of this package, exported by `dg-lsp train fim`.
    """
    with GgufFile(path) as file:
        shape, values = _config(file)
        low_rank = _low_rank(adapter, shape) if adapter else {}
        sources = [replace(source, low_rank=low_rank.get(source.name)) for source in _sources(file, shape)]
        is_tied = not (head := file.tensors.get(HEAD)) or _is_same(file, file.tensors[EMBEDDING], head)
        # Of two copies of one matrix, the one with more bits is closer to the original.
        embedding = max((file.tensors[EMBEDDING], *([head] if head and is_tied else [])), key=lambda each: each.n_bytes)
        sources.append(Source("model.embed_tokens.weight", embedding))
        if head and not is_tied:
            sources.append(Source("lm_head.weight", head))
        values["tie_word_embeddings"] = is_tied
        _write_json(folder / "tokenizer.json", tokenizer_values(file.fields))
        _write_weights(folder / "model.safetensors", file, sources, on_progress)
        _write_json(folder / "config.json", values)


def _config(file: GgufFile) -> tuple[Shape, dict[str, Any]]:
    fields = file.fields
    family = fields.get("general.architecture")
    if family not in FAMILIES:
        raise GgufError(f"holds a model of the family {family!r}; {' and '.join(FAMILIES)} can be converted")
    if scaled := next((name for name in fields if name.startswith(f"{family}.rope.scaling.")), None):
        raise GgufError(f"scales its positions ({scaled}), which can't be converted")

    def count(name: str) -> int:
        value = fields.get(f"{family}.{name}")
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 20:
            raise GgufError(f"states {value!r} for {family}.{name}")
        return value

    def number(name: str, default: float | None = None) -> float:
        value = fields.get(f"{family}.{name}", default)
        if not isinstance(value, float) or not 0 < value < 1e12:
            raise GgufError(f"states {value!r} for {family}.{name}")
        return value

    heads = count("attention.head_count")
    embedding = file.tensors.get(EMBEDDING)
    tokens = fields.get("tokenizer.ggml.tokens")
    if embedding is None or not isinstance(tokens, list) or embedding.shape[0] != len(tokens):
        raise GgufError("has no embedding for each of its tokens")
    shape = Shape(
        family,
        count("embedding_length"),
        count("feed_forward_length"),
        count("block_count"),
        heads,
        count("attention.head_count_kv"),
        len(tokens),
    )
    if shape.hidden % heads or heads % shape.groups or shape.head_dim % 2:
        raise GgufError(f"states {heads} heads in {shape.groups} groups for {shape.hidden} values")
    if fields.get(f"{family}.rope.dimension_count", shape.head_dim) != shape.head_dim:
        raise GgufError("rotates only a part of each head, which can't be converted")
    return shape, {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shape.groups,
        "head_dim": shape.head_dim,
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "rope_theta": number("rope.freq_base", 10_000.0),
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": count("context_length"),
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "dg_lsp_quantisation": QUANTISATION,
    }


def _sources(file: GgufFile, shape: Shape) -> list[Source]:
    """Return the tensors of the layers and the last norm; raise GgufError if one is missing, unknown or of another shape."""
    sources, expected = [], {EMBEDDING, HEAD}

    def add(gguf_name: str, name: str, size: tuple[int, ...], *, heads: int = 0, may_miss: bool = False) -> None:
        expected.add(gguf_name)
        tensor = file.tensors.get(gguf_name)
        if tensor is None and may_miss:
            return
        if tensor is None or tensor.shape != size:
            raise GgufError(f"has no tensor {gguf_name} of the shape {size}")
        sources.append(Source(name, tensor, heads))

    matrices = shape.matrices()
    # Files of the Llama family have the rows of queries and keys in the order of the other form of rotation.
    permuted = {"attn_q": shape.heads, "attn_k": shape.groups} if shape.family == "llama" else {}
    for layer in range(shape.layers):
        for short, long in _OF_LAYER.items():
            size, heads = matrices.get(short, (shape.hidden,)), permuted.get(short, 0)
            add(f"blk.{layer}.{short}.weight", f"model.layers.{layer}.{long}.weight", size, heads=heads)
            add(f"blk.{layer}.{short}.bias", f"model.layers.{layer}.{long}.bias", size[:1], heads=heads, may_miss=True)
    add(NORM, "model.norm.weight", (shape.hidden,))
    for gguf_name in (EMBEDDING, HEAD):
        tensor = file.tensors.get(gguf_name)
        if tensor is not None and tensor.shape != (shape.vocabulary, shape.hidden):
            raise GgufError(f"has no tensor {gguf_name} of the shape {(shape.vocabulary, shape.hidden)}")
    if unknown := next((name for name in file.tensors if name not in expected), None):
        raise GgufError(f"has a tensor that can't be converted: {unknown}")
    return sources


def _low_rank(adapter: Path, shape: Shape) -> dict[str, tuple[Any, Any]]:
    """Return an adapter's A and B of each matrix, by its name in transformers."""
    from safetensors.numpy import load_file

    tensors = {name: tensor.astype(np.float32) for name, tensor in load_file(adapter).items()}
    return {
        f"model.layers.{layer}.{long}.weight": (tensors[f"{layer}{letter}_a"], tensors[f"{layer}{letter}_b"])
        for layer in range(shape.layers)
        for letter, long in PROJECTIONS.items()
    }


def _is_same(file: GgufFile, one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same matrix, each rounded for itself."""
    difference = length = 0.0
    for rows, other_rows in zip(file.rows(one), file.rows(other), strict=True):
        difference += float(np.square(rows - other_rows).sum())
        length += float(np.square(other_rows).sum())
    return difference <= SAME_MATRIX**2 * length


def _write_weights(path: Path, file: GgufFile, sources: list[Source], on_progress: OnProgress) -> None:
    """Write the tensors as safetensors, one after the other."""
    header: dict[str, Any] = {}
    total = 0
    for source in sources:
        for name, kind, shape, n_bytes in _stored(source):
            header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [total, total + n_bytes]}
            total += n_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for n_done, source in enumerate(sources):
            on_progress("converting the weights", n_done / len(sources))
            _write_tensor(out, file, source)
        out.flush()
        os.fsync(out.fileno())


def _stored(source: Source) -> Iterator[tuple[str, str, tuple[int, ...], int]]:
    """Yield the name, type, shape and size in bytes of each tensor that is written for a source."""
    shape = source.tensor.shape
    if len(shape) == 1:
        yield source.name, "F32", shape, 4 * shape[0]
        return
    yield source.name, "I8", shape, shape[0] * shape[1]
    yield f"{source.name}_scale", "F32", shape[:1], 4 * shape[0]


def _write_tensor(out: BinaryIO, file: GgufFile, source: Source) -> None:
    if len(source.tensor.shape) == 1:
        values = _unpermuted(file.whole(source.tensor), source.permuted_heads)
        out.write(np.ascontiguousarray(values, dtype="<f4").tobytes())
        return
    scales, start = [], 0
    # A permuted matrix is one of attention and small; the others are written in pieces.
    pieces = file.rows(source.tensor) if not source.permuted_heads else [file.whole(source.tensor)]
    for piece in pieces:
        rows = _unpermuted(piece, source.permuted_heads)
        if source.low_rank:
            a, b = source.low_rank
            rows, start = rows + b[start : start + len(rows)] @ a, start + len(rows)
        scale = np.abs(rows).max(axis=1) / 127
        scale[scale == 0] = 1
        out.write(np.rint(rows / scale[:, None]).astype(np.int8).tobytes())
        scales.append(scale)
    out.write(np.concatenate(scales).astype("<f4").tobytes())


def _unpermuted(values: Any, heads: int) -> Any:
    """Return the rows in the order of transformers' rotation, which pairs the halves of a head; 0 heads: unchanged."""
    if not heads:
        return values
    n_rows = values.shape[0]
    return values.reshape(heads, n_rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
