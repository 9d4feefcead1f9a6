"""Keep an index of the files of a workspace that may be read, and read what a request contains of them.

`Ignore` and the secret rules decide which files those are, again at each update. Text that looks like a secret is masked
before it is indexed. The index is in memory only. `core.repository` searches it.

`dg-lsp infill` and the Python API read their context with a `ContextReader`. The server's `snapshot` module
reads the same in threads, because a keystroke must not wait for the disk.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.core import languages, repository, secrets
from dg_lsp.core.repository import IndexedFile, Repository
from dg_lsp.core.values import Document
from dg_lsp.infill import workspace
from dg_lsp.infill.ignoring import Ignore
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.infill.workspace import name_of
from dg_lsp.wire import config, files
from dg_lsp.wire.config import WORKSPACE_FILE
from dg_lsp.wire.settings import Settings

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

Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file as it was read; `file` is None if it has no text to index."""

    stamp: Stamp
    file: IndexedFile | None


class RepositoryIndex:
    """The index of one workspace. `update` may run in a thread; `repository` is a snapshot for any other."""

    def __init__(
        self,
        ignore: Ignore,
        *,
        walk_s: float = WALK_S,
        read_s: float = READ_S,
    ) -> None:
        """Start with an empty index of the files below the root of `ignore`.

        `walk_s` and `read_s` limit the CPU seconds of an update; with `math.inf`, the result does not depend on speed.
        """
        self.repository = repository.EMPTY
        self._ignore = ignore
        self._walk_s, self._read_s = walk_s, read_s
        self._entries: dict[Path, _Entry] = {}
        self._is_stopped = False

    def stop(self) -> None:
        """End a running update within one file, and empty the index."""
        self._is_stopped = True
        self.repository = repository.EMPTY

    def update(self) -> bool:
        """Read what changed, and return whether that is complete; call it again if not.

        A file that may no longer be read, or that this update did not reach, leaves the index. Raises no error for files
        and folders that can't be read.
        """
        found = dict[Path, tuple[Stamp, str]]()
        is_whole = _find(found, self._ignore.renewed(), self._limit(self._walk_s))
        is_over = self._limit(self._read_s)
        entries, n_bytes, is_complete = dict[Path, _Entry](), 0, True
        for path, (stamp, language) in found.items():
            entry = self._entries.get(path)
            if entry is None or entry.stamp != stamp:
                if is_over():
                    is_complete = False
                    continue
                entry = _Entry(stamp, _read(path, self._ignore.root, language))
                # Let other threads run: this one holds the interpreter while it indexes.
                time.sleep(0)
            n_bytes += entry.file.n_bytes if entry.file else 0
            if n_bytes > MAX_INDEX_BYTES:
                is_whole = False
                break
            entries[path] = entry
        if self._is_stopped:
            return True
        is_same = entries.keys() == self._entries.keys() and all(entries[path] is self._entries[path] for path in entries)
        self._entries = entries
        is_whole = is_whole and is_complete
        if not is_same or is_whole != self.repository.is_whole:
            indexed = Repository({str(path): entry.file for path, entry in entries.items() if entry.file}, is_whole)
            # The tables are made here, in the thread, and not at the first request.
            _ = indexed.packages, indexed.folders
            self.repository = indexed
        return is_complete

    def _limit(self, seconds: float) -> Callable[[], bool]:
        """Return a function that returns whether this thread's CPU time is used up, or the index was stopped."""
        end = time.thread_time() + seconds
        return lambda: self._is_stopped or time.thread_time() >= end


def _find(found: dict[Path, tuple[Stamp, str]], ignore: Ignore, is_over: Callable[[], bool]) -> bool:
    """Add each source file that may be read, with its stamp and language: those of outer folders first, in name order.

    Links are not followed. Stops at the limits, and when `is_over()` is true. Returns whether these are all files.
    """
    folders = deque([ignore.root])
    n_folders = 0
    while folders and n_folders < MAX_FOLDERS:
        folder = folders.popleft()
        n_folders += 1
        entries = _entries(folder)
        # Another workspace's settings may keep its files from remote models.
        if folder != ignore.root and any(entry.name in (_ENVIRONMENT_FILE, WORKSPACE_FILE) for entry in entries):
            continue
        for entry in entries:
            if is_over():
                return False
            path = folder / entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in _FOREIGN_FOLDERS and ignore.allows(path):
                        folders.append(path)
                    continue
                language = languages.for_path(entry.name)
                if language is None or not entry.is_file(follow_symlinks=False):
                    continue
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if info.st_size > MAX_FILE_BYTES or secrets.in_place(path.parts) or not ignore.allows(path):
                continue
            found[path] = (info.st_mtime_ns, info.st_size, info.st_ino), language.name
            if len(found) >= MAX_FILES:
                return False
    return not folders


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            listed = [entry for entry, _ in zip(entries, range(MAX_ENTRIES), strict=False)]
    except OSError:
        return []
    return sorted(listed, key=lambda entry: entry.name)


def _read(path: Path, root: Path, language: str) -> IndexedFile | None:
    try:
        text = files.read_regular(path, MAX_FILE_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if "\0" in text or len(text) > MAX_LINE_CHARS * (text.count("\n") + 1):
        return None
    return repository.index(name_of(path.relative_to(root)), language, secrets.mask(text))


# --- The context of a file

N_TEXTS = 512  # files of a workspace whose text is cached, at most `workspace.MAX_FILE_BYTES` each


class ContextReader:
    """Reads the contexts of files. Each workspace is read once. Calls may come from several threads."""

    def __init__(self) -> None:
        """Start without any workspace."""
        self._workspaces: dict[Path, _Workspace] = {}
        self._lock = threading.Lock()

    def read(
        self, path: Path, document: Document, texts: Mapping[Path, str] | None = None, *, is_fresh: bool = False
    ) -> FileContext:
        """Return the context of the file at this absolute path, whose text is the document.

        `texts` holds the new texts of files that are about to be changed. With `is_fresh`, the workspace's settings and
        changed files are read again.
        """
        root = config.workspace_of(path)
        with self._lock:
            if root not in self._workspaces:
                self._workspaces[root] = _Workspace(root)
            own = self._workspaces[root]
        return own.read(path, document, texts or {}, is_fresh=is_fresh)


class _Workspace:
    """The settings of one workspace, its index, and the texts of its files that were read.

    Each has its own lock, because reading a large one takes seconds in which others are used.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._ignore = root, Ignore.for_root(root)
        self._lock, self._is_read = threading.Lock(), False
        # No time limit: what is indexed must not depend on the machine's speed. The number and size of files are limited.
        self._index = RepositoryIndex(self._ignore, walk_s=math.inf, read_s=math.inf)

    def read(self, path: Path, document: Document, texts: Mapping[Path, str], *, is_fresh: bool) -> FileContext:
        """Return the context of a file below the root; read the workspace before, if it is the first or with `is_fresh`."""
        with self._lock:
            if is_fresh or not self._is_read:
                self._renew()
            return self._context(path, document, texts)

    def _renew(self) -> None:
        """Read the settings and the changed files again."""
        self._settings: Settings = config.read(self._root)[0].settings
        self._text = functools.lru_cache(N_TEXTS)(workspace.masked_text)

        # Many requests of a run share the new text of a file.
        @functools.lru_cache(N_TEXTS)
        def indexed(key: str, text: str) -> IndexedFile:
            old = self._index.repository.files[key]
            return repository.index(old.path, old.language, text)

        self._indexed = indexed
        # The requests of a run share the time of a walk, because each may be slow in a hostile workspace.
        self._run_ignore = self._ignore.renewed(is_walk=True)
        if self._settings.related_chars:
            self._index.update()
        self._is_read = True

    def _context(self, path: Path, document: Document, texts: Mapping[Path, str]) -> FileContext:
        name, settings = workspace.name_of(path.relative_to(self._root)), self._settings
        if not settings.related_chars:
            return FileContext(name, (), repository.EMPTY, settings.window_chars, 0, os.path.realpath(path))
        # The workspace may have been reached through a link, and the index and the related files have real paths.
        by_path = {os.path.realpath(other): text for other, text in texts.items()}
        masked = {key: secrets.mask(text) for key, text in by_path.items() if Path(key).is_relative_to(self._ignore.root)}

        def text_of(other: Path) -> str:
            key = os.path.realpath(other)
            return masked[key] if key in masked else self._text(other)

        nearby = workspace.related(self._root, path, document, ignore=self._run_ignore, text_of=text_of)
        files = self._index.repository
        new_files = {key: self._indexed(key, text) for key, text in masked.items() if key in files.files}
        own, files = os.path.realpath(path), files.changed(new_files)
        return FileContext(name, (), files, settings.window_chars, settings.related_chars, own, nearby=nearby)
