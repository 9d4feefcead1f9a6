"""Read and write `dg_lsp.json`: the settings for one checkpoint, in its folder, whatever settings its family has.

Knows the file's format. Knows no setting but the layout, which every family has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from dg_lsp.engine.model.weights.checkpoint import CheckpointError, read_json

FILE = "dg_lsp.json"
T = TypeVar("T")


class ProfileError(ValueError):
    """A profile can't be read or used; the message is a sentence for the user."""


def load(folder: Path, profile: type[T], default: T | None) -> T:
    """Return the profile in a checkpoint's folder, or the default if it has none.

    Raises ProfileError if there is neither, or if this version can't read the file.
    """
    settings = settings_in(folder)
    if settings is None:
        if default is None:
            raise ProfileError(f"{folder} has no profile, which a model of this kind needs")
        return default
    try:
        return parse(profile, settings)
    except ValueError as error:
        raise ProfileError(f"{folder / FILE} is not a profile that this version can read: {error}") from error


def settings_in(folder: Path) -> dict[str, Any] | None:
    """Return the settings in a folder's profile, None without one; raise ProfileError if it can't be read."""
    try:
        return read_json(folder, FILE) if (folder / FILE).exists() else None
    except CheckpointError as error:
        raise ProfileError(str(error)) from error


def parse(profile: type[T], settings: Mapping[str, Any]) -> T:
    """Return the profile in a JSON object; raise ValueError if something in it is unknown, missing or of the wrong type."""
    layouts = get_args(get_type_hints(profile)["layout"])
    if "layout" in settings and settings["layout"] not in layouts:
        raise ValueError(f"unknown layout {settings['layout']!r}; known for this model: {', '.join(layouts)}")
    _check_names(profile, settings)
    return msgspec.convert(settings, profile)


def _check_names(kind: Any, settings: Mapping[str, Any]) -> None:
    known = get_type_hints(kind)
    if unknown := settings.keys() - known.keys():
        raise ValueError(f"unknown setting {min(unknown)!r}")
    for name, value in settings.items():
        if is_dataclass(known[name]) and isinstance(value, dict):
            _check_names(known[name], value)


def dump(profile: Any) -> str:
    return json.dumps(msgspec.to_builtins(profile), indent=2) + "\n"
