"""Make training batches: causal rows with loss weights, and canvases over them.

A canvas is `gap | held head of the suffix`, and the gap is padded with delete tokens (DreamOn, arXiv 2602.01326,
section 3). This module knows numpy and windows, and nothing of models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from dg_lsp.core.values import Hole, InfillRequest, Span
from dg_lsp.engine.decode.layout import Instruct
from dg_lsp.engine.model.profile import Profile
from dg_lsp.engine.model.vocabulary import Vocabulary
from tests.trainer.pack import Packed
from tests.trainer.windows import DELETE, HELD_TOKENS, N_SPECIAL, PAD, Window, Windows

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

GAPS = (8, 16, 24, 32, 48)
MAX_MIDDLE = 48
# The loss weights of a causal row. Few tokens decide where an answer ends, and a wrong end makes the whole answer wrong.
END_WEIGHT, END_TOKENS = 4.0, 3
SUFFIX_WEIGHT = 0.3
OWN_DRAFTS = 0.35  # the fraction of canvases that start from the model's own draft, to be corrected under the held suffix
SHORTEST_WINDOW = 64  # tokens of a window in a causal row, unless the row cuts it off


@dataclass(frozen=True, slots=True)
class CausalBatch:
    """Causal rows: `ids`, `targets` and `parts` [B, T]; `weights` [B, T] are 0 on padding.

    `parts` holds the kind of each target: 0 padding or head, 1 suffix, 2 prefix, 3 answer, 4 the end token.
    """

    ids: Ids
    targets: Ids
    weights: npt.NDArray[np.float32]
    parts: npt.NDArray[np.uint8]


PARTS = ("head", "suffix", "prefix", "answer", "end")


@dataclass(frozen=True, slots=True)
class CanvasBatch:
    """Windows [B, T] with K canvases over each, flattened to N = B * K rows of C positions."""

    causal: CausalBatch
    clean: Ids  # [N, C]
    noisy: Ids  # [N, C]
    gap: Flags  # [N, C]
    weights: npt.NDArray[np.float32]  # [N, C], weights of the diffusion loss
    used: Flags  # [N, C], False after the canvas's end
    starts: Ids  # [N], how many encoder positions the canvas sees
    drafted: Flags  # [N], whether the gap starts from the causal pass's own draft


@dataclass(frozen=True, slots=True)
class CanvasCut:
    """One canvas over a window: its start in the window's ids, the content of its gap, and the held tokens after it.

    Without `slack`, the gap is exactly as long as its content, because the layout has no delete token.
    """

    begin: int
    middle: list[int]
    held: list[int]
    slack: bool = True


class Sampler:
    """Draws random batches; samplers with the same seed draw the same batches.

    `instruct` is the fraction of windows with canvases that use the instruct layout of `profile`.
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
        self.canvas, self.instruct = canvas, instruct
        self._vocabulary = Vocabulary(tokenizer)
        self._layout = Instruct(as_instruct(profile), self._vocabulary) if instruct and profile else None
        self.random = np.random.default_rng(seed)
        self.windows = Windows(packed, tokenizer, self.random)
        self.vocabulary = tokenizer.get_vocab_size()
        self.newline = self.windows.newline

    def causal(self, rows: int, length: int) -> CausalBatch:
        """Return rows filled with windows to `length` tokens."""
        return self._batch([self._row(length + 1) for _ in range(rows)], length)

    def canvases(self, rows: int, length: int, per_row: int, *, noise: float | None = None) -> CanvasBatch:
        """Return `rows` windows with `per_row` canvases each; `noise` fixes the noise level instead of drawing it."""
        windows_and_cuts = [self._drawn(length + 1, per_row) for _ in range(rows)]
        windows = [window for window, _ in windows_and_cuts]
        n, width = rows * per_row, self.canvas
        clean, noisy = np.zeros((n, width), np.int64), np.zeros((n, width), np.int64)
        gap, used = np.zeros((n, width), np.bool_), np.zeros((n, width), np.bool_)
        weights, starts = np.zeros((n, width), np.float32), np.zeros(n, np.int64)
        drafted = np.zeros(n, np.bool_) if noise is not None else self.random.random(n) < OWN_DRAFTS
        for index in range(n):
            window = windows[index // per_row]
            cut = windows_and_cuts[index // per_row][1][index % per_row]
            middle = cut.middle
            free = self._gap_length(len(middle)) if cut.slack else len(middle)
            tail = cut.held[: width - free]
            filled = free + len(tail)
            clean[index, :filled] = middle + [DELETE] * (free - len(middle)) + tail
            gap[index, :free] = used[index, :filled] = True
            weights[index, : len(middle) + 1] = 1
            weights[index, len(middle) + 1 : free] = 0.1
            weights[index, free:] = 0
            noisy[index] = clean[index]
            if not drafted[index]:
                noisy[index, :free] = self._noised(middle, free, window, noise)
            elif self.random.random() < 0.5:  # after a draft, the rest of the gap is noise or delete tokens
                noisy[index, len(middle) : free] = self.random.integers(N_SPECIAL, self.vocabulary, free - len(middle))
            starts[index] = cut.begin
        causal = self._batch([[window] for window in windows], length)
        return CanvasBatch(causal, clean, noisy, gap, weights, used, starts, drafted)

    def _drawn(self, length: int, per_row: int) -> tuple[Window, list[CanvasCut]]:
        """Return a window and the canvases over it."""
        # Windows of random lengths, as in a causal row.
        window = self.windows.draw(int(self.random.integers(length // 3, length + 1)))
        if self._layout and self.random.random() < self.instruct and (question := self._asked(window, length)):
            return question[0], [question[1]] * per_row
        return window, [self._cut(window) for _ in range(per_row)]

    def _asked(self, window: Window, length: int) -> tuple[Window, CanvasCut] | None:
        """Return one hole of a window as an instruct question and its answer; None if that is too long."""
        assert self._layout is not None
        cut = self._cut(window)
        decode, begin = self._vocabulary.decode, cut.begin - window.prefix_at
        before, text = decode(window.prefix[:begin]), decode(cut.middle)
        after = decode([*window.prefix[begin + len(cut.middle) :], *window.suffix])
        comment = before.rstrip().rpartition("\n")[2].strip()
        wish = comment.lstrip("# ") if comment.startswith("#") and self.random.random() < 0.5 else ""
        hole = Hole(Span(0, 0), "cursor", block="\n" in text, instruction=wish)
        sheet = self._layout.lay_out(InfillRequest(before, after, (hole,), language="python"))
        answer_ids = self._vocabulary.encode(sheet.heal.decode("utf-8", "ignore") + text)
        ids = [*sheet.kv, *answer_ids, *sheet.tail]
        if not answer_ids or len(answer_ids) > self.canvas // 2 or len(ids) > length:
            return None
        row = Window(ids, len(sheet.kv), [*answer_ids, *sheet.tail], 0, [], window.kind, len(sheet.kv))
        return row, CanvasCut(len(sheet.kv), answer_ids, list(sheet.tail), slack=False)

    def _batch(self, rows: list[list[Window]], length: int) -> CausalBatch:
        ids = np.zeros((len(rows), length + 1), np.int64)
        parts = np.zeros((len(rows), length + 1), np.uint8)
        weights = np.zeros((len(rows), length + 1), np.float32)
        for index, row in enumerate(rows):
            at = 0
            for window in row:
                size = min(len(window.ids), length + 1 - at)
                ids[index, at : at + size] = window.ids[:size]
                part, weight = _parts_and_weights(window)
                parts[index, at : at + size], weights[index, at : at + size] = part[:size], weight[:size]
                at += size
        weights[ids == PAD] = 0
        return CausalBatch(ids[:, :-1], ids[:, 1:], weights[:, 1:], parts[:, 1:])

    def _row(self, length: int) -> list[Window]:
        # Windows of random lengths. If they fill the row, answers end where it does, and the model learns that place instead of
        # what follows the hole (docs/decisions/0017).
        row: list[Window] = []
        left = length
        while left > 0:
            size = int(self.random.integers(SHORTEST_WINDOW, max(left, 2 * SHORTEST_WINDOW) + 1))
            row.append(self.windows.draw(size))
            left -= len(row[-1].ids)
        return row

    def _cut(self, window: Window) -> CanvasCut:
        """Return a canvas over a hole of the window's kind: the window's own hole, or another one in its prefix."""
        random, prefix = self.random, window.prefix
        begin, end = window.answer_at, len(prefix)
        own = end - begin <= MAX_MIDDLE and (window.kind in ("block", "body") or random.random() < 0.4)
        if not own:
            begin, end = self._elsewhere(window)
        n_held = HELD_TOKENS if random.random() < 0.6 else int(random.integers(0, HELD_TOKENS + 1))
        return CanvasCut(window.prefix_at + begin, prefix[begin:end], (prefix[end:] + window.suffix)[:n_held])

    def _elsewhere(self, window: Window) -> tuple[int, int]:
        """Return the start and the end of another hole in the window's prefix: a part of a line, or a few whole lines."""
        random, prefix = self.random, window.prefix
        newlines = [index for index, token in enumerate(prefix) if token == self.newline]
        if len(newlines) < 2:
            end = len(prefix)
            return max(min(4, end), end - int(random.integers(1, 13))), end
        line = int(random.integers(len(newlines) - 1))
        first, stop = newlines[line] + 1, newlines[line + 1]
        if window.kind == "lines":
            stop = newlines[min(line + int(random.integers(1, 5)), len(newlines) - 1)] + 1
            return first, min(stop, first + MAX_MIDDLE)
        if first < stop and not self.windows.texts[prefix[first]].strip():
            first += 1
        begin = first if random.random() < 0.35 else int(random.integers(first, max(stop, first + 1)))
        end = min(begin + int(random.integers(1, 8)), stop) if window.kind == "span" else stop
        return begin, max(begin, min(end, begin + MAX_MIDDLE))

    def _gap_length(self, n_answer: int) -> int:
        fitting = [gap for gap in GAPS if gap >= n_answer]
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
        """Return a plausible but wrong gap, like a match from elsewhere in the file or a causal draft."""
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


def _parts_and_weights(window: Window) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Return the part and the loss weight of each token of a window."""
    n = len(window.ids)
    parts = np.zeros(n, np.uint8)
    answer = window.prefix_at + window.answer_at
    parts[window.suffix_at : window.prefix_at] = PARTS.index("suffix")
    parts[window.prefix_at : answer] = PARTS.index("prefix")
    parts[answer:] = PARTS.index("answer")
    parts[-1] = PARTS.index("end")
    weights = np.ones(n, np.float32)
    weights[: window.prefix_at] = SUFFIX_WEIGHT
    weights[max(answer, n - END_TOKENS) :] = END_WEIGHT
    return parts, weights


def as_instruct(profile: Profile) -> Profile:
    """Return a profile for using the same model in the instruct layout.

    That layout adds a question and repeats some lines, so only a third of the budget is left for the prefix. It has no
    delete token, so a search finds the length, among the gap lengths of a default instruct profile.
    """
    plain, most = Profile(), max(profile.block_gaps)
    return replace(
        profile,
        layout="instruct",
        line_ends=True,
        prefix_tokens=profile.prefix_tokens // 3,
        suffix_tokens=profile.suffix_tokens // 2,
        held_tokens=min(profile.held_tokens, 16),
        # Without a delete token, noise also finds the length.
        line_noise_rows=max(profile.line_noise_rows, plain.line_noise_rows),
        block_noise_rows=max(profile.block_noise_rows, plain.block_noise_rows),
        line_gaps=tuple(gap for gap in plain.line_gaps if gap <= most),
        block_gaps=tuple(gap for gap in plain.block_gaps if gap <= most),
    )
