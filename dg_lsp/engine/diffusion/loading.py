"""Load a DiffusionGemma checkpoint: its profile, and its weights in the passes that suit them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from dg_lsp.engine.common import loading
from dg_lsp.engine.common.loading import EMBEDDED, Checkpoint, Loaded, LoadError
from dg_lsp.engine.common.task import OnProgress
from dg_lsp.engine.diffusion.gemma import chat_template, dense, inventory, packed, reading
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.profile import Profile, load_profile
from dg_lsp.engine.model import fit, matmul
from dg_lsp.engine.model.fit.needs import Precision
from dg_lsp.engine.model.weights.progress import Meter

log = logging.getLogger("dg_lsp.engine")


def load(opened: Checkpoint, dtype: str, on_progress: OnProgress) -> Loaded[Passes, Profile]:
    """Load and return the model of a checkpoint; raises LoadError and the errors of `common.loading.reported`."""
    name, folder, device = opened.name, opened.folder, opened.device
    profile = load_profile(opened.profile_folder)
    if profile.layout == "instruct" and (warning := chat_template.warning(folder)):
        log.warning("%s", warning)
    loading.check_dtype(dtype)
    if dtype == "int8":
        raise LoadError(f"{name} can't be loaded at int8; choose fp8 or int4")
    use = fit.Use(profile.prefix_tokens + profile.suffix_tokens, profile.canvas_tokens)
    choice = loading.choose(opened, use, asked=dtype, stored=inventory.stored_precision(folder, opened.values))
    precision, opened.why["dtype"] = choice.precision, choice.why
    # Load the embedded weights without transformers, because its import takes longer than the rest of the start.
    is_plain = name == EMBEDDED and device == "cpu"
    model = dense.load_dense(folder, loading.wide_dtype(precision)) if is_plain else None
    if model is None:
        model = _with_weights(folder, device, precision, on_progress)
    if not packed.suits(model):
        return Loaded.of(opened, Passes(model), profile, precision)
    kind = matmul.best_kind(in_16_bits=dtype != "float32")
    opened.why["dtype"] += f"; {matmul.EXPLAINED[kind]}"
    return Loaded.of(opened, packed.PackedPasses(model, kind), profile, precision)


def _with_weights(folder: Path, device: str, precision: Precision, on_progress: OnProgress) -> Any:
    """Return the folder's model with its weights on a device. The folder is validated before anything is allocated."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # the engine reports the progress itself
    model, listed = inventory.check(folder, inventory.configuration(folder))
    meter = Meter("reading the weights", listed.n_bytes, on_progress, low=0.5)
    dtype = loading.wide_dtype(precision)
    model.config.dtype = model.config.text_config.dtype = dtype
    try:
        reading.fill(model, listed, device, precision, dtype, meter)
    except (reading.ReadError, *loading.NO_ROOM):
        raise
    except Exception as error:  # the libraries may raise anything for values that they have not checked
        raise LoadError(f"{folder} can't be loaded as a DiffusionGemma checkpoint: {error}") from error
    return model.eval()
