"""Compute how much memory a model needs, and choose the precision in which it fits a device, or refuse it with advice.

The choice depends on sizes and on the processor's instructions, never on timing, so that the same machine always gives the
same text. It is made before anything is allocated. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dg_lsp.core.wording import size
from dg_lsp.engine.model.fit.geometry import Geometry as Geometry
from dg_lsp.engine.model.fit.geometry import GeometryError as GeometryError
from dg_lsp.engine.model.fit.geometry import of_config as of_config
from dg_lsp.wire.extras import install_command

Precision = Literal["float32", "bfloat16", "float16", "int8", "fp8", "int4"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "float16", "int8", "fp8", "int4")
QUANTISED: tuple[Precision, ...] = ("fp8", "int4")

VOCABULARY_SLICE = 32_768  # tokens whose probabilities are computed at once; a smaller vocabulary is not sliced
# A position's logits and their parts, in 32 bits, at once: with slices, the logits and half a copy before they are widened;
# without, logits, probabilities, cumulative sums and a mask.
SLICED_COPIES, PLAIN_COPIES = 2, 5
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
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Needs:
    """The bytes that a model needs, by use. `workspace` is what a pass needs whatever its number of rows."""

    weights: int
    workspace: int
    cache: int
    rows: int

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return self.weights + self.workspace + self.cache + self.rows


def needs(geometry: Geometry, precision: Precision, use: Use | None = None) -> Needs:
    """Return the bytes that a model needs in a precision, with one encoded prefix and the rows of one pass."""
    use = use or Use()
    prefix = use.prefix_tokens * geometry.kv_per_token * wide_bytes(precision)
    row = prefix + use.canvas_tokens * canvas_token_bytes(geometry, wide_bytes(precision))
    # Any pass needs one layer's experts at full width, if the experts are quantised.
    workspace = geometry.n_layer_experts * wide_bytes(precision) if precision in QUANTISED else 0
    return Needs(weight_bytes(geometry, precision), workspace, prefix, use.rows * row)


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


def canvas_token_bytes(geometry: Geometry, value_bytes: int) -> int:
    """Return the bytes of one canvas token in a step: its keys and values, the widest layer, and its logits."""
    hidden = (HIDDEN_COPIES * geometry.hidden + geometry.widest) * value_bytes
    return geometry.kv_per_token * value_bytes + hidden + logit_bytes(geometry)


def logit_bytes(geometry: Geometry) -> int:
    """Return the bytes of one position's logits, with all that is computed from them."""
    copies = PLAIN_COPIES if geometry.vocabulary <= VOCABULARY_SLICE else SLICED_COPIES
    return copies * 4 * geometry.vocabulary


SMALL = 20_000_000  # with fewer weights than this, `packed` multiplies in the best format of a CPU
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
        """Whether the device is the CPU."""
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

    `asked` is the user's choice, or "". `stored` is "fp8" if the checkpoint is already quantised.
    """
    if asked:
        precision: Precision = asked  # type: ignore[assignment]  # the caller has validated it
        choice = Choice(precision, CHOSEN, needs(geometry, precision, use))
        if not _is_installed(precision, machine):
            remedy = f"install the packages for it with: {install_command('quant')}"
            raise NoRoomError(f"{model} can't be loaded at {NAMES[precision]}; {remedy}")
        if not _fits(choice.needs, machine):
            raise NoRoomError(_refusal(model, [choice], machine))
        return choice
    rejected: list[Choice] = []
    for precision, why in _precisions(geometry, machine, stored):
        choice = Choice(precision, why, needs(geometry, precision, use))
        is_widened = geometry.n_weights > SMALL and choice.needs.weights > WIDENED_UNASKED
        if machine.is_cpu and precision == "float32" and is_widened:
            raise NoRoomError(
                f"{model} would need {size(choice.needs.weights)} for its weights: this processor has no bfloat16 "
                f"instructions, so they would be kept in 32 bits. {ELSEWHERE} "
                "To load it anyway: engine.dtype = float32, or --dtype float32."
            )
        if _fits(choice.needs, machine) and _is_installed(precision, machine):
            if not rejected or machine.free is None:
                return choice
            before = rejected[-1]
            required, free = size(before.needs.total), size(machine.free)
            why = f"at {NAMES[before.precision]} it needs {required}, and {free} are free on {machine.label}"
            return Choice(precision, why, choice.needs)
        rejected.append(choice)
    raise NoRoomError(_refusal(model, rejected, machine))


def _precisions(geometry: Geometry, machine: Machine, stored_precision: str) -> tuple[tuple[Precision, str], ...]:
    """Return the precisions to try, best first, each with its reason."""
    if stored_precision == "fp8":
        return (("fp8", "the checkpoint is stored in 8 bits"),)
    if geometry.is_llama and not machine.is_cpu:
        return (
            ("bfloat16", "it is the fastest on a GPU, and the weights are published in it"),
            ("int8", "the model does not fit at 16 bits"),
        )
    if not machine.is_cpu:
        return (
            ("bfloat16", "it is the fastest on a GPU, and the weights are published in it"),
            ("fp8", "the model does not fit at 16 bits"),
            ("int4", "the model does not fit at 8 bits"),
        )
    # Quantised weights are widened at every step, which makes a CPU even slower. So they are only used on request.
    if geometry.n_weights <= SMALL:
        return (("float32", "the weights of a small model are kept in 32 bits on a CPU"),)
    if machine.multiplies_bf16:
        return (("bfloat16", "this processor has instructions for it"),)
    return (("float32", "this processor has no bfloat16 instructions"),)


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
            f"{model} fits on {machine.label} only at {NAMES[absent[0].precision]}, and the packages for that are not "
            f"installed. Install them with: {install_command('quant')}. Or serve the model: {VLLM_NVFP4}"
        )
    sentence = (
        f"{model} needs {size(least.needs.total)} at {NAMES[least.precision]} ({size(least.needs.weights)} of weights), and "
        f"{free} are free on {machine.label}. "
    )
    if machine.is_cpu:
        return sentence + ELSEWHERE
    return f"{sentence}Close other programs that use the memory. {ELSEWHERE} On a GPU with 24 GB: {VLLM_NVFP4}"
