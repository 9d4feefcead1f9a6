"""Cut training examples from packed files: causal windows in suffix-first order, and canvases over them.

A window is `BOS <path> name <suf> S <pre> P <eom>`: causal fill-in-the-middle with the suffix first (SPM, arXiv
2207.14255), so that a prefix that grows only extends the KV cache. A canvas is `gap | held head of the suffix`, the
gap padded with delete tokens (DreamOn, arXiv 2602.01326, section 3). Knows numpy. Knows nothing of models.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

PAD, EOS, BOS, DELETE, SUF, PRE, EOM, PATH = 0, 1, 2, 6, 7, 8, 9, 10
N_SPECIAL = 32
SUFFIX_TOKENS = 96
HELD_TOKENS = 32
GAPS = (8, 16, 24, 32, 48)


@dataclass(frozen=True, slots=True)
class Packed:
    """Token ids of all files in one row, the offsets at which files start (one more than files), and their names' ids."""

    ids: npt.NDArray[np.uint16]
    starts: npt.NDArray[np.int64]
    names: list[list[int]]


@dataclass(frozen=True, slots=True)
class Window:
    """One encoded row: `ids` [T], where the prefix starts in it, and the prefix and suffix tokens around the hole."""

    ids: list[int]
    prefix_at: int
    prefix: list[int]
    suffix: list[int]


@dataclass(frozen=True, slots=True)
class CausalBatch:
    """`ids` and `targets` [B, T]; `weights` [B, T] are 0 on padding."""

    ids: Ids
    targets: Ids
    weights: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CanvasBatch:
    """Windows [B, T] and K canvases over each, flattened to N = B * K rows of C positions."""

    causal: CausalBatch
    clean: Ids  # [N, C]
    noisy: Ids  # [N, C]
    gap: Flags  # [N, C]
    weights: npt.NDArray[np.float32]  # [N, C], of the diffusion loss
    used: Flags  # [N, C], False beyond the canvas
    starts: Ids  # [N], how many encoder positions the canvas sees


class Sampler:
    """Draws windows and canvases at random; two samplers with one seed draw the same."""

    def __init__(self, packed: Packed, tokenizer: Tokenizer, *, seed: int, canvas: int = 64) -> None:
        self.packed, self.tokenizer, self.canvas = packed, tokenizer, canvas
        self.random = np.random.default_rng(seed)
        self.vocabulary = tokenizer.get_vocab_size()
        texts = [tokenizer.decode([token]) for token in range(self.vocabulary)]
        self.texts = texts
        self.newline = next(token for token, text in enumerate(texts) if text == "\n")
        self.starts = packed.starts.tolist()

    def causal(self, rows: int, length: int) -> CausalBatch:
        """Return rows filled to `length` with one window after another."""
        return self._batch([self._row(length + 1) for _ in range(rows)], length)

    def canvases(self, rows: int, length: int, per_row: int, *, noise: float | None = None) -> CanvasBatch:
        """Return `rows` windows with `per_row` canvases each; `noise` fixes the noise level instead of drawing it."""
        windows = [self._window(length + 1) for _ in range(rows)]
        n, width = rows * per_row, self.canvas
        clean, noisy = np.zeros((n, width), np.int64), np.zeros((n, width), np.int64)
        gap, used = np.zeros((n, width), np.bool_), np.zeros((n, width), np.bool_)
        weights, starts = np.zeros((n, width), np.float32), np.zeros(n, np.int64)
        for index in range(n):
            window = windows[index // per_row]
            begin, middle, held = self._cut(window)
            free = self._gap_length(len(middle))
            held = held[: width - free]
            filled = free + len(held)
            clean[index, :filled] = middle + [DELETE] * (free - len(middle)) + held
            gap[index, :free] = used[index, :filled] = True
            weights[index, : len(middle) + 1] = 1
            weights[index, len(middle) + 1 : free] = 0.1
            weights[index, free:] = 0
            noisy[index] = clean[index]
            noisy[index, :free] = self._noised(middle, free, window, noise)
            starts[index] = window.prefix_at + begin
        return CanvasBatch(self._batch([window.ids for window in windows], length), clean, noisy, gap, weights, used, starts)

    def _batch(self, rows: list[list[int]], length: int) -> CausalBatch:
        ids = np.zeros((len(rows), length + 1), np.int64)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row[: length + 1]
        return CausalBatch(ids[:, :-1], ids[:, 1:], (ids[:, 1:] != PAD).astype(np.float32))

    def _row(self, length: int) -> list[int]:
        row: list[int] = []
        while length - len(row) > 64:
            row += self._window(length - len(row)).ids
        return row

    def _window(self, length: int) -> Window:
        random, ids = self.random, self.packed.ids
        while True:
            end = int(random.integers(1, len(ids)))
            file = bisect_right(self.starts, end) - 1
            first, last = self.starts[file], self.starts[file + 1]
            # A hole at the very top of a file has nothing to go by: draw it seldom.
            if end - first >= min(200, (last - first) // 2) or random.random() < 0.1:
                break
        where = random.random()
        if where < 0.6:  # at a line's end: before the newline, or after it
            line = np.flatnonzero(ids[end : min(end + 60, last)] == self.newline)
            if len(line):
                end += int(line[0]) + int(where >= 0.4)
        n_suffix = SUFFIX_TOKENS if random.random() < 0.7 else int(random.integers(0, SUFFIX_TOKENS + 1))
        suffix = [int(token) for token in ids[end : min(last, end + SUFFIX_TOKENS + HELD_TOKENS)]]
        split: list[int] = []
        if where >= 0.6 and suffix and random.random() < 0.4 and len(text := self.texts[suffix[0]]) > 1:
            cut = int(random.integers(1, len(text)))  # the hole ends inside a token
            split = self.tokenizer.encode(text[:cut]).ids
            suffix = self.tokenizer.encode(text[cut:]).ids + suffix[1:]
        if end + len(suffix) >= last:
            suffix.append(EOS)
        named = [PATH, *self.packed.names[file][:12]] if random.random() < 0.9 else []
        head = [BOS, *named, SUF, *suffix[:n_suffix], PRE]
        room = max(length - len(head) - len(split) - 1, 16)
        begin = max(first, end - room)
        if begin > first:  # a prefix that was cut starts at a line's start, as the engine cuts it
            line = np.flatnonzero(ids[begin : min(begin + 40, end)] == self.newline)
            begin += int(line[0]) + 1 if len(line) else 0
        prefix = [int(token) for token in ids[begin:end]] + split
        return Window([*head, *prefix, EOM], len(head), prefix, suffix)

    def _cut(self, window: Window) -> tuple[int, list[int], list[int]]:
        """Return where a gap begins in the window's prefix, the gap's tokens, and the tokens held after it."""
        random, prefix = self.random, window.prefix
        end = len(prefix)
        if random.random() < 0.5 and end > 80:
            end -= int(random.integers(1, 64))
            if random.random() < 0.6:
                while end < len(prefix) and prefix[end] != self.newline:
                    end += 1
        kind, floor = random.random(), max(0, end - 48)
        lines = [index + 1 for index in range(floor, end) if prefix[index] == self.newline and index + 1 < end]
        if kind < 0.4 and lines:  # the rest of a line
            begin = int(random.integers(lines[-1], end)) if lines[-1] < end else end
        elif kind < 0.65 and lines:  # whole lines, or what follows an indent
            begin = lines[int(random.integers(max(0, len(lines) - 4), len(lines)))]
            if random.random() < 0.5 and begin + 1 < end and not self.texts[prefix[begin]].strip():
                begin += 1
        else:
            begin = max(0, end - int(random.integers(0, 13)))
        begin = max(begin, floor, min(4, end))
        after = prefix[end:] + window.suffix
        n_held = HELD_TOKENS if random.random() < 0.6 else int(random.integers(0, HELD_TOKENS + 1))
        return begin, prefix[begin:end], after[:n_held]

    def _gap_length(self, needed: int) -> int:
        fitting = [gap for gap in GAPS if gap >= needed]
        return fitting[0] if self.random.random() < 0.4 else fitting[int(self.random.integers(len(fitting)))]

    def _noised(self, middle: list[int], free: int, window: Window, noise: float | None) -> Ids:
        random = self.random
        if noise is None and random.random() < 0.2:
            return self._drafted(middle, free, window)
        level = noise if noise is not None else (1.0 if random.random() < 0.35 else random.random())
        clean = np.array(middle + [DELETE] * (free - len(middle)), np.int64)
        uniform = random.integers(N_SPECIAL, self.vocabulary, free)
        return np.where(random.random(free) < level, uniform, clean)

    def _drafted(self, middle: list[int], free: int, window: Window) -> Ids:
        """Return a plausible but wrong gap, such as a match elsewhere in the file or a causal draft gives."""
        random, draft = self.random, list(middle)
        for _ in range(int(random.integers(1, 4))):
            if not draft or not window.prefix:
                break
            at, other = int(random.integers(len(draft))), int(random.integers(len(window.prefix)))
            change = random.random()
            if change < 0.6:
                draft[at] = window.prefix[other]
            elif change < 0.8:
                draft.insert(at, window.prefix[other])
            else:
                del draft[at]
        return np.array((draft + [DELETE] * free)[:free], np.int64)
