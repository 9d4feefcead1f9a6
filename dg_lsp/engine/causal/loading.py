"""Load a causal checkpoint: its profile and its weights."""

from __future__ import annotations

from dg_lsp.engine.causal.drafting import LONGEST_DRAFT
from dg_lsp.engine.causal.passes import CausalLlama
from dg_lsp.engine.causal.profile import Profile, load_profile
from dg_lsp.engine.causal.windows import MOST_LENGTHS
from dg_lsp.engine.common import loading
from dg_lsp.engine.common.loading import Checkpoint, Loaded
from dg_lsp.engine.common.task import OnProgress
from dg_lsp.engine.model import fit


def load(opened: Checkpoint, dtype: str, on_progress: OnProgress) -> Loaded[CausalLlama, Profile]:
    """Load and return the model of a checkpoint; raises LoadError and the errors of `common.loading.reported`."""
    profile = load_profile(opened.profile_folder, fills_in=opened.vocabulary.fim_tokens is not None)
    use = fit.Use(MOST_LENGTHS * profile.prefix_tokens + profile.suffix_tokens, LONGEST_DRAFT)
    found = loading.open_llama(opened, use, dtype, on_progress)
    return Loaded.of(opened, CausalLlama(found.sizes, found.weights, found.kind), profile, found.precision)
