"""Load the embedded model from its safetensors file, without transformers, whose import takes seconds.

The file's names say which modules there are: those of the library's model that `passes` uses. What no weight says is added, as
far as this checkpoint needs it. The library loads every other checkpoint. A test checks that both have equal weights and equal
passes.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CONFIG, WEIGHTS = "config.json", "model.safetensors"
SOFTCAP = 30.0  # the default of the configuration
# Weights that the library's class always has, but that a dense model does not use.
UNUSED = ("vision", "experts", "router", "feedforward_layernorm_2")


def load_dense(folder: Path, dtype: torch.dtype) -> Any:
    """Return the model in the embedded model's folder. Raises the errors of reading a broken file."""
    from safetensors.torch import load_file

    values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    model = nn.Module()
    for name, tensor in load_file(folder / WEIGHTS).items():
        if not any(part in name for part in UNUSED):
            _add(model, name, tensor.to(dtype), values["text_config"]["rms_norm_eps"])
    return _completed(model, values).eval()


class Norm(nn.Module):
    """The weights of an RMS norm. `passes` computes the norm."""

    def __init__(self, eps: float, weight: nn.Parameter | None = None) -> None:
        super().__init__()
        self.eps, self.with_scale = eps, weight is not None
        if weight is not None:
            self.weight = weight


class Embedding(nn.Module):
    """Embeddings that are multiplied by the square root of their size."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.embed_scale = weight, torch.tensor(weight.shape[1] ** 0.5)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight) * self.embed_scale.to(self.weight.dtype)


def _linear(weight: nn.Parameter) -> nn.Linear:
    linear = nn.Linear(1, 1, bias=False, device="meta")
    linear.weight = weight
    return linear


def _add(module: nn.Module, name: str, value: Tensor, eps: float) -> None:
    """Add a weight or a layer's scalar under its name, with the modules that lead to it."""
    *path, last = name.split(".")
    own = path.pop() if last == "weight" else ""
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, nn.ModuleList() if part == "layers" else nn.Module())
        module = module.get_submodule(part)
    weight = nn.Parameter(value, requires_grad=False)
    if not own:
        module.register_buffer(last, value)
    elif own.endswith("_proj"):
        module.add_module(own, _linear(weight))
    else:
        module.add_module(own, Embedding(weight) if own == "embed_tokens" else Norm(eps, weight))


class Rotary:
    """The rotary position embedding of each kind of layer."""

    def __init__(self, text: dict[str, Any]) -> None:
        self._frequencies = {kind: _frequencies(text["head_dim"], rope) for kind, rope in text["rope_parameters"].items()}

    def __call__(self, like: Tensor, positions: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        angles = positions[..., None].float() * self._frequencies[kind].to(positions.device)
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(like.dtype), both.sin().to(like.dtype)


def _completed(model: Any, values: dict[str, Any]) -> Any:
    """Return the model with what `passes` uses besides the stored weights; the encoder shares all but its layers' scalars."""
    text = values["text_config"]
    model.config = SimpleNamespace(text_config=SimpleNamespace(**text), to_dict=lambda: values)
    model.final_logit_softcapping = SOFTCAP
    decoder, encoder, eps = model.model.decoder, model.model.encoder.language_model, text["rms_norm_eps"]
    decoder.rotary_emb, decoder.self_conditioning.post_norm = Rotary(text), Norm(eps)
    for own, shared in zip(encoder.layers, decoder.layers, strict=True):
        attention = shared.self_attn
        attention.v_norm, attention.head_dim, attention.scaling = Norm(eps), text["head_dim"], 1.0
        attention.num_key_value_groups = text["num_attention_heads"] // text["num_key_value_heads"]
        attention.v_proj = getattr(attention, "v_proj", None)  # only sliding layers have one
        for name, module in shared.named_children():
            setattr(own, name, module)
        own.post_feedforward_layernorm_2 = shared.post_feedforward_layernorm_2 = SimpleNamespace(weight=torch.zeros(1))
    encoder.embed_tokens, encoder.norm, encoder.rotary_emb = decoder.embed_tokens, decoder.norm, decoder.rotary_emb
    model.lm_head = _linear(decoder.embed_tokens.weight)
    return model


def _frequencies(size: int, rope: dict[str, Any]) -> Tensor:
    """Return the frequency of each pair of a head's numbers, of which the first ones turn."""
    n_turned = int(rope.get("partial_rotary_factor", 1.0) * size // 2)
    turned = 1.0 / (rope["rope_theta"] ** (torch.arange(0, 2 * n_turned, 2).float() / size))
    return torch.cat([turned, torch.zeros(size // 2 - n_turned)])
