"""Choose the precision in which a model runs on a machine and the reason, or refuse it with advice.

The choice depends on sizes and on the processor's instructions, never on timing, so that the same machine always gives the
same text. It is made before anything is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

from dg_lsp.core.wording import size
from dg_lsp.engine.model.fit.geometry import Geometry
from dg_lsp.engine.model.fit.needs import QUANTISED, Needs, Precision, Use, needs
from dg_lsp.wire.extras import install_command

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
