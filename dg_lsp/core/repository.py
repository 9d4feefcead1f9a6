"""Find passages to copy from in the other files of a repository.

    files that may be read ── infill/workspace.py: walk, read the changed ones, mask ──> IndexedFile, … = Repository
    Repository + request   ── passages ──> Snippet.for_copying
    passages ──> engine/common/; no model reads them as context

A passage is found by the tokens before the hole. The index of a file maps each run of `GRAM` tokens to the offsets where
such runs end. It is a sorted array of integers, eight bytes per token, so a changed file replaces only its own array.
"""

from __future__ import annotations

import re
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from dg_lsp.core import context
from dg_lsp.core.place import first_line
from dg_lsp.core.values import InfillRequest, Snippet, n_common

GRAM = 4  # tokens that must agree before a place; three find many more places and no better ones
TAIL_CHARS = 400  # the text before the hole that is compared
MIN_MATCH = 12  # fewer equal characters before a place, blanks not counted, occur in any code of the language
MAX_MATCH = 240  # equal characters beyond this number do not count
MAX_RIGHT = 24
# The maximum numbers of places that are looked up and compared for one hole, so that a frequent phrase takes no longer.
MAX_LOOKED = 2_000
MAX_PLACES = 300
MAX_PASSAGES = 8
BEFORE_CHARS = 300  # of a passage, before the place: more than MAX_MATCH
LINE_CHARS = 240  # of a passage, after the place
BLOCK_CHARS = 1_600

_OFFSET_BITS = 24
_TOKEN = re.compile(r"(?:(?<![^\S\n])[^\S\n]++)?(?:\n\s*|\w+|[^\w\s])")
_LAST_WORD = re.compile(r"\w+\Z")
_BLANK = re.compile(r"[ \t]+")


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file's text and its index. `places` are sorted integers: the hash of `GRAM` tokens, then the offset where they end.

    `path` is the name that a model sees; several files may have the same.
    """

    path: str
    language: str
    text: str
    places: array[int]

    @property
    def n_bytes(self) -> int:
        """The approximate memory of the file in bytes."""
        widest = 4 if not self.text.isascii() else 1
        return len(self.text) * widest + self.places.itemsize * len(self.places)


def index(path: str, language: str, text: str) -> IndexedFile:
    """Return the index of a file's text, which the caller has masked. `language` is a name from the table, or ""."""
    text = context.with_newlines(text.removeprefix("\ufeff"))[: (1 << _OFFSET_BITS) - 1]
    tokens = list(_tokens(text))
    hashes = _hashes([token for token, _ in tokens])
    places = array("Q", sorted(code << _OFFSET_BITS | end for code, (_, end) in zip(hashes, tokens[GRAM - 1 :], strict=False)))
    return IndexedFile(path, language, text, places)


# The class has no slots, so that the table of names can be computed on first use.
@dataclass(frozen=True)
class Repository:
    """The indexed files of one workspace at one time. A file's key is its absolute path without links.

    `is_whole` says that all names below the folder `root` are known, so that what is missing does not exist. `unread` has those
    that are not indexed: the paths of folders, and of files without their endings.
    """

    files: Mapping[str, IndexedFile] = field(default_factory=dict)
    is_whole: bool = False
    root: str = ""
    unread: frozenset[str] = frozenset()

    @cached_property
    def packages(self) -> dict[str, list[str]]:
        """For each name, the paths of the Python packages with this name."""
        table: dict[str, list[str]] = {}
        for key in self.files:
            if key.endswith("/__init__.py"):
                package = key.removesuffix("/__init__.py")
                table.setdefault(package.rpartition("/")[2], []).append(package)
        return table

    @cached_property
    def folders(self) -> frozenset[str]:
        """The folders that have an indexed file at any depth."""
        folders = set[str]()
        for key in self.files:
            folder = key.rpartition("/")[0]
            while folder and folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        return frozenset(folders)

    def may_have(self, path: str) -> bool:
        """Return whether a path without its ending may be one that was not read: outside of the root, or not indexed."""
        inner = path.removeprefix(f"{self.root}/")
        above = accumulate(inner.split("/"), lambda folder, name: f"{folder}/{name}", initial=self.root)
        return inner == path or not self.unread.isdisjoint(above)

    def with_files(self, files: Mapping[str, IndexedFile], unread: frozenset[str]) -> Repository:
        """Return the repository with these files, in place of those with the same keys, and these unread names."""
        return replace(self, files={**self.files, **files}, unread=self.unread | unread) if files or unread else self

    def is_own(self, file: IndexedFile, request: InfillRequest, own: str) -> bool:
        """Return whether `file` is the file of the request. `own` is that file's key, or "" if it is unknown.

        Its copy on the disk may contain the answer, and may have another path than the editor's.
        """
        return file.path == request.path or file is self.files.get(own)


EMPTY = Repository()


def passages(request: InfillRequest, repository: Repository, most: int = MAX_PASSAGES, own: str = "") -> tuple[Snippet, ...]:
    """Return the passages of other files that have the longest text in common with the text around the hole, best first.

    Of several passages that continue with the same text, only the best is returned.
    """
    hole = request.holes[0]
    ranked = sorted(_places(request, repository, own), key=lambda place: place[:2], reverse=True)
    found = dict[str, Snippet]()
    shown = list[tuple[IndexedFile, int, int]]()
    for *_, file, at in ranked:
        if len(found) == most:
            break
        ahead = file.text[at : at + 40]
        if ahead in found or any(
            file is other and start <= at - MAX_MATCH and at < end - LINE_CHARS for other, start, end in shown
        ):
            continue
        start = file.text.rfind("\n", 0, max(at - BEFORE_CHARS, 0)) + 1
        end = file.text.find("\n", at + (BLOCK_CHARS if hole.extent == "block" else LINE_CHARS)) + 1 or len(file.text)
        shown.append((file, start, end))
        found[ahead] = Snippet(file.path, file.text[start:end], for_copying=True)
    return tuple(found.values())


def _places(request: InfillRequest, repository: Repository, own: str) -> Iterator[tuple[int, int, IndexedFile, int]]:
    """Yield each place that has the same tokens before it as the hole.

    A place is: the number of equal characters on both sides, the number before it, its file, and its offset.
    """
    tail = request.prefix[-TAIL_CHARS:]
    typed = _LAST_WORD.search(tail)
    blank = "" if tail.endswith("\n") or not tail.rstrip(" \t") else tail[len(tail.rstrip(" \t")) :]
    if blank and tail[: -len(blank)].endswith("\n"):
        blank = ""  # an indentation is part of its line end's token
    keys = [(_hash_before(tail), blank)]
    if typed:
        keys.append((_hash_before(tail[: typed.start()]), typed.group()))
    head = first_line(request.suffix[:TAIL_CHARS].lstrip("\n")).strip()[:MAX_RIGHT]
    is_line = not request.suffix.startswith("\n") and bool(head)
    solid_tail = _BLANK.sub("", tail[-MAX_MATCH:])[::-1]
    n_looked, n_compared = 0, 0
    seen = set[tuple[int, int]]()
    for file in repository.files.values():
        if repository.is_own(file, request, own) or file.language != request.language:
            continue
        for key, more in keys:
            if key is None:
                continue
            first, last = (bisect_left(file.places, code << _OFFSET_BITS) for code in (key, key + 1))
            for place in file.places[first : min(last, first + MAX_LOOKED)]:
                if n_looked >= MAX_LOOKED or n_compared >= MAX_PLACES:
                    return
                n_looked += 1
                at = _after(file.text, place & ((1 << _OFFSET_BITS) - 1), more)
                if at is not None and (id(file), at) not in seen:
                    seen.add((id(file), at))
                    left = n_common(_BLANK.sub("", file.text[max(at - MAX_MATCH, 0) : at])[::-1], solid_tail)
                    n_compared += 1
                    if left < MIN_MATCH:
                        continue
                    right = len(head) if head and _goes_on(file.text, at, head, is_line=is_line) else 0
                    yield left + right, left, file, at


def _after(text: str, at: int, more: str) -> int | None:
    """Return the offset after `more`, which is the start of a word or white space; None if that word is not at `at`.

    White space may be missing.
    """
    if more.strip():
        while text[at : at + 1] in (" ", "\t"):
            at += 1
        return at + len(more) if text.startswith(more, at) else None
    return at + len(more) if text.startswith(more, at) else at


def _goes_on(text: str, at: int, head: str, *, is_line: bool) -> bool:
    """Return whether the suffix's `head` follows: with `is_line` on the same line, otherwise at the start of a later line."""
    line_end = text.find("\n", at)
    if is_line:
        return text.find(head, at, line_end if line_end >= 0 else len(text)) >= 0
    found = text.find(head, line_end + 1, at + BLOCK_CHARS) if line_end >= 0 else -1
    while found >= 0:
        if not text[text.rfind("\n", at, found) + 1 : found].strip():
            return True
        found = text.find(head, found + 1, at + BLOCK_CHARS)
    return False


def _hash_before(tail: str) -> int | None:
    """Return the hash of the last tokens of a text, or None if it has too few."""
    code = tail.rstrip(" \t")
    hashes = _hashes([token for token, _ in _tokens(tail if code.endswith("\n") else code)][-GRAM:])
    return hashes[0] if hashes else None


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    r"""Yield each token with its end. White space counts only as a line end, and several line ends count as one."""
    for match in _TOKEN.finditer(text):
        token = match.group().strip(" \t")
        yield ("\n" if token.startswith("\n") else token), match.end()


def _hashes(tokens: Sequence[str]) -> list[int]:
    """Return a hash of 32 bits for each run of `GRAM` tokens. A collision does no harm, because places are compared as text."""
    coded = [token.encode("utf-8", "surrogatepass") + b"\0" for token in tokens]
    return [zlib.crc32(b"".join(coded[at : at + GRAM])) for at in range(len(coded) - GRAM + 1)]
