"""Read and write `dg_lsp.json`: the settings for one checkpoint, in its folder, whatever settings its family has.

Knows the file's format. Knows no setting but the calibration, which every family has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from dg_lsp.engine.common import calibration_store
from dg_lsp.engine.model.weights.checkpoint import CheckpointError, read_json

FILE = "dg_lsp.json"
CALIBRATIONS = ("calibration", "draft_calibration")  # settings that are one, in the families that have them
T = TypeVar("T")


class ProfileError(ValueError):
    """A profile can't be read or used; the message is a sentence for the user."""


def load(folder: Path, parse: Callable[[dict[str, Any]], T], default: T) -> T:
    """Return the profile that `parse` finds in a checkpoint's folder, or the default if it has none.

    Raises ProfileError if the file exists but this version can't read it.
    """
    settings = settings_in(folder)
    if settings is None:
        return default
    try:
        return parse(settings)
    except (ValueError, TypeError, LookupError) as error:
        raise ProfileError(f"{folder / FILE} is not a profile that this version can read: {error}") from error


def settings_in(folder: Path) -> dict[str, Any] | None:
    """Return the settings in a folder's profile, None without one; raise ProfileError if it can't be read."""
    try:
        return read_json(folder, FILE) if (folder / FILE).exists() else None
    except CheckpointError as error:
        raise ProfileError(str(error)) from error


def values_of(profile: type[Any], settings: Mapping[str, Any], *, layouts: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings of a JSON object as values for a profile; raise ValueError or TypeError if one is unknown."""
    if "layout" in settings and settings["layout"] not in layouts:
        raise ValueError(f"unknown layout {settings['layout']!r}; known for this model: {', '.join(layouts)}")
    if unknown := set(settings) - {item.name for item in fields(profile)}:
        raise ValueError(f"unknown setting {sorted(unknown)[0]!r}")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    return values | {name: calibration_store.parse(settings[name]) for name in CALIBRATIONS if settings.get(name) is not None}


def dump(profile: Any) -> str:
    """Return a profile as the text of its file."""
    fitted = {name: value for name in CALIBRATIONS if (value := getattr(profile, name, None)) is not None}
    objects = {name: calibration_store.as_object(value) for name, value in fitted.items()}
    return json.dumps(asdict(replace(profile, **dict.fromkeys(fitted))) | objects, indent=2) + "\n"
