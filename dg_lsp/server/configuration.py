"""What holds for each document: the user's file, that of its folder, the environment, and what the editor says on top.

Files are read when they are first asked for and again when they have changed. Knows folders and files, and nothing of the
protocol's messages; what a setting may be is `settings`', and how files are read is `wire.config`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.server import convert, settings
from dg_lsp.server.settings import Settings
from dg_lsp.wire import config
from dg_lsp.wire.model_names import is_remote
from dg_lsp.wire.privacy import LOCAL_ONLY, stays_local

Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Held:
    """What holds in one folder: settings, and what is wrong."""

    settings: Settings
    problems: tuple[str, ...]


class Configuration:
    """The settings of one session, by its folders."""

    def __init__(self) -> None:
        """Know no folder and nothing that the editor said."""
        self.options: object = None
        """What came with `initialize`, below what the editor answers when it is asked."""
        self._said: object = None
        self._said_of: Mapping[str, object] = {}
        self._roots: dict[Path, str] = {}
        self._held: dict[Path | None, Held] = {}
        self._stamps: dict[Path, Stamp | None] = {}
        self._folders: dict[str, Path | None] = {}

    @property
    def session(self) -> Settings:
        """What holds for the session as a whole, such as its engine: that of the first folder."""
        return self._at(next(iter(self._roots), None)).settings

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each thing in the files and in the editor's settings that is wrong and does not count."""
        found = dict.fromkeys(problem for root in (self._roots or (None,)) for problem in self._at(root).problems)
        session = self.session
        for root in list(self._roots)[1:]:
            if settings.restarts_engine(session, self._at(root).settings):
                file = root / config.WORKSPACE_FILE
                found[
                    f"The engine settings in {file} do not count: a window uses those of its first folder, {session.model}."
                ] = None
        return tuple(found)

    def set_roots(self, uris: Iterable[str]) -> None:
        """Know these folders and no others."""
        self._roots = {path: uri for uri in uris if (path := convert.to_path(uri)) is not None}
        self.forget()

    def say(self, general: object, by_folder: Mapping[str, object] | None = None) -> None:
        """Take note of what the editor says, in general and of some folders."""
        self._said, self._said_of = general, by_folder or {}
        self.forget()

    def forget(self) -> None:
        """Read all files again when they are next asked for."""
        self._held.clear()
        self._stamps.clear()
        self._folders.clear()

    def has_changed(self) -> bool:
        """Return whether a file is another than when it was read."""
        return any(_stamp(path) != stamp for path, stamp in self._stamps.items())

    def at(self, uri: str) -> Settings:
        """Return what holds for a document."""
        return self._at(self._folder(uri)).settings

    def local_only(self, uri: str) -> tuple[str, ...]:
        """Return the patterns of files that no remote model sees, of the folder that a document belongs to."""
        return self._at(self._folder(uri)).settings.local_only

    def withheld(self, uri: str) -> str:
        """Return why the session's model may not see a document, as the end of a sentence that begins "it"; "" if it may."""
        patterns = self.local_only(uri)
        if not patterns or not is_remote(self.session.model):
            return ""
        return LOCAL_ONLY if any(stays_local(name, patterns) for name in self._names(uri)) else ""

    def _names(self, uri: str) -> list[str]:
        """Return what a document is called below its folder, by its own name and by that of what a link leads to."""
        path, folder = convert.to_path(uri), self._folder(uri)
        if path is None or folder is None:
            return [(path.as_posix() if path else uri).rpartition(":")[2].rpartition("/")[2]]
        pairs = ((path, folder), (path.resolve(), folder.resolve()))
        return [own.relative_to(root).as_posix() for own, root in pairs if own.is_relative_to(root)] or [path.name]

    def _folder(self, uri: str) -> Path | None:
        """Return the folder whose file a document answers to: the window's innermost around it, else its own workspace."""
        if uri not in self._folders:
            path = convert.to_path(uri)
            around = [root for root in self._roots if path is not None and path.is_relative_to(root)]
            own = config.workspace_of(path) if path is not None and not around else None
            self._folders[uri] = max(around, key=lambda root: len(root.parts), default=own)
        return self._folders[uri]

    def _at(self, folder: Path | None) -> Held:
        if folder not in self._held:
            for path, _ in config.sources(folder):
                # Before it is read, so that a change in between is seen.
                self._stamps[path] = _stamp(path)
            self._held[folder] = self._read(folder)
        return self._held[folder]

    def _read(self, folder: Path | None) -> Held:
        configured, problems = config.read(folder)
        result = configured.settings
        now = self._said, self._said_by(folder)
        # What the editor greeted with is its own as well: a default that it says later is news there.
        for data in (settings.without(self.options, *now), *now):
            result, more = settings.read(data, result, defaults_count=False)
            problems = (*problems, *more)
        return Held(result, problems)

    def _said_by(self, folder: Path | None) -> object:
        return self._said_of.get(self._roots.get(folder, "")) if folder is not None else None


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
