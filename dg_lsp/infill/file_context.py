"""Read what a request for a file contains besides its own text: settings, text from other files, and the index of them.

`dg-lsp infill`, `dg-lsp explain` and the Python API read it here. The server's `nearby` module reads the same in threads,
because a keystroke must not wait for the disk.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from dg_lsp.core import repository, secrets
from dg_lsp.core.repository import IndexedFile
from dg_lsp.core.values import Document
from dg_lsp.infill import workspace
from dg_lsp.infill.ignoring import Ignore
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.infill.repository import RepositoryIndex
from dg_lsp.wire import config
from dg_lsp.wire.settings import Settings

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
        self._new_files: dict[str, tuple[str, IndexedFile]] = {}

    def read(self, path: Path, document: Document, texts: Mapping[Path, str], *, is_fresh: bool) -> FileContext:
        """Return the context of a file below the root; read the workspace before, if it is the first or with `is_fresh`."""
        with self._lock:
            if is_fresh or not self._is_read:
                self._renew()
                self._is_read = True
            return self._context(path, document, texts)

    def _renew(self) -> None:
        """Read the settings and the changed files again."""
        self._settings: Settings = config.read(self._root)[0].settings
        self._text = functools.lru_cache(N_TEXTS)(workspace.masked_text)
        self._new_files.clear()
        # The requests of a run share the time of a walk, because each may be slow in a hostile workspace.
        self._run_ignore = self._ignore.renewed(is_walk=True)
        if self._settings.related_chars:
            self._index.update()

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

        related = workspace.related(
            self._root, path, document, settings.related_chars, ignore=self._run_ignore, text_of=text_of
        )
        files = self._index.repository
        new_files = {key: self._indexed(key, text) for key, text in masked.items() if key in files.files}
        own, files = os.path.realpath(path), files.changed(new_files)
        return FileContext(name, related, files, settings.window_chars, settings.related_chars, own)

    def _indexed(self, key: str, text: str) -> IndexedFile:
        """Return the index of a file's new text, which many requests share."""
        known_text, file = self._new_files.get(key, ("", None))
        if file is None or known_text != text:
            old = self._index.repository.files[key]
            file = repository.index(old.path, old.language, text)
            self._new_files[key] = text, file
        return file
