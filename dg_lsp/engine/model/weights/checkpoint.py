"""Validate a model folder before it is loaded: its files, its configuration, its profile and the headers of its weights.

A download may be incomplete, and a folder may be part of an untrusted repository. So nothing is allocated until the weight
headers match `config.json`. The configuration can't select code, and no file outside the folder is read. Of a profile's
settings, this knows only the layout, which every family has.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from dg_lsp.engine.model.fit import type_problem
from dg_lsp.wire import files

CONFIG, PROFILE = "config.json", "dg_lsp.json"
ADAPTER = "adapter_config.json"
INDEX = "model.safetensors.index.json"
ONE_FILE = "model.safetensors"
ENDING = ".safetensors"

MAX_CONFIG_BYTES = 1 << 20
MAX_INDEX_BYTES = 64 << 20
# Each layer uses memory even before it has weights.
MAX_LAYERS = 512

WIDE = {"F32": 4, "F16": 2, "BF16": 2}
T = TypeVar("T")


class CheckpointError(Exception):
    """A model folder is invalid; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a file, as the file's header describes it."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * WIDE.get(self.dtype, 1)


def stated_values(folder: Path) -> dict[str, Any]:
    """Return the values of the folder's `config.json`; raise CheckpointError unless it describes a supported model."""
    if (folder / ADAPTER).exists():
        raise CheckpointError(f"{folder} holds an adapter, not a model; merge it into its model, and give that folder")
    values = read_json(folder, CONFIG, MAX_CONFIG_BYTES)
    if problem := type_problem(values.get("model_type")):
        raise CheckpointError(f"{CONFIG} of {folder} describes {problem}")
    layers = [number for name, number in _numbers(values) if re.fullmatch(r"num_\w*layers", name)]
    if any(number > MAX_LAYERS for number in layers):
        raise CheckpointError(f"{CONFIG} of {folder} describes {max(layers)} layers, more than the maximum of {MAX_LAYERS}")
    return values


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the folder's safetensors files that hold the weights; raise CheckpointError."""
    if (folder / ONE_FILE).exists():
        return (own_file(folder, ONE_FILE),)
    if not (folder / INDEX).exists():
        raise CheckpointError(f"{folder} holds no weights: it has neither {ONE_FILE} nor {INDEX}")
    places = read_json(folder, INDEX, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{INDEX} of {folder} does not say which file holds which weight")
    return tuple(own_file(folder, name) for name in sorted(set(map(str, places.values()))))


def stored(folder: Path) -> Iterator[Stored]:
    """Yield each tensor that the headers of the files describe."""
    from safetensors import safe_open

    for file in weight_files(folder):
        # The library's error is the same as for a damaged file.
        if not os.access(file, os.R_OK):
            raise CheckpointError(f"{file} can't be read: permission denied")
        try:
            # This checks the header against the file's length, and reads no weight.
            with safe_open(file, framework="pt") as opened:
                slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 -- the object is not a mapping
                listed = [Stored(file, name, tuple(one.get_shape()), one.get_dtype()) for name, one in slices.items()]
        except Exception as error:  # the library's own error is not an OSError
            raise CheckpointError(f"{file} is not a complete safetensors file ({error}); download it again") from error
        yield from listed


def check_names(folder: Path, n_described: int, missing: Collection[str], extra: Collection[str]) -> None:
    """Raise CheckpointError if a folder lacks some of the weights that its configuration describes, or holds others."""
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of the {n_described} weights that its {CONFIG} describes, such as {min(missing)}; "
            "download it again, or correct it"
        )
    if extra:
        raise CheckpointError(
            f"{folder} holds {len(extra)} weights that its {CONFIG} does not describe, such as {min(extra)}; "
            "it belongs to another model"
        )


def own_file(folder: Path, name: str) -> Path:
    """Return the path of a weight file of the folder; raise CheckpointError for another path, or a link that leads outside."""
    if not name.endswith(ENDING) or "/" in name or "\\" in name or "\0" in name:
        raise CheckpointError(f"{INDEX} of {folder} names {name!r}, which is not a safetensors file in that folder")
    path = folder / name
    # Folders of the hub's cache hold links into a `blobs` folder next to them.
    blobs = folder.resolve().parent.parent / "blobs"
    real = path.resolve()
    if not real.is_file() or not (real.is_relative_to(folder.resolve()) or real.parent == blobs):
        raise CheckpointError(f"{path} is missing, or is a link to a file outside its folder; download the model again")
    return path


def read_json(folder: Path, name: str, limit: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Return the JSON object in one of the folder's files; raise CheckpointError."""
    path = (folder / name).resolve()
    try:
        value = json.loads(files.read_regular(path, limit))
    except (files.NotRegularError, files.TooLargeError) as error:
        raise CheckpointError(f"{folder / name} {error}") from error
    except OSError as error:
        raise CheckpointError(f"{folder / name} can't be read: {(error.strerror or str(error)).lower()}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder / name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{folder / name} is not a JSON object")
    return value


def _numbers(values: Mapping[str, Any]) -> list[tuple[str, int]]:
    numbers = []
    for name, value in values.items():
        if isinstance(value, dict):
            numbers += _numbers(value)
        elif isinstance(value, int):
            numbers.append((name, value))
    return numbers


# --- The profile: the settings for one checkpoint, in its folder, whatever settings its family has


def load_profile(folder: Path, profile: type[T], default: T | None) -> T:
    """Return the profile in a checkpoint's folder, or the default if it has none.

    Raises CheckpointError if there is neither, or if this version can't read the file.
    """
    settings = profile_settings(folder)
    if settings is None:
        if default is None:
            raise CheckpointError(f"{folder} has no profile, which a model of this kind needs")
        return default
    try:
        return parse_profile(profile, settings)
    except ValueError as error:
        raise CheckpointError(f"{folder / PROFILE} is not a profile that this version can read: {error}") from error


def profile_settings(folder: Path) -> dict[str, Any] | None:
    """Return the settings in a folder's profile, None without one; raise CheckpointError if it can't be read."""
    return read_json(folder, PROFILE) if (folder / PROFILE).exists() else None


def parse_profile(profile: type[T], settings: Mapping[str, Any]) -> T:
    """Return the profile in a JSON object; raise ValueError if something in it is unknown, missing or of the wrong type."""
    layouts = get_args(get_type_hints(profile)["layout"])
    if "layout" in settings and settings["layout"] not in layouts:
        raise ValueError(f"unknown layout {settings['layout']!r}; known for this model: {', '.join(layouts)}")
    _check_settings(profile, settings)
    return msgspec.convert(settings, profile)


def _check_settings(kind: Any, settings: Mapping[str, Any]) -> None:
    known = get_type_hints(kind)
    if unknown := settings.keys() - known.keys():
        raise ValueError(f"unknown setting {min(unknown)!r}")
    for name, value in settings.items():
        if is_dataclass(known[name]) and isinstance(value, dict):
            _check_settings(known[name], value)
