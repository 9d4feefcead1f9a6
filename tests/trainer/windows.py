"""Draw training windows: a hole in a file, the text around it, and the answer, in suffix-first order.

A window is `BOS <path> name <suf> S <kind> <pre> P A <eom>`: causal fill-in-the-middle with the suffix first (SPM,
arXiv 2207.14255), so that a growing prefix only extends the KV cache. Holes are cut by syntax (AST-FIM, arXiv
2506.00204), as the product cuts them.

This module knows packed files, and nothing of batches, canvases or models.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tests.trainer import cuts, mixture
from tests.trainer.pack import Packed
from tests.trainer.tokenizer import SPECIAL

PAD, EOS, BOS, DELETE, SUF, PRE, EOM, PATH = 0, 1, 2, 6, 7, 8, 9, 10
N_SPECIAL = 32
SUFFIX_TOKENS = 96  # the most that a window reads of the text after its hole
SHORT_SUFFIX = (24, 65)  # the range of what a short window reads of it
HELD_TOKENS = 32
NAME_TOKENS = 12
ANSWER_TOKENS = 128
# How often each kind of hole is drawn. The rest of a line is the most frequent request in the product.
KIND_SHARES = {"line": 0.42, "span": 0.2, "lines": 0.13, "block": 0.12, "body": 0.13}
DOCUMENTED_SHARE = 0.25  # the fraction of holes in short documented functions
KIND_IDS = {kind: SPECIAL.index(f"<{kind}>") for kind in KIND_SHARES}

Item = TypeVar("Item")

LINE, BLOCK, BODY, DOCUMENTED = (cuts.KINDS.index(kind) for kind in ("line", "block", "body", "documented"))


@dataclass(frozen=True, slots=True)
class Window:
    """One encoded row `ids` [T]. Its prefix and answer start at `prefix_at`; the answer starts at `answer_at` in `prefix`.

    `prefix` includes the answer. `suffix` is the text after the hole, and is longer than the part in the row.
    """

    ids: list[int]
    prefix_at: int
    prefix: list[int]
    answer_at: int
    suffix: list[int]
    kind: str
    suffix_at: int

    @property
    def answer(self) -> list[int]:
        """The tokens of the answer."""
        return self.prefix[self.answer_at :]


class Windows:
    """Draws random windows; two instances with the same seed draw the same windows."""

    def __init__(self, packed: Packed, tokenizer: Tokenizer, random: np.random.Generator) -> None:
        self.packed, self.tokenizer, self.random = packed, tokenizer, random
        self.texts = [tokenizer.decode([token]) for token in range(tokenizer.get_vocab_size())]
        self.newline = self.texts.index("\n")
        # The engine writes no kind for a vocabulary without these tokens, as in older checkpoints.
        self._kind_ids = {kind: [] if tokenizer.token_to_id(f"<{kind}>") is None else [KIND_IDS[kind]] for kind in KIND_SHARES}
        self.starts: list[int] = packed.starts.tolist()
        self._by_kind = _by_language_and_kind(packed)
        sizes = dict.fromkeys(packed.language_names, 0)
        for language, size in zip(packed.languages.tolist(), np.diff(packed.starts).tolist(), strict=True):
            sizes[packed.language_names[language]] += size
        shares = mixture.shares(sizes)
        self._languages = [(packed.language_names.index(name), share) for name, share in shares.items()]

    def draw(self, length: int) -> Window:
        """Return a window of at most `length` tokens, with as much of its file as fits."""
        while True:
            kind, begin, end = self._hole()
            file = bisect_right(self.starts, begin) - 1
            # A hole near the top of a file has little context, so it is drawn rarely.
            if 0 < end - begin <= min(ANSWER_TOKENS, length // 2) and (
                begin - self.starts[file] >= 48 or self.random.random() < 0.2
            ):
                return self._window(kind, begin, end, file, length)

    def _hole(self) -> tuple[str, int, int]:
        """Return a kind of hole, and its start and end in the packed ids."""
        random = self.random
        kind = _pick(list(KIND_SHARES.items()), random)
        language = _pick(self._languages, random)
        if random.random() < DOCUMENTED_SHARE and len(bodies := self._by_kind.get((language, DOCUMENTED), ())):
            whole = int(bodies[random.integers(len(bodies))])
            if kind in ("body", "block"):
                return "body", *self._span(whole)
            return self._in_line(kind, self._line_in(whole))
        code = {"block": BLOCK, "body": BODY}.get(kind, LINE)
        candidates = self._by_kind.get((language, code), ())
        if not len(candidates):
            return kind, 0, 0  # the language has no such hole, so the caller draws again
        cut = int(candidates[random.integers(len(candidates))])
        return (kind, *self._span(cut)) if kind in ("block", "body") else self._in_line(kind, cut)

    def _span(self, cut: int) -> tuple[int, int]:
        begin, end = self.packed.cut_spans[cut]
        return int(begin), int(end)

    def _line_in(self, cut: int) -> int:
        """Return a line cut inside another cut, or that cut if it has none."""
        begin, end = self._span(cut)
        spans, kinds = self.packed.cut_spans, self.packed.cut_kinds
        first, last = np.searchsorted(spans[:, 0], (begin, end))
        lines = [index for index in range(int(first), int(last)) if kinds[index] == LINE]
        return lines[int(self.random.integers(len(lines)))] if lines else cut

    def _in_line(self, kind: str, cut: int) -> tuple[str, int, int]:
        """Return a hole in or from a line: its rest, all of it, a part of it, or several whole lines."""
        random, ids = self.random, self.packed.ids
        begin, end = self._span(cut)
        if kind == "line":
            return kind, begin if random.random() < 0.35 else int(random.integers(begin, max(end, begin + 1))), end
        if kind == "span":
            start = int(random.integers(begin, max(end, begin + 1)))
            return kind, start, min(end, start + int(random.integers(1, 8)))
        while begin > 0 and ids[begin - 1] != self.newline:
            begin -= 1
        for _ in range(int(random.integers(1, 5))):
            following = np.flatnonzero(ids[end : end + 80] == self.newline)
            if not len(following):
                return kind, 0, 0
            end += int(following[0]) + 1
        while end - 2 > begin and ids[end - 2] == self.newline:  # drop a blank line at the end
            end -= 1
        # At the start of an empty line, a hole ends before that line's end. Between two lines, it ends after its own line end.
        return kind, begin, end - int(random.random() < 0.4)

    def _window(self, kind: str, begin: int, end: int, file: int, length: int) -> Window:
        random, ids = self.random, self.packed.ids
        first, last = self.starts[file], self.starts[file + 1]
        end = min(end, last)
        answer = ids[begin:end].tolist()
        suffix = ids[end : min(last, end + SUFFIX_TOKENS + HELD_TOKENS)].tolist()
        at_file_end = end + len(suffix) >= last
        if kind == "span":
            answer, suffix = self._split(answer, suffix)
            if not suffix or suffix[0] == self.newline:
                kind = "line"
        if at_file_end:
            suffix.append(EOS)
        n_suffix = SUFFIX_TOKENS if length > 256 else int(random.integers(*SHORT_SUFFIX))
        n_suffix = n_suffix if random.random() < 0.9 else int(random.integers(0, SHORT_SUFFIX[0]))
        name_ids = [PATH, *self.packed.names[file][:NAME_TOKENS]] if random.random() < 0.9 else []
        head = [BOS, *name_ids, SUF, *suffix[:n_suffix], *self._kind_ids[kind], PRE]
        room = max(length - len(head) - len(answer) - 1, 8)
        start = max(first, begin - room)
        if start > first:  # a cut prefix starts at a line start, as in the engine
            line = np.flatnonzero(ids[start : min(start + 40, begin)] == self.newline)
            start += int(line[0]) + 1 if len(line) else 0
        prefix = [*ids[start:begin].tolist(), *answer]
        return Window([*head, *prefix, EOM], len(head), prefix, begin - start, suffix, kind, 1 + len(name_ids) + 1)

    def _split(self, answer: list[int], suffix: list[int]) -> tuple[list[int], list[int]]:
        """Return a span's answer and suffix, with the border inside the answer's last token half of the time."""
        text = self.texts[answer[-1]]
        if len(text) < 2 or "\ufffd" in text or self.random.random() < 0.5:
            return answer, suffix
        border = int(self.random.integers(1, len(text)))
        encode = self.tokenizer.encode
        return [*answer[:-1], *encode(text[:border]).ids], [*encode(text[border:]).ids, *suffix]


def _by_language_and_kind(packed: Packed) -> dict[tuple[int, int], npt.NDArray[np.int64]]:
    """Return the cuts of each language and kind."""
    files = np.searchsorted(packed.starts, packed.cut_spans[:, 0], "right") - 1
    keys = packed.languages[files] * len(cuts.KINDS) + packed.cut_kinds if len(files) else np.zeros(0, np.int64)
    order = np.argsort(keys, kind="stable")
    values, first_indexes = np.unique(keys[order], return_index=True)
    groups = np.split(order, first_indexes[1:]) if len(values) else []
    return {divmod(int(value), len(cuts.KINDS)): group for value, group in zip(values, groups, strict=True)}


def _pick(weighted: Sequence[tuple[Item, float]], random: np.random.Generator) -> Item:
    """Return a random item by weight; the weights add up to 1."""
    left = random.random()
    for item, weight in weighted:
        left -= weight
        if left < 0:
            return item
    return weighted[-1][0]
