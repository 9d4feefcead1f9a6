"""Read a GGUF file: its metadata, and where its tensors are. Every size that the file states is checked before it is used.

The `gguf` package has the formats of the tensors and turns them into numbers. Its own reader is not used, because it allocates
what a file states.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

MAGIC, VERSIONS = b"GGUF", (2, 3)
MAX_FIELDS, MAX_TENSORS, MAX_DIMENSIONS = 4096, 4096, 2
MAX_STRING_BYTES, MAX_ITEMS, MAX_ALIGNMENT = 1 << 20, 1 << 20, 1 << 16
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ROWS_VALUES = 1 << 22  # values that are dequantised at a time, so that memory stays small


class GgufError(Exception):
    """The file is not a GGUF file that can be read. The message is the end of a sentence that begins with the file."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file: its shape [rows, columns] or [columns], its format, and its place."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    n_bytes: int


class GgufFile:
    """An open file; `fields` and `tensors` by name. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        """Read the metadata of a file; raise GgufError or OSError."""
        with path.open("rb") as opened:
            size = path.stat().st_size
            if size < len(MAGIC) + 20:
                raise GgufError("is too short to be a GGUF file")
            self._data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.fields, self.tensors = _parse(self._data, size)
        except BaseException:
            self._data.close()
            raise

    def __enter__(self) -> GgufFile:
        """Return the file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._data.close()

    def rows(self, tensor: Tensor) -> Any:
        """Yield a tensor's values as float32, some rows [n, columns] at a time; raise GgufError."""
        columns = tensor.shape[-1]
        n_rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        row_bytes = tensor.n_bytes // n_rows
        step = max(1, _ROWS_VALUES // columns)
        for row in range(0, n_rows, step):
            count = min(step, n_rows - row)
            start = tensor.start + row * row_bytes
            raw = np.frombuffer(self._data[start : start + count * row_bytes], dtype=np.uint8).reshape(count, row_bytes)
            try:
                values = dequantize(raw, tensor.kind)
            except NotImplementedError as error:
                raise GgufError(f"holds {tensor.name} in the format {tensor.kind.name}, which can't be read") from error
            if not np.isfinite(values).all():
                raise GgufError(f"holds values in {tensor.name} that are not finite")
            yield values.reshape(count, columns)

    def whole(self, tensor: Tensor) -> Any:
        """Return a small tensor's values as float32, in its shape."""
        return np.concatenate(list(self.rows(tensor))).reshape(tensor.shape)


class _Cursor:
    """A position in the header, which never leaves the file."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self.data, self.size, self.at = data, size, 0

    def take(self, n_bytes: int) -> bytes:
        if n_bytes > self.size - self.at:
            raise GgufError("ends inside its header")
        self.at += n_bytes
        return self.data[self.at - n_bytes : self.at]

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def count(self, limit: int, what: str, code: str = "Q") -> int:
        value: int = self.number(code)
        if value > limit:
            raise GgufError(f"states {value} {what}; at most {limit} are read")
        return value

    def text(self) -> str:
        return self.take(self.count(MAX_STRING_BYTES, "bytes of a text")).decode("utf-8", "replace")

    def value(self, kind: int, *, may_nest: bool = True) -> Any:
        if kind == _STRING:
            return self.text()
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind != _ARRAY or not may_nest:
            raise GgufError(f"has a field of an unknown type ({kind})")
        item, n_items = self.number("I"), self.count(MAX_ITEMS, "items of a list")
        if item not in _NUMBERS:
            return [self.value(item, may_nest=False) for _ in range(n_items)]
        code = f"<{n_items}{_NUMBERS[item]}"
        return list(struct.unpack(code, self.take(struct.calcsize(code))))


def _parse(data: mmap.mmap, size: int) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
    cursor = _Cursor(data, size)
    if cursor.take(len(MAGIC)) != MAGIC:
        raise GgufError("is not a GGUF file")
    if (version := cursor.number("I")) not in VERSIONS:
        raise GgufError(f"is GGUF version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} can be read")
    n_tensors, n_fields = cursor.count(MAX_TENSORS, "tensors"), cursor.count(MAX_FIELDS, "fields")
    fields = {cursor.text(): cursor.value(cursor.number("I")) for _ in range(n_fields)}
    stated = [_stated(cursor) for _ in range(n_tensors)]
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT:
        raise GgufError(f"states the alignment {alignment!r}")
    begin = -(-cursor.at // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    end = begin
    for name, shape, kind, offset, n_bytes in sorted(stated, key=lambda each: each[3]):
        start = begin + offset
        if start < end or name in tensors:
            raise GgufError(f"has the tensor {name} twice" if name in tensors else f"has tensors that overlap at {name}")
        end = start + n_bytes
        if end > size:
            raise GgufError(f"ends before its tensor {name} does")
        tensors[name] = Tensor(name, shape, kind, start, n_bytes)
    return fields, tensors


def _stated(cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int, int]:
    """Return a tensor's name, shape, format, offset and size in bytes, as the header states them."""
    name = cursor.text()
    # The file states the columns first.
    dimensions = [cursor.number("Q") for _ in range(cursor.count(MAX_DIMENSIONS, f"dimensions of {name}", "I"))]
    shape = tuple(reversed(dimensions)) or (1,)
    number = cursor.number("I")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError as error:
        raise GgufError(f"has the tensor {name} in an unknown format ({number})") from error
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if min(shape) < 1 or max(shape) > cursor.size * block or shape[-1] % block:
        raise GgufError(f"states an impossible shape for its tensor {name}")
    n_rows = shape[0] if len(shape) > 1 else 1
    return name, shape, kind, cursor.number("Q"), n_rows * (shape[-1] // block) * block_bytes
