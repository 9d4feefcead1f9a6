"""Read the workspace for the server: which open files get no suggestions, and related text from other files.

Files are read in threads and the results are cached for some seconds, so that no keystroke waits for the disk. Each folder
has an index of its files, which is made and updated in a thread while documents of the folder are edited.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from urllib.parse import unquote

from dg_lsp.core import repository
from dg_lsp.core.repository import Repository
from dg_lsp.core.values import Document, Snippet
from dg_lsp.infill import ignoring, workspace
from dg_lsp.infill.file_context import FileContext
from dg_lsp.infill.ignoring import Ignore
from dg_lsp.infill.repository import RepositoryIndex
from dg_lsp.server import convert
from dg_lsp.server.settings import Settings

log = logging.getLogger(__name__)

FRESH_S = 10.0
# An update of a large folder's index takes longer, so it runs at most for one part in this many of the time.
INDEX_SHARE = 30
# A slow disk must not block a request. A document whose look-up takes longer gets no suggestion.
LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class _Looked:
    """When a document was looked up, why it may not be sent ("" if it may), and which file it is."""

    at: float
    reason: str
    file: FileContext


_NOT_LOOKED = _Looked(-FRESH_S, "has not been looked up yet", FileContext(""))


class Nearby:
    """The folders of the workspace, and a cache of what was read from them."""

    def __init__(self, clock: Callable[[], float], withheld: Callable[[str], str] = lambda _uri: "") -> None:
        """Start with no folder.

        `withheld` returns another reason why a document may not be sent to a model, or "" when there is none.
        """
        self._clock = clock
        self._withheld = withheld
        self._roots: dict[Path, Ignore] = {}
        self._unreadable: set[Path] = set()
        self._related: dict[str, tuple[float, tuple[Snippet, ...]]] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._indexes: dict[Path, RepositoryIndex] = {}
        self._next_update: dict[Path, float] = {}
        self._updating: dict[Path, asyncio.Task[None]] = {}
        self._looked: dict[str, _Looked] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}

    def set_roots(self, uris: Iterable[str]) -> None:
        """Replace the workspace folders by these."""
        before, self._roots, self._unreadable = self._roots, {}, set()
        for path in (path for uri in uris if (path := convert.to_path(uri)) is not None):
            self._add_root(path, before.get(path))
        self._looked.clear()
        self._related.clear()
        for path in self._indexes.keys() - self._roots.keys():
            self._indexes.pop(path).stop()
            self._next_update.pop(path, None)
        # Running look-ups belong to the old folders.
        for task in self._looking.values():
            task.cancel()
        self._looking.clear()

    def _add_root(self, path: Path, ignore: Ignore | None) -> None:
        try:
            self._roots[path] = ignore or Ignore.for_root(path)
        except (OSError, ValueError, RuntimeError) as error:
            # The other folders still work.
            log.warning("the workspace folder %s can't be read (%s); none of its files are sent to a model", path, error)
            self._unreadable.add(path)

    def refused(self, uri: str) -> str:
        """Return why a document's text may not be sent to a model; "" if it may.

        The reason is the end of a sentence that begins with "it". A document is refused until `look` has finished for it.
        Reads no file.
        """
        return self._looked.get(uri, _NOT_LOOKED).reason or self._withheld(uri)

    def context(self, document: Document, settings: Settings) -> FileContext:
        """Return what requests for a document contain besides its text, as it was read last, without waiting.

        It is read again when it is old. A document that `look` has not finished for has no name.
        """
        return replace(
            self._looked.get(document.uri, _NOT_LOOKED).file,
            related=self.related(document, settings.related_chars),
            files=self.files(document, settings.related_chars),
            window_chars=settings.window_chars,
            related_chars=settings.related_chars,
        )

    async def look(self, uri: str) -> str:
        """Return what `refused` returns, after looking it up in a thread; results are cached for some seconds.

        A file outside all workspace folders is judged by its name, its hidden parent folders and the ignore files above it.
        A document that is no local file is judged by the names in its URI.
        """
        while self._clock() - self._looked.get(uri, _NOT_LOOKED).at >= FRESH_S:
            if (task := self._looking.get(uri)) is None:
                task = self._looking[uri] = asyncio.ensure_future(self._look(uri))
            if not (await asyncio.wait([task], timeout=LOOK_S))[0]:
                return "takes too long to look up"
            # `set_roots` cancels running look-ups; then look up again in the new folders.
            if not task.cancelled():
                break
        return self.refused(uri)

    async def _look(self, uri: str) -> None:
        own_task = asyncio.current_task()
        file = _NOT_LOOKED.file
        try:
            reason, file = await asyncio.to_thread(self._look_up, uri)
        except (OSError, ValueError, RuntimeError) as error:
            reason = f"can't be looked up ({type(error).__name__})"
        finally:
            if self._looking.get(uri) is own_task:
                del self._looking[uri]
        self._looked[uri] = _Looked(self._clock(), reason, file)

    def related(self, document: Document, limit_chars: int) -> tuple[Snippet, ...]:
        """Return the cached related text, without waiting; start reading it again when it is old."""
        at, snippets = self._related.get(document.uri, (-FRESH_S, ()))
        if self._clock() - at >= FRESH_S and document.uri not in self._reading and limit_chars > 0:
            self._reading[document.uri] = asyncio.ensure_future(self._read(document, limit_chars))
        return snippets if limit_chars > 0 else ()

    async def read(self, document: Document, settings: Settings) -> FileContext:
        """Return what `context` returns, after related text was read; for actions that take seconds anyway."""
        self.related(document, settings.related_chars)
        if (reading := self._reading.get(document.uri)) is not None:
            await asyncio.wait([reading])
        return self.context(document, settings)

    def files(self, document: Document, limit_chars: int) -> Repository:
        """Return the index of the files of the document's folder as it is, without waiting; update it when it is old.

        It is empty until the first update, for a document outside all folders, and if `limit_chars` is 0.
        """
        path = convert.to_path(document.uri) if limit_chars > 0 else None
        root = self._root(path) if path else None
        if root is None:
            return repository.EMPTY
        index = self._indexes.get(root)
        if index is None:
            index = self._indexes[root] = RepositoryIndex(self._roots[root])
        if root not in self._updating and self._clock() >= self._next_update.get(root, -FRESH_S):
            self._updating[root] = asyncio.ensure_future(self._update(root, index))
        return index.repository

    def forget(self, uri: str) -> None:
        """Empty the cache for a document."""
        self._related.pop(uri, None)
        self._looked.pop(uri, None)

    async def close(self) -> None:
        """Cancel all reading."""
        for index in self._indexes.values():
            index.stop()
        tasks = (*self._reading.values(), *self._looking.values(), *self._updating.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, document: Document, limit_chars: int) -> None:
        try:
            path = convert.to_path(document.uri)
            root = self._root(path) if path else None
            snippets: Sequence[Snippet] = ()
            if path and root:
                snippets = await asyncio.to_thread(
                    workspace.related, root, path, document, limit_chars, ignore=self._roots[root].renewed()
                )
            self._related[document.uri] = (self._clock(), tuple(snippets))
        finally:
            self._reading.pop(document.uri, None)

    async def _update(self, root: Path, index: RepositoryIndex) -> None:
        start = self._clock()
        try:
            is_complete = False
            while not is_complete and self._indexes.get(root) is index:
                is_complete = await asyncio.to_thread(index.update)
        finally:
            now = self._clock()
            # The folder may have been removed, and added again with a new index, which is still empty.
            if self._indexes.get(root) is index:
                self._next_update[root] = now + max(FRESH_S, INDEX_SHARE * (now - start))
            self._updating.pop(root, None)

    def _root(self, path: Path) -> Path | None:
        around = [root for root in self._roots if path.is_relative_to(root)]
        return max(around, key=lambda root: len(root.parts), default=None)

    def _look_up(self, uri: str) -> tuple[str, FileContext]:
        """Return why a document may not be sent, and which file it is; its name is relative to its workspace folder."""
        path = convert.to_path(uri)
        reason = self._reason(uri, path)
        if path is None:
            return reason, FileContext(uri.rpartition(":")[2].rpartition("/")[2][:100])
        root = self._root(path)
        name = workspace.name_of(path.relative_to(root) if root else PurePath(path.name))
        return reason, FileContext(name, own=os.path.realpath(path))

    def _reason(self, uri: str, path: Path | None) -> str:
        root = self._root(path) if path is not None else None
        if path is not None and any(path.is_relative_to(folder) for folder in self._unreadable):
            return "lies in a workspace folder that can't be read"
        if path is not None and root is not None:
            return self._roots[root].renewed().reason(path)
        # Check a symbolic link's own name and its target, and every part of a URI with a query or fragment.
        names = (unquote(part) for part in re.split(r"[?#]", uri)) if path is None else (str(path), str(path.resolve()))
        if any(map(ignoring.is_secret_outside, names)):
            return "may hold secrets"
        return "" if path is None else Ignore.reason_alone(path)
