"""Convert a GGUF file into the folder that the engine loads: config.json, tokenizer.json, and weights in int8.

The `gguf` package has the formats of the tensors and turns them into numbers. Its own reader takes 12 seconds and 500 MB for a
vocabulary of 152 thousand tokens, and this one half a second and 40 MB. Nothing that the file states is doubted: its hash was
checked before.

Each matrix is stored as int8 [outputs, inputs] with one scale per output row, as `NAME.weight` and `NAME.weight_scale`; norms
and biases are float32. The names are those of transformers. One tensor at a time is in memory. An adapter that was trained
for the model is added to its matrices before they are rounded, so it costs nothing when the model runs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from dg_lsp.engine.model import vocabulary
from dg_lsp.engine.model.fit import PROJECTIONS, LlamaSizes, llama_sizes

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ROWS_VALUES = 1 << 22  # values that are dequantised at a time, so that memory stays small


class GgufError(Exception):
    """The file's model can't be converted. The message is the end of a sentence that begins with the file."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file: its shape [rows, columns] or [columns], its format, and its place."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int

    @property
    def n_bytes(self) -> int:
        block, block_bytes = GGML_QUANT_SIZES[self.kind]
        return math.prod(self.shape) // block * block_bytes


class GgufFile:
    """An open file; `fields` and `tensors` by name."""

    def __init__(self, path: Path) -> None:
        """Read the metadata of a file; raise GgufError if a tensor is not all there."""
        with path.open("rb") as opened:
            self._data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        header = _Header(self._data)
        _magic, _version, n_tensors, n_fields = (header.number(code) for code in "IIQQ")
        self.fields: dict[str, Any] = {header.text(): header.value(header.number("I")) for _ in range(n_fields)}
        stated = [header.tensor() for _ in range(n_tensors)]
        alignment = self.fields.get("general.alignment", 32)
        begin = -(-header.at // alignment) * alignment
        self.tensors = {each.name: replace(each, start=begin + each.start) for each in stated}
        if any(each.start + each.n_bytes > len(self._data) for each in self.tensors.values()):
            raise GgufError("is cut short")

    def close(self) -> None:
        self._data.close()

    def rows(self, tensor: Tensor) -> Any:
        """Yield a tensor's values as float32, some rows [n, columns] at a time."""
        columns = tensor.shape[-1]
        n_rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        row_bytes = tensor.n_bytes // n_rows
        step = max(1, _ROWS_VALUES // columns)
        for row in range(0, n_rows, step):
            count = min(step, n_rows - row)
            start = tensor.start + row * row_bytes
            raw = np.frombuffer(self._data[start : start + count * row_bytes], dtype=np.uint8).reshape(count, row_bytes)
            yield dequantize(raw, tensor.kind).reshape(count, columns)

    def whole(self, tensor: Tensor) -> Any:
        """Return a small tensor's values as float32, in its shape."""
        return np.concatenate(list(self.rows(tensor))).reshape(tensor.shape)


class _Header:
    """Reads the values of the header one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def text(self) -> str:
        n_bytes = self.number("Q")
        self.at += n_bytes
        return self.data[self.at - n_bytes : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_NUMBERS[kind])
        item, n_items = self.number("I"), self.number("Q")
        return [self.value(item) for _ in range(n_items)]

    def tensor(self) -> Tensor:
        """Return a tensor, whose `start` counts from the end of the header."""
        name = self.text()
        # The file states the columns first.
        shape = tuple(reversed([self.number("Q") for _ in range(self.number("I"))]))
        return Tensor(name, shape, GGMLQuantizationType(self.number("I")), self.number("Q"))


# --- The converted folder


QUANTISATION = "int8-rows"
FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
# Two copies of one matrix, each rounded for itself, differ by less than this share of its length.
SAME_MATRIX = 0.15
OnProgress = Callable[[str, float], None]

# The names in GGUF of a layer's tensors, and of those outside the layers.
_OF_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_OUTSIDE = {"model.embed_tokens.weight": EMBEDDING, "model.norm.weight": "output_norm.weight", "lm_head.weight": HEAD}


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A tensor to write: its name in transformers, where it comes from, and for how many heads its rows are permuted.

    `low_rank` are an adapter's A [rank, inputs] and B [outputs, rank], whose product B A is added.
    """

    name: str
    tensor: Tensor
    permuted_heads: int = 0
    low_rank: tuple[Any, Any] | None = None


def convert(
    path: Path, folder: Path, on_progress: OnProgress = lambda _text, _share: None, *, adapters: Sequence[Path] = ()
) -> None:
    """Write the converted model of a GGUF file into an existing, empty folder. Raises GgufError or OSError.

    `adapters` are safetensors files of this package with A and B of projections; each B A is added to the weights.
    """
    with contextlib.closing(GgufFile(path)) as file:
        values = _config(file)
        sizes = llama_sizes({**values, "tie_word_embeddings": True})
        low_rank = _low_rank(adapters, sizes)
        is_permuted = values["model_type"] == "llama"
        sources = [replace(one, low_rank=low_rank.get(one.name)) for one in _sources(file, sizes, is_permuted=is_permuted)]
        is_tied = not (head := file.tensors.get(HEAD)) or _is_same(file, file.tensors[EMBEDDING], head)
        # Of two copies of one matrix, the one with more bits is closer to the original.
        embedding = max((file.tensors[EMBEDDING], *([head] if head and is_tied else [])), key=lambda each: each.n_bytes)
        sources.append(SourceTensor("model.embed_tokens.weight", embedding))
        if head and not is_tied:
            sources.append(SourceTensor("lm_head.weight", head))
        values["tie_word_embeddings"] = is_tied
        _write_json(folder / "tokenizer.json", tokenizer_values(file.fields))
        _write_weights(folder / "model.safetensors", file, sources, on_progress)
        _write_json(folder / "config.json", values)


def described(path: Path) -> dict[str, Any]:
    """Return the values of the config.json that `convert` would write; raise GgufError if it can't convert the file."""
    with contextlib.closing(GgufFile(path)) as file:
        values = _config(file)
        _sources(file, llama_sizes({**values, "tie_word_embeddings": True}), is_permuted=False)
        return {**values, "tie_word_embeddings": HEAD not in file.tensors}


def _config(file: GgufFile) -> dict[str, Any]:
    """Return the values of config.json, except whether the embedding is also the head; raise GgufError."""
    fields = file.fields
    family = fields.get("general.architecture")
    if family not in FAMILIES:
        raise GgufError(f"holds a model of the family {family!r}; {' and '.join(FAMILIES)} can be converted")
    if scaled := next((name for name in fields if name.startswith(f"{family}.rope.scaling.")), None):
        raise GgufError(f"scales its positions ({scaled}), which can't be converted")

    def stated(name: str) -> Any:
        return fields[f"{family}.{name}"]

    hidden, heads, groups = stated("embedding_length"), stated("attention.head_count"), stated("attention.head_count_kv")
    if fields.get(f"{family}.rope.dimension_count", hidden // heads) != hidden // heads:
        raise GgufError("rotates only a part of each head, which can't be converted")
    return {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": stated("feed_forward_length"),
        "num_hidden_layers": stated("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": hidden // heads,
        "rms_norm_eps": stated("attention.layer_norm_rms_epsilon"),
        "rope_theta": fields.get(f"{family}.rope.freq_base", 10_000.0),
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "max_position_embeddings": stated("context_length"),
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "dg_lsp_quantisation": QUANTISATION,
    }


def _sources(file: GgufFile, sizes: LlamaSizes, *, is_permuted: bool) -> list[SourceTensor]:
    """Return the tensors of the layers and the last norm; raise GgufError if one is missing, unknown or of another shape.

    Files of the Llama family are permuted: the rows of queries and keys are in the order of the other form of rotation.
    """
    permuted = {"attn_q": sizes.heads, "attn_k": sizes.kv_heads} if is_permuted else {}
    sources, expected = list[SourceTensor](), set[str]()
    for name, shape in {**sizes.shapes(), "lm_head.weight": (sizes.vocabulary, sizes.hidden)}.items():
        gguf_name = _OUTSIDE.get(name, "")
        if not gguf_name:  # a layer's tensor, such as `blk.0.attn_q.weight`
            _, _, layer, rest = name.split(".", 3)
            module, _, kind = rest.rpartition(".")
            gguf_name = f"blk.{layer}.{_OF_LAYER[module]}.{kind}"
        tensor = file.tensors.get(gguf_name)
        if tensor is None and gguf_name == HEAD:
            continue
        if tensor is None or tensor.shape != shape:
            raise GgufError(f"has no tensor {gguf_name} of the shape {shape}")
        expected.add(gguf_name)
        if gguf_name not in (EMBEDDING, HEAD):
            sources.append(SourceTensor(name, tensor, permuted.get(gguf_name.split(".")[-2], 0)))
    if unknown := next((name for name in file.tensors if name not in expected), None):
        raise GgufError(f"has a tensor that can't be converted: {unknown}")
    return sources


def _low_rank(adapters: Sequence[Path], sizes: LlamaSizes) -> dict[str, tuple[Any, Any]]:
    """Return A [ranks, inputs] and B [outputs, ranks] of each adapted tensor, those of all adapters beside each other."""
    from safetensors.numpy import load_file

    files = [load_file(adapter) for adapter in adapters]
    found = dict[str, tuple[Any, Any]]()
    for layer, (letter, long) in itertools.product(range(sizes.layers), PROJECTIONS.items()):
        name = f"{layer}{letter}"
        if having := [file for file in files if f"{name}_a" in file]:
            a = np.concatenate([file[f"{name}_a"].astype(np.float32) for file in having])
            b = np.concatenate([file[f"{name}_b"].astype(np.float32) for file in having], axis=1)
            found[f"model.layers.{layer}.{long}.weight"] = a, b
    return found


def _is_same(file: GgufFile, one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same matrix, each rounded for itself."""
    difference = length = 0.0
    for rows, other_rows in zip(file.rows(one), file.rows(other), strict=True):
        difference += float(np.square(rows - other_rows).sum())
        length += float(np.square(other_rows).sum())
    return difference <= SAME_MATRIX**2 * length


def _write_weights(path: Path, file: GgufFile, sources: list[SourceTensor], on_progress: OnProgress) -> None:
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


def _stored(source: SourceTensor) -> Iterator[tuple[str, str, tuple[int, ...], int]]:
    """Yield the name, type, shape and size in bytes of each tensor that is written for a source."""
    shape = source.tensor.shape
    if len(shape) == 1:
        yield source.name, "F32", shape, 4 * shape[0]
        return
    yield source.name, "I8", shape, shape[0] * shape[1]
    yield f"{source.name}_scale", "F32", shape[:1], 4 * shape[0]


def _write_tensor(out: BinaryIO, file: GgufFile, source: SourceTensor) -> None:
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


# --- The tokenizer


_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # kinds of tokens in GGUF; the others are ordinary


def tokenizer_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `tokenizer.json` for a GGUF file's fields; raise GgufError if its tokenizer is not known."""
    tokens, kinds, merges = (fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges"))
    pre, known = fields.get("tokenizer.ggml.pre"), vocabulary.PRE_TOKENIZERS
    if fields.get("tokenizer.ggml.model") != "gpt2" or not isinstance(pre, str) or pre not in known:
        raise GgufError(f"has a tokenizer that is not known ({pre}); known ones are {', '.join(known)}")
    # Rows of the embedding that only fill it up have names that no text contains. The original leaves them out.
    used = {str(token): number for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != _UNUSED}
    pairs = [str(merge).split(" ") for merge in merges]
    added = {
        str(token): (number, kind == _CONTROL)
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    }
    return vocabulary.tokenizer_values(pre, used, pairs, added)
