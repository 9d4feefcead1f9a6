"""Store the calibrations of the user's models: one file per model and revision, in the user's data folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from dg_lsp.core.calibration import Calibration
from dg_lsp.wire import files

FORMAT = 1
"""Increase this when a backend's features change their meaning, so that older fits are ignored."""
MAX_BYTES = 1 << 20
_UNREADABLE = (OSError, ValueError, TypeError, LookupError, RecursionError)


@dataclass(frozen=True, slots=True)
class ModelId:
    """The model that a calibration belongs to: its name as users write it, and its revision."""

    name: str
    revision: str = ""


class Calibrations:
    """The calibration of one loaded model: the user's own if there is one, otherwise the one shipped with the model."""

    def __init__(self, shipped: Calibration | None = None) -> None:
        self.shipped = shipped
        self.model: ModelId | None = None
        self._file = Path()
        self._own_version: files.Stamp | None = None
        self._own: Calibration | None = None

    def watch(self, model: ModelId) -> None:
        """Use the user's calibration of this model from now on, including one that is written later."""
        self.model, self._file, self._own_version, self._own = model, path(model), None, None

    def current(self) -> Calibration | None:
        if self.model is None:
            return self.shipped
        try:
            facts = self._file.stat()
        except OSError:
            self._own_version, self._own = None, None
            return self.shipped
        if self._own_version != (version := files.stamp(facts)):
            self._own_version, self._own = version, read(self.model)
        return self._own or self.shipped


def folder() -> Path:
    import platformdirs  # imported here, so that front ends start fast

    return Path(platformdirs.user_data_dir("dg-lsp", appauthor=False)) / "calibration"


def path(model: ModelId) -> Path:
    digest = hashlib.sha256(json.dumps([FORMAT, model.name, model.revision]).encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", model.name).strip("-.")[-60:]
    return folder() / f"{readable}-{digest}.json"


def read(model: ModelId) -> Calibration | None:
    """Return the user's calibration of a model, or None if there is none that can be read."""
    with contextlib.suppress(*_UNREADABLE):
        return parse(_loaded(path(model))["calibration"])
    return None


def shares() -> dict[str, tuple[float, int]]:
    """Return, by model name, the share of correct answers and the number of answers in the user's latest measurement."""
    shares_by_name: dict[str, tuple[float, int]] = {}
    with contextlib.suppress(OSError):
        for file in sorted(folder().glob("*.json"), key=lambda file: file.stat().st_mtime_ns):
            # The file may have no measurement, or be no calibration.
            with contextlib.suppress(*_UNREADABLE):
                values = _loaded(file)
                reliability = values["facts"]["reliability"]
                shares_by_name[str(values["model"]["name"])] = float(reliability["base_rate"]), int(reliability["n"])
    return shares_by_name


def _loaded(file: Path) -> Any:
    """Return the values in a file; raise one of `_UNREADABLE`, as may reading what is not there."""
    return json.loads(files.read_regular(file, MAX_BYTES))


def parse(values: Mapping[str, Any]) -> Calibration:
    """Return the calibration in a JSON object; raise ValueError if it is invalid."""
    return msgspec.convert(values, Calibration)


def write(model: ModelId, calibration: Calibration, facts: Mapping[str, object]) -> Path:
    """Write a model's calibration and the facts about its fit atomically, and return the file. Raises OSError."""
    values = {"model": asdict(model), "calibration": asdict(calibration), "facts": dict(facts)}
    target = path(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    files.replace(target, json.dumps(values, indent=2).encode() + b"\n")
    return target


def forget(model: ModelId) -> bool:
    """Remove the user's calibration of a model; return whether there was one. Raises OSError."""
    try:
        path(model).unlink()
    except FileNotFoundError:
        return False
    return True
