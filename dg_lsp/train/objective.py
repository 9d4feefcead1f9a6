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

from dg_lsp.core.values import Hole, InfillRequest, Span
from dg_lsp.engine.layout import Instruct
from dg_lsp.engine.profile import Profile, as_instruct
from dg_lsp.engine.vocabulary import Vocabulary

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

PAD, EOS, BOS, DELETE, SUF, PRE, EOM, PATH = 0, 1, 2, 6, 7, 8, 9, 10
N_SPECIAL = 32
SUFFIX_TOKENS = 96
HELD_TOKENS = 32
GAPS = (8, 16, 24, 32, 48)
MAX_MIDDLE = 48


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


@dataclass(frozen=True, slots=True)
class Cut:
    """One canvas over a window: where it begins among the window's ids, what its gap holds and what is held after it.

    A cut without `slack` has a gap of just the length of what it holds: its layout has no delete token.
    """

    begin: int
    middle: list[int]
    held: list[int]
    slack: bool = True


class Sampler:
    """Draws windows and canvases at random; two samplers with one seed draw the same.

    `instruct` is the share of windows with canvases that are written in the instruct layout of `profile`.
    """

    def __init__(
        self,
        packed: Packed,
        tokenizer: Tokenizer,
        *,
        seed: int,
        canvas: int = 64,
        instruct: float = 0.0,
        profile: Profile | None = None,
    ) -> None:
        self.packed, self.tokenizer, self.canvas, self.instruct = packed, tokenizer, canvas, instruct
        self._vocabulary = Vocabulary(tokenizer)
        self._layout = Instruct(as_instruct(profile), self._vocabulary) if instruct and profile else None
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
        drawn = [self._drawn(length + 1, per_row) for _ in range(rows)]
        windows = [window for window, _ in drawn]
        n, width = rows * per_row, self.canvas
        clean, noisy = np.zeros((n, width), np.int64), np.zeros((n, width), np.int64)
        gap, used = np.zeros((n, width), np.bool_), np.zeros((n, width), np.bool_)
        weights, starts = np.zeros((n, width), np.float32), np.zeros(n, np.int64)
        for index in range(n):
            window = windows[index // per_row]
            cut = drawn[index // per_row][1][index % per_row]
            middle = cut.middle
            free = self._gap_length(len(middle)) if cut.slack else len(middle)
            held = cut.held[: width - free]
            filled = free + len(held)
            clean[index, :filled] = middle + [DELETE] * (free - len(middle)) + held
            gap[index, :free] = used[index, :filled] = True
            weights[index, : len(middle) + 1] = 1
            weights[index, len(middle) + 1 : free] = 0.1
            weights[index, free:] = 0
            noisy[index] = clean[index]
            noisy[index, :free] = self._noised(middle, free, window, noise)
            starts[index] = cut.begin
        return CanvasBatch(self._batch([window.ids for window in windows], length), clean, noisy, gap, weights, used, starts)

    def _drawn(self, length: int, per_row: int) -> tuple[Window, list[Cut]]:
        """Return a window and the canvases over it."""
        window = self._window(length)
        if self._layout and self.random.random() < self.instruct and (asked := self._asked(window, length)):
            return asked[0], [asked[1]] * per_row
        cuts = [self._cut(window) for _ in range(per_row)]
        return window, [Cut(window.prefix_at + begin, middle, held) for begin, middle, held in cuts]

    def _asked(self, window: Window, length: int) -> tuple[Window, Cut] | None:
        """Return one hole of a window written as a question and its answer; None where that is too long."""
        assert self._layout is not None
        begin, middle, _ = self._cut(window)
        decode = self._vocabulary.decode
        before, text = decode(window.prefix[:begin]), decode(middle)
        after = decode([*window.prefix[begin + len(middle) :], *window.suffix])
        comment = before.rstrip().rpartition("\n")[2].strip()
        wish = comment.lstrip("# ") if comment.startswith("#") and self.random.random() < 0.5 else ""
        hole = Hole(Span(0, 0), "cursor", block="\n" in text, instruction=wish)
        sheet = self._layout.lay_out(InfillRequest(before, after, (hole,), language="python"))
        written = self._vocabulary.encode(sheet.heal.decode("utf-8", "ignore") + text)
        ids = [*sheet.kv, *written, *sheet.tail]
        if not written or len(written) > self.canvas // 2 or len(ids) > length:
            return None
        return Window(ids, len(sheet.kv), window.prefix, window.suffix), Cut(
            len(sheet.kv), written, list(sheet.tail), slack=False
        )

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
        kind, floor = random.random(), max(0, end - MAX_MIDDLE)
        if random.random() < 0.15 and (inside := self._arguments(prefix, floor, end)):
            return inside[0], prefix[inside[0] : inside[1]], self._held(prefix, inside[1], window)
        if random.random() < 0.1 and (block := self._block(prefix, floor, end)):
            return block[0], prefix[block[0] : block[1]], self._held(prefix, block[1], window)
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
        return begin, prefix[begin:end], self._held(prefix, end, window)

    def _held(self, prefix: list[int], end: int, window: Window) -> list[int]:
        n_held = HELD_TOKENS if self.random.random() < 0.6 else int(self.random.integers(0, HELD_TOKENS + 1))
        return (prefix[end:] + window.suffix)[:n_held]

    def _arguments(self, prefix: list[int], floor: int, end: int) -> tuple[int, int] | None:
        """Return where the tokens between the brackets of a call begin and end."""
        texts = [self.texts[token] for token in prefix[floor:end]]
        opening = [index + 1 for index, text in enumerate(texts) if text.endswith("(")]
        if not opening:
            return None
        begin, depth = opening[int(self.random.integers(len(opening)))], 1
        for index in range(begin, len(texts)):
            # A token that closes this call and goes on can't be cut in two here.
            if depth == 1 and texts[index].startswith(")"):
                return floor + begin, floor + index
            depth += texts[index].count("(") - texts[index].count(")")
            if depth < 1:
                return None
        return None

    def _block(self, prefix: list[int], floor: int, end: int) -> tuple[int, int] | None:
        """Return where a block begins and ends: a line and those behind it that are indented as far, or blank."""
        starts = [index + 1 for index in range(floor, end - 1) if prefix[index] == self.newline]
        starts = [start for start in starts if len(self.texts[prefix[start]]) > 1 and not self.texts[prefix[start]].strip(" ")]
        if not starts:
            return None
        begin = starts[int(self.random.integers(len(starts)))]
        indent, stop = len(self.texts[prefix[begin]]), begin
        for index in range(begin, min(begin + MAX_MIDDLE, len(prefix) - 1)):
            if prefix[index] != self.newline:
                continue
            if prefix[index - 1] != self.newline:
                stop = index  # before the line end: the suffix begins with it
            following = self.texts[prefix[index + 1]]
            if prefix[index + 1] != self.newline and (following.strip(" ") or len(following) < indent):
                break
        return (begin, stop) if stop > begin else None

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
