"""Checkpoints shaped like the published one, only narrower: unequal head sizes, both kinds of layers, experts, a full head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

from dg_lsp.engine.diffusion.gemma.quantised import Fp8Weight, is_narrow
from tests.checkpoints import gemma_like_tokenizer

ROWS = 262_144
VISION = {
    "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 8, "position_embedding_size": 4,
    "patch_size": 4,
}  # fmt: skip
TEXT = {
    "model_type": "diffusion_gemma_text", "num_hidden_layers": 6, "hidden_size": 64, "intermediate_size": 128,
    "moe_intermediate_size": 64, "num_experts": 8, "top_k_experts": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_global_key_value_heads": 1, "head_dim": 16, "global_head_dim": 32, "vocab_size": ROWS, "sliding_window": 16,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}  # fmt: skip
# As published: the values of google/diffusiongemma-26B-A4B-it.
PUBLISHED = {
    "num_hidden_layers": 30, "hidden_size": 2816, "intermediate_size": 2112, "moe_intermediate_size": 704,
    "num_experts": 128, "top_k_experts": 8, "num_attention_heads": 16, "num_key_value_heads": 8,
    "num_global_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512, "vocab_size": ROWS, "sliding_window": 1024,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
}  # fmt: skip


def config_values(**changes: Any) -> dict[str, Any]:
    """Return the values of a `config.json`, those of the text model changed."""
    text, vision = {**TEXT, **changes}, {**VISION}
    return {"model_type": "diffusion_gemma", "canvas_length": 64, "text_config": text, "vision_config": vision}


def build(**changes: Any) -> Any:
    """Return a model with random weights that computes calmly: attention is not one-hot, logits are not all alike."""
    torch.manual_seed(3)
    model: Any = DiffusionGemmaForBlockDiffusion(DiffusionGemmaConfig.from_dict(config_values(**changes)))
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 0.05)
        for layer in model.model.decoder.layers:
            layer.self_attn.q_norm.weight.fill_(0.2)
    return model.eval()


def save(folder: Path, model: Any, *, shard: str = "5GB") -> Path:
    """Write a checkpoint as the library writes it, in bf16, with a tokenizer of as many tokens as the head has rows."""
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size=shard)
    tokenizer(model.config.text_config.vocab_size).save(str(folder / "tokenizer.json"))
    return folder


def tokenizer(size: int) -> Tokenizer:
    """Return a small tokenizer like Gemma's, filled up with unused tokens."""
    small = gemma_like_tokenizer()
    stated = json.loads(small.to_str())
    vocabulary = stated["model"]["vocab"]
    for index in range(len(vocabulary), size):
        vocabulary[f"<unused{index}>"] = index
    return Tokenizer.from_str(json.dumps(stated))


def as_published_in_8_bits(folder: Path) -> None:
    """Rewrite a checkpoint as compressed-tensors writes it: matrices in 8 bits, each with its rows' scales, experts apart."""
    tensors: dict[str, torch.Tensor] = {}
    for name, value in load_file(folder / "model.safetensors").items():
        if not is_narrow(name):
            tensors[name] = value
            continue
        narrow = Fp8Weight.of(value)
        if ".experts." not in name:
            module = name.removesuffix(".weight")
            tensors |= {f"{module}.weight": narrow.values.data, f"{module}.weight_scale": narrow.scales.data}
            continue
        bank, _, part = name.rpartition(".")
        for index, (values, scales) in enumerate(zip(narrow.values.data, narrow.scales.data, strict=True)):
            halves = ("gate_proj", "up_proj") if part == "gate_up_proj" else ("down_proj",)
            pieces = zip(halves, values.chunk(len(halves)), scales.chunk(len(halves)), strict=True)
            for half, piece, scale in pieces:
                tensors[f"{bank}.{index}.{half}.weight"] = piece.contiguous()
                tensors[f"{bank}.{index}.{half}.weight_scale"] = scale.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    configure(folder, quantization_config={"quant_method": "compressed-tensors", "format": "float-quantized"})


def configure(folder: Path, **values: Any) -> None:
    """Change values of a folder's `config.json`."""
    place = folder / "config.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **values}))
