"""Time each stage of the 26B model on a device: python benchmarks/stages.py [SIZE] [DEVICE] [THREADS] [PRECISION]

SIZE is `full`, `tiny` or a number of layers. DEVICE is cpu, cuda or auto; 0 threads are torch's default. PRECISION is `wide`,
or `fp8` for matrices in 8 bits. Each stage is a line on stderr when it ends. Prints JSON, with the least time that the device
allows for each stage.

The model has the real configuration and random weights, created on the device, so nothing is downloaded. Random routing
uses as many experts as possible. The floor of a stage is the longer of two times: reading its weights, keys and values, and
multiplying. Both use the rates that this device reaches in a copy and in a large matrix product. Knows passes and clocks.
Knows nothing of text.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from dg_lsp.engine.model import before_torch  # noqa: F401 -- before torch
from dg_lsp.engine.model.kv import KV
from dg_lsp.engine.model.recording import Buffers
from dg_lsp.engine.model.room import Room

# isort: split
import torch

from benchmarks import arguments
from dg_lsp.engine.diffusion.denoise import Denoiser, Row, TokenLimits
from dg_lsp.engine.diffusion.fixed_step import FixedSteps
from dg_lsp.engine.diffusion.gemma import weights
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.layout import Sampling
from dg_lsp.engine.model import memory
from dg_lsp.engine.model.recording import WARM_UPS, Recorder
from dg_lsp.engine.model.tree import ROOT, Tree

FULL_LAYERS = 30
KIND_CYCLE = 6  # every sixth layer attends to the whole prefix
PREFIX, CANVAS, LONG_CANVAS = 2000, 64, 256
STEPS = 12
COPY_BYTES = 1 << 30
WIDE = "wide"  # the precision of 32 bits on a CPU, and of 16 on a GPU


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
    """All measurements: the stages, and the rates of the device."""

    stages: tuple[Stage, ...]
    gigabytes_per_second: float
    teraflops: float


class SizeError(Exception):
    """A model of this size cannot be timed; the message says why."""


def measure_size(size: str, device: str, threads: int, precision: str = WIDE) -> tuple[Measured, str]:
    """Return the times of the model that a size names, and the device it ran on; raise SizeError.

    A size is `full`, `tiny` or a number of layers. The device `auto` is a GPU if there is one. `threads` limits a CPU.
    """
    if precision not in (WIDE, "fp8"):
        raise SizeError(f"unknown precision {precision!r}; give {WIDE} or fp8")
    if size not in ("full", "tiny") and not (size.isdecimal() and 1 <= int(size) <= FULL_LAYERS):
        raise SizeError(f"unknown size {size!r}; give full, tiny, or a number of layers up to {FULL_LAYERS}")
    place = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if threads:
        torch.set_num_threads(threads)
    is_tiny = size == "tiny"
    layers = 2 if is_tiny else FULL_LAYERS if size == "full" else int(size)
    try:
        widths, prefix = TINY if is_tiny else Widths(), 64 if is_tiny else PREFIX
        return measure(widths, layers, place, precision, prefix=prefix), place
    except RuntimeError as error:  # for example too little memory
        reason = str(error).strip().split("\n")[0]
        raise SizeError(f"{layers} layers do not run on {place} ({reason}); give fewer") from error


def measure(
    widths: Widths, layers: int, device: str, precision: str = WIDE, *, prefix: int = PREFIX, repeats: int = 5
) -> Measured:
    """Return the measurements of a model with `layers` layers on a device. Raises RuntimeError if memory is too small."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model = build(widths, layers, device, dtype, precision)
    clock = Clock(device, repeats)
    bandwidth, flops = rates(device, dtype, widths)
    size = model.lm_head.weight.element_size()
    floor = _Floor(widths, layers, size if precision == WIDE else 1, size, bandwidth, flops)
    with torch.inference_mode():
        stages = _stages(Passes(model), clock, floor, device, prefix)
    return Measured(tuple(stages), bandwidth / 1e9, flops / 1e12)


def build(widths: Widths, layers: int, device: str, dtype: torch.dtype, precision: str = WIDE) -> Any:
    """Return a model of the library's class with random weights, created on the device, its matrices in `precision`.

    Encoder and decoder are tied before their weights are made. The library's class makes both, and then drops one.
    """
    from transformers import DiffusionGemmaConfig
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
        text_config=text, vision_config=vision, canvas_length=LONG_CANVAS, boi_token_id=3, eoi_token_id=4, image_token_id=5
    )
    model = weights.build(config, dtype)
    templates, names = model.state_dict(keep_vars=True), dict[str, list[str]]()
    for name, first in weights.aliases(model).items():
        names.setdefault(first, []).append(name)
    for first, own in names.items():
        template = templates[first]
        value = torch.empty(template.shape, dtype=template.dtype, device=device)
        value = value.normal_(0, 0.02) if value.ndim > 1 else value.fill_(1)
        weights.attach(model, own, value, "fp8" if precision == "fp8" else "bfloat16", dtype, tuple(value.shape))
    weights.fill_buffers(model, device)
    return model.eval().requires_grad_(False)


class Clock:
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
    matrix_size: int  # bytes of a number in the layers' matrices
    size: int  # and elsewhere
    bandwidth: float
    flops: float

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
        n_bytes = (dense + self.layers * touched * one_expert) * self.matrix_size + (head + keys) * self.size
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


class _Stages:
    """The stages so far. Each is printed when it ends, so that a later failure loses none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.done: list[Stage] = []

    def add(self, name: str, work: Callable[[], object], floor_ms: float) -> None:
        """Time a stage."""
        stage = Stage(name, self._clock.ms(work), floor_ms)
        self.done.append(stage)
        sys.stderr.write(f"{name:44} {stage.ms:9.2f} ms  floor {floor_ms:8.2f}  x{stage.times_floor:.2f}\n")
        sys.stderr.flush()


def _stages(passes: Passes, clock: Clock, floor: _Floor, device: str, prefix: int) -> list[Stage]:
    n_tokens, stages = passes.config.vocab_size, _Stages(clock)
    ids = torch.randint(10, n_tokens, (prefix,)).tolist()
    room = Room(passes, prefix)
    room.read(ids)
    kv = room.kv
    ways = _ways(passes, device)
    for rows, width in ((1, CANVAS), (1, LONG_CANVAS), (4, CANVAS)):
        least = floor.ms(width, rows, prefix, predicted=rows * width)
        for way, fixed in ways.items():
            stages.add(f"step of {rows} x {width}{way}", _stepping(passes, kv, device, [width] * rows, fixed), least)
    stages.add(f"prefix of {prefix} tokens", lambda: Room(passes, prefix).read(ids), floor.ms(prefix, 1, 0, predicted=0))
    _continue(passes, kv, stages, floor, prefix, "")
    if device.startswith("cuda"):
        free = partial(memory.free_bytes, device)
        passes.buffers = Buffers(passes, free, Recorder("drafts and scores"))
        _continue(passes, kv, stages, floor, prefix, ", recorded")
        passes.buffers = None
    least = STEPS * floor.ms(CANVAS, 1, prefix, predicted=CANVAS)
    for way, fixed in ways.items():
        fill = partial(_filled, passes, kv, device, fixed)
        stages.add(f"fill of {STEPS} steps of 1 x {CANVAS}{way}", fill, least)
    return stages.done


def _continue(passes: Passes, kv: KV, stages: _Stages, floor: _Floor, prefix: int, way: str) -> None:
    """Time a drafted token and a text to score, each a new branch of one tree."""
    room = Room(passes, prefix)
    room.add(kv)
    tree = Tree(room, 10, torch.zeros(passes.config.hidden_size, device=room.device))
    token = iter(range(10, passes.config.vocab_size))

    def drafted() -> torch.Tensor:
        return tree.logits(tree.grow([(ROOT, [next(token)])])[0]).argmax(-1)

    def scored() -> list[list[float]]:
        return tree.log_probabilities([[next(token), *[10] * CANVAS]])

    for _ in range(WARM_UPS):
        drafted()
    stages.add(f"one drafted token{way}", drafted, floor.ms(1, 1, prefix, predicted=1))
    for _ in range(WARM_UPS):
        scored()
    stages.add(f"scores of {CANVAS} tokens{way}", scored, floor.ms(CANVAS, 1, prefix, predicted=CANVAS))


def _ways(passes: Passes, device: str) -> dict[str, FixedSteps]:
    """Return the ways to take a step, by the suffix of their stages' names."""

    def fixed(recorder: Recorder | None) -> FixedSteps:
        return FixedSteps(passes, lambda: memory.free_bytes(device), recorder=recorder)

    return {"": fixed(None)} | ({", recorded": fixed(Recorder())} if device.startswith("cuda") else {})


def _denoiser(passes: Passes, device: str, widths: Sequence[int], steps: int) -> Denoiser:
    n_tokens = passes.config.vocab_size
    rows = [Row((10,) * width, (True,) * width, steps, seed=number) for number, width in enumerate(widths)]
    return Denoiser(rows, TokenLimits(tuple(range(10, n_tokens))), Sampling(stop_entropy=0.0), n_tokens, device)


def _stepping(passes: Passes, kv: KV, device: str, widths: Sequence[int], fixed: FixedSteps) -> Callable[[], None]:
    """Return a function that takes one denoising step per call. A step that is recorded is so before the first call."""
    denoiser = _denoiser(passes, device, widths, 1 << 20)

    def step() -> None:
        fixed.step(denoiser, kv, denoiser.live)

    for _ in range(WARM_UPS):
        step()
    return step


def _filled(passes: Passes, kv: KV, device: str, fixed: FixedSteps) -> None:
    denoiser = _denoiser(passes, device, [CANVAS], STEPS)
    while not denoiser.done:
        fixed.step(denoiser, kv, denoiser.live)
    denoiser.read(0)


def rates(device: str, dtype: torch.dtype, widths: Widths) -> tuple[float, float]:
    """Return the bytes per second of a copy (read and written), and the operations per second of a matrix product."""
    clock = Clock(device, 5)
    n_bytes = COPY_BYTES if device != "cpu" else COPY_BYTES // 16
    source = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * n_bytes / clock.ms(lambda: target.copy_(source)) * 1000
    side = 8192 if device != "cpu" else 1024
    square = torch.zeros(side, side, dtype=dtype, device=device)
    return copied, 2 * side**3 / clock.ms(lambda: square @ square) * 1000


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def as_object(measured: Measured, size: str, device: str, precision: str) -> dict[str, object]:
    """Return the measurements as an object for JSON."""
    figures = {name: value for name, value in asdict(measured).items() if name != "stages"}
    return {
        "processor": processor(),
        "device": device,
        "size": size,
        "precision": precision,
        **figures,
        "stages": [{**asdict(stage), "times_floor": stage.times_floor} for stage in measured.stages],
    }


def main(size: str, device: str, threads: int, precision: str = WIDE) -> int:
    try:
        measured, place = measure_size(size, device, threads, precision)
    except SizeError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    print(json.dumps(as_object(measured, size, place, precision), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(*arguments.parsed(__doc__, size="full", device="auto", threads=0, precision=WIDE)))
