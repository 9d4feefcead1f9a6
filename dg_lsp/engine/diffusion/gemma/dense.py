"""Load the embedded model from its safetensors file, without transformers, whose import takes seconds.

`Dense` has the names and the structure of the library's model that `passes` uses, as far as this checkpoint needs them. The
library loads every other checkpoint. A test checks that both have equal weights and equal passes.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

CONFIG, WEIGHTS = "config.json", "model.safetensors"
SOFTCAP = 30.0  # the default of the configuration
# Weights that the library's class always has, but that a dense model does not use.
UNUSED = ("vision", "experts", "router", "feedforward_layernorm_2")
NORMS = (  # of a layer
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
    "post_feedforward_layernorm_1",
)  # fmt: skip


def load_dense(folder: Path, dtype: torch.dtype) -> Dense:
    """Return the model in the embedded model's folder. Raises the errors of reading a broken file."""
    from safetensors.torch import load_file

    with torch.device("meta"):
        model = Dense(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
    stored = load_file(folder / WEIGHTS)
    used = {name: tensor.to(dtype) for name, tensor in stored.items() if not any(part in name for part in UNUSED)}
    model.load_state_dict(used, assign=True)
    return model.tied().requires_grad_(False).eval()


class Norm(nn.Module):
    """The weights of an RMS norm. `passes` computes the norm."""

    def __init__(self, size: int, eps: float, *, with_scale: bool = True) -> None:
        super().__init__()
        self.eps, self.with_scale = eps, with_scale
        if with_scale:
            self.weight = nn.Parameter(torch.empty(size))


class Embedding(nn.Embedding):
    """Embeddings that are multiplied by the square root of their size."""

    def __init__(self, n_tokens: int, size: int) -> None:
        super().__init__(n_tokens, size)
        self.embed_scale: Tensor = torch.tensor(size**0.5, device="cpu")

    def reset_parameters(self) -> None:
        """Do nothing: initialising on the meta device would import torch's compiler, which takes seconds."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * self.embed_scale.to(self.weight.dtype)


def _modules(**parts: Any) -> Any:
    module = nn.Module()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


def _linear(n_inputs: int, n_outputs: int) -> nn.Linear:
    return nn.Linear(n_inputs, n_outputs, bias=False)


def _feed_forward(hidden: int, inner: int) -> dict[str, nn.Module]:
    return {"gate_proj": _linear(hidden, inner), "up_proj": _linear(hidden, inner), "down_proj": _linear(inner, hidden)}


def _scalars(**parts: Any) -> Any:
    """Return a layer with these parts, and its own scalar. The encoder's shares all but that with the decoder's."""
    layer = _modules(**parts)
    layer.register_buffer("layer_scalar", torch.empty(1))
    return layer


def _layer(text: dict[str, Any], kind: str) -> Any:
    """Return one layer, with a disabled expert branch. Only sliding layers have a value projection."""
    hidden, eps, size = text["hidden_size"], text["rms_norm_eps"], text["head_dim"]
    heads, n_kv = text["num_attention_heads"], text["num_key_value_heads"]
    attention = _modules(
        q_proj=_linear(hidden, heads * size), k_proj=_linear(hidden, n_kv * size), o_proj=_linear(heads * size, hidden),
        v_proj=_linear(hidden, n_kv * size) if kind == "sliding_attention" else None,
        q_norm=Norm(size, eps), k_norm=Norm(size, eps), v_norm=Norm(size, eps, with_scale=False),
        head_dim=size, num_key_value_groups=heads // n_kv, scaling=1.0,
    )  # fmt: skip
    return _scalars(
        self_attn=attention,
        mlp=_modules(**_feed_forward(hidden, text["intermediate_size"])),
        **{name: Norm(hidden, eps) for name in NORMS},
        post_feedforward_layernorm_2=SimpleNamespace(weight=torch.zeros(1, device="cpu")),
    )


class Rotary:
    """The rotary position embedding of each kind of layer."""

    def __init__(self, text: dict[str, Any]) -> None:
        self._frequencies = {kind: _frequencies(text["head_dim"], rope) for kind, rope in text["rope_parameters"].items()}

    def __call__(self, like: Tensor, positions: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        angles = positions[..., None].float() * self._frequencies[kind].to(positions.device)
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(like.dtype), both.sin().to(like.dtype)


def _decoder(text: dict[str, Any]) -> Any:
    hidden, eps = text["hidden_size"], text["rms_norm_eps"]
    conditioning = {"pre_norm": Norm(hidden, eps), "post_norm": Norm(hidden, eps, with_scale=False)}
    return _modules(
        embed_tokens=Embedding(text["vocab_size"], hidden),
        layers=nn.ModuleList([_layer(text, kind) for kind in text["layer_types"]]),
        norm=Norm(hidden, eps),
        self_conditioning=_modules(**_feed_forward(hidden, text["intermediate_size"]), **conditioning),
        rotary_emb=Rotary(text),
    )


class Dense(nn.Module):
    """A model with the library's names for the weights that `passes` uses."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        text = values["text_config"]
        # The attributes of the library's configuration that `passes` uses.
        self.config = SimpleNamespace(text_config=SimpleNamespace(**text), to_dict=lambda: values)
        self.final_logit_softcapping = SOFTCAP
        encoder = _modules(layers=nn.ModuleList([_scalars() for _ in text["layer_types"]]))
        self.model: Any = _modules(decoder=_decoder(text), encoder=_modules(language_model=encoder))

    def tied(self) -> Dense:
        """Give the encoder and the output head the decoder's weights, which they share; return the model."""
        decoder: Any = self.model.decoder
        encoder: Any = self.model.get_submodule("encoder.language_model")
        for own, shared in zip(encoder.layers, decoder.layers, strict=True):
            for name, module in shared.named_children():
                setattr(own, name, module)
            own.post_feedforward_layernorm_2 = shared.post_feedforward_layernorm_2
        encoder.embed_tokens, encoder.norm, encoder.rotary_emb = decoder.embed_tokens, decoder.norm, decoder.rotary_emb
        self.lm_head = nn.Linear(1, 1, bias=False, device="meta")
        self.lm_head.weight = decoder.embed_tokens.weight
        return self


def _frequencies(size: int, rope: dict[str, Any]) -> Tensor:
    """Return the frequency of each pair of a head's numbers, of which the first ones turn."""
    n_turned = int(rope.get("partial_rotary_factor", 1.0) * size // 2)
    with torch.device("cpu"):
        turned = 1.0 / (rope["rope_theta"] ** (torch.arange(0, 2 * n_turned, 2).float() / size))
        return torch.cat([turned, torch.zeros(size // 2 - n_turned)])
