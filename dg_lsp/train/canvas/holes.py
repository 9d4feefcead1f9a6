"""Draw windows of source code, and cut holes from them where the product would.

The tokens before a hole end at a safe boundary (`Vocabulary.safe_end`), so the answer begins with the pre-token that the
cursor is in. The answer and the text after it are encoded by themselves, as in a request. Knows files and token ids. Knows
nothing of canvases or models.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from random import Random

from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.train import corpus
from dg_lsp.wire import files

HELD = 32  # tokens after a hole
SHARES = {".py": 1.0, ".ts": 0.2, ".tsx": 0.2, ".js": 0.15, ".go": 0.15, ".rs": 0.15, ".java": 0.15}
ASIDE_SHARE = 50  # one file name in this many is set aside
MAX_BYTES = 1 << 20
AFTER_CHARS = 320  # enough for the tokens after a hole
TOKEN_CHARS = 5  # a window of N tokens is cut from this many characters for each
MIN_BEFORE = 8  # tokens
MIN_HOLES = 4  # in a window
TRIES = 1000


@dataclass(frozen=True, slots=True)
class Hole:
    """A hole: the number of tokens before it in its window, the last of them, its own tokens, and the first ones after it.

    `in_window`: the window has the same tokens at these places.
    """

    first: int
    before: int
    answer: tuple[int, ...]
    after: tuple[int, ...]
    in_window: bool


@dataclass(frozen=True, slots=True)
class Window:
    """The tokens of a part of a file, and holes in it."""

    ids: tuple[int, ...]
    holes: tuple[Hole, ...]


class Sources:
    """The source files of some folders, without held-out projects and excluded paths.

    Files whose name is set aside are drawn only if `aside`, and no others then. Raises EvalError if there is none.
    """

    def __init__(self, folders: Iterable[Path], vocabulary: Vocabulary, *, excluded: frozenset[str] = frozenset()) -> None:
        self._vocabulary = vocabulary
        self._train: list[Path] = []
        self._aside: list[Path] = []
        self.licences: set[str] = set()
        folders = list(folders)
        for folder in folders:
            if not folder.is_dir():
                raise EvalError(f"{folder} is not a folder; give a folder of source files with --sources")
            self._add(folder, excluded)
        if not self._train or not self._aside:
            lacking = "source file" if not self._train else f"file to set aside, which one name in {ASIDE_SHARE} is"
            kinds = ", ".join(SHARES)
            raise EvalError(f"{', '.join(map(str, folders))}: no {lacking}; more files are needed of the kinds {kinds}")

    @cached_property
    def reference(self) -> str:
        """A description of the files to train on, with a hash of their list."""
        names = "\n".join(sorted(path.name for path in self._train))
        return f"{self.n_files} files; sha256 of their sorted names: {hashlib.sha256(names.encode()).hexdigest()}"

    @property
    def n_files(self) -> int:
        """The number of files to train on."""
        return len(self._train)

    def windows(self, random: Random, count: int, length: int, n_holes: int, most: int, *, aside: bool = False) -> list[Window]:
        """Return `count` windows of at most `length` tokens, each with up to `n_holes` of at most `most` tokens.

        Raises EvalError if the files have too few holes of that kind.
        """
        drawn: list[Window] = []
        for _ in range(TRIES * count):
            if len(drawn) == count:
                break
            text = self._text(random, length, aside=aside)
            window = cut(text, self._vocabulary, random, length, n_holes, most) if text else None
            if window and len(window.holes) >= min(MIN_HOLES, n_holes):
                drawn.append(window)
        if len(drawn) < count:
            raise EvalError("too few holes can be cut from these files; give more of them with --sources")
        return drawn

    def _add(self, folder: Path, excluded: frozenset[str]) -> None:
        listing = folder / corpus.LISTING
        if listing.exists():
            with listing.open(encoding="utf-8", newline="") as lines:
                self.licences |= {row.get("licence", "") for row in csv.DictReader(lines)} - {""}
        for here, folders, names in os.walk(folder):
            # A folder of a held-out project is named PROJECT or OWNER__PROJECT.
            folders[:] = sorted(name for name in folders if name.rpartition("__")[2].lower() not in corpus.HELD_OUT)
            for name in sorted(names):
                path = Path(here) / name
                relative = path.relative_to(folder).as_posix()
                if path.suffix in SHARES and relative not in excluded and path.is_file() and not path.is_symlink():
                    (self._aside if is_aside(name) else self._train).append(path)

    @cached_property
    def _shares(self) -> tuple[list[float], list[float]]:
        """The cumulative shares of the files to train on and of those set aside."""
        first, second = (list(accumulate(SHARES[path.suffix] for path in paths)) for paths in (self._train, self._aside))
        return first, second

    def _text(self, random: Random, length: int, *, aside: bool) -> str:
        """Return the text of a window, or "" if the drawn file can't be used."""
        (path,) = random.choices(self._aside if aside else self._train, cum_weights=self._shares[aside])
        try:
            raw = files.read_regular(path, MAX_BYTES).decode()
        except (OSError, UnicodeDecodeError, files.NotRegularError, files.TooLargeError):
            return ""
        text = corpus.clean(raw, python=path.suffix == ".py") or ""
        at_start = random.random() < 0.15
        start = 0 if at_start else text.find("\n", random.randrange(max(1, len(text) - length * 3))) + 1
        return text[start : start + length * TOKEN_CHARS]


def is_aside(name: str) -> bool:
    """Return whether files of this name are never trained on. It depends on nothing else, so copies are set aside too."""
    value = 0
    for character in name:
        value = (value * 131 + ord(character)) % 1_000_003
    return value % ASIDE_SHARE == 0


def cut(text: str, vocabulary: Vocabulary, random: Random, length: int, n_holes: int, most: int) -> Window:
    """Return the first `length` tokens of a text, and holes that begin among them: rests of lines, lines, blocks, spans."""
    encoded = vocabulary.tokenizer.encode(text, add_special_tokens=False)
    ids = encoded.ids[:length]
    tokens_at = {start: index for index, (start, _) in enumerate(encoded.offsets[: length + 1])}
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    end = encoded.offsets[len(ids) - 1][1] if ids else 0
    n_lines = sum(start < end for start in starts[:-1])
    holes: list[Hole] = []
    for _ in range(8 * n_holes if n_lines else 0):
        if len(holes) == n_holes:
            break
        line = random.randrange(n_lines)
        if not lines[line].strip():
            continue
        first, last = _span(random, lines, starts, line)
        safe = vocabulary.safe_end(text[:first])
        n_before = tokens_at.get(safe)
        if n_before is None or not MIN_BEFORE < n_before <= len(ids) or not text[safe:last].strip():
            continue
        answer = vocabulary.encode(text[safe:last])
        if 0 < len(answer) <= most:
            after = vocabulary.encode(text[last : last + AFTER_CHARS])[:HELD]
            in_window = ids[n_before : n_before + len(answer)] == answer
            holes.append(Hole(n_before, ids[n_before - 1], tuple(answer), tuple(after), in_window))
    return Window(tuple(ids), tuple(holes))


def _span(random: Random, lines: list[str], starts: list[int], line: int) -> tuple[int, int]:
    """Return the start and the end of a hole that begins in a line."""
    text, kind = lines[line], random.random()
    indent = len(text) - len(text.lstrip())
    if kind < 0.3:  # the rest of the line
        return starts[line] + random.randrange(indent, len(text)), starts[line] + len(text)
    if kind < 0.5:  # the line
        return starts[line] + indent, starts[line] + len(text)
    if kind < 0.75:  # some lines
        last = min(len(lines) - 1, line + random.randrange(1, 5))
        return starts[line] + indent, starts[last] + len(lines[last])
    first = starts[line] + random.randrange(len(text))  # any span
    return first, min(starts[-1] - 1, first + 1 + int(random.expovariate(1 / 20)))
