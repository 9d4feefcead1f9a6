"""Build a DiffusionGemma of a given size, untrained or from a saved state, and work around its configuration's defaults.

This module knows the configuration class and the names of its weights, and nothing of data.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DiffusionGemmaTextConfig, Gemma4VisionConfig

from dg_lsp.evaluate.tasks import EvalError


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a model. `head_dim` is always 64; there is one key-value head, and the feed-forward layers are dense."""

    hidden: int = 256
    layers: int = 6
    heads: int = 4
    feed_forward: int = 512
    vocabulary: int = 8192
    canvas: int = 64
    positions: int = 4096


def build(shape: Shape) -> DiffusionGemmaForBlockDiffusion:
    """Return a model with new weights that `DiffusionGemmaForBlockDiffusion.from_pretrained` can load after saving."""
    text = DiffusionGemmaTextConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=1,
        num_global_key_value_heads=1,
        head_dim=64,
        global_head_dim=64,
        sliding_window=shape.positions,  # the whole context, so a small model's cache never drops a token
        layer_types=["sliding_attention"] * (shape.layers - 1) + ["full_attention"],
        max_position_embeddings=shape.positions,
        num_experts=1,  # the class has no dense form, so use one expert of the least width, disabled below
        top_k_experts=1,
        moe_intermediate_size=16,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    vision = Gemma4VisionConfig(  # `None` would build a vision tower of 168 million parameters
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        global_head_dim=8,
        position_embedding_size=1,
        patch_size=1,
        pooling_kernel_size=1,
    )
    config = DiffusionGemmaConfig(
        text_config=text, vision_config=vision, canvas_length=shape.canvas, boi_token_id=3, eoi_token_id=4, image_token_id=5
    )
    model: Any = DiffusionGemmaForBlockDiffusion(config)
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 0.04)  # the encoder's input has no norm, so keep it near unit size
        for layer in model.model.decoder.layers:
            # attention has no scale factor; without this it would start as one-hot
            layer.self_attn.q_norm.weight.fill_(64**-0.5)
            layer.post_feedforward_layernorm_2.weight.zero_()
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("vision", "router", "experts", "layernorm_2")):
            parameter.requires_grad_(False)
    return model


def resume(model: Any, file: Path, device: str = "cpu") -> dict[str, Any]:
    """Load a saved training state into the model and return it; raise EvalError if it doesn't fit."""
    try:
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
        sizes = {name: tuple(tensor.shape) for name, tensor in state["model"].items()}
    except (RuntimeError, EOFError, KeyError, TypeError, AttributeError, pickle.UnpicklingError) as error:
        raise EvalError(f"{file} is not the state of a training run; remove it and train again") from error
    if sizes != {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}:
        raise EvalError(f"{file} is from a model of another shape: {_options(sizes)}")
    model.load_state_dict(state["model"])
    return state


def _options(sizes: dict[str, tuple[int, ...]]) -> str:
    """Return the options that build a model with these weights, and the size of its vocabulary."""
    widths = [size for name, size in sizes.items() if ".decoder." in name and name.endswith(".mlp.gate_proj.weight")]
    if not widths or "lm_head.weight" not in sizes:
        return "it was not made by the trainer"
    feed_forward, hidden = widths[0]
    options = f"--hidden {hidden} --layers {len(widths)} --feed-forward {feed_forward}"
    return f"it was trained with {options}, and a tokenizer of {sizes['lm_head.weight'][0]} tokens"
