"""Make tiny models and their tokenizers: a DiffusionGemma per layout, one with experts, and Llamas of each kind.

The trainer of the embedded model, of which these are parts, is in the history at commit a331a6b.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    Gemma4VisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from dg_lsp.engine.model.weights.checkpoint import PROFILE

# A token's id is its position in this list. The configuration class expects ids 0-5 below the vocabulary's size.
SPECIAL = (
    "<pad>", "<eos>", "<bos>", "<boi>", "<eoi>", "<image>",
    "<delete>", "<suf>", "<pre>", "<eom>", "<path>",
    "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<hole>",
    "<span>", "<line>", "<lines>", "<block>", "<body>", "<related>",
)  # fmt: skip
RESERVED = tuple(f"<unused{index}>" for index in range(len(SPECIAL), 32))
SPLIT = r"\n| {2,}|\t+|[ _]?\p{L}+|[0-9]|_+| ?[^\s\p{L}0-9_]+|\s"
TEXT = (
    "def add(a, b):\n    return a + b\n\n\n"
    "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y\n"
)


def tokenizer(texts: Iterable[str], *, vocabulary: int) -> Tokenizer:
    """Return a byte-level tokenizer of `vocabulary` tokens, as the embedded model has one.

    No token crosses a newline, a run of spaces is a token of its own, and digits are single tokens.
    """
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
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
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=1, num_global_key_value_heads=1,
        head_dim=64, global_head_dim=64, max_position_embeddings=shape.positions,
        sliding_window=shape.positions,  # the whole context, so a small model's cache never drops a token
        layer_types=["sliding_attention"] * (shape.layers - 1) + ["full_attention"],
        # The class has no dense form, so use one expert of the least width, disabled below.
        num_experts=1, top_k_experts=1, moe_intermediate_size=16, pad_token_id=0, eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    vision = Gemma4VisionConfig(  # `None` would build a vision tower of 168 million parameters
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=8,
        global_head_dim=8, position_embedding_size=1, patch_size=1, pooling_kernel_size=1,
    )  # fmt: skip
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


def trained(folder: Path) -> Path:
    """Write an untrained checkpoint in the infill-trained layout, with a byte-level tokenizer."""
    made = tokenizer([TEXT] * 3, vocabulary=400)
    made.save(str(folder / "tokenizer.json"))
    _save(folder, Shape(hidden=64, layers=2, heads=1, feed_forward=64, vocabulary=made.get_vocab_size()))
    settings = {
        "layout": "infill-trained", "prefix_tokens": 128, "suffix_tokens": 32, "line_tokens": 16, "block_tokens": 32,
        "block_rows": 2, "file_weight": 0.5,
        "calibration": {"intercept": -1.0, "weights": {"mean": 2.0, "after": 1.0}},
    }  # fmt: skip
    (folder / PROFILE).write_text(json.dumps(settings))
    return folder


def instruct(folder: Path) -> Path:
    """Write an untrained checkpoint with the tokenizer features of Gemma's: spaces as ▁, byte fallback, newline runs, turns."""
    made = gemma_like_tokenizer()
    made.save(str(folder / "tokenizer.json"))
    _save(folder, Shape(hidden=64, layers=2, heads=1, feed_forward=64, vocabulary=made.get_vocab_size()))
    return folder


def gemma_like_tokenizer() -> Tokenizer:
    """Return a small tokenizer built the way Gemma's is."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<image>", "<|turn>", "<turn|>", "<|channel>", "<channel|>"]
    words = ["▁", "▁▁", "▁▁▁▁", "\n", "\n\n", *(chr(code) for code in range(33, 127)), "de", "def", "re", "return", "▁+", "Ġ"]
    merges = [("▁", "▁"), ("▁▁", "▁▁"), ("\n", "\n"), ("d", "e"), ("de", "f"), ("r", "e"), ("▁", "+")]
    for word in ("```", "model", "thought", "python"):  # of a chat turn
        words += [word[:n] for n in range(2, len(word) + 1)]
        merges += [(word[:n], word[n]) for n in range(1, len(word))]
    vocabulary = {token: index for index, token in enumerate([*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *words])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
    return tokenizer


def with_experts() -> Any:
    """Return a model whose experts are on and whose window of 8 is shorter than its prefix."""
    torch.manual_seed(0)
    model: Any = build(Shape(hidden=64, layers=3, heads=2, feed_forward=64, vocabulary=120, positions=64))
    config = model.config
    config.text_config.sliding_window = 8
    config.text_config.num_experts, config.text_config.top_k_experts = 4, 2
    config.text_config.moe_intermediate_size = 32
    model = DiffusionGemmaForBlockDiffusion(config).eval()
    _shake(model)
    return model


def shaken(shape: Shape) -> Any:
    torch.manual_seed(1)
    model: Any = build(shape)
    _shake(model)
    return model


LLAMA_SIZES = {
    "vocab_size": 300, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "rope_theta": 1000.0,
}  # fmt: skip
LLAMAS = ("tied", "untied", "wide heads", "biases", "all biases", "encoder")


def llama(kind: str) -> Any:
    """Return a tiny random model of the library that `Llama` computes: one of `LLAMAS`.

    Its norms and biases are changed, so that a test notices a missing one.
    """
    if kind == "encoder":
        shape = Shape(hidden=64, layers=3, heads=2, feed_forward=80, vocabulary=300)
        return shaken(shape).eval().requires_grad_(False)
    torch.manual_seed(3)
    if kind == "biases":
        model: Any = Qwen2ForCausalLM(Qwen2Config(**LLAMA_SIZES, tie_word_embeddings=True))
    else:
        more = {"head_dim": 16} if kind == "wide heads" else {"attention_bias": True} if kind == "all biases" else {}
        model = LlamaForCausalLM(LlamaConfig(**LLAMA_SIZES, **more, tie_word_embeddings=kind == "tied"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "embed" not in name:
                parameter.mul_(5)
    return model.eval().requires_grad_(False)


def qwen(folder: Path) -> Path:
    """Write a tiny random Qwen2 model with a byte-level tokenizer, as the hub has them. Its likeliest token always has text."""
    made = tokenizer(["def add(a, b):\n    return a + b\n"] * 3, vocabulary=290)
    made.save(str(folder / "tokenizer.json"))
    model = llama("biases")
    silent = [token for text, token in made.get_vocab().items() if not (text.isascii() and text.isalnum())]
    model.model.embed_tokens.weight[silent] = 0.0  # its input and output weights are the same
    model.save_pretrained(folder)
    return folder


def _save(folder: Path, shape: Shape) -> None:
    shaken(shape).save_pretrained(folder)


def _shake(model: Any) -> None:
    """Change every norm's weight from one, so that a test notices a missing norm."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1 and parameter.any():
                parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
        for layer in model.model.decoder.layers:
            layer.self_attn.q_norm.weight.fill_(0.2)


def dump_profile(profile: Any) -> str:
    """Return a profile as the text of its file."""
    return json.dumps(msgspec.to_builtins(profile), indent=2) + "\n"
