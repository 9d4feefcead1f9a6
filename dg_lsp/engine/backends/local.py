"""Load a model that runs in this process, whatever its family. The only module that knows all of them."""

from __future__ import annotations

import logging
from typing import Any

from dg_lsp.core import wording
from dg_lsp.engine.common import loading
from dg_lsp.engine.common.loading import EMBEDDED, Checkpoint, Loaded
from dg_lsp.engine.common.local import LocalFiller
from dg_lsp.engine.common.task import OnProgress
from dg_lsp.engine.diffusion import masked
from dg_lsp.engine.model.fit import LLAMA_TYPES, SMALL
from dg_lsp.engine.model.weights import checkpoint

log = logging.getLogger("dg_lsp.engine")


def load_model(
    name: str = EMBEDDED,
    *,
    device: str = "auto",
    threads: int = 0,
    dtype: str = "",
    on_progress: OnProgress = lambda _text, _share: None,
) -> Loaded[Any, Any]:
    """Load and return the model `name`: "embedded", a folder, or a hub id.

    `on_progress` receives the progress: a message and a fraction. Raises LoadError with a sentence.
    """
    with loading.reported(name):
        options: dict[str, Any] = {"threads": threads, "on_progress": on_progress}
        opened = loading.open_checkpoint(name, device=device, **options)
        try:
            loaded = _load(opened, dtype, on_progress)
        except loading.NO_ROOM as error:
            # A laptop model or a small one answers on a processor too, if the user did not choose the GPU.
            is_large = opened.model_type not in LLAMA_TYPES and opened.geometry.n_weights > SMALL
            if device != "auto" or opened.device == "cpu" or is_large:
                raise
            reason = wording.reason(error)
            log.warning("%s is loaded on the processor, because the GPU has no room for it: %s", name, reason)
            opened = loading.open_checkpoint(name, device="cpu", **options)
            opened.why["device"] = f"the GPU has no room for it: {reason}"
            loaded = _load(opened, dtype, on_progress)
    on_progress("ready", 1.0)
    return loaded


def _load(opened: Checkpoint, dtype: str, on_progress: OnProgress) -> Loaded[Any, Any]:
    layout = (checkpoint.profile_settings(opened.profile_folder) or {}).get("layout")
    if opened.model_type not in LLAMA_TYPES and layout != "infill-trained":
        from dg_lsp.engine.diffusion.filler import load as load_diffusion

        return load_diffusion(opened, dtype, on_progress)
    if opened.model_type in LLAMA_TYPES and masked.is_masked(opened):
        return masked.load(opened, dtype, on_progress)
    from dg_lsp.engine.causal.filler import load as load_causal

    return load_causal(opened, dtype, on_progress)


def filler_of(loaded: Loaded[Any, Any]) -> LocalFiller:
    """Return the filler of a loaded model; raise ValueError if its vocabulary lacks a token of its layout."""
    from dg_lsp.engine.causal.layout import CausalProfile

    if isinstance(loaded.profile, CausalProfile):
        from dg_lsp.engine.causal.filler import CausalFiller

        return CausalFiller(loaded)
    if isinstance(loaded.profile, masked.MaskedProfile):
        return masked.MaskedFiller(loaded)
    from dg_lsp.engine.diffusion.filler import DiffusionFiller

    return DiffusionFiller(loaded)
