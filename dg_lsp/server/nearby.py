"""Read the workspace for the server: which open files get no suggestions, and related text from other files.

Files are read in threads and the results are cached for some seconds, so that no keystroke waits for the disk. Each folder
has an index of its files, which is made and updated in a thread while documents of the folder are edited.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from urllib.parse import unquote

from dg_lsp.core import repository
from dg_lsp.core.repository import Repository
from dg_lsp.core.values import Document, Snippet
from dg_lsp.infill import ignoring, workspace
from dg_lsp.infill.ignoring import Ignore
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.infill.repository import RepositoryIndex
from dg_lsp.server import convert
from dg_lsp.server.background import Background
from dg_lsp.wire.settings import Settings

log = logging.getLogger(__name__)

FRESH_S = 10.0
# An update of a large folder's index takes longer, so it runs at most for one part in this many of the time.
INDEX_SHARE = 30
# A slow disk must not block a request. A document whose look-up takes longer gets no suggestion.
LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class _Looked:
    """Why a document may not be sent ("" if it may), and which file it is."""

    reason: str
    file: FileContext


class Nearby:
    """The folders of the workspace, and what was read from them last."""

    def __init__(self, clock: Callable[[], float], withheld: Callable[[str], str] = lambda _uri: "") -> None:
        """Start with no folder.

        `withheld` returns another reason why a document may not be sent to a model, or "" when there is none.
        """
        self._withheld = withheld
        self._roots: dict[Path, Ignore] = {}
        self._unreadable: set[Path] = set()
        self._indexes: dict[Path, RepositoryIndex] = {}
        not_looked = _Looked("has not been looked up yet", FileContext(""))
        self._looked = Background[str, _Looked](clock, not_looked, fresh_s=FRESH_S)
        self._related = Background[str, tuple[Snippet, ...]](clock, (), fresh_s=FRESH_S)
        self._updated = Background[Path, None](clock, None, fresh_s=FRESH_S, share=INDEX_SHARE)

    def set_roots(self, uris: Iterable[str]) -> None:
        """Replace the workspace folders by these."""
        before, self._roots, self._unreadable = self._roots, {}, set()
        for path in (path for uri in uris if (path := convert.to_path(uri)) is not None):
            self._add_root(path, before.get(path))
        self._looked.clear()
        self._related.clear()
        for path in self._indexes.keys() - self._roots.keys():
            self._indexes.pop(path).stop()
            self._updated.forget(path)

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
        return self._looked.get(uri).reason or self._withheld(uri)

    def context(self, document: Document, settings: Settings) -> FileContext:
        """Return what requests for a document contain besides its text, as it was read last, without waiting.

        It is read again when it is old. A document that `look` has not finished for has no name.
        """
        return replace(
            self._looked.get(document.uri).file,
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
        while (task := self._looked.renew(uri, lambda: self._look(uri))) is not None:
            if not (await asyncio.wait([task], timeout=LOOK_S))[0]:
                return "takes too long to look up"
            # `set_roots` cancels running look-ups; then look up again in the new folders.
            if not task.cancelled():
                break
        return self.refused(uri)

    async def _look(self, uri: str) -> _Looked:
        try:
            return await asyncio.to_thread(self._look_up, uri)
        except (OSError, ValueError, RuntimeError) as error:
            return _Looked(f"can't be looked up ({type(error).__name__})", FileContext(""))

    def related(self, document: Document, limit_chars: int) -> tuple[Snippet, ...]:
        """Return the related text as it was read last, without waiting; start reading it again when it is old."""
        if limit_chars <= 0:
            return ()
        self._related.renew(document.uri, lambda: self._read(document, limit_chars))
        return self._related.get(document.uri)

    async def read(self, document: Document, settings: Settings) -> FileContext:
        """Return what `context` returns, after related text was read; for actions that take seconds anyway."""
        limit_chars = settings.related_chars
        if limit_chars and (reading := self._related.renew(document.uri, lambda: self._read(document, limit_chars))):
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
        self._updated.renew(root, lambda: self._update(root, index))
        return index.repository

    def forget(self, uri: str) -> None:
        """Forget what was read for a document."""
        self._related.forget(uri)
        self._looked.forget(uri)

    async def close(self) -> None:
        """Stop all reading."""
        for index in self._indexes.values():
            index.stop()
        await asyncio.gather(self._looked.close(), self._related.close(), self._updated.close())

    async def _read(self, document: Document, limit_chars: int) -> tuple[Snippet, ...]:
        path = convert.to_path(document.uri)
        root = self._root(path) if path else None
        if path is None or root is None:
            return ()
        ignore = self._roots[root].renewed()
        return tuple(await asyncio.to_thread(workspace.related, root, path, document, limit_chars, ignore=ignore))

    async def _update(self, root: Path, index: RepositoryIndex) -> None:
        is_complete = False
        while not is_complete and self._indexes.get(root) is index:
            is_complete = await asyncio.to_thread(index.update)

    def _root(self, path: Path) -> Path | None:
        around = [root for root in self._roots if path.is_relative_to(root)]
        return max(around, key=lambda root: len(root.parts), default=None)

    def _look_up(self, uri: str) -> _Looked:
        """Return why a document may not be sent, and which file it is; its name is relative to its workspace folder."""
        path = convert.to_path(uri)
        reason = self._reason(uri, path)
        if path is None:
            return _Looked(reason, FileContext(uri.rpartition(":")[2].rpartition("/")[2][:100]))
        root = self._root(path)
        name = workspace.name_of(path.relative_to(root) if root else PurePath(path.name))
        return _Looked(reason, FileContext(name, own=os.path.realpath(path)))

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
