"""What of the workspace may be used: which open files get no suggestions, and related text from other files.

Reading is done off the event loop and kept for some seconds, so that no keystroke waits for a disk.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePath
from urllib.parse import unquote

from dg_lsp.core import secrets
from dg_lsp.core.values import Document, Snippet
from dg_lsp.infill import workspace
from dg_lsp.infill.workspace import Ignore
from dg_lsp.server import convert

log = logging.getLogger(__name__)

FRESH_S = 10.0
# A disk that does not answer must not keep a request waiting; what is not known by then is refused.
LOOK_S = 5.0


class Nearby:
    """The folders of the workspace, and what was last read of them."""

    def __init__(self, clock: Callable[[], float], withheld: Callable[[str], str] = lambda _uri: "") -> None:
        """Know no folder; `withheld` tells why else a document may not be given to a model, "" if it may."""
        self._clock = clock
        self._withheld = withheld
        self._roots: dict[Path, Ignore] = {}
        self._unreadable: set[Path] = set()
        self._related: dict[str, tuple[float, tuple[Snippet, ...]]] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, tuple[float, str]] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}

    def set_roots(self, uris: Iterable[str]) -> None:
        """Know these folders and no others."""
        before, self._roots, self._unreadable = self._roots, {}, set()
        for path in (path for uri in uris if (path := convert.to_path(uri)) is not None):
            self._add_root(path, before.get(path))
        self._refused.clear()
        self._related.clear()
        # What is being looked up belongs to the folders of before.
        for task in self._looking.values():
            task.cancel()
        self._looking.clear()

    def _add_root(self, path: Path, ignore: Ignore | None) -> None:
        try:
            self._roots[path] = ignore or Ignore.for_root(path)
        except (OSError, ValueError, RuntimeError) as error:
            # The other folders are as good as before.
            log.warning("the workspace folder %s can't be read (%s); nothing in it is given to a model", path, error)
            self._unreadable.add(path)

    def refused(self, uri: str) -> str:
        """Return why a document's text may not be given to a model, as the end of a sentence that begins "it"; "" if it may.

        Fails closed: what `look` has not looked up may not. Touches no disk.
        """
        _, reason = self._refused.get(uri, (0.0, "has not been looked up yet"))
        return reason or self._withheld(uri)

    async def look(self, uri: str) -> str:
        """Look up what `refused` tells, off the event loop, unless that was done in the last seconds; return it.

        What lies outside all folders of the workspace is judged by its name, the hidden folders that it is in and the
        ignore files around it; what is no file here by the names alone.
        """
        while self._clock() - self._refused.get(uri, (-FRESH_S, ""))[0] >= FRESH_S:
            if (task := self._looking.get(uri)) is None:
                task = self._looking[uri] = asyncio.ensure_future(self._look(uri))
            if not (await asyncio.wait([task], timeout=LOOK_S))[0]:
                return "takes too long to look up"
            # Other folders end what is being looked up; then it is done once more.
            if not task.cancelled():
                break
        return self.refused(uri)

    async def _look(self, uri: str) -> None:
        mine = asyncio.current_task()
        try:
            reason = await asyncio.to_thread(self._reason, uri)
        except (OSError, ValueError, RuntimeError) as error:
            reason = f"can't be looked up ({type(error).__name__})"
        finally:
            if self._looking.get(uri) is mine:
                del self._looking[uri]
        self._refused[uri] = (self._clock(), reason)

    def name(self, uri: str) -> str:
        """Return a short name of a document for the model: its path below its folder."""
        path = convert.to_path(uri)
        if path is None:
            return uri.rpartition(":")[2].rpartition("/")[2][:100]
        root = self._root(path)
        return path.relative_to(root).as_posix() if root else path.name

    def related(self, document: Document, limit_chars: int) -> tuple[Snippet, ...]:
        """Return related text as far as it is read already, and have it read again when it is old."""
        at, snippets = self._related.get(document.uri, (-FRESH_S, ()))
        if self._clock() - at >= FRESH_S and document.uri not in self._reading and limit_chars > 0:
            self._reading[document.uri] = asyncio.ensure_future(self._read(document, limit_chars))
        return snippets if limit_chars > 0 else ()

    async def read(self, document: Document, limit_chars: int) -> tuple[Snippet, ...]:
        """Return related text, read now if need be: for what takes seconds anyway."""
        self.related(document, limit_chars)
        if (reading := self._reading.get(document.uri)) is not None:
            await asyncio.wait([reading])
        return self.related(document, limit_chars)

    def forget(self, uri: str) -> None:
        """Forget what was read for a document."""
        self._related.pop(uri, None)
        self._refused.pop(uri, None)

    async def close(self) -> None:
        """End what is being read."""
        tasks = (*self._reading.values(), *self._looking.values())
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
                    workspace.related, root, path, document, limit_chars, ignore=self._roots[root]
                )
            self._related[document.uri] = (self._clock(), tuple(snippets))
        finally:
            self._reading.pop(document.uri, None)

    def _root(self, path: Path) -> Path | None:
        around = [root for root in self._roots if path.is_relative_to(root)]
        return max(around, key=lambda root: len(root.parts), default=None)

    def _reason(self, uri: str) -> str:
        path = convert.to_path(uri)
        root = self._root(path) if path is not None else None
        if path is not None and any(path.is_relative_to(folder) for folder in self._unreadable):
            return "lies in a workspace folder that can't be read"
        if path is not None and root is not None:
            return self._roots[root].reason(path)
        # A link is judged by its own name as well as by what it leads to; of a name with a query each part is.
        names = (unquote(part) for part in re.split(r"[?#]", uri)) if path is None else (str(path), str(path.resolve()))
        if any(map(_may_hold_secrets, names)):
            return "may hold secrets"
        return "" if path is None else Ignore.reason_alone(path)


def _may_hold_secrets(name: str) -> bool:
    parts = [part for part in re.split(r"[/\\:]", name) if part]
    # Only hidden folders tell: `~/.kube` is known, and what is called `secrets` elsewhere on a machine may be a project.
    hidden = [part for part in parts[:-1] if part.startswith(".")]
    return bool(parts) and (workspace.is_secret(PurePath(*hidden, parts[-1])) or secrets.in_place(parts))
