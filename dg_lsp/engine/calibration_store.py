"""The calibrations of the user's models: one file for each model and revision, in the user's data folder.

Knows files. Knows nothing of how a calibration is fitted or used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dg_lsp.engine.calibration import Calibration

FORMAT = 1
"""Grows when a backend's features change their meaning, so that older fits are left alone."""
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelId:
    """Which model a calibration is of: its name as users write it, and what tells its versions apart."""

    name: str
    revision: str = ""


class Calibrations:
    """The calibration in use for one loaded model: the user's own where there is one, else the one that came with it."""

    def __init__(self, shipped: Calibration | None = None) -> None:
        self.shipped = shipped
        self.model: ModelId | None = None
        self._seen: tuple[int, int] | None = None
        self._own: Calibration | None = None

    def watch(self, model: ModelId) -> None:
        """Use the user's calibration of this model from now on, also one that is written later."""
        self.model, self._seen, self._own = model, None, None

    def current(self) -> Calibration | None:
        """Return the calibration to use now, None where the model has none."""
        if self.model is None:
            return self.shipped
        try:
            facts = path(self.model).stat()
        except OSError:
            self._seen, self._own = None, None
            return self.shipped
        if self._seen != (seen := (facts.st_mtime_ns, facts.st_ino)):
            self._seen, self._own = seen, read(self.model)
        return self._own or self.shipped


def folder() -> Path:
    """Return the folder of all calibrations."""
    import platformdirs  # only this function needs it, and front ends start fast

    return Path(platformdirs.user_data_dir("dg-lsp", appauthor=False)) / "calibration"


def path(model: ModelId) -> Path:
    """Return the file of a model's calibration."""
    digest = hashlib.sha256(json.dumps([FORMAT, model.name, model.revision]).encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", model.name).strip("-.")[-60:]
    return folder() / f"{readable}-{digest}.json"


def read(model: ModelId) -> Calibration | None:
    """Return the user's calibration of a model; None where there is none that can be read."""
    try:
        with path(model).open("rb") as opened:
            stated = json.loads(opened.read(MAX_BYTES))
        return parse(stated["calibration"])
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None


def parse(stated: Mapping[str, Any]) -> Calibration:
    """Return the calibration that a JSON object states; raise ValueError, TypeError or LookupError for anything else."""
    weights = {str(name): float(weight) for name, weight in dict(stated["weights"]).items()}
    calibration = Calibration(float(stated["intercept"]), weights)
    if not all(map(math.isfinite, (calibration.intercept, *weights.values()))):
        raise ValueError("a weight is no finite number")
    return calibration


def write(model: ModelId, calibration: Calibration, facts: Mapping[str, object]) -> Path:
    """Write a model's calibration with facts about its fit, in one step, and return the file. Raises OSError."""
    stated = {"model": asdict(model), "calibration": as_object(calibration), "facts": dict(facts)}
    target = path(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_text(target, json.dumps(stated, indent=2) + "\n")
    return target


def forget(model: ModelId) -> bool:
    """Remove the user's calibration of a model; return whether there was one. Raises OSError."""
    try:
        path(model).unlink()
    except FileNotFoundError:
        return False
    return True


def as_object(calibration: Calibration) -> dict[str, object]:
    """Return the calibration as JSON's values."""
    return {"intercept": calibration.intercept, "weights": dict(calibration.weights)}


def replace_text(target: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(text)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        os.chmod(name, mode)  # noqa: PTH101
        os.replace(name, target)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise
