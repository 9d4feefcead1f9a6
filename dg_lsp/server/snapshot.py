"""Everything that a request depends on, taken once: text, cursor, settings, and other files.

Other files are read in threads in the background, so that no request waits for the disk: each uses what was read last. Each
folder has an index of its files, which is made and updated in a thread while documents of the folder are edited. The
outline of a long file is collected in the background too: a request sends the signatures outside its window, and collecting
them walks the whole syntax tree, which takes a tenth of a second in a file of ten thousand lines.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import weakref
from array import array
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Generic, TypeVar
from urllib.parse import unquote

from dg_lsp.core import context, excerpt, repository
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.context import ShownBefore, Signatures
from dg_lsp.core.positions import Lines
from dg_lsp.core.repository import IndexedFile, Repository
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Snippet, Span
from dg_lsp.infill import ignoring, workspace
from dg_lsp.infill.ignoring import Ignore
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.infill.workspace import RepositoryIndex
from dg_lsp.server import convert, cursor
from dg_lsp.server.cursor import Cursor
from dg_lsp.server.sync import Documents
from dg_lsp.wire.background import Tasks, in_thread
from dg_lsp.wire.config import WORKSPACE_FILE
from dg_lsp.wire.settings import Settings

log = logging.getLogger(__name__)

MAX_LINE_CHARS = 20_000
"""Near a line that is longer, a document counts as one without a grammar. Only whole lines can be parsed, and an answer is
checked with a dozen parses of them."""
MAX_CELLS = 4
"""A cell's request has the text of so many cells above it."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of a document and its workspace, which never changes."""

    base: Document  # the editor's
    index: Lines  # of the text of `base`
    document: Document  # `base` with the selected completion item inserted, or an accepted suggestion
    offset: int  # of the cursor in `document`
    anchor: int  # up to here, both texts are the same
    settings: Settings
    context: FileContext  # the text from other files, and the index of the workspace as it was
    refused: str  # why the text may not be sent to a model, as the end of a sentence that begins with "it"; "" if it may
    lost: bool  # whether the text may differ from the editor's
    is_file: bool  # False for a notebook's cell

    @property
    def cursor(self) -> Cursor:
        """The cursor, with the text around it."""
        others = weakref.ref(self.context.files), hash(self.context.related)
        return cursor.at(self.document.uri, self.document.text, self.offset, self.anchor, others)

    def accepting(self, text: str) -> Snapshot:
        """Return the snapshot after this text was accepted at the cursor."""
        before, at = self.document.text, self.offset
        return replace(self, document=replace(self.document, text=before[:at] + text + before[at:]), offset=at + len(text))


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Takes snapshots of the open documents, and parses their texts, for which it uses what is parsed of the documents."""

    documents: Documents
    nearby: Nearby
    settings: Callable[[str], Settings]

    async def take(
        self, uri: str, offset: int = 0, selected: tuple[Span, str] | None = None, *, waits: bool = False
    ) -> Snapshot | None:
        """Return the snapshot of a document as it is now; None if it is not open.

        It first waits until the document was looked up, so the snapshot may not be current any more. `selected` is the item
        selected in the editor's own completion list: the span that it replaces, and its text. An action, which takes seconds
        anyway, `waits` for what is read of other files.
        """
        if (doc := self.documents.get(uri)) is None:
            return None
        index, document, cells = doc.index, doc.document, self.documents.cells_before(uri)
        refused = await self.nearby.look(uri, is_cell=cells is not None)
        settings = self.settings(uri)
        context, n_chars, anchor = FileContext(""), settings.related_chars, offset
        if not refused:  # the folders of a refused document are not read for it
            if _has_short_lines(index, offset):
                await doc.prepare()
            context = await self.nearby.read(document, settings) if waits else self.nearby.context(document, settings)
            above = cells[-MAX_CELLS:] if cells and n_chars else ()
            name = f"{context.path} (cell)"
            near = tuple(Snippet(name, cell.text[max(len(cell.text) - n_chars, 0) :]) for cell in above if cell.text.strip())
            context = replace(context, related=near)
            document = replace(document, indent=context.indent)
        base = document
        if selected is not None:
            span, text = selected
            document = replace(base, text=base.text[: span.start] + text + base.text[span.end :])
            anchor, offset = span.start, span.start + len(text)
        is_file = cells is None
        return Snapshot(base, index, document, offset, anchor, settings, context, refused, doc.lost, is_file)

    def followed(self, now: Snapshot) -> tuple[Snapshot, ...]:
        """Return a snapshot of the present text for each place where the cursor may be; none if that isn't known."""
        if self.is_current(now):
            return (now,)
        if (doc := self.documents.get(now.base.uri)) is None or now.document is not now.base:
            return ()
        document = replace(doc.document, indent=now.document.indent)
        places = cursor.followed(now.index.text, now.offset, doc.index.text)
        return tuple(replace(now, base=document, index=doc.index, document=document, offset=at, anchor=at) for at in places)

    def is_current(self, now: Snapshot) -> bool:
        """Return whether the editor still has this text. Texts are compared by identity, because they are long."""
        doc = self.documents.get(now.base.uri)
        return doc is not None and doc.index.text is now.index.text

    def syntax(self, now: Snapshot) -> Syntax | None:
        """Return the syntax of a snapshot's document near its cursor; None without a grammar, and near a very long line."""
        near = self.near(now, now.anchor)
        return near if near is None or near.text is now.document.text else syntaxes.of(now.document, near)

    def near(self, now: Snapshot, offset: int) -> Syntax | None:
        """Return the syntax of the editor's text near an offset, even after the document has changed, as `syntax` does."""
        doc = self.documents.get(now.base.uri)
        return _as_it_was(now, doc.near(offset) if doc is not None and _has_short_lines(now.index, offset) else None)

    async def whole(self, now: Snapshot) -> Syntax | None:
        """Return the syntax of all of the editor's text; None without a grammar."""
        return _as_it_was(now, await self.latest(now.base.uri))

    async def latest(self, uri: str) -> Syntax | None:
        """Return the syntax of all of a document as it is now; None without a grammar, or if it is not open."""
        doc = self.documents.get(uri)
        return await doc.syntax() if doc is not None else None


def _has_short_lines(index: Lines, offset: int) -> bool:
    """Return whether the lines near an offset are short enough for what is done with their syntax."""
    before, after = excerpt.NEEDED_CHARS
    lines = range(index.at(max(offset - before, 0)), index.at(min(offset + after, len(index.text))) + 1)
    return all(index.end(line) - index.start(line) <= MAX_LINE_CHARS for line in lines)


def _as_it_was(now: Snapshot, latest: Syntax | None) -> Syntax | None:
    """Return the syntax of the snapshot's text, from that of the document, which may have changed since."""
    return latest if latest is None or latest.text is now.base.text else syntaxes.of(now.base, latest)


# --- Values that are read in the background

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Background(Generic[Key, Value]):
    """The last value of each key, and the tasks that read new ones."""

    def __init__(self, clock: Callable[[], float], unread: Value, *, fresh_s: float, share: float = 0.0) -> None:
        """Start with `unread` for every key.

        A value is old after `fresh_s` seconds, or after `share` times as long as it took to read.
        """
        self._clock, self._unread, self._fresh_s, self._share = clock, unread, fresh_s, share
        self._values: dict[Key, tuple[Value, float, object]] = {}
        self._tasks = Tasks[Key]()

    def get(self, key: Key, of: object = None) -> Value:
        """Return the last value of a key; with `of`, only one that was read when this was the same."""
        value, _, was_of = self._values.get(key, (self._unread, 0.0, None))
        return value if of is None or was_of == of else self._unread

    def __contains__(self, key: Key) -> bool:
        """Return whether a value was read or is being read, and not forgotten since."""
        return key in self._values or self._tasks.get(key) is not None

    def renew(self, key: Key, read: Callable[[], Awaitable[Value]], of: object = None) -> asyncio.Task[None] | None:
        """Start reading a value if it is old; return the task that reads it, or None if it is not old.

        `of` is what else the value depends on; a value that was read when this was different is old. The task is cancelled
        when the key is forgotten.
        """
        _, until, was_of = self._values.get(key, (self._unread, -math.inf, of))
        if self._tasks.get(key) is None and (self._clock() >= until or was_of != of):
            self._tasks.start(key, self._read(key, read, of))
        return self._tasks.get(key)

    def forget(self, key: Key) -> None:
        self._values.pop(key, None)
        self._tasks.end(key)

    def clear(self) -> None:
        for key in (*self._values, *self._tasks):
            self.forget(key)

    async def close(self) -> None:
        self._values.clear()
        await self._tasks.close()

    async def _read(self, key: Key, read: Callable[[], Awaitable[Value]], of: object) -> None:
        own_task, start, value = asyncio.current_task(), self._clock(), self.get(key)
        try:
            value = await read()
        finally:
            if self._tasks.get(key) is own_task:  # the key was not forgotten meanwhile
                # After an error too, so that the next request does not try again.
                now = self._clock()
                self._values[key] = (value, now + max(self._fresh_s, self._share * (now - start)), of)


# --- The signatures in long files

OUTLINE_FRESH_S = 30.0


class Outlines(Background[str, Signatures]):
    """The cached outlines of long documents, by URI."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock, (), fresh_s=OUTLINE_FRESH_S)

    def signatures(self, document: Document, window_chars: int, whole: Callable[[], Awaitable[Syntax | None]]) -> Signatures:
        """Return the cached outline of a document, which may be slightly older; start collecting it again when it is old.

        `whole` returns the syntax of its whole text. A text that fits into the window has none, because no signature lies
        outside.
        """
        if len(document.text) <= window_chars:
            return ()

        async def collect() -> Signatures:
            latest = await whole()
            return await in_thread(lambda: latest.outline) if latest is not None else ()

        self.renew(document.uri, collect)
        return self.get(document.uri)


# --- The folders of the workspace

FRESH_S = 10.0
# An update of a large folder's index takes longer, so it runs at most for one part in this many of the time.
INDEX_SHARE = 30
# A slow disk must not block a request. A document whose look-up takes longer gets no suggestion.
LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class _Looked:
    """Why a document may not be sent ("" if it may), which file it is, and in which folder of the workspace it really is."""

    reason: str
    file: FileContext
    root: Path | None = None


class Nearby:
    """The folders of the workspace, and what was read from them last."""

    def __init__(
        self,
        clock: Callable[[], float],
        withheld: Callable[[str], str] = lambda _uri: "",
        opened: Callable[[], Iterable[Document]] = tuple,
    ) -> None:
        """Start with no folder.

        `withheld` returns another reason why a document may not be sent to a model, or "" when there is none. `opened` returns
        the open documents that are files.
        """
        self._withheld, self._opened = withheld, opened
        self._roots: dict[Path, Ignore] = {}
        self._unreadable: set[Path] = set()
        self._indexes: dict[Path, RepositoryIndex] = {}
        not_looked = _Looked("has not been looked up yet", FileContext(""))
        self._looked = Background[str, _Looked](clock, not_looked, fresh_s=FRESH_S)
        self._related = Background[str, tuple[Snippet, ...]](clock, (), fresh_s=FRESH_S)
        self._updated = Background[Path, None](clock, None, fresh_s=FRESH_S, share=INDEX_SHARE)
        self._indexed = Background[str, IndexedFile | None](clock, None, fresh_s=math.inf)
        self._shown: dict[str, ShownBefore] = {}
        self._backgrounds = (self._looked, self._related, self._updated, self._indexed)
        self._one = asyncio.Lock()
        # The index of each folder with its open files, and what it was made of.
        self._wholes: dict[Path, tuple[object, Repository]] = {}
        self._n_saves = self._n_closed = self._n_roots = 0
        self._saved = set[str]()

    def set_roots(self, uris: Iterable[str]) -> None:
        before, self._roots, self._unreadable = self._roots, {}, set()
        for path in (path for uri in uris if (path := convert.to_path(uri)) is not None):
            try:
                self._roots[path] = before.get(path) or Ignore.for_root(path)
            except (OSError, ValueError, RuntimeError) as error:
                # The other folders still work.
                log.warning("the workspace folder %s can't be read (%s); none of its files are sent to a model", path, error)
                self._unreadable.add(path)
        self._forget_all()

    def context(self, document: Document, settings: Settings) -> FileContext:
        """Return what requests for a document contain besides its text, as it was read last, without waiting.

        It is read again when it is old. Of other open files it is what the editor has, as far as `look` has finished for them
        and allows them. A document that `look` has not finished for has no name. The index of its folder's files is empty until
        the first update, and for a document outside all folders. Without `related_chars` there is nothing of other files.
        """
        looked = self._looked.get(document.uri)
        file = replace(looked.file, window_chars=settings.window_chars, related_chars=settings.related_chars)
        if not settings.related_chars:
            return file
        opened = self._others(looked)
        self._renew_related(document, opened)
        files, root = repository.EMPTY, looked.root
        if root in self._roots:
            if root not in self._indexes:
                self._indexes[root] = RepositoryIndex(self._roots[root])
            self._update(root)
            files = self._with_opened(root, looked.file.own, opened)
        shown = self._shown.setdefault(document.uri, ShownBefore())
        return replace(file, nearby=self._related.get(document.uri), files=files, shown_before=shown)

    async def look(self, uri: str, *, is_cell: bool = False) -> str:
        """Return why a document's text may not be sent to a model, after looking it up in a thread; "" if it may.

        The reason is the end of a sentence that begins with "it". Results are cached for some seconds. A file is judged by the
        rules of the folder that it is really in, whatever link it was opened by. One outside all workspace folders is judged by
        its name, its hidden parent folders and the ignore files above it. A document that is no local file is refused, unless
        it was never saved, is a cell of a notebook (`is_cell`), or is on another machine: then the names in its URI count.
        """
        # `_forget_all` cancels running look-ups, and a save makes them old; then look up again. Not after `forget`,
        # because that result would stay for ever.
        while (task := self._renew_look(uri, is_cell=is_cell)) is not None:
            n_roots = self._n_roots
            if not (await asyncio.wait([task], timeout=LOOK_S))[0]:
                return "takes too long to look up"
            if uri not in self._looked and n_roots == self._n_roots:
                break
        return self._looked.get(uri).reason or self._withheld(uri)

    async def read(self, document: Document, settings: Settings) -> FileContext:
        """Return what `context` returns, after related text was read; nothing if the document was closed meanwhile."""
        opened = self._others(self._looked.get(document.uri))
        while settings.related_chars and (reading := self._renew_related(document, opened)):
            n_roots = self._n_roots
            await asyncio.wait([reading])
            if document.uri not in self._related and n_roots == self._n_roots:
                return FileContext("")
        return self.context(document, settings)

    def saved(self, uri: str) -> None:
        """Read again what was read for all documents, when it is needed next: the saved one may have rules for them.

        If it is a file with rules, what was read of others is forgotten: the next request may not be allowed to show it.
        """
        self._n_saves += 1
        self._saved.add(uri)
        if uri.endswith((*ignoring.IGNORE_FILES, WORKSPACE_FILE)):
            self._forget_all()

    def forget(self, uri: str) -> None:
        """Forget a document that was closed. From now on its file is as the disk has it."""
        root = self._looked.get(uri).root
        self._related.forget(uri)
        self._shown.pop(uri, None)
        self._looked.forget(uri)
        self._indexed.forget(uri)
        if uri in self._saved:  # read it, however lately the folder was read
            self._saved.discard(uri)
            self._n_closed += 1
            if root in self._indexes:
                self._update(root)
        if root is not None:
            self._wholes.pop(root, None)

    async def close(self) -> None:
        for index in self._indexes.values():
            index.stop()
        await asyncio.gather(*(background.close() for background in self._backgrounds))

    def _forget_all(self) -> None:
        """Forget what was read of all files, except for the texts that indexes will look for again."""
        self._n_roots += 1
        for background in self._backgrounds:
            background.clear()
        indexes = {root: index.restarted() for root, index in self._indexes.items()}
        self._indexes = {root: index for root, index in indexes.items() if root in self._roots}
        self._wholes.clear()

    def _renew_look(self, uri: str, *, is_cell: bool = False) -> asyncio.Task[None] | None:
        return self._looked.renew(uri, lambda: asyncio.to_thread(self._look_up, uri, is_cell=is_cell), self._n_saves)

    def _others(self, looked: _Looked) -> dict[str, Document]:
        """Return the other open files of a file's folder that may be read, by their keys."""
        others: dict[str, Document] = {}
        for document in self._opened() if looked.root in self._roots else ():
            self._renew_look(document.uri)
            other = self._looked.get(document.uri)
            if other.root == looked.root and not other.reason and other.file.own != looked.file.own:
                others[other.file.own] = document
        return others

    def _with_opened(self, root: Path, own: str, opened: dict[str, Document]) -> Repository:
        """Return the index of a folder with other open files than its `own` as the editor has them, if they may be read.

        Until a thread has masked the text of one, imports are judged by it, but nothing is copied from it.
        """
        index, files = self._indexes[root].repository, dict[str, IndexedFile]()
        for key, document in ((key, document) for key, document in opened.items() if document.language):
            new = partial(self._index, self._roots[root].root, Path(key), document)
            # What may be copied depends on the settings beside the file too, which a save may change, and on the folder.
            of = (self._n_saves, root, document.text)
            self._indexed.renew(document.uri, new, of)
            name = self._looked.get(document.uri).file.path
            unmasked = IndexedFile(name, document.language, document.text, array("Q"))
            files[key] = self._indexed.get(document.uri, of) or unmasked
        looked = (self._looked.get(document.uri) for document in self._opened())
        others = {each.file.own for each in looked if each.root == root}.difference(files, [own])
        unread = frozenset(workspace.without_ending(Path(other)) for other in others)
        parts = index, files, unread
        if self._wholes.get(root, ((), index))[0] != parts:
            self._wholes[root] = parts, index.with_files(files, unread)
        return self._wholes[root][1]

    async def _index(self, root: Path, path: Path, document: Document) -> IndexedFile | None:
        """Return the masked index of an open file; None if nothing may be copied from it."""
        async with self._one:  # each takes the interpreter's time
            return await asyncio.to_thread(workspace.indexed, path, root, document)

    def _renew_related(self, document: Document, opened: dict[str, Document]) -> asyncio.Task[None] | None:
        # A hash, because the texts would be kept as long as the value.
        of = (self._n_saves, hash(tuple((key, other.text) for key, other in opened.items())))
        return self._related.renew(document.uri, lambda: self._read(document, opened), of)

    async def _read(self, document: Document, opened: dict[str, Document]) -> tuple[Snippet, ...]:
        path, root = convert.to_path(document.uri), self._looked.get(document.uri).root
        if path is None or root not in self._roots:
            return ()
        ignore = self._roots[root].renewed()

        def read() -> tuple[Snippet, ...]:
            texts = {Path(key): other.text for key, other in opened.items()}
            files = workspace.related(root, path, document, ignore=ignore, opened=texts)
            context.divide(files)  # here, because a request chooses among them on the event loop
            return files

        return await asyncio.to_thread(read)

    def _update(self, root: Path) -> None:
        index = self._indexes[root]

        async def update() -> None:
            is_complete = False
            while not is_complete and self._indexes.get(root) is index:
                is_complete = await asyncio.to_thread(index.update)

        self._updated.renew(root, update, self._n_closed)

    def _root(self, path: Path, *, is_real: bool = False) -> Path | None:
        """Return the innermost workspace folder around a path, as it is written or as the disk has it."""
        return convert.innermost(path, {root: ignore.root if is_real else root for root, ignore in self._roots.items()})

    def _look_up(self, uri: str, *, is_cell: bool) -> _Looked:
        """Return why a document may not be sent, and which file it is; its name is relative to its workspace folder."""
        path = convert.to_path(uri)
        if convert.is_shown(uri) and not is_cell:
            return _Looked("is no file, but shown by the editor, so no ignore rule is known for it", FileContext(""))
        try:
            # A URI with a query or a fragment holds several names.
            names = re.split(r"[?#]", uri) if path is None else []
            is_secret = any(ignoring.is_secret_outside(unquote(name)) for name in names)
            reasons = ("may hold secrets",) if is_secret else map(self._reason, convert.to_paths(uri, tuple(self._roots)))
            reason = next(filter(None, reasons), "")
            if path is None:
                return _Looked(reason, FileContext(uri.rpartition(":")[2].rpartition("/")[2][:100]))
            place, _ = ignoring.places(path) or (path, path)
            root = self._root(place, is_real=True)
            name = workspace.name_of(place.relative_to(self._roots[root].root) if root else PurePath(path.name))
            indent = workspace.indent_of(path) if not reason else ""
            return _Looked(reason, FileContext(name, own=os.path.realpath(path), indent=indent), root)
        except (OSError, ValueError, RuntimeError) as error:
            return _Looked(f"can't be looked up ({type(error).__name__})", FileContext(""))

    def _reason(self, path: Path) -> str:
        """Return why the text of a file may not be sent, by each of its names; "" if it may."""
        if any(path.is_relative_to(folder) for folder in self._unreadable):
            return "lies in a workspace folder that can't be read"
        root = self._root(path)
        if root is not None and (reason := self._roots[root].renewed().reason_of_link(path.relative_to(root))):
            return reason
        # A symbolic link is judged by its own name and by its target.
        places = ignoring.places(path)
        if places is None:
            return ignoring.NOWHERE
        for place in dict.fromkeys(places):
            inner = self._root(place, is_real=True)
            if inner is not None:
                reason = self._roots[inner].renewed().reason_of_name(place)
            else:
                names = (str(path), str(place))
                reason = "may hold secrets" if any(map(ignoring.is_secret_outside, names)) else Ignore.reason_alone(place)
            if reason:
                return reason
        return ""
