"""Convert a corpus into one compressed file of token ids and cuts, small enough to copy to another machine.

This module knows the corpus, the tokenizer and the cuts, and nothing of models.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from dg_lsp.engine.model.vocabulary import Vocabulary
from tests.trainer import cuts, mixture

NAME_PARTS = 2  # how many parts of its path make a file's name, as in requests


@dataclass(frozen=True, slots=True)
class Packed:
    """The token ids of all files in one array, and the cuts in them.

    `ids` [N] are the token ids. `starts` [F + 1] is the start of each file in `ids`. `names` are the ids of each file's
    name. `languages` [F] are indexes into `language_names`. `cut_kinds` [C] are indexes into `cuts.KINDS`. `cut_spans`
    [C, 2] are the start and the end of each cut in `ids`, in order.
    """

    ids: npt.NDArray[np.unsignedinteger[Any]]
    starts: npt.NDArray[np.int64]
    names: list[list[int]]
    languages: npt.NDArray[np.int64]
    language_names: tuple[str, ...]
    cut_kinds: npt.NDArray[np.uint8]
    cut_spans: npt.NDArray[np.int64]


def pack(documents: Iterable[tuple[str, str]], tokenizer: Tokenizer, *, batch: int = 256, processes: int = 1) -> Packed:
    """Return the ids and the cuts of every document that parses in its language."""
    vocabulary = Vocabulary(tokenizer)  # it also disables control tokens, so that a file that spells one does not get its id
    lengths = np.array([vocabulary.lengths((token,))[0] for token in range(vocabulary.size)], np.int64)
    rows: list[npt.NDArray[np.unsignedinteger[Any]]] = []
    id_type: type[np.unsignedinteger[Any]] = np.uint16 if vocabulary.size <= 1 << 16 else np.uint32
    names: list[list[int]] = []
    starts, languages = [0], []
    kinds: list[int] = []
    spans: list[npt.NDArray[np.int64]] = [np.zeros((0, 2), np.int64)]
    for path, text, found_kinds, chars in _cut(list(documents), batch, processes):
        ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids, id_type)
        starts_in_text = np.cumsum(lengths[ids]) - lengths[ids]
        # the token in which the cut begins, because the engine heals partial tokens
        begin = np.searchsorted(starts_in_text, chars[:, 0], "right") - 1
        end = np.searchsorted(starts_in_text, chars[:, 1], "left")
        rows.append(ids)
        kinds += found_kinds
        spans.append(np.stack([begin, end], 1) + starts[-1])
        names.append(tokenizer.encode("/".join(path.split("/")[-NAME_PARTS:])).ids)
        languages.append(mixture.language_of(path))
        starts.append(starts[-1] + len(ids))
    language_names = tuple(sorted(set(languages)))
    return Packed(
        np.concatenate(rows) if rows else np.zeros(0, id_type),
        np.array(starts, np.int64),
        names,
        np.array([language_names.index(name) for name in languages], np.int64),
        language_names,
        np.array(kinds, np.uint8),
        np.concatenate(spans),
    )


def _cut(
    documents: list[tuple[str, str]], batch: int, processes: int
) -> Iterable[tuple[str, str, list[int], npt.NDArray[np.int64]]]:
    """Yield path, text, kinds and character spans [C, 2] of each document that can be used."""
    parts = [documents[first : first + batch] for first in range(0, len(documents), batch)]
    if processes <= 1:
        for part in parts:
            yield from _cut_part(part)
        return
    with ProcessPoolExecutor(min(processes, os.cpu_count() or 1)) as pool:
        for done in pool.map(_cut_part, parts):
            yield from done


def _cut_part(part: list[tuple[str, str]]) -> list[tuple[str, str, list[int], npt.NDArray[np.int64]]]:
    done = []
    for path, text in part:
        body, file_cuts = cuts.find(path, text)
        if body:
            spans = np.array([(cut.span.start, cut.span.end) for cut in file_cuts], np.int64).reshape(-1, 2)
            done.append((path, body, [cuts.KINDS.index(cut.kind) for cut in file_cuts], spans))
    return done


def save(packed: Packed, path: Path) -> None:
    """Write the arrays to a compressed file."""
    lengths = np.array([len(name) for name in packed.names], np.int64)
    np.savez_compressed(
        path,
        ids=packed.ids,
        starts=packed.starts,
        names=np.array([token for name in packed.names for token in name], packed.ids.dtype),
        name_lengths=lengths,
        languages=packed.languages,
        language_names=np.array(packed.language_names, dtype=str),
        cut_kinds=packed.cut_kinds,
        cut_spans=packed.cut_spans,
    )


def load_packed(path: Path) -> Packed:
    """Return what `save` wrote."""
    with np.load(path) as arrays:
        ends = np.cumsum(arrays["name_lengths"]).tolist()
        flat = arrays["names"].tolist()
        return Packed(
            arrays["ids"],
            arrays["starts"],
            [flat[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)],
            arrays["languages"],
            tuple(arrays["language_names"].tolist()),
            arrays["cut_kinds"],
            arrays["cut_spans"],
        )
