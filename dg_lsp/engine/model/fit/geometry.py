"""The sizes of a model, computed from its `config.json` alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"
SLIDING_RUN = 5  # sliding layers before each full one, unless the configuration lists the layer types
# The defaults of transformers' configuration class for missing keys.
_DEFAULTS = {
    "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 512,
}  # fmt: skip
_FULL_HEAD_DIM = 512


LLAMA_TYPES = ("llama", "qwen2", "Dream")  # Dream has the weights of a Qwen2 model, and reads in both directions
MODEL_TYPES = ("diffusion_gemma", *LLAMA_TYPES)
_UNFIT = {"Fast_dLLM_Qwen": "a Fast-dLLM v2 model, which writes from left to right and can't read what follows a hole"}


class GeometryError(ValueError):
    """A configuration does not describe the model's sizes; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The sizes of one layer's attention: the widths of its queries and keys, and whether values have their own matrix."""

    queries: int
    keys: int
    head_dim: int
    has_values: bool


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of a model, as its configuration states them. `attentions` has one entry per layer."""

    vocabulary: int
    hidden: int
    feed_forward: int
    attentions: tuple[Attention, ...]
    window: int
    experts: int
    experts_at_once: int
    expert_width: int
    canvas: int
    is_llama: bool = False  # no self-conditioning, no norms of heads, two norms a layer
    has_head: bool = False  # the output head does not share the embedding's weights

    @property
    def n_embedding(self) -> int:
        """The number of weights of the embedding and of the output head, which may share them."""
        return self.vocabulary * self.hidden * (1 + self.has_head)

    @property
    def n_linear(self) -> int:
        """The number of weights in the layers' matrices: attention and the dense feed-forward."""
        attention = sum(2 * one.queries + one.keys * (1 + one.has_values) for one in self.attentions)
        return self.hidden * (attention + 3 * self.feed_forward * len(self.attentions))

    @property
    def n_linear_rows(self) -> int:
        """The number of rows of the matrices in `n_linear`; row-wise quantisation has one scale per row."""
        attention = sum(one.queries + one.keys * (1 + one.has_values) + self.hidden for one in self.attentions)
        return attention + (2 * self.feed_forward + self.hidden) * len(self.attentions)

    @property
    def n_expert_rows(self) -> int:
        """The number of rows of all layers' expert matrices."""
        return len(self.attentions) * self.experts * (2 * self.expert_width + self.hidden)

    @property
    def n_experts(self) -> int:
        """The number of weights of all layers' experts."""
        return len(self.attentions) * self.n_layer_experts

    @property
    def n_layer_experts(self) -> int:
        """The number of weights of one layer's experts."""
        return 3 * self.experts * self.expert_width * self.hidden

    @property
    def n_other(self) -> int:
        """The number of weights that are never quantised: self-conditioning, routers, norms and scales."""
        if self.is_llama:
            return (2 * len(self.attentions) + 1) * self.hidden
        heads = sum(2 * one.head_dim for one in self.attentions)
        # Seven norms and the router's scale, and two layer scalars, one per pass.
        layer = 8 * self.hidden + self.experts * (self.hidden + 1) + 2
        return heads + layer * len(self.attentions) + 2 * self.hidden + 3 * self.hidden * self.feed_forward

    @property
    def n_weights(self) -> int:
        """The number of all weights."""
        return self.n_embedding + self.n_linear + self.n_experts + self.n_other

    @property
    def kv_per_token(self) -> int:
        """The numbers stored per token as keys and values of all layers; the engine caches full length on every layer."""
        return sum(2 * one.keys for one in self.attentions)

    @property
    def widest(self) -> int:
        """The most numbers held per position at once within a layer, in attention or in the feed-forward."""
        attention = max(3 * one.queries + 2 * one.keys for one in self.attentions)
        return max(attention, 3 * self.feed_forward) + 3 * self.experts_at_once * self.expert_width


# The projections of a layer by their letters in an adapter's names.
PROJECTIONS = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "g": "mlp.gate_proj", "u": "mlp.up_proj", "d": "mlp.down_proj",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LlamaSizes:
    """The sizes of a Llama or Qwen2 model, and the numbers that its passes need. `biases` are names of projections."""

    vocabulary: int
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    tied: bool
    biases: tuple[str, ...] = ()

    @property
    def groups(self) -> int:
        """The number of queries that share a key."""
        return self.heads // self.kv_heads

    def geometry(self) -> Geometry:
        """Return the sizes in the form for all families."""
        attention = Attention(self.heads * self.head_dim, self.kv_heads * self.head_dim, self.head_dim, True)
        return Geometry(
            vocabulary=self.vocabulary,
            hidden=self.hidden,
            feed_forward=self.feed_forward,
            attentions=(attention,) * self.layers,
            window=0,
            experts=0,
            experts_at_once=0,
            expert_width=0,
            canvas=256,
            is_llama=True,
            has_head=not self.tied,
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight by its name in a checkpoint."""
        queries, keys, hidden, inner = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.hidden, self.feed_forward
        matrices = {
            "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }  # fmt: skip
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocabulary, self.hidden)}
        for index in range(self.layers):
            start = f"model.layers.{index}."
            for norm in ("input_layernorm", "post_attention_layernorm"):
                found[f"{start}{norm}.weight"] = (self.hidden,)
            for name, shape in matrices.items():
                found[f"{start}{name}.weight"] = shape
                if name in self.biases:
                    found[f"{start}{name}.bias"] = shape[:1]
        found["model.norm.weight"] = (self.hidden,)
        if not self.tied:
            found["lm_head.weight"] = (self.vocabulary, self.hidden)
        return found


def type_problem(model_type: object) -> str:
    """Return why dg-lsp can't use a model of this `model_type`, as the end of a sentence, or "" if it can."""
    if model_type in MODEL_TYPES:
        return ""
    kinds = f"{', '.join(MODEL_TYPES[:-1])} or {MODEL_TYPES[-1]}"
    return _UNFIT.get(str(model_type), f"a {model_type!r}, not a {kinds}")


def llama_sizes(values: Mapping[str, Any]) -> LlamaSizes:
    """Return the sizes that a Llama or Qwen2 `config.json` describes; raise GeometryError if dg-lsp can't compute them."""

    def number(name: str, default: int | None = None) -> int:
        value = default if values.get(name) is None else values[name]
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise GeometryError(f"its {name} is {value!r}, which is not a size")
        return value

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    inputs = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    is_qwen = values.get("model_type") in ("qwen2", "Dream")
    sizes = LlamaSizes(
        vocabulary=number("vocab_size"),
        hidden=hidden,
        feed_forward=number("intermediate_size"),
        layers=number("num_hidden_layers"),
        heads=heads,
        kv_heads=number("num_key_value_heads", heads),
        head_dim=number("head_dim", hidden // heads),
        eps=_positive(values.get("rms_norm_eps", 1e-6), "rms_norm_eps"),
        theta=_theta(values),
        tied=bool(values.get("tie_word_embeddings", False)),
        biases=inputs if is_qwen else (*inputs, "self_attn.o_proj") if values.get("attention_bias") else (),
    )
    if sizes.heads % sizes.kv_heads or sizes.head_dim % 2:
        raise GeometryError(f"its {heads} heads of {sizes.head_dim} do not fit its {sizes.kv_heads} key and value heads")
    # Each of these changes what a pass computes.
    expected = {"hidden_act": "silu", "mlp_bias": False, "use_sliding_window": False}
    for name, value in expected.items():
        if values.get(name, value) != value:
            raise GeometryError(f"its {name} is {values[name]!r}, which dg-lsp does not compute")
    return sizes


def _theta(values: Mapping[str, Any]) -> float:
    """Return the base of the rotary frequencies, under its old name or its new one."""
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(rope, Mapping) or (kind := rope.get("rope_type", rope.get("type", "default"))) != "default":
        found = kind if isinstance(rope, Mapping) else rope
        raise GeometryError(f"its rotary positions are scaled by {found!r}, which dg-lsp does not compute")
    return _positive(rope.get("rope_theta", values.get("rope_theta", 10_000.0)), "rope_theta")


def _positive(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise GeometryError(f"its {name} is {value!r}, which is not a positive number")
    return float(value)


def of_config(values: Mapping[str, Any]) -> Geometry:
    """Return the sizes that a `config.json`'s values describe; raise GeometryError if they are incomplete or invalid."""
    if values.get("model_type") in LLAMA_TYPES:
        return llama_sizes(values).geometry()
    if values.get("model_type") in _UNFIT:
        raise GeometryError(f"it is {type_problem(values['model_type'])}")
    text = values.get("text_config", values)
    if not isinstance(text, Mapping):
        raise GeometryError("its text_config is not a JSON object")

    def number(name: str, default: int | None = None) -> int:
        value = text.get(name, _DEFAULTS.get(name, default))
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise GeometryError(f"its {name} is {value!r}, which is not a size")
        return value

    experts = number("num_experts", 0) if text.get("num_experts") is not None else 0
    canvas = values.get("canvas_length", 256)
    return Geometry(
        vocabulary=number("vocab_size"),
        hidden=number("hidden_size"),
        feed_forward=number("intermediate_size"),
        attentions=tuple(_attentions(text, number)),
        window=number("sliding_window"),
        experts=experts,
        experts_at_once=number("top_k_experts", 0) if experts else 0,
        expert_width=number("moe_intermediate_size", 0) if experts else 0,
        canvas=canvas if isinstance(canvas, int) else 256,
    )


def _attentions(text: Mapping[str, Any], number: Any) -> Iterator[Attention]:
    """Yield each layer's attention sizes. A full layer may have its own head size and number of heads."""
    n_layers, heads = number("num_hidden_layers"), number("num_attention_heads")
    if not n_layers or not heads:
        raise GeometryError("it has no layers or no heads")
    kinds = text.get("layer_types") or [FULL if (index + 1) % (SLIDING_RUN + 1) == 0 else SLIDING for index in range(n_layers)]
    own = text.get("per_layer_config")
    # transformers writes only the values that differ, by layer number, with or without leading zeros.
    by_layer = {int(key): value for key, value in own.items() if str(key).isdecimal()} if isinstance(own, Mapping) else None
    for index, kind in enumerate([*kinds[: n_layers - 1], FULL]):  # the library always makes the last layer a full one
        head_dim, kv_heads = number("head_dim"), number("num_key_value_heads")
        if by_layer is not None:
            layer = by_layer.get(index) or {}
            head_dim, kv_heads = layer.get("head_dim", head_dim), layer.get("num_key_value_heads", kv_heads)
        elif kind == FULL:
            head_dim = number("global_head_dim", _FULL_HEAD_DIM)
            kv_heads = text.get("num_global_key_value_heads") or kv_heads
        yield Attention(heads * head_dim, kv_heads * head_dim, head_dim, kind == SLIDING)
