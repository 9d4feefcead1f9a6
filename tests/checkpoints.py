"""Make tiny DiffusionGemmas and their tokenizers.

The trainer of the embedded model, of which these are parts, is in the history at commit a331a6b.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DiffusionGemmaTextConfig, Gemma4VisionConfig

# A token's id is its position in this list. The configuration class expects ids 0-5 below the vocabulary's size.
SPECIAL = (
    "<pad>", "<eos>", "<bos>", "<boi>", "<eoi>", "<image>",
    "<delete>", "<suf>", "<pre>", "<eom>", "<path>",
    "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<hole>",
    "<span>", "<line>", "<lines>", "<block>", "<body>", "<related>",
)  # fmt: skip
RESERVED = tuple(f"<unused{index}>" for index in range(len(SPECIAL), 32))
SPLIT = r"\n| {2,}|\t+|[ _]?\p{L}+|[0-9]|_+| ?[^\s\p{L}0-9_]+|\s"


def tokenizer(texts: Iterable[str], *, vocabulary: int) -> Tokenizer:
    """Return a byte-level tokenizer of `vocabulary` tokens, as the embedded model has one.

    No token crosses a newline, a run of spaces is a token of its own, and digits are single tokens.
    """
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[*SPECIAL, *RESERVED],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a model. `head_dim` is always 64; there is one key-value head, and the feed-forward layers are dense."""

    hidden: int
    layers: int
    heads: int
    feed_forward: int
    vocabulary: int
    canvas: int = 64
    positions: int = 4096


def build(shape: Shape) -> DiffusionGemmaForBlockDiffusion:
    """Return a model with random weights that `DiffusionGemmaForBlockDiffusion.from_pretrained` can load after saving."""
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
    return model
