"""Build the model's modules without memory for weights, and without the vision tower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

META = torch.device("meta")


def build(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Return a text-only `DiffusionGemmaForBlockDiffusion` on the meta device."""
    from transformers import DiffusionGemmaForBlockDiffusion

    with META:
        # This affects only the library's own computation; `passes` has its own attention.
        model: Any = DiffusionGemmaForBlockDiffusion._from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.model.encoder.vision_tower = model.model.encoder.embed_vision = None
    return model


def aliases(model: Any) -> dict[str, str]:
    """Return all names of all weights and saved buffers, each mapped to the first name of the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in model.state_dict(keep_vars=True).items()}


def fill_buffers(model: Any, device: str) -> None:
    """Compute the buffers that no file stores: the rotary frequencies and the embedding's scale."""
    text = model.config.text_config
    for stack in (model.model.encoder.language_model, model.model.decoder):
        stack.rotary_emb = type(stack.rotary_emb)(text).to(device)
        embed = stack.embed_tokens
        # Computed on the CPU in 32 bits, like the library, whatever the type of the weights.
        embed.embed_scale = torch.tensor(embed.scalar_embed_scale).to(device)


def set_weight(model: Any, names: Sequence[str], value: torch.Tensor) -> None:
    """Set a parameter or buffer to a tensor, under all its names in the model."""
    parameter = nn.Parameter(value, requires_grad=False)
    for name in names:
        path, _, attribute = name.rpartition(".")
        module: nn.Module = model.get_submodule(path)
        if attribute in module._buffers:
            module._buffers[attribute] = value
        else:
            module._parameters[attribute] = parameter


def left_empty(model: Any) -> list[str]:
    """Return the names of the tensors that still have no memory."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return [name for name, tensor in tensors if tensor.device == META]
