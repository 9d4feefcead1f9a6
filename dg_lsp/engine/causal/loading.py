"""Load a causal checkpoint: its profile, its weights and its suffix adapter."""

from __future__ import annotations

from dg_lsp.engine.causal import lora
from dg_lsp.engine.causal.drafting import LONGEST_DRAFT
from dg_lsp.engine.causal.passes import CausalLlama
from dg_lsp.engine.causal.profile import Profile, load_profile
from dg_lsp.engine.common import loading
from dg_lsp.engine.common.loading import Checkpoint, Loaded, LoadError
from dg_lsp.engine.common.task import OnProgress
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.weights import checkpoint


def load(opened: Checkpoint, dtype: str, on_progress: OnProgress) -> Loaded[CausalLlama, Profile]:
    """Load and return the model of a checkpoint; raises LoadError and the errors of `common.loading.reported`."""
    profile = load_profile(opened.profile_folder, fills_in=opened.vocabulary.fim_tokens is not None)
    use = fit.Use(profile.prefix_tokens + profile.suffix_tokens, LONGEST_DRAFT)
    found = loading.open_llama(opened, use, dtype, on_progress)
    adapter_file, tensors = opened.profile_folder / lora.FILE, None
    if adapter_file.exists():
        own = checkpoint.own_file(adapter_file.parent, adapter_file.name)
        adapter = lora.read(own, found.sizes, lora.base_hash(found.weights))
        tensors = {name: tensor.to(opened.device) for name, tensor in adapter.items()}
    elif profile.right_tokens:
        raise LoadError(f"the profile of {opened.name} needs a suffix adapter, but there is no {adapter_file}")
    passes = CausalLlama(found.sizes, found.weights, found.kind, tensors)
    return Loaded.of(opened, passes, profile, found.precision)
