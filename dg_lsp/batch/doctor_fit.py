"""Check for `dg-lsp doctor` whether a model fits on this machine, using only its `config.json`.

This module imports no torch, and fetches and loads no weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from dg_lsp.core.wording import size
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.fit import machine
from dg_lsp.engine.model.weights import fetch
from dg_lsp.wire import laptop, model_names
from dg_lsp.wire.laptop import LaptopModel
from dg_lsp.wire.settings import EMBEDDED

MAX_BYTES = 1 << 20
WIDTHS = {"int8": 1, "bfloat16": 2, "float32": 4}
KEPT: dict[machine.LaptopPrecision | None, str] = {
    "int8": "in 8 bits",
    "bfloat16": "in 16 bits, because this processor has no instructions for 8-bit products",
    "float32": "in 32 bits, because this processor has no instructions for 8-bit or 16-bit products",
    None: "in 8 bits, and more on a processor without instructions for 8-bit products",
}
LISTED: tuple[tuple[fit.Precision, str], ...] = (("bfloat16", "16 bits"), ("fp8", "8"), ("int4", "4"))


def check_fit(model: str, device: str, dtype: str = "") -> tuple[str, str, dict[str, object]]:
    """Return a sentence on what a model needs and whether it fits, the advice if it does not, and the sizes in bytes."""
    if (known := laptop.by_name(model)) is not None:
        return _laptop(known)
    try:
        values = _config_values(model)
        geometry = fit.of_config(values)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return "unknown, as its configuration can't be read", f"{error.filename or model}: {reason}. Name a model's folder.", {}
    except (fetch.FetchError, fit.GeometryError, ValueError) as error:
        return "unknown, as its configuration can't be read", f"{model}: {error}.", {}
    host = machine.of_device(device)
    stored = "fp8" if "quantization_config" in values else ""
    sizes = {precision: fit.needs(geometry, precision) for precision in fit.PRECISIONS}
    listed = ", ".join(f"{size(sizes[precision].total)} at {name}" for precision, name in LISTED)
    free = "unknown" if host.free is None else size(host.free)
    sentence = f"{model} needs {listed}; {free} free on {host.label}"
    facts: dict[str, object] = {
        "free_bytes": host.free,
        "device": host.kind,
        "bytes": {
            name: {"weights": one.weights, "workspace": one.workspace, "cache": one.cache, "rows": one.rows, "total": one.total}
            for name, one in sizes.items()
        },
    }
    try:
        choice = fit.choose(model, geometry, host, asked="" if dtype == "auto" else dtype, stored=stored)
    except fit.NoRoomError as error:
        return sentence, str(error), facts
    return f"{sentence}: it runs in {choice.precision} ({choice.why})", "", {**facts, "dtype": choice.precision}


def _laptop(model: LaptopModel) -> tuple[str, str, dict[str, object]]:
    precision = machine.laptop_precision()
    needed = model.memory_bytes + (WIDTHS[precision or "int8"] - 1) * model.n_weights
    sentence = f"{model.name} needs {size(needed)} of memory, {KEPT[precision]}"
    facts: dict[str, object] = {
        "device": "cpu",
        "bytes": {precision or "int8": {"total": needed}},
        "dtype": precision or "int8",
    }
    if not model.is_pulled:
        return f"{sentence}, and is not pulled", f"Get it with: dg-lsp engine pull {model.name}", facts
    free = machine.of_device("cpu").free
    if free is not None and free < needed:
        advice = "Close other programs, or choose a smaller model."
        return f"{sentence}; {size(free)} free", advice, {**facts, "free_bytes": free}
    return sentence, "", facts


def _config_values(model: str) -> Mapping[str, Any]:
    folder = model_names.folder_of(model)
    if model == EMBEDDED:
        folder = Path(str(resources.files("dg_lsp.models"))) / EMBEDDED
    if folder is None:
        return fetch.config_values(model)
    file = folder / fetch.CONFIG
    if file.stat().st_size > MAX_BYTES:
        raise ValueError(f"{file} is too large for a configuration")
    values = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"{file} is not a JSON object")  # noqa: TRY004 -- handled like invalid JSON
    return values
