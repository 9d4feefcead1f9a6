"""Turn a corpus into one compressed file of token ids that can travel.

Knows the corpus and the tokenizer. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from dg_lsp.train.objective import Packed


def pack(documents: Iterable[tuple[str, str]], tokenizer: Tokenizer, *, batch: int = 256) -> Packed:
    """Return the ids of every document, each keeping the last two parts of its path as its name."""
    tokenizer.encode_special_tokens = True  # a file that names a control token does not hold one
    rows: list[np.ndarray[tuple[int], np.dtype[np.uint16]]] = []
    names: list[list[int]] = []
    starts, at = [0], 0
    documents = list(documents)
    for first in range(0, len(documents), batch):
        part = documents[first : first + batch]
        encoded = tokenizer.encode_batch([text for _, text in part])
        for (path, _), item in zip(part, encoded, strict=True):
            rows.append(np.array(item.ids, np.uint16))
            names.append(tokenizer.encode("/".join(path.split("/")[-2:])).ids)
            at += len(item.ids)
            starts.append(at)
    return Packed(np.concatenate(rows), np.array(starts, np.int64), names)


def save(packed: Packed, path: Path) -> None:
    """Write the arrays, compressed."""
    lengths = np.array([len(name) for name in packed.names], np.int64)
    flat = np.array([token for name in packed.names for token in name], np.uint16)
    np.savez_compressed(path, ids=packed.ids, starts=packed.starts, names=flat, name_lengths=lengths)


def load(path: Path) -> Packed:
    """Return what `save` wrote."""
    with np.load(path) as arrays:
        ends = np.cumsum(arrays["name_lengths"]).tolist()
        flat = arrays["names"].tolist()
        names = [flat[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
        return Packed(arrays["ids"], arrays["starts"], names)
