"""Time each stage of the 26B model on a device: python tests/benchmarks/stages.py [SIZE] [DEVICE] [THREADS]

SIZE is `full`, `tiny` or a number of layers. DEVICE is cpu, cuda or auto; 0 threads are torch's default. Prints JSON, with the
least time that the device allows for each stage, and how many times faster a step and a fill are than in transformers.

The model has the real configuration and random weights, created on the device, so nothing is downloaded. Random routing
uses as many experts as possible. The floor of a stage is the longer of two times: reading its weights, keys and values, and
multiplying. Both use the rates that this device reaches in a copy and in a large matrix product. Knows passes and clocks.
Knows nothing of text.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from dg_lsp.engine.model import before_torch  # noqa: F401 -- before torch

# isort: split
import torch

from dg_lsp.cli.evaluate import processor
from dg_lsp.engine.diffusion.denoising.denoise import Denoiser, Row, TokenLimits
from dg_lsp.engine.diffusion.denoising.fixed_step import FixedSteps
from dg_lsp.engine.diffusion.denoising.stack import LocalDecoder
from dg_lsp.engine.diffusion.gemma.passes import Passes, experts
from dg_lsp.engine.diffusion.profile import Sampling
from dg_lsp.engine.model import memory
from dg_lsp.engine.model.prefix_cache import KV
from dg_lsp.engine.model.recording import WARM_UPS, Recorder
from dg_lsp.engine.model.tree import ROOT, Tree
from tests.benchmarks import arguments

FULL_LAYERS = 30
KIND_CYCLE = 6  # every sixth layer attends to the whole prefix
PREFIX, CANVAS, LIBRARY_CANVAS = 2000, 64, 256
STEPS, LIBRARY_STEPS = 12, 48
EXPERT_KERNELS = ("grouped_mm", "batched_mm", "eager")  # the library's; it chooses the first where torch has it
BRIEF = 8  # the number of library steps to time, because all steps take the same time
COPY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Widths:
    """The sizes in a model's configuration; the defaults are those of the 26B model."""

    hidden: int = 2816
    feed_forward: int = 2112
    heads: int = 16
    kv_heads: int = 8
    head: int = 256
    full_kv_heads: int = 2
    full_head: int = 512
    experts: int = 128
    chosen: int = 8
    expert: int = 704
    vocabulary: int = 262_144
    window: int = 1024


TINY = Widths(64, 48, 4, 2, 16, 1, 32, 8, 2, 16, 512, 32)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage's median time and the least time that the device allows, in milliseconds."""

    name: str
    ms: float
    floor_ms: float

    @property
    def times_floor(self) -> float:
        """The stage's time as a multiple of its floor."""
        return self.ms / self.floor_ms if self.floor_ms else 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """All measurements: the stages, and the steps and fills of the engine and of the library."""

    stages: tuple[Stage, ...]
    our_step_ms: float
    library_step_ms: float
    our_fill_ms: float
    library_fill_ms: float
    gigabytes_per_second: float
    teraflops: float

    @property
    def speedup_equal_steps(self) -> float:
        """How many times faster our step is than a step of the library's `generate`."""
        return self.library_step_ms / self.our_step_ms

    @property
    def speedup_default(self) -> float:
        """How many times faster our fill is than the library's with its default steps and canvas."""
        return self.library_fill_ms / self.our_fill_ms


class SizeError(Exception):
    """A model of this size cannot be timed; the message says why."""


def measure_size(size: str, device: str, threads: int) -> tuple[Measured, str]:
    """Return the times of the model that a size names, and the device it ran on; raise SizeError.

    A size is `full`, `tiny` or a number of layers. The device `auto` is a GPU if there is one. `threads` limits a CPU.
    """
    if size not in ("full", "tiny") and not (size.isdecimal() and 1 <= int(size) <= FULL_LAYERS):
        raise SizeError(f"unknown size {size!r}; give full, tiny, or a number of layers up to {FULL_LAYERS}")
    place = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if threads:
        torch.set_num_threads(threads)
    is_tiny = size == "tiny"
    layers = 2 if is_tiny else FULL_LAYERS if size == "full" else int(size)
    try:
        return measure(TINY if is_tiny else Widths(), layers, place, prefix=64 if is_tiny else PREFIX), place
    except RuntimeError as error:  # for example too little memory
        reason = str(error).strip().split("\n")[0]
        raise SizeError(f"{layers} layers do not run on {place} ({reason}); give fewer") from error


def measure(widths: Widths, layers: int, device: str, *, prefix: int = PREFIX, repeats: int = 5) -> Measured:
    """Return the measurements of a model with `layers` layers on a device. Raises RuntimeError if memory is too small."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model = build(widths, layers, device, dtype)
    clock = _Clock(device, repeats)
    bandwidth, flops = _rates(device, dtype, widths)
    floor = _Floor(widths, layers, model.lm_head.weight.element_size(), bandwidth, flops)
    with torch.inference_mode():
        stages, step, fill = _ours(Passes(model), clock, floor, device, prefix)
        library = [_library(model, clock, device, prefix, steps) for steps in (1, BRIEF + 1)]
    library_step = (library[1] - library[0]) / BRIEF
    return Measured(
        tuple(stages), step, library_step, fill, library[0] + (LIBRARY_STEPS - 1) * library_step, bandwidth / 1e9, flops / 1e12
    )


def build(widths: Widths, layers: int, device: str, dtype: torch.dtype) -> Any:
    """Return a model of the library's class with random weights, created on the device."""
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion
    from transformers import DiffusionGemmaTextConfig as TextConfig
    from transformers import Gemma4VisionConfig as VisionConfig

    kinds = ["full_attention" if layer % KIND_CYCLE == KIND_CYCLE - 1 else "sliding_attention" for layer in range(layers)]
    kinds[-1] = "full_attention"  # the library's class requires this
    text = TextConfig(
        vocab_size=widths.vocabulary, hidden_size=widths.hidden, intermediate_size=widths.feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=widths.heads, num_key_value_heads=widths.kv_heads, head_dim=widths.head,
        num_global_key_value_heads=widths.full_kv_heads, global_head_dim=widths.full_head, sliding_window=widths.window,
        layer_types=kinds, num_experts=widths.experts, top_k_experts=widths.chosen, moe_intermediate_size=widths.expert,
        pad_token_id=0, eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    vision = VisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=8,
        global_head_dim=8, position_embedding_size=1, patch_size=1, pooling_kernel_size=1,
    )  # fmt: skip
    config = DiffusionGemmaConfig(
        text_config=text, vision_config=vision, canvas_length=LIBRARY_CANVAS, boi_token_id=3, eoi_token_id=4, image_token_id=5
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model: Any = DiffusionGemmaForBlockDiffusion(config)
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.02)
    return model.eval().requires_grad_(False)


class _Clock:
    """Measures the median time of work on a device."""

    def __init__(self, device: str, repeats: int) -> None:
        self._device, self._repeats = device, repeats

    def ms(self, work: Callable[[], object]) -> float:
        """Return the median milliseconds of the work, after one warm-up run."""
        work()
        times = []
        for _ in range(self._repeats):
            self._wait()
            began = time.perf_counter()
            work()
            self._wait()
            times.append((time.perf_counter() - began) * 1000)
        return statistics.median(times)

    def _wait(self) -> None:
        if self._device.startswith("cuda"):
            torch.cuda.synchronize()


@dataclass(frozen=True, slots=True)
class _Floor:
    widths: Widths
    layers: int
    size: int  # bytes of a weight
    bandwidth: float
    flops: float

    def experts_ms(self, tokens: int) -> float:
        """Return the floor in milliseconds of one layer's experts for some tokens."""
        widths, one_expert = self.widths, 3 * self.widths.hidden * self.widths.expert
        touched = widths.experts * (1 - (1 - widths.chosen / widths.experts) ** tokens)
        multiplied = 2 * tokens * widths.chosen * one_expert
        return max(touched * one_expert * self.size / self.bandwidth, multiplied / self.flops) * 1000

    def ms(self, tokens: int, rows: int, prefix: int, *, predicted: int) -> float:
        """Return the floor in milliseconds of a pass over `rows` rows of `tokens` tokens, with `predicted` tokens' logits."""
        widths, total = self.widths, tokens * rows
        touched = widths.experts * (1 - (1 - widths.chosen / widths.experts) ** total)
        n_full = max(1, self.layers // KIND_CYCLE)
        sliding = widths.hidden * widths.head * (2 * widths.heads + 2 * widths.kv_heads)
        full = widths.hidden * widths.full_head * (2 * widths.heads + widths.full_kv_heads)
        attention = (self.layers - n_full) * sliding + n_full * full
        dense = attention + self.layers * 3 * widths.hidden * widths.feed_forward
        one_expert = 3 * widths.hidden * widths.expert
        head = widths.hidden * widths.vocabulary * (predicted > 0)
        near = min(prefix, widths.window)
        keys = 2 * (
            (self.layers - n_full) * near * widths.kv_heads * widths.head
            + n_full * prefix * widths.full_kv_heads * widths.full_head
        )
        n_bytes = (dense + self.layers * touched * one_expert + head + keys) * self.size
        scores = (
            4
            * total
            * widths.heads
            * ((self.layers - n_full) * (near + tokens) * widths.head + n_full * (prefix + tokens) * widths.full_head)
        )
        multiplied = (
            2 * total * (dense + self.layers * widths.chosen * one_expert)
            + 2 * predicted * widths.hidden * widths.vocabulary
            + scores
        )
        return max(n_bytes / self.bandwidth, multiplied / self.flops) * 1000


def _ours(passes: Passes, clock: _Clock, floor: _Floor, device: str, prefix: int) -> tuple[list[Stage], float, float]:
    """Return our stages, the milliseconds of one step, and those of a whole fill on an encoded prefix."""
    n_tokens = passes.config.vocab_size
    ids = torch.randint(10, n_tokens, (1, prefix), device=device)
    kv = passes.encode(ids)[1]
    stages = [
        Stage(f"prefix of {prefix} tokens", clock.ms(lambda: passes.encode(ids)), floor.ms(prefix, 1, 0, predicted=0)),
        Stage("one drafted token", clock.ms(lambda: _drafted(passes, kv)), floor.ms(1, 1, prefix, predicted=1)),
        Stage(
            f"scores of {CANVAS} tokens", clock.ms(lambda: _scored(passes, kv)), floor.ms(CANVAS, 1, prefix, predicted=CANVAS)
        ),
    ]
    ways = _ways(passes, device)
    for rows, width in ((1, CANVAS), (4, CANVAS), (1, LIBRARY_CANVAS)):
        least = floor.ms(width, rows, prefix, predicted=rows * width)
        for way, fixed in ways.items():
            ms = clock.ms(_stepping(passes, kv, device, [width] * rows, fixed))
            stages.append(Stage(f"step of {rows} x {width}{way}", ms, least))
    used = list(ways)[-1] if device.startswith("cuda") else ""  # the way in which the engine steps on this device
    step = next(stage.ms for stage in stages if stage.name == f"step of 1 x {LIBRARY_CANVAS}{used}")
    fills = {way: clock.ms(lambda fixed=fixed: _filled(passes, kv, device, fixed)) for way, fixed in ways.items()}  # type: ignore[misc]
    least = STEPS * floor.ms(CANVAS, 1, prefix, predicted=CANVAS)
    stages += [Stage(f"fill of {STEPS} steps of 1 x {CANVAS}{way}", ms, least) for way, ms in fills.items()]
    return [*stages, *_experts(passes, clock, floor, device)], step, fills[used]


def _ways(passes: Passes, device: str) -> dict[str, FixedSteps | None]:
    """Return the ways to take a step, by the suffix of their stages' names; None: outside of fixed buffers.

    The flags of the last way are read one step late.
    """
    cost, is_cuda = memory.cost(passes), device.startswith("cuda")

    def fixed(recorder: Recorder | None, lag: int) -> FixedSteps:
        return FixedSteps(passes, cost, lambda: memory.free_bytes(device), recorder=recorder, lag=lag)

    ways: dict[str, FixedSteps | None] = {"": None, ", in fixed buffers": fixed(None, 0)}
    if is_cuda:
        ways[", recorded"] = fixed(Recorder(), 0)
        ways[", recorded, late flags"] = fixed(Recorder(), 1)
    return ways


def _experts(passes: Passes, clock: _Clock, floor: _Floor, device: str) -> list[Stage]:
    """Return the time of one layer's experts with each of the library's kernels that runs on the device."""
    model, layer = passes.model, passes.decoder.layers[0]
    hidden = torch.randn(1, CANVAS, floor.widths.hidden, device=device, dtype=model.lm_head.weight.dtype)
    before, stages = model.config._experts_implementation, []
    try:
        for kernel in EXPERT_KERNELS:
            try:
                model.set_experts_implementation(kernel)
                ms = clock.ms(lambda: experts(layer, hidden))
            except (RuntimeError, ValueError, ImportError):  # this torch or this device does not have it
                continue
            stages.append(Stage(f"experts of a layer, {CANVAS} tokens, {kernel}", ms, floor.experts_ms(CANVAS)))
    finally:
        model.set_experts_implementation(before)
    return stages


def _tree_of(passes: Passes, kv: KV, n_tokens: int) -> torch.Tensor:
    """Return the hidden states of a path of new tokens."""
    tree = Tree(passes, kv, 10, torch.zeros(passes.config.hidden_size, device=kv[0][0].device))
    return tree.hidden(tree.grow([(ROOT, [10] * n_tokens)])[0])


def _drafted(passes: Passes, kv: KV) -> torch.Tensor:
    return passes.logits(_tree_of(passes, kv, 1)).argmax(-1)


def _scored(passes: Passes, kv: KV) -> torch.Tensor:
    return passes.logits(_tree_of(passes, kv, CANVAS)).logsumexp(-1)


def _denoiser(passes: Passes, device: str, widths: Sequence[int], steps: int) -> Denoiser:
    n_tokens = passes.config.vocab_size
    rows = [Row((10,) * width, (True,) * width, steps, seed=number) for number, width in enumerate(widths)]
    return Denoiser(rows, TokenLimits(tuple(range(10, n_tokens))), Sampling(stop_entropy=0.0), n_tokens, device)


def _stepping(
    passes: Passes, kv: KV, device: str, widths: Sequence[int], fixed: FixedSteps | None = None
) -> Callable[[], None]:
    """Return a function that takes one denoising step per call. A step that is recorded is so before the first call."""
    denoiser, decoder = _denoiser(passes, device, widths, 1 << 20), LocalDecoder(passes, kv)
    step = _one_step(denoiser, decoder, fixed)
    for _ in range(WARM_UPS if fixed is not None else 0):
        step()
    return step


def _one_step(denoiser: Denoiser, decoder: LocalDecoder, fixed: FixedSteps | None) -> Callable[[], None]:
    def step() -> None:
        if fixed is None or not fixed.step(denoiser, decoder, denoiser.running):
            denoiser.step(decoder)

    return step


def _filled(passes: Passes, kv: KV, device: str, fixed: FixedSteps | None) -> None:
    denoiser, decoder = _denoiser(passes, device, [CANVAS], STEPS), LocalDecoder(passes, kv)
    step = _one_step(denoiser, decoder, fixed)
    while not denoiser.done:
        step()
    denoiser.read(0)


def _library(model: Any, clock: _Clock, device: str, prefix: int, steps: int) -> float:
    """Return the milliseconds of the library's `generate` for one canvas with `steps` steps."""
    ids = torch.randint(10, model.config.text_config.vocab_size, (1, prefix), device=device)
    return clock.ms(
        lambda: model.generate(
            ids,
            max_new_tokens=LIBRARY_CANVAS,
            max_denoising_steps=steps,
            eos_token_id=None,
            stability_threshold=steps + 1,
            confidence_threshold=1e-9,
        )
    )


def _rates(device: str, dtype: torch.dtype, widths: Widths) -> tuple[float, float]:
    """Return the bytes per second of a copy (read and written), and the operations per second of a matrix product."""
    clock = _Clock(device, 5)
    n_bytes = COPY_BYTES if device != "cpu" else COPY_BYTES // 16
    source = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * n_bytes / clock.ms(lambda: target.copy_(source)) * 1000
    side = 8192 if device != "cpu" else 1024
    square = torch.zeros(side, side, dtype=dtype, device=device)
    return copied, 2 * side**3 / clock.ms(lambda: square @ square) * 1000


def as_object(measured: Measured, size: str, device: str) -> dict[str, object]:
    """Return the measurements as an object for JSON."""
    figures = {name: value for name, value in asdict(measured).items() if name != "stages"}
    return {
        "processor": processor(),
        "device": device,
        "size": size,
        "speedup_equal_steps": round(measured.speedup_equal_steps, 2),
        "speedup_default": round(measured.speedup_default, 2),
        **figures,
        "stages": [{**asdict(stage), "times_floor": stage.times_floor} for stage in measured.stages],
    }


def main(size: str, device: str, threads: int) -> int:
    try:
        measured, place = measure_size(size, device, threads)
    except SizeError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    print(json.dumps(as_object(measured, size, place), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(*arguments.parsed(__doc__, size="full", device="auto", threads=0)))
