"""Look at a model folder before anything of it is believed: which files there are, and whether they are what they describe.

A download may have been cut off, and a folder may come with somebody's repository. So nothing is allocated before the
headers of the weights say that they are what `config.json` describes, the configuration chooses no code, and no file outside
the folder is read. Knows files and shapes; loads no weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dg_lsp.wire import files

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
ONE_FILE = "model.safetensors"
ENDING = ".safetensors"

MAX_CONFIG_BYTES = 1 << 20
MAX_INDEX_BYTES = 64 << 20
# A layer costs memory even before it has weights.
MAX_LAYERS = 512

# Settings that choose code instead of describing the model; what runs is ours to say.
_CODE = ("attn_implementation", "experts_implementation", "auto_map", "use_kernels", "kernel_config", "_name_or_path")


class CheckpointError(Exception):
    """A model folder is not what it should be; the message is a sentence for the user."""


def configuration(folder: Path) -> Any:
    """Return the model's configuration, without what would choose code; raise CheckpointError."""
    from transformers import DiffusionGemmaConfig

    if (folder / "adapter_config.json").exists():
        raise CheckpointError(f"{folder} holds an adapter, which is not supported; merge it into its model first")
    values = _json(folder, CONFIG, MAX_CONFIG_BYTES)
    if values.get("model_type") != DiffusionGemmaConfig.model_type:
        raise CheckpointError(
            f"{CONFIG} of {folder} describes a {values.get('model_type')!r}, not a {DiffusionGemmaConfig.model_type}"
        )
    if "quantization_config" in values:
        raise CheckpointError(f"{CONFIG} of {folder} asks for quantization, which is not supported; use the unquantized model")
    layers = [number for name, number in _numbers(values) if re.fullmatch(r"num_\w*layers", name)]
    if any(number > MAX_LAYERS for number in layers):
        raise CheckpointError(
            f"{CONFIG} of {folder} describes {max(layers)} layers, more than the {MAX_LAYERS} that are allowed"
        )
    try:
        return DiffusionGemmaConfig.from_dict(_without_code(values))
    except Exception as error:  # whatever the library makes of values that nobody checked
        raise CheckpointError(f"{CONFIG} of {folder} describes no model: {error}") from error


def check(folder: Path, config: Any) -> None:
    """Raise CheckpointError unless the folder's weights are all those that the configuration describes, and no others."""
    from transformers import DiffusionGemmaForBlockDiffusion

    try:
        # Shapes alone: nothing on this device takes memory.
        with torch.device("meta"):
            model: Any = DiffusionGemmaForBlockDiffusion(config)
    except Exception as error:  # likewise
        raise CheckpointError(f"{CONFIG} of {folder} describes no model: {error}") from error
    stored = _stored(folder)
    described: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
    wrong = [name for name in stored.keys() & described.keys() if stored[name] != tuple(described[name].shape)]
    if wrong:
        name = min(wrong)
        raise CheckpointError(
            f"{name} in {folder} has the shape {list(stored[name])}, but {CONFIG} describes {list(described[name].shape)}"
        )
    # Weights that are used in two places are stored under either name.
    groups: dict[int, list[str]] = {}
    for name, tensor in described.items():
        groups.setdefault(id(tensor), []).append(name)
    missing = [names[0] for names in groups.values() if not stored.keys() & set(names)]
    missing = _unexcused(missing, model._keys_to_ignore_on_load_missing)
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of the {len(groups)} weights that its {CONFIG} describes, such as {min(missing)}; "
            "download it again, or correct it"
        )
    extra = _unexcused(stored.keys() - described.keys(), model._keys_to_ignore_on_load_unexpected)
    if extra:
        raise CheckpointError(
            f"{folder} holds {len(extra)} weights that its {CONFIG} has no place for, such as {min(extra)}; "
            "it belongs to another model"
        )


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the files that hold the weights, each in the folder and a safetensors file; raise CheckpointError."""
    if (folder / ONE_FILE).exists():
        return (_own(folder, ONE_FILE),)
    if not (folder / INDEX).exists():
        raise CheckpointError(f"{folder} holds no weights: neither {ONE_FILE} nor {INDEX} is there")
    places = _json(folder, INDEX, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{INDEX} of {folder} does not say which file holds which weight")
    return tuple(_own(folder, name) for name in sorted(set(map(str, places.values()))))


def _stored(folder: Path) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of each weight by its name, from the headers of the files."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        shapes |= _shapes(file)
    return shapes


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import safe_open

    try:
        # The library compares the header with the file's length, and reads no weight.
        with safe_open(file, framework="pt") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118 -- no mapping
    except Exception as error:  # its own error is no OSError
        raise CheckpointError(f"{file} is no whole safetensors file ({error}); download it again") from error


def _own(folder: Path, name: str) -> Path:
    """Return a weight file by the name that the index gives it; raise CheckpointError unless it is one of the folder's."""
    if not name.endswith(ENDING) or "/" in name or "\\" in name or "\0" in name:
        raise CheckpointError(f"{INDEX} of {folder} names {name!r}, which is no safetensors file of that folder")
    path = folder / name
    # The hub's folders hold links into the folder of files beside them.
    blobs = folder.resolve().parent.parent / "blobs"
    real = path.resolve()
    if not real.is_file() or not (real.is_relative_to(folder.resolve()) or real.parent == blobs):
        raise CheckpointError(f"{path} is not there, or is a link to outside of its folder; download the model again")
    return path


def _json(folder: Path, name: str, limit: int) -> dict[str, Any]:
    path = (folder / name).resolve()
    try:
        value = json.loads(files.read_regular(path, limit))
    except (files.NotRegularError, files.TooLargeError) as error:
        raise CheckpointError(f"{folder / name} {error}") from error
    except OSError as error:
        raise CheckpointError(f"{folder / name} can't be read: {(error.strerror or str(error)).lower()}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder / name} is no valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{folder / name} is no JSON object")
    return value


def _without_code(values: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in values.items():
        if not name.endswith(_CODE):
            found[name] = _without_code(value) if isinstance(value, dict) else value
    return found


def _numbers(values: Mapping[str, Any]) -> list[tuple[str, int]]:
    found = []
    for name, value in values.items():
        if isinstance(value, dict):
            found += _numbers(value)
        elif isinstance(value, int):
            found.append((name, value))
    return found


def _unexcused(names: Any, patterns: Any) -> list[str]:
    """Return the names that the library itself does not leave out."""
    return [name for name in names if not any(re.search(pattern, name) for pattern in patterns or ())]
