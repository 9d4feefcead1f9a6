"""Load a published model that fills masks."""

from __future__ import annotations

from dg_lsp.engine.common import loading, profile_file
from dg_lsp.engine.common.loading import Checkpoint, Loaded
from dg_lsp.engine.common.task import OnProgress
from dg_lsp.engine.diffusion.masked.passes import MaskedLlama
from dg_lsp.engine.diffusion.masked.profile import LAYOUT, Profile, load_profile, published
from dg_lsp.engine.model import fit


def is_masked(opened: Checkpoint) -> bool:
    """Return whether a checkpoint fills masks, by what it is or by its profile; raises ProfileError if that can't be read."""
    is_published = published(opened.name, opened.model_type, opened.vocabulary) is not None
    return is_published or (profile_file.settings_in(opened.profile_folder) or {}).get("layout") == LAYOUT


def load(opened: Checkpoint, dtype: str, on_progress: OnProgress) -> Loaded[MaskedLlama, Profile]:
    """Load and return the model of a checkpoint; raises LoadError and the errors of `common.loading.reported`."""
    profile = load_profile(opened.profile_folder, published(opened.name, opened.model_type, opened.vocabulary))
    use = fit.Use(profile.prefix_tokens + profile.suffix_tokens, profile.canvas_tokens)
    found = loading.open_llama(opened, use, dtype, on_progress)
    passes = MaskedLlama(found.sizes, found.weights, found.kind)
    return Loaded.of(opened, passes, profile, found.precision)
