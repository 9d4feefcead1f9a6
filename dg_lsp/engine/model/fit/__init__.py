"""Compute how much memory a model needs, from its `config.json`, and choose the precision in which it fits a device.

The choice depends on sizes and on the processor's instructions, never on timing, so that the same machine always gives the
same text. It is made before anything is allocated. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

from dg_lsp.core.wording import size
from dg_lsp.wire.extras import install_command

Precision = Literal["float32", "bfloat16", "float16", "int8", "fp8", "int4"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "float16", "int8", "fp8", "int4")
QUANTISED: tuple[Precision, ...] = ("fp8", "int4")

VOCABULARY_SLICE = 32_768  # tokens whose probabilities are computed at once
LOGIT_COPIES = 2  # of logits in 32 bits at once: they and half a copy before they are widened, or the parts of a slice
HIDDEN_COPIES = 8  # copies of a position's hidden state during a layer
FP8_SCALE_BYTES = 4  # per row
INT8_SCALE_BYTES = 12  # per row: a scale, and the zero point that oneDNN asks for
# NF4: 64 weights share one 8-bit scale, and 256 scales share one 32-bit scale.
INT4_BYTES = 1 / 2 + 1 / 64 + 4 / (64 * 256)


@dataclass(frozen=True, slots=True)
class Use:
    """The size of a request, in tokens."""

    prefix_tokens: int = 7168  # the default profile's prefix and suffix
    canvas_tokens: int = 256


@dataclass(frozen=True, slots=True)
class Needs:
    """The bytes that a model needs, by use. `workspace` is what any pass needs, and `row` what one canvas needs."""

    weights: int
    workspace: int
    cache: int
    row: int

    @property
    def total(self) -> int:
        return self.weights + self.workspace + self.cache + self.row


def needs(geometry: Geometry, precision: Precision, use: Use | None = None) -> Needs:
    """Return the bytes that a model needs in a precision, with one encoded prefix and one row."""
    use, cost = use or Use(), Cost.of(geometry, wide_bytes(precision))
    # Any pass needs one layer's experts at full width, if the experts are quantised.
    workspace = geometry.n_layer_experts * wide_bytes(precision) if precision in QUANTISED else 0
    row = cost.row(use.prefix_tokens, use.canvas_tokens)
    return Needs(weight_bytes(geometry, precision), workspace, use.prefix_tokens * cost.prefix_token, row)


@dataclass(frozen=True, slots=True)
class Cost:
    """The bytes of one token: for a prefix, its keys and values; for a canvas, everything a step needs.

    `logit_token` is the part of `canvas_token` for the logits, with all that is computed from them.
    """

    prefix_token: int
    canvas_token: int
    logit_token: int = 0

    @classmethod
    def of(cls, geometry: Geometry, value_bytes: int) -> Cost:
        """Return the cost of a model whose numbers have so many bytes during computation."""
        prefix = geometry.kv_per_token * value_bytes
        logits = 4 * geometry.vocabulary * LOGIT_COPIES
        return cls(prefix, prefix + (HIDDEN_COPIES * geometry.hidden + geometry.widest) * value_bytes + logits, logits)

    def row(self, prefix_tokens: int, canvas_tokens: int) -> int:
        """Return the bytes of one row in a pass: a copy of its prefix's keys and values, its canvas and its logits."""
        return prefix_tokens * self.prefix_token + canvas_tokens * self.canvas_token


def wide_bytes(precision: Precision) -> int:
    """Return the bytes of one number during computation; 8-bit integers give 32 bits, other quantised weights 16."""
    return 4 if precision in ("float32", "int8") else 2


def weight_bytes(geometry: Geometry, precision: Precision) -> int:
    """Return the bytes of all weights. The embedding, the routers and the norms are quantised in int8 at most."""
    if precision == "int8":  # the embedding is in memory twice: for its rows, and for the products of the head
        n_tied = 0 if geometry.has_head else geometry.n_embedding
        n_rows = geometry.n_linear_rows + 2 * geometry.vocabulary
        return geometry.n_embedding + n_tied + geometry.n_linear + INT8_SCALE_BYTES * n_rows + 4 * geometry.n_other
    wide = (geometry.n_embedding + geometry.n_other) * wide_bytes(precision)
    n_narrow = geometry.n_linear + geometry.n_experts
    match precision:
        case "fp8":
            return wide + n_narrow + FP8_SCALE_BYTES * (geometry.n_linear_rows + geometry.n_expert_rows)
        case "int4":
            return wide + round(n_narrow * INT4_BYTES)
    return wide + n_narrow * wide_bytes(precision)


SMALL = 20_000_000  # with fewer weights than this, a processor keeps them in 32 bits
WIDENED_UNASKED = 16_000_000_000  # most bytes for weights stored in 16 bits and widened to 32, unless the user asks
USABLE = 0.97  # share of the free memory, because allocators round up
CHOSEN = "you selected it"
VLLM_NVFP4 = (
    "vllm serve nvidia/diffusiongemma-26B-A4B-it-NVFP4 "
    """--diffusion-config '{"canvas_length":64,"max_denoising_steps":16}' """
    "--max-num-seqs 4 --max-model-len 8192 --max-logprobs 20"
)
ELSEWHERE = "Choose the embedded model, or a server (engine.model = vllm:URL)."
NAMES = {"float32": "32 bits", "bfloat16": "16 bits", "float16": "16 bits", "int8": "8 bits", "fp8": "8 bits", "int4": "4 bits"}


class NoRoomError(Exception):
    """A model does not fit; the message says how much it needs, how much is free, and what to do."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The device for a model. `free` is in bytes, None if unknown; `installed` are the quantised precisions that can load."""

    kind: str
    free: int | None
    name: str = ""
    multiplies_bf16: bool = True
    installed: tuple[Precision, ...] = QUANTISED

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"

    @property
    def label(self) -> str:
        """The device's name in messages."""
        return self.name or ("this machine" if self.is_cpu else self.kind)


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen precision, the reason, and the bytes it needs."""

    precision: Precision
    why: str
    needs: Needs


def choose(
    model: str, geometry: Geometry, machine: Machine, *, asked: str = "", stored: str = "", use: Use | None = None
) -> Choice:
    """Return the precision in which to load `model`; raise NoRoomError if it fits in none.

    `asked` is the user's valid choice, or "". `stored` is "fp8" if the checkpoint is already quantised.
    """
    rejected: list[Choice] = []
    tried = [(cast("Precision", asked), CHOSEN)] if asked else _precisions(geometry, machine, stored)
    for precision, why in tried:
        choice = Choice(precision, why, needs(geometry, precision, use))
        is_widened = geometry.n_weights > SMALL and choice.needs.weights > WIDENED_UNASKED
        if machine.is_cpu and precision == "float32" and is_widened and not asked:
            raise NoRoomError(
                f"{model} would need {size(choice.needs.weights)} for its weights: this processor has no bfloat16 "
                f"instructions, so they would be kept in 32 bits. {ELSEWHERE} "
                "To load it anyway: engine.dtype = float32, or --dtype float32."
            )
        if _fits(choice.needs, machine) and _is_installed(precision, machine):
            if not rejected:
                return choice
            before, free = rejected[-1], size(machine.free or 0)
            why = f"at {NAMES[before.precision]} it needs {size(before.needs.total)}, and {free} are free on {machine.label}"
            return replace(choice, why=why)
        rejected.append(choice)
    raise NoRoomError(_refusal(model, rejected, machine))


def _precisions(geometry: Geometry, machine: Machine, stored: str) -> list[tuple[Precision, str]]:
    """Return the precisions to try, best first, each with its reason; `choose` gives that of one after the first."""
    if stored == "fp8":
        return [("fp8", "the checkpoint is stored in 8 bits")]
    if not machine.is_cpu:
        widest: tuple[Precision, str] = ("bfloat16", "it is the fastest on a GPU, and the weights are published in it")
        return [widest, ("int8", "")] if geometry.is_llama else [widest, ("fp8", ""), ("int4", "")]
    # Quantised weights are widened at every step, which makes a CPU even slower. So they are only used on request.
    if geometry.n_weights <= SMALL:
        return [("float32", "the weights of a small model are kept in 32 bits on a CPU")]
    if machine.multiplies_bf16:
        return [("bfloat16", "this processor has instructions for it")]
    return [("float32", "this processor has no bfloat16 instructions")]


def _fits(required: Needs, machine: Machine) -> bool:
    return machine.free is None or required.total <= machine.free * USABLE


def _is_installed(precision: Precision, machine: Machine) -> bool:
    return precision not in QUANTISED or precision in machine.installed


def _refusal(model: str, rejected: list[Choice], machine: Machine) -> str:
    least = min(rejected, key=lambda choice: choice.needs.total)
    free = size(machine.free or 0)
    absent = [one for one in rejected if _fits(one.needs, machine) and not _is_installed(one.precision, machine)]
    if absent:
        return (
            f"{model} fits on {machine.label} at {NAMES[absent[0].precision]}, but the packages for that are not installed. "
            f"Install them with: {install_command('quant')}. Or serve the model: {VLLM_NVFP4}"
        )
    sentence = (
        f"{model} needs {size(least.needs.total)} at {NAMES[least.precision]} ({size(least.needs.weights)} of weights), and "
        f"{free} are free on {machine.label}. "
    )
    if machine.is_cpu:
        return sentence + ELSEWHERE
    return f"{sentence}Close other programs that use the memory. {ELSEWHERE} On a GPU with 24 GB: {VLLM_NVFP4}"


# --- The sizes of a model, from its configuration alone


FULL, SLIDING = "full_attention", "sliding_attention"
SLIDING_RUN = 5  # sliding layers before each full one, unless the configuration lists the layer types
# The defaults of transformers' configuration class for missing keys.
_DEFAULTS = {
    "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256,
}  # fmt: skip
_FULL_HEAD_DIM = 512


SOFTCAP = 30.0  # of a DiffusionGemma's logits
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
    experts: int = 0
    experts_at_once: int = 0
    expert_width: int = 0
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
        return len(self.attentions) * self.experts * (2 * self.expert_width + self.hidden)

    @property
    def n_experts(self) -> int:
        return len(self.attentions) * self.n_layer_experts

    @property
    def n_layer_experts(self) -> int:
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


LLAMA_NORMS = ("input_layernorm", "post_attention_layernorm")
GEMMA_NORMS = (
    *LLAMA_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2",
    "post_feedforward_layernorm",
)  # fmt: skip
# The projections of a layer by their letters in an adapter's names.
PROJECTIONS = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "g": "mlp.gate_proj", "u": "mlp.up_proj", "d": "mlp.down_proj",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GemmaLayer:
    """What differs between the layers of a DiffusionGemma: the rotation, of a share of each head, and whose values are keys."""

    theta: float
    turned: float
    has_values: bool


@dataclass(frozen=True, slots=True)
class LlamaSizes:
    """The sizes of a Llama or Qwen2 model, and the numbers that its passes need. `biases` are names of projections.

    `gemma` has the layers of a DiffusionGemma whose encoder is used as such a model, and is empty for any other.
    """

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
    gemma: tuple[GemmaLayer, ...] = ()

    @property
    def groups(self) -> int:
        """The number of queries that share a key."""
        return self.heads // self.kv_heads

    def geometry(self) -> Geometry:
        attention = Attention(self.heads * self.head_dim, self.kv_heads * self.head_dim, self.head_dim, True)
        return Geometry(
            self.vocabulary,
            self.hidden,
            self.feed_forward,
            attentions=(attention,) * self.layers,
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
        model = "model.decoder." if self.gemma else "model."
        found: dict[str, tuple[int, ...]] = {f"{model}embed_tokens.weight": (self.vocabulary, self.hidden)}
        for index in range(self.layers):
            start = f"{model}layers.{index}."
            for norm in GEMMA_NORMS if self.gemma else LLAMA_NORMS:
                found[f"{start}{norm}.weight"] = (self.hidden,)
            if self.gemma:
                found[f"{start}self_attn.q_norm.weight"] = found[f"{start}self_attn.k_norm.weight"] = (self.head_dim,)
                found[f"model.encoder.language_model.layers.{index}.layer_scalar"] = (1,)
            for name, shape in matrices.items():
                if self.gemma and name == "self_attn.v_proj" and not self.gemma[index].has_values:
                    continue
                found[f"{start}{name}.weight"] = shape
                if name in self.biases:
                    found[f"{start}{name}.bias"] = shape[:1]
        found[f"{model}norm.weight"] = (self.hidden,)
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
    number = partial(_size, {name: value for name, value in values.items() if value is not None})
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


def gemma_sizes(values: Mapping[str, Any]) -> LlamaSizes:
    """Return the sizes of the encoder that a DiffusionGemma's `config.json` describes, as those of a causal model.

    Raises GeometryError if it is not small and dense: its layers must have heads of one size and see all that is before them.
    """
    shape, text = of_config(values), {**_DEFAULTS, **values.get("text_config", values)}
    number, first = partial(_size, text), shape.attentions[0]
    if any((one.queries, one.keys, one.head_dim) != (first.queries, first.keys, first.head_dim) for one in shape.attentions):
        raise GeometryError("its layers have heads of several sizes, so its encoder is no causal model for dg-lsp")
    # Each of these changes what a pass computes.
    expected = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "final_logit_softcapping": SOFTCAP}
    for name, value in expected.items():
        if text.get(name, value) != value:
            raise GeometryError(f"its {name} is {text[name]!r}, which dg-lsp does not compute")
    if number("sliding_window") < number("max_position_embeddings"):
        raise GeometryError("its window is shorter than a text may be, so its encoder is no causal model for dg-lsp")
    ropes, layers = text.get("rope_parameters") or {}, list[GemmaLayer]()
    for one in shape.attentions:
        rope = ropes.get(SLIDING if one.has_values else FULL) or {}
        theta, turned = rope.get("rope_theta"), rope.get("partial_rotary_factor", 1.0)
        layers.append(GemmaLayer(_positive(theta, "rope_theta"), _positive(turned, "partial_rotary_factor"), one.has_values))
    return LlamaSizes(
        shape.vocabulary,
        shape.hidden,
        shape.feed_forward,
        layers=len(layers),
        heads=first.queries // first.head_dim,
        kv_heads=first.keys // first.head_dim,
        head_dim=first.head_dim,
        eps=_positive(text.get("rms_norm_eps", 1e-6), "rms_norm_eps"),
        theta=layers[0].theta,
        tied=True,
        gemma=tuple(layers),
    )


def _size(values: Mapping[str, Any], name: str, default: int | None = None, *, least: int = 1) -> int:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise GeometryError(f"its {name} is {value!r}, which is not a size")
    return value


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
    number = partial(_size, {**_DEFAULTS, **text}, least=0)
    experts = number("num_experts", 0) if text.get("num_experts") is not None else 0
    return Geometry(
        vocabulary=number("vocab_size"),
        hidden=number("hidden_size"),
        feed_forward=number("intermediate_size"),
        attentions=tuple(_attentions(text, number)),
        experts=experts,
        experts_at_once=number("top_k_experts", 0) if experts else 0,
        expert_width=number("moe_intermediate_size", 0) if experts else 0,
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
