"""What is read of a workspace as context: related files, an index of all that may be read, and how the project indents.

`Ignore` and the secret rules decide which files those are, again at each update. Text that looks like a secret is masked before
it is used. The index is in memory only; `core.repository` searches it, and `core.context` chooses what is worth sending.

`dg-lsp infill` and the Python API read their context with a `ContextReader`. The server's `snapshot` module reads the same in
threads, because a keystroke must not wait for the disk.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
import re
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, islice
from pathlib import Path, PurePath
from types import MappingProxyType

from dg_lsp.core import context, languages, lexing, repository, secrets
from dg_lsp.core.context import ShownBefore
from dg_lsp.core.repository import IndexedFile, Repository
from dg_lsp.core.syntax import indent_unit
from dg_lsp.core.values import Document, Snippet
from dg_lsp.infill.ignoring import Ignore
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.wire import config, files
from dg_lsp.wire.config import WORKSPACE_FILE
from dg_lsp.wire.files import Stamp
from dg_lsp.wire.settings import Settings

# Limits that keep the collection of related files within a few milliseconds: files to read, bytes of each file, paths to try
# for imports, and entries to list of a folder.
MAX_RELATED = 24
RELATED_BYTES = 64_000
MAX_GUESSES = 1_500
MAX_NEIGHBOURS = 500
MAX_NAME_CHARS = 400  # a file's name helps the model, but must not take the room of the text


def name_of(path: PurePath) -> str:
    """Return the path for a prompt: as valid Unicode text, and without its first folders if it is very long.

    Bytes that are not UTF-8 are replaced. Several files may have the same name.
    """
    name = path.as_posix().encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    end = name[-MAX_NAME_CHARS:]
    return end if end == name else end.partition("/")[2] or end


def related(
    root: str | Path,
    path: str | Path,
    document: Document,
    *,
    ignore: Ignore | None = None,
    text_of: Callable[[Path], str] | None = None,
    opened: Mapping[Path, str] = MappingProxyType({}),
) -> tuple[Snippet, ...]:
    """Return the files below `root` that are related to the file at `path`, at most MAX_RELATED, with their paths for a prompt.

    Related files are those that it imports, then files of the same language in its folder. Ignored files, files that may
    hold secrets, files with another workspace's settings, and files that are not UTF-8 text are left out; a workspace that
    can't be read yields nothing. Text that looks like a secret is masked. `ignore` is renewed for this request, or shared by
    the requests of one run. `text_of` replaces `masked_text`, for a caller that caches texts. `opened` are the texts of files
    that an editor has open, which count in place of what the disk has.
    """
    try:
        ignore = ignore or Ignore.for_root(root).renewed()
        here = Path(path).resolve()
    except (OSError, RuntimeError, ValueError):
        return ()
    if not here.is_relative_to(ignore.root):
        return ()
    chosen: dict[Path, None] = {}
    settings = _settings_of(here, ignore.root)
    for place in (*_imported(ignore.root, here, document, opened), *siblings(here, document.language, opened)):
        if place not in chosen and place != here and ignore.allows(place) and _settings_of(place, ignore.root) == settings:
            chosen[place] = None
        if len(chosen) >= MAX_RELATED:
            break
    text_of = text_of or masked_text
    read = (
        (place, _masked(opened[place].encode("utf-8", "surrogatepass")) if place in opened else text_of(place))
        for place in chosen
    )
    return tuple(Snippet(name_of(place.relative_to(ignore.root)), text) for place, text in read if text)


def masked_text(path: Path) -> str:
    """Return the start of a file with its secrets masked; "" if it can't be read or is not UTF-8 text."""
    try:
        return _masked(files.read_start(path, RELATED_BYTES + 1))
    except OSError:
        return ""


def _masked(data: bytes) -> str:
    """Return the start of a file's text with its secrets masked; "" if it is not UTF-8 text."""
    start = data if len(data) <= RELATED_BYTES else data[: data.rfind(b"\n", 0, RELATED_BYTES + 1) + 1]
    try:
        text = start.decode("utf-8")
    except UnicodeDecodeError:
        return ""
    # Mask before the text is cut further, so that a key is recognized as a whole.
    return "" if "\0" in text else secrets.mask(text)


def _settings_of(path: Path, root: Path) -> Path | None:
    """Return the folder below the root whose `.dg-lsp.toml` applies to the file; None for the root's own.

    A folder with its own file may have other `privacy.local_only` patterns, which the root's requests do not apply.
    """
    inner = path.relative_to(root).parents if path.is_relative_to(root) else ()
    return next((root / folder for folder in inner if folder.name and (root / folder / WORKSPACE_FILE).exists()), None)


def _imported(root: Path, here: Path, document: Document, opened: Collection[Path]) -> Iterator[Path]:
    """Yield the files that the document's imports may refer to, relative to its folder and to each parent folder."""
    language = languages.row(document.language)
    bases = [base for base in here.parents if base.is_relative_to(root)]
    bases += [root / name for name in ("src", "lib", "include")]
    guesses = (
        guess
        for name in context.imports(document.text, document.language)
        for base in bases
        for guess in _guesses(base, name, language.extensions, opened)
    )
    module_files = set()
    for guess in islice(guesses, MAX_GUESSES):
        # `os.path` returns False for a name from an import with characters that are invalid in a path, where Path may raise.
        if guess not in module_files and (guess in opened or os.path.isfile(guess)):  # noqa: PTH113
            yield guess.resolve()
        module_files.add(guess)


def _guesses(base: Path, name: str, endings: tuple[str, ...], opened: Collection[Path]) -> Iterator[Path]:
    parts = context.name_parts(name)
    if set(endings) & set(context.FOLDER_ENDINGS):
        # The parts before the folder's name may be the repository's address, so try only the last parts.
        for size in range(min(len(parts), 3), 0, -1):
            folder = base.joinpath(*parts[-size:])
            yield from (folder / entry for entry in _names(folder, opened) if entry.endswith(endings))
        return
    # `./util.js` and `vector.h` are file names; `package.module`, `crate::module` and `Name\Space` need an extension.
    if re.search(r"/|\.\w+$", name):
        yield Path(os.path.normpath(base / name))
    # The last part may be a class or a function rather than a module.
    for name_parts in (parts, parts[:-1]):
        if name_parts:
            place = base.joinpath(*name_parts)
            for ending in endings:
                yield place.with_name(place.name + ending)
                yield from (place / f"{index}{ending}" for index in ("__init__", "index", "mod", place.name))


def siblings(here: Path, language: str, opened: Iterable[Path] = ()) -> list[Path]:
    """Return the files of the same language in the same folder, or without one those of the same ending.

    Those with the most similar names come first. `opened` are files that an editor has open.
    """
    same = [name for name in set(_names(here.parent, opened)) if _kind(name) == (language or here.suffix)]
    return [here.parent / name for name in sorted(same, key=lambda name: (-_similar(name, here.name), name))]


def _entries(folder: Path, most: int) -> list[os.DirEntry[str]]:
    """Return the first entries of a folder in the order of their names, or nothing when it can't be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(islice(entries, most), key=lambda entry: entry.name)
    # A name from an import may contain characters that are invalid in a path.
    except (OSError, ValueError):
        return []


def _names(folder: Path, opened: Iterable[Path]) -> list[str]:
    """Return the names of the files of a folder, with those that an editor has open, which the disk may lack."""
    names = [path.name for path in opened if path.parent == folder]
    with contextlib.suppress(OSError):
        names += [entry.name for entry in _entries(folder, MAX_NEIGHBOURS) if entry.is_file(follow_symlinks=False)]
    return names


def _kind(name: str) -> str:
    language = languages.for_path(name)
    return language.name if language else PurePath(name).suffix


def _similar(one: str, other: str) -> int:
    words, others = (set(re.findall(r"[a-z]+|\d+", name.casefold())) for name in (one, other))
    return len(words & others)


# --- How a project indents: by `.editorconfig` files, else as the files next to a new one. The library for this format
# (`editorconfig` 0.17.1) takes 20 seconds for `*a*a*a*a*ab` and a name of 200 letters, so a repository could block us, and it
# opens whatever has the name, also a pipe.

MAX_CONFIG_BYTES = 64 << 10
MAX_PATTERN_CHARS, MAX_SECTIONS, MAX_RANGES = 400, 128, 2
MAX_EXAMPLES = 4

_SECTION = re.compile(r"^[ \t]*\[(.*)\][ \t\r]*$", re.MULTILINE)
_COMMENT = re.compile(r"(?<!\S)[#;].*$", re.MULTILINE)
# What follows `[`, and what follows `{` of a range and of a brace without alternatives, which stands for itself.
_CHARS = re.compile(r"((?:\\.|[^]/\\])+)\]")
_RANGE = re.compile(r"([+-]?\d{1,9})\.\.([+-]?\d{1,9})\}", re.ASCII)
_SINGLE = re.compile(r"(?:\\.|[^,{}\\])*\}")


def with_indent(document: Document, path: Path) -> Document:
    """Return the document of the file at this absolute path with its project's indentation level, if its text shows none."""
    return document if indent_unit(document.text, "") else replace(document, indent=indent_of(path))


def indent_of(path: Path) -> str:
    """Return one indentation level in the project of the file at this absolute path; "" if nothing says it. Never raises.

    It is that of `.editorconfig`, else the most frequent one of a few files of the same kind in its folder, as far as they
    may be read.
    """
    level = _level(_properties(path))
    # YAML forbids tabs, also where a section for all files asks for them.
    is_allowed = level != "\t" or lexing.for_file(path.name) is not lexing.named("yaml")
    return level if level and is_allowed else _of_neighbours(path)


def _properties(path: Path) -> dict[str, str]:
    """Return the properties of a file by the `.editorconfig` files above it; the nearest file with a property counts."""
    merged: dict[str, str] = {}
    for folder in path.parents:
        try:
            text = files.read_regular(folder / ".editorconfig", MAX_CONFIG_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError):
            continue
        top, *sections = _SECTION.split(_COMMENT.sub("", text.removeprefix("\ufeff")))
        own: dict[str, str] = {}
        for pattern, lines in list(zip(sections[::2], sections[1::2], strict=True))[:MAX_SECTIONS]:
            if _matches(pattern, f"/{path.relative_to(folder).as_posix()}"):
                own |= _pairs(lines)
        merged = {name: value for name, value in own.items() if value != "unset"} | merged
        if _pairs(top).get("root") == "true":
            break
    return merged


def _pairs(lines: str) -> dict[str, str]:
    pairs = (re.split("[=:]", line.lower(), maxsplit=1) for line in lines.splitlines())
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) > 1}


def _level(values: dict[str, str]) -> str:
    """Return the indentation level that these properties mean; "" if they mean none."""
    if values.get("indent_style") == "tab" or (values.get("indent_size") == "tab" and "indent_style" not in values):
        return "\t"
    size = values.get("indent_size", "")
    size = values.get("tab_width", "") if size in ("", "tab") and "indent_style" in values else size
    return " " * int(size) if re.fullmatch("[1-9]|1[0-6]", size) else ""


def _of_neighbours(path: Path) -> str:
    language = languages.for_path(path.name)
    try:
        ignore = Ignore.for_root(path.parent).renewed()
    except (OSError, RuntimeError, ValueError):
        return ""
    near = siblings(path, language.name if language else "")[: 2 * MAX_EXAMPLES]
    allowed = islice((place for place in near if place != path and ignore.allows(place)), MAX_EXAMPLES)
    levels = [level for place in allowed if (level := indent_unit(masked_text(place), ""))]
    return max(levels, key=levels.count, default="")


def _matches(pattern: str, text: str) -> bool:
    """Return whether a pattern matches a path that begins with a slash, in a time that grows with the length of both alone.

    Bit `i` of `ends` says whether the pattern so far matches until `text[i]`, so no way is tried twice. A pattern without a
    slash begins at any name of the path.
    """
    pattern, places = pattern[:MAX_PATTERN_CHARS], _places(text)
    slashes, everything = places["/"], (1 << len(text)) - 1
    has_alternatives = len(re.findall(r"(?<!\\)\{", pattern)) == len(re.findall(r"(?<!\\)\}", pattern))
    ends, at = slashes << 1, 0
    if "/" in pattern:
        pattern, ends = f"/{pattern.removeprefix('/')}", 1
    opened: list[tuple[int, int]] = []  # for each brace: the ends before it, and those of its alternatives
    literal, n_ranges = set[int](), 0
    while at < len(pattern):
        char, rest = pattern[at], pattern[at + 1 :]
        at += 1
        if char == "\\" and rest:
            at += 1
            ends = (ends & places.get(rest[0], 0)) << 1
        elif char == "*" and rest.startswith("*"):
            at += 1
            ends = _from_first(ends, text)
        elif char == "*":
            run = everything & ~slashes
            ends |= ((ends & run) + run) ^ run  # the carry of the sum goes through each run
        elif char == "?":
            ends = (ends & everything & ~slashes) << 1
        elif char == "/":
            ends = (ends & slashes) << 1
            if rest.startswith("**/"):
                at += 3
                ends |= (_from_first(ends, text) & slashes) << 1
        elif char == "[" and "]" in rest and (chars := _CHARS.match(rest)):
            at += chars.end()
            ends = (ends & _of_class(chars[1], places)) << 1
        elif char == "{" and (range_ := _RANGE.match(rest)) and (n_ranges := n_ranges + 1) <= MAX_RANGES:
            at += range_.end()
            ends = _after_number(ends, text, *sorted(map(int, range_.groups())))
        elif char == "{" and has_alternatives and (single := _SINGLE.match(rest)) is None:
            opened.append((ends, 0))
        elif char in ",}" and opened and at - 1 not in literal:
            before, others = opened.pop()
            ends |= others
            if char == ",":
                opened.append((before, ends))
                ends = before
        else:
            if char == "{" and has_alternatives and single:
                literal.add(at + single.end() - 1)
            ends = (ends & places.get(char, 0)) << 1
    return bool(ends >> len(text) & 1)


@functools.lru_cache(maxsize=4)
def _places(text: str) -> Mapping[str, int]:
    """Return for each character, in their order, its places in the text as bits."""
    places = dict.fromkeys(sorted(text), 0)
    for at, char in enumerate(text):
        places[char] |= 1 << at
    return places


def _from_first(ends: int, text: str) -> int:
    """Return all ends from the first on."""
    return (1 << len(text) + 1) - (ends & -ends) if ends else 0


def _of_class(chars: str, places: Mapping[str, int]) -> int:
    """Return the places of the characters that are in a class such as `a-z_` or `!abc`."""
    members = chars.removeprefix("!") if chars.startswith("!") else chars.removeprefix("^")
    order, sums = list(places), [0, *accumulate(places.values())]
    within = 0
    for low, high in re.findall(r"\\?(.)(?:-(.))?", members, re.DOTALL):
        within |= max(0, sums[bisect_right(order, high or low)] - sums[bisect_left(order, low)])
    return within if members == chars else sums[-1] - within


def _after_number(ends: int, text: str, low: int, high: int) -> int:
    """Return the ends after each integer of a range, at one of these."""
    after = 0
    for start, end, number in _numbers(text):
        if low <= number <= high and ends >> start & 1:
            after |= 1 << end
    return after


@functools.lru_cache(maxsize=4)
def _numbers(text: str) -> tuple[tuple[int, int, int], ...]:
    """Return the start, the end and the value of each integer in a text; none has a leading zero or more than nine digits."""
    starts = re.finditer(r"(?=([+-]?)(0|[1-9]\d{0,8}))", text, re.ASCII)
    parts = ((match.start(), match[1], match[2][:length]) for match in starts for length in range(1, len(match[2]) + 1))
    return tuple((start, start + len(sign + digits), int(sign + digits)) for start, sign, digits in parts)


# --- The index of a workspace

# Limits of one workspace's index. Indexing takes about half a second of CPU time per million characters.
MAX_FILES = 2_000
MAX_INDEX_BYTES = 48 << 20
MAX_FILE_BYTES = 256 << 10  # larger files are data or generated
MAX_FOLDERS = 4_000
MAX_ENTRIES = 20_000
MAX_LINE_CHARS = 1_000  # on average: minified code has no lines to copy

# CPU seconds of one update: to look at files, and to read those that changed. A later update reads the rest.
WALK_S = 3.0
READ_S = 2.0

# Folders of installed packages, besides those that `Ignore` skips.
_FOREIGN_FOLDERS = frozenset({".eggs", "site-packages", "dist-packages"})
_ENVIRONMENT_FILE = "pyvenv.cfg"  # marks a virtual environment, whatever its folder's name

Entry = tuple[Stamp, IndexedFile | None]
"""A file as it was read; None if it has no text to index."""


class RepositoryIndex:
    """The index of one workspace. `update` may run in a thread; `repository` is a snapshot for any other."""

    def __init__(self, ignore: Ignore, *, walk_s: float = WALK_S, read_s: float = READ_S) -> None:
        """Start with an empty index of the files below the root of `ignore`.

        `walk_s` and `read_s` limit the CPU seconds of an update; with `math.inf`, the result does not depend on speed.
        """
        self.repository = repository.EMPTY
        self._ignore = ignore
        self._walk_s, self._read_s = walk_s, read_s
        self._entries: dict[Path, Entry] = {}
        self._is_stopped = False

    def stop(self) -> None:
        """End a running update within one file, and empty the index."""
        self._is_stopped = True
        self.repository = repository.EMPTY

    def restarted(self) -> RepositoryIndex:
        """Stop, and return an index that is empty until its first update, which reads only what has changed."""
        index = copy.copy(self)
        self.stop()
        index.repository = repository.EMPTY
        return index

    def update(self) -> bool:
        """Read what changed, and return whether that is complete; call it again if not.

        A file that may no longer be read, or that this update did not reach, leaves the index. Raises no error for files
        and folders that can't be read.
        """
        found, unread = dict[Path, Stamp](), set[str]()
        is_whole = _find(found, unread, self._ignore.renewed(), self._limit(self._walk_s))
        is_over = self._limit(self._read_s)
        entries, n_bytes, is_complete = dict[Path, Entry](), 0, True
        for path, stamp in found.items():
            entry = self._entries.get(path)
            if entry is None or entry[0] != stamp:
                if is_over():
                    is_complete = False
                    continue
                entry = stamp, _read(path, self._ignore.root)
                # Let other threads run: this one holds the interpreter while it indexes.
                time.sleep(0)
            n_bytes += entry[1].n_bytes if entry[1] else 0
            if n_bytes > MAX_INDEX_BYTES:
                is_whole = False
                break
            entries[path] = entry
        if self._is_stopped:
            return True
        self._entries = entries
        indexed = {str(path): file for path, (_, file) in entries.items() if file}
        unread |= {without_ending(path) for path, (_, file) in entries.items() if file is None}
        new = Repository(indexed, is_whole and is_complete, str(self._ignore.root), frozenset(unread))
        if new != self.repository:
            # The tables are made here, in the thread, and not at the first request.
            _ = new.packages, new.folders
            self.repository = new
        return is_complete

    def _limit(self, seconds: float) -> Callable[[], bool]:
        """Return a function that returns whether this thread's CPU time is used up, or the index was stopped."""
        end = time.thread_time() + seconds
        return lambda: self._is_stopped or time.thread_time() >= end


def _find(found: dict[Path, Stamp], unread: set[str], ignore: Ignore, is_over: Callable[[], bool]) -> bool:
    """Add each source file that may be read to `found`, with its stamp: those of outer folders first, in name order.

    Links are not followed. The rest goes to `unread`, as in a `Repository`. Stops at the limits, and when `is_over()` is true.
    Returns whether these are all names.
    """
    folders = deque([ignore.root])
    n_folders = 0
    while folders and n_folders < MAX_FOLDERS:
        folder = folders.popleft()
        n_folders += 1
        entries = _entries(folder, MAX_ENTRIES)
        # Another workspace's settings may keep its files from remote models.
        is_foreign = folder != ignore.root and any(entry.name in (_ENVIRONMENT_FILE, WORKSPACE_FILE) for entry in entries)
        others = {str(folder)} if is_foreign or not 0 < len(entries) < MAX_ENTRIES else set[str]()
        for entry in entries if not is_foreign else ():
            if is_over():
                return False
            path = folder / entry.name
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
                is_source = languages.for_path(entry.name) and entry.is_file(follow_symlinks=False)
                info = entry.stat(follow_symlinks=False) if is_source else None
            except OSError:
                continue
            if is_folder and entry.name not in _FOREIGN_FOLDERS and ignore.allows(path):
                folders.append(path)
            elif info and info.st_size <= MAX_FILE_BYTES and not secrets.in_place(path.parts) and ignore.allows(path):
                found[path] = files.stamp(info)
                if len(found) >= MAX_FILES:
                    return False
            else:
                others.add(str(path) if is_folder else without_ending(path))
        unread |= others if len(unread) + len(others) < MAX_ENTRIES else {str(folder)}
    return not folders


def without_ending(path: Path) -> str:
    """Return the path of a file without its endings, as a module has it: a compiled one may have several."""
    return str(path.with_name(path.name.partition(".")[0] or path.name))


def _read(path: Path, root: Path) -> IndexedFile | None:
    try:
        text = files.read_regular(path, MAX_FILE_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    language = languages.for_path(path.name, text)
    return _indexed(name_of(path.relative_to(root)), language.name if language else "", text)


def _indexed(name: str, language: str, text: str) -> IndexedFile | None:
    if "\0" in text or len(text) > MAX_LINE_CHARS * (text.count("\n") + 1):
        return None
    return repository.index(name, language, secrets.mask(text))


def indexed(path: Path, root: Path, document: Document) -> IndexedFile | None:
    """Return the index of a file that an editor has open; None if the index of the folder `root` would leave it out."""
    if len(document.text) > MAX_FILE_BYTES or _settings_of(path, root) is not None:
        return None
    return _indexed(name_of(path.relative_to(root)), document.language, document.text)


# --- The context of a file

N_TEXTS = 512  # files of a workspace whose text is cached, at most `RELATED_BYTES` each


class ContextReader:
    """Reads the contexts of files. Each workspace is read once. Calls may come from several threads."""

    def __init__(self) -> None:
        """Start without any workspace."""
        self._workspaces: dict[Path, _Workspace] = {}

    def read(self, path: Path, document: Document, *, is_fresh: bool = False) -> FileContext:
        """Return the context of the file at this absolute path, whose text is the document.

        With `is_fresh`, the workspace's settings and changed files are read again.
        """
        root = config.workspace_of(path)
        own = self._workspaces.get(root) or self._workspaces.setdefault(root, _Workspace(root))
        return own.read(path, document, is_fresh=is_fresh)


class _Workspace:
    """The settings of one workspace, its index, and the texts of its files that were read.

    Each has its own lock, because reading a large one takes seconds in which others are used.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._ignore = root, Ignore.for_root(root)
        self._lock, self._is_read = threading.Lock(), False
        # No time limit: what is indexed must not depend on the machine's speed. The number and size of files are limited.
        self._index = RepositoryIndex(self._ignore, walk_s=math.inf, read_s=math.inf)

    def read(self, path: Path, document: Document, *, is_fresh: bool) -> FileContext:
        """Return the context of a file below the root; read the workspace before, if it is the first or with `is_fresh`."""
        with self._lock:
            if is_fresh or not self._is_read:
                self._settings: Settings = config.read(self._root)[0].settings
                self._text = functools.lru_cache(N_TEXTS)(masked_text)
                # The requests of a run share the time of a walk, because each may be slow in a hostile workspace.
                self._run_ignore = self._ignore.renewed(is_walk=True)
                if self._settings.related_chars:
                    self._index.update()
                self._is_read = True
            settings = self._settings
            context = FileContext(
                name_of(path.relative_to(self._root)),
                window_chars=settings.window_chars,
                related_chars=settings.related_chars,
                own=os.path.realpath(path),
            )
            if not settings.related_chars:
                return context
            nearby = related(self._root, path, document, ignore=self._run_ignore, text_of=self._text)
            return replace(context, files=self._index.repository, nearby=nearby, shown_before=ShownBefore())
