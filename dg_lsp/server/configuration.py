"""What the editor and the user choose: the settings of each document, and the editor's capabilities.

The settings come from the user's file, the workspace's file, the environment and the editor. Files are read when they are
first needed, and again when they have changed. `wire.config` reads them. An editor sends JSON under our section, with or
without the defaults. A bad value never stops the server: the old value stays, and a sentence names the key and the valid
values. `wire.settings` declares the settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp
from pygls.capabilities import get_capability

from dg_lsp.server import convert
from dg_lsp.wire import config, files, laptop
from dg_lsp.wire.config import LOCAL_ONLY, SECTION, stays_local
from dg_lsp.wire.files import Stamp
from dg_lsp.wire.model_names import is_remote
from dg_lsp.wire.settings import AUTO, Settings

KEYS = tuple(setting.editor_key for setting in config.OF_EDITORS)


class Configuration:
    """The settings of one session, by its folders."""

    def __init__(self) -> None:
        self.options: object = None
        """The settings sent with `initialize`; the editor's later settings override them."""
        self.can_hold = False
        """Whether the editor shows a suggestion only when the user reveals it, if the server says so."""
        self._editor_settings: object = None
        self._editor_settings_by_folder: Mapping[str, object] = {}
        self._roots: dict[Path, str] = {}
        self._by_folder: dict[Path | None, tuple[Settings, tuple[str, ...]]] = {}
        self._stamps: dict[Path, Stamp | None] = {}
        self._folders: dict[str, Path | None] = {}

    @property
    def session(self) -> Settings:
        """The settings of the first folder, which hold for the whole session, such as the engine's."""
        return self._at(next(iter(self._roots), None))[0]

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each setting that is ignored because it is wrong."""
        sentences = dict.fromkeys(problem for root in (self._roots or (None,)) for problem in self._at(root)[1])
        session = self.session
        for root in list(self._roots)[1:]:
            if has_other_engine(session, self._at(root)[0]):
                ignored = f"The engine settings in {root / config.WORKSPACE_FILE} are ignored"
                sentences[f"{ignored}: a window uses those of its first folder, {session.model}."] = None
        return tuple(sentences)

    def set_roots(self, uris: Iterable[str]) -> None:
        self._roots = {path: uri for uri in uris if (path := convert.to_path(uri)) is not None}
        self.forget()

    def set_editor_settings(self, general: object, by_folder: Mapping[str, object] | None = None) -> None:
        """Replace the editor's settings: those of the window, and those of single folders."""
        self._editor_settings, self._editor_settings_by_folder = general, by_folder or {}
        self.forget()

    def forget(self) -> None:
        """Drop everything read so far, so that the next access reads the files again."""
        self._by_folder.clear()
        self._stamps.clear()
        self._folders.clear()

    def has_changed(self) -> bool:
        """Return whether a configuration file has changed since it was read."""
        return any(_stamp(path) != stamp for path, stamp in self._stamps.items())

    def at(self, uri: str) -> Settings:
        return self._at(self._folder(uri))[0]

    def local_only(self, uri: str) -> tuple[str, ...]:
        """Return the patterns of the files that no remote model may see, as they count for a document.

        Those of the folder that the file is really in count too, if a link leads there.
        """
        folders = {self._folder(uri), *(self._around(place) for path in self._paths(uri) for place in (path, _real(path)))}
        return tuple(dict.fromkeys(pattern for folder in folders for pattern in self._at(folder)[0].local_only))

    def withheld(self, uri: str, model: str = "") -> str:
        """Return why a document may not be sent to a model, by default the session's; "" if it may.

        The reason is the end of a sentence that begins with "it".
        """
        if not is_remote(model or self.session.model):
            return ""
        if convert.is_elsewhere(uri):
            return "is on another machine, and its ignore rules are not here; only a local model may see it"
        if not (patterns := self.local_only(uri)):
            return ""
        return LOCAL_ONLY if any(stays_local(name, patterns) for name in self._names(uri)) else ""

    def _names(self, uri: str) -> list[str]:
        """Return the document's paths relative to their folders, and those of the files that links lead to."""
        names = [name for path in self._paths(uri) for place in (path, _real(path)) for name in self._names_of(place)]
        # The last part alone names a document without a file.
        return names if convert.to_path(uri) else [*names, uri.rpartition(":")[2].rpartition("/")[2]]

    def _names_of(self, path: Path) -> tuple[str, ...]:
        folder = self._around(path)
        if folder not in self._roots:
            return config.private_names(path)
        return config.private_names(path, folder if path.is_relative_to(folder) else _real(folder))

    def _paths(self, uri: str) -> tuple[Path, ...]:
        return convert.to_paths(uri, self._roots)

    def _folder(self, uri: str) -> Path | None:
        """Return the folder whose configuration applies: the innermost workspace folder, else the file's own workspace."""
        if uri not in self._folders:
            paths = self._paths(uri)
            # One that was never saved may be of several folders.
            self._folders[uri] = self._around(paths[0]) if len(paths) == 1 else None
        return self._folders[uri]

    def _around(self, path: Path) -> Path:
        """Return the innermost workspace folder around a path, or around what it leads to, else the path's own workspace."""
        written, real = {root: root for root in self._roots}, {root: _real(root) for root in self._roots}
        return convert.innermost(path, written) or convert.innermost(path, real) or config.workspace_of(path)

    def _at(self, folder: Path | None) -> tuple[Settings, tuple[str, ...]]:
        """Return the settings of a folder, and the problems in their sources."""
        if folder not in self._by_folder:
            for path, _ in config.sources(folder):
                # Take the stamp before reading, so that a change in between is noticed.
                self._stamps[path] = _stamp(path)
            configured, problems = config.read(folder)
            result = configured.settings
            own = self._editor_settings_by_folder.get(self._roots.get(folder, "")) if folder is not None else None
            current = self._editor_settings, own
            # A key that the editor sends now, even with its default value, replaces that key of `initialize`.
            for data in (without(self.options, *current), *current):
                result, more = read(data, result, defaults_count=False)
                problems = (*problems, *more)
            if result.trigger == "held" and not self.can_hold:
                result = replace(result, trigger="manual")
            if result.next_edit != "off" and result.edit_model == AUTO:
                model = laptop.EDIT_MODEL
                self._stamps[model.folder / laptop.FACTS] = _stamp(model.folder / laptop.FACTS)
                if not model.is_pulled:
                    way_out = f"to get it: dg-lsp engine pull {model.name}; or name another in engine.edit_model"
                    problems = (*problems, f"next_edit.trigger is {result.next_edit}, but its model was not pulled; {way_out}.")
                    result = replace(result, next_edit="off")
            self._by_folder[folder] = result, problems
        return self._by_folder[folder]


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def read(data: object, base: Settings, *, defaults_count: bool = True) -> tuple[Settings, tuple[str, ...]]:
    """Return `base` updated with the settings of a JSON object, and a sentence for each problem.

    Groups may be nested or written with dots: `{"engine": {"model": …}}`, `{"engine.model": …}`. `null` means the default.
    Without `defaults_count`, default values are ignored, because some editors send all their defaults. The editor's
    settings may come from a file of the workspace. They can therefore only name models that `base.allow` permits.
    """
    if data is None:
        return base, ()
    if not isinstance(data, Mapping):
        return base, (f"The settings in {SECTION} must be an object.",)
    values, problems = config.parse(data, in_editor=True, defaults_count=defaults_count)
    (users, _), *_ = config.sources()
    values, refused = config.admit(values, base, config.EDITOR, users, prefix=f"{SECTION}.")
    return config.layered(base, values), (*problems, *refused)


def without(data: object, *others: object) -> object:
    """Return the settings of a JSON object without the keys that one of the others has, even with a default value."""
    if not isinstance(data, Mapping):
        return data
    other_keys = {config.squeezed(key) for other in others if isinstance(other, Mapping) for key, _ in config.flat(other)}
    return {key: value for key, value in config.flat(data) if config.squeezed(key) not in other_keys}


def section(data: object) -> object:
    """Return our section of the settings that an editor sends; all of them when there is no section of our name."""
    if isinstance(data, Mapping):
        inner = data.get(SECTION, data.get("dg-lsp"))
        # These keys of the section are client capabilities, not settings (see `Client`).
        data = inner if isinstance(inner, Mapping) else {} if SECTION in data else data
        return {key: value for key, value in data.items() if key not in _EXTENSIONS}
    return data


def has_other_engine(old: Settings, new: Settings) -> bool:
    """Return whether an engine setting that editors offer differs."""
    fields = [setting.field for setting in config.OF_EDITORS if setting.key.startswith("engine.")]
    return any(getattr(old, field) != getattr(new, field) for field in fields)


def _stamp(path: Path) -> Stamp | None:
    try:
        return files.stamp(path.stat())
    except OSError:
        return None


# --- The editor's capabilities, and the message formats that it needs

# Editors built on VS Code, which draw ghost text by different rules (see `convert.to_item`).
_LIKE_VS_CODE = re.compile(r"code|cursor|windsurf|codium|theia|positron", re.IGNORECASE)
# The editor's own debounce, by its name. It has passed already when a request arrives.
_OWN_WAIT_MS = (("neovim", 200.0), ("code", 50.0))


# What `experimental.dgLsp` of the client's capabilities may announce.
_EXTENSIONS = ("status", "draft", "preview", "offer", "refresh", "held")


class Client:
    """The capabilities of the connected editor, one for each thing that the server does differently."""

    def __init__(self, params: lsp.InitializeParams | None = None) -> None:
        """Read them from the parameters of `initialize`; without any, the editor has none."""
        params = params or lsp.InitializeParams(lsp.ClientCapabilities())
        can: Callable[[str], Any] = partial(get_capability, params.capabilities)
        name = params.client_info.name if params.client_info else ""
        ours = _ours(params.capabilities.experimental) | _ours(params.initialization_options)
        # lsp-mode supports inline completion but announces it as null, which reads as absent.
        is_lsp_mode = name.lower() in ("emacs", "lsp-mode")
        self.inline = can("text_document.inline_completion") is not None or is_lsp_mode
        self.to_line_end = bool(_LIKE_VS_CODE.search(name))
        self.own_wait_ms = next((ms for part, ms in _OWN_WAIT_MS if part in name.lower()), 0.0)
        self.registers_configuration = bool(can("workspace.did_change_configuration.dynamic_registration"))
        self.pulls_configuration = bool(can("workspace.configuration"))
        self.action_literals = can("text_document.code_action.code_action_literal_support") is not None
        resolves = can("text_document.code_action.resolve_support.properties") or ()
        self.resolves_edits = "edit" in resolves and bool(can("text_document.code_action.data_support"))
        self.tags_actions = lsp.CodeActionTag.LlmGenerated in (can("text_document.code_action.tag_support.value_set") or ())
        self.versioned_edits = bool(can("workspace.workspace_edit.document_changes"))
        self.annotates = can("workspace.workspace_edit.change_annotation_support") is not None
        self.progress = bool(can("window.work_done_progress"))
        self.hears_status, self.hears_drafts = "status" in ours, "draft" in ours
        self.asks_again = "refresh" in ours
        """It asks again when the server says that an answer came late."""
        self.previews = "preview" in ours
        """It previews an edit that needs confirmation, at least one sent by `workspace/applyEdit`."""
        self.holds = {"held", "status"} <= ours
        """It hides a suggestion until the user reveals it, where the status says `held`."""
        self.shows_offers = "offer" in ours
        """It tells the user of the model that the status offers, so the server asks no question."""


def _ours(data: Any) -> frozenset[str]:
    """Return our extensions that the client supports: `{"dgLsp": {"status": true, "draft": true, …}}`."""
    section = data.get("dgLsp") if isinstance(data, Mapping) else None
    if not isinstance(section, Mapping):
        return frozenset()
    return frozenset(name for name in _EXTENSIONS if section.get(name) is True)
