"""Build an untrained DiffusionGemma of a given size, with the traps of its configuration class disarmed.

Knows the configuration class. Knows nothing of data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DiffusionGemmaTextConfig, Gemma4VisionConfig


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a model: `head_dim` is always 64, one key-value head, dense feed-forward."""

    hidden: int = 256
    layers: int = 6
    heads: int = 4
    feed_forward: int = 512
    vocabulary: int = 8192
    canvas: int = 64
    positions: int = 4096


def build(shape: Shape) -> DiffusionGemmaForBlockDiffusion:
    """Return a model with fresh weights that `DiffusionGemmaForBlockDiffusion.from_pretrained` can load again."""
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
        sliding_window=shape.positions,  # the whole context: nothing ever leaves a small model's cache
        layer_types=["sliding_attention"] * (shape.layers - 1) + ["full_attention"],
        max_position_embeddings=shape.positions,
        num_experts=1,  # the class has no dense form: one expert of the smallest width, switched off below
        top_k_experts=1,
        moe_intermediate_size=16,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    vision = Gemma4VisionConfig(  # `None` would build a tower of 168 million parameters
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
        model.lm_head.weight.normal_(0, 0.04)  # the encoder's input has no norm of its own: keep it near unit size
        for layer in model.model.decoder.layers:
            layer.self_attn.q_norm.weight.fill_(64**-0.5)  # attention has no scale of its own: without this it starts one-hot
            layer.post_feedforward_layernorm_2.weight.zero_()
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("vision", "router", "experts", "layernorm_2")):
            parameter.requires_grad_(False)
    return model
