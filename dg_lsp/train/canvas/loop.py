"""Train a canvas adapter: `dg-lsp train canvas`. A run may be killed at any time, and continues from its state.

All randomness depends on the seed and the number of the step, so a run that was killed repeats the steps after its last save
exactly.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from dg_lsp.engine.model import before_torch  # noqa: F401 -- before torch

# isort: split
import torch
from torch import Tensor

from dg_lsp.engine.causal import lora
from dg_lsp.engine.causal.layout import START_TOKENS
from dg_lsp.engine.common import loading
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.fit.geometry import CAUSAL_TYPES, LlamaSizes, llama_sizes
from dg_lsp.engine.model.prefix_cache import KV
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.engine.model.weights import checkpoint, llama_files
from dg_lsp.engine.model.weights.llama_files import Weight
from dg_lsp.engine.model.weights.progress import Meter
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.train.canvas import batches
from dg_lsp.train.canvas.batches import Batch, Canvas, Middles
from dg_lsp.train.canvas.holes import HELD, Sources
from dg_lsp.train.canvas.weights import TrainedPasses

SAVE_S, SHOW_S = 300.0, 900.0
WARM_STEPS = 20
BETAS, EPS, CLIP = (0.9, 0.98), 1e-8, 1.0
BUCKETS = {"first": range(1), "2-4": range(1, 4), "5-8": range(4, 8), "9-16": range(8, 16), "end": range(-1, 0)}
# Windows in a batch, tokens of a window, rows of canvases over a window; most files are read in short windows.
SHAPES = ((4, 256, 5), (2, 640, 10))
HOLES_PER_ROW = 4


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The options of a training, which lasts for some minutes and at most some steps. A step has `batches`."""

    minutes: float = 60.0
    steps: int = 1 << 60
    rate: float = 1.5e-3
    cool: bool = False
    rank: int = 32
    batches: int = 2
    threads: int = 1
    seed: int = 1
    most: int = 40  # tokens of an answer
    measured: int = 128  # set-aside canvases
    shapes: tuple[tuple[int, int, int], ...] = SHAPES
    middles: int = 0  # holes of a step in a fill-in-the-middle layout, which have no canvas


@dataclass(slots=True)
class State:
    """What a run needs to continue, beside the adapter's weights: both means of Adam, and what was counted."""

    first: Tensor
    second: Tensor
    step: int = 0
    tokens: int = 0
    tokens_with_loss: int = 0


@dataclass(frozen=True, slots=True)
class Base:
    """A frozen model on disk: its sizes, vocabulary and weights, and the hash by which its adapters name it."""

    name: str
    sizes: LlamaSizes
    vocabulary: Vocabulary
    weights: Mapping[str, Weight]
    hash: str


class Training:
    """One run: the passes, the state, and the figures on set-aside canvases."""

    def __init__(self, base: Base, sources: Sources, plan: TrainingPlan) -> None:
        self.base, self.sources, self.plan = base, sources, plan
        self.passes = TrainedPasses(base.sizes, base.weights, plan.rank)
        flat = self.passes.flat
        self.state = State(torch.zeros_like(flat), torch.zeros_like(flat))
        end = base.vocabulary.first_known(START_TOKENS)
        if end is None and not plan.middles:
            raise EvalError(f"{base.name} has none of the tokens {', '.join(START_TOKENS)}, one of which ends an answer")
        self._end = -1 if end is None else end
        try:
            self._middles = Middles(sources, base.vocabulary) if plan.middles else None
        except ValueError as error:
            raise EvalError(f"{base.name} can't be trained to fill in the middle: {error}") from error
        self._aside: list[tuple[Batch, KV, list[int], list[float]]] = []

    def step(self, share_left: float) -> tuple[float, int]:
        """Make one step, and return its mean loss and the number of canvas tokens. `share_left` is that of the time."""
        plan, state, passes = self.plan, self.state, self.passes
        random = Random(f"{plan.seed}/{state.step}")
        passes.grad.zero_()
        loss_sum, n_tokens = 0.0, 0
        middles = self._middles.drawn(random, plan.middles) if self._middles else []
        n_batches = len(middles) or plan.batches
        for number in range(n_batches):
            kv: KV = []
            if middles:
                batch = middles[number]
            else:
                ((n_windows, length, n_rows),) = random.choices(plan.shapes, [4.0, *[1.0] * (len(plan.shapes) - 1)])
                windows = self.sources.windows(random, n_windows, length, n_rows * HOLES_PER_ROW, plan.most)
                batch, kv = batches.drawn(passes, random, windows, n_rows, self._end)
            loss = batch.losses(passes, kv)[0] / (len(batch.targets) * n_batches)
            loss.backward()  # type: ignore[no-untyped-call]
            loss_sum += loss.item()
            n_tokens += int((batch.mask.sum(-1) > 1).sum())
            state.tokens_with_loss += len(batch.targets)
        rate = plan.rate * min(1.0, (state.step + 1) / WARM_STEPS) * (share_left if plan.cool else 1.0)
        state.step += 1
        # Adam's step for all weights, with the gradients that were summed.
        grad = passes.grad.mul_(min(1.0, CLIP / (float(passes.grad.norm()) + 1e-6)))
        with torch.no_grad():
            state.first.mul_(BETAS[0]).add_(grad, alpha=1 - BETAS[0])
            state.second.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
            scale = (state.second / (1 - BETAS[1] ** state.step)).sqrt_().add_(EPS)
            passes.flat.addcdiv_(state.first, scale, value=-rate / (1 - BETAS[0] ** state.step))
        passes.merge()
        state.tokens += n_tokens
        return loss_sum, n_tokens

    @torch.no_grad()
    def figures(self) -> str:
        """Return the losses in nats on set-aside holes by place in the answer; the causal model's in brackets.

        The causal model reads the true tokens before each place, and in a fill-in-the-middle layout the suffix too. Otherwise
        it reads nothing of what follows the gap, and knows no end.
        """
        triples = [
            triple
            for batch, kv, places, causal in self._set_aside()
            for triple in zip(places, batch.losses(self.passes, kv)[1].tolist(), causal, strict=True)
        ]
        texts = []
        for name, span in BUCKETS.items():
            if pairs := [pair for place, *pair in triples if place in span]:
                own, causal = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
                texts.append(f"{name} {own:.3f}" + ("" if name == "end" and not self._middles else f" ({causal:.3f})"))
        return ", ".join(texts)

    def adopt(self, stored: Mapping[str, Any]) -> None:
        """Continue from a stored state: the weights, the optimizer's means if it has them, and the counts.

        Older states end with vectors that are no longer trained.
        """
        size = len(self.passes.flat)
        with torch.no_grad():
            if "flat" in stored:  # the weights in 32 bits
                self.passes.flat.copy_(stored["flat"][:size])
            else:
                self.passes.load({name: tensor.float() for name, tensor in stored["adapter"].items()})
        self.passes.merge()
        state = self.state
        if "m1" in stored:
            state.first.copy_(stored["m1"][:size])
            state.second.copy_(stored["m2"][:size])
            state.step = int(stored.get("adam_step", stored["step"]))
        state.tokens, state.tokens_with_loss = int(stored["tokens"]), int(stored.get("lossy", 0))

    def save(self, path: Path) -> None:
        """Write the state, so that a kill at any time leaves either the old file or the new one."""
        state, new = self.state, path.with_name(f"{path.name}.new")
        torch.save(
            {
                "adapter": {name: tensor.to(torch.bfloat16) for name, tensor in self.passes.adapter().items()},
                "flat": self.passes.flat, "m1": state.first, "m2": state.second, "adam_step": state.step,
                "step": state.step, "tokens": state.tokens, "lossy": state.tokens_with_loss,
                "rank": self.plan.rank, "base_hash": self.base.hash,
                "options": {name: value for name, value in asdict(self.plan).items() if isinstance(value, int | float)},
            },
            new,
        )  # fmt: skip
        new.replace(path)

    def export(self, path: Path) -> None:
        """Write the adapter in 16 bits, with what it is and what it was trained on."""
        licences = ", ".join(sorted(self.sources.licences)) or "as the sources' owners state"
        facts = {
            "base": self.base.name,
            "base_hash": self.base.hash,
            "order": "fim" if self.plan.middles else "1.0",
            "held": "0" if self.plan.middles else str(HELD),
            "tokens": str(self.state.tokens),
            "tokens_with_loss": str(self.state.tokens_with_loss),
            "steps": str(self.state.step),
            "licence": f"that of the base model; licences of the sources: {licences}",
            "sources": self.sources.reference,
        }
        lora.write(path, self.passes.adapter(), facts)

    def _set_aside(self) -> list[tuple[Batch, KV, list[int], list[float]]]:
        """Return batches of set-aside canvases, with the places of their losses and the causal losses; always the same ones."""
        random, passes, middles = Random(11), self.passes, self._middles
        if middles:
            if not self._aside:
                drawn = middles.drawn(random, self.plan.measured, aside=True)
                causal_losses = [one.losses(passes, [], adapted=False)[1].tolist() for one in drawn]
                self._aside = [(one, [], middles.places(one), losses) for one, losses in zip(drawn, causal_losses, strict=True)]
            return self._aside
        n_windows, length, n_rows = self.plan.shapes[0]
        per_window = 4
        while len(self._aside) * n_windows * per_window < self.plan.measured:
            windows = self.sources.windows(random, n_windows, length, per_window, 16, aside=True)
            _, kv = batches.encoded(passes, windows)
            shape = (n_windows, kv[0][0].shape[2], n_rows)
            canvases = [
                Canvas(index, hole, self._end, hole.after) for index, window in enumerate(windows) for hole in window.holes
            ]
            bare = [replace(canvas, held=()) for canvas in canvases]
            causal = batches.laid_out(bare, *shape).losses(passes, kv, adapted=False)[1]
            batch = batches.laid_out(canvases, *shape)
            places = [place for one in canvases for place in (*range(len(one.hole.answer)), -1)]
            self._aside.append((batch, kv, places, causal.tolist()))
        return self._aside


def train(
    base: str,
    sources: Sequence[Path],
    path: Path,
    plan: TrainingPlan,
    *,
    excluded: Path | None = None,
    start: Path | None = None,
    export: Path | None = None,
    on_message: Callable[[str], None] = print,
) -> Training:
    """Start or continue the run whose state is at `path`, and write its adapter to `export`.

    Raises EvalError, LoadError or OSError, each with a message for users.
    """
    for file in (path, export):
        if file is not None and not os.access(file.parent, os.W_OK | os.X_OK):
            raise EvalError(f"{file} can't be written: {file.parent} is not a folder that you can write to")
    if path.suffix == ".safetensors":  # it would be overwritten
        raise EvalError(f"{path} has the name of an exported adapter; give it with --from, and another file with --state")
    stored_at = path if path.exists() else start
    if stored_at is None and plan.minutes == 0:
        raise EvalError(f"there is no state {path}; train first, with --minutes above 0, or name a state with --from")
    torch.set_num_threads(plan.threads)
    frozen = read_base(base)
    stored = read_state(stored_at, frozen) if stored_at else None
    if stored is not None:
        plan = replace(plan, rank=stored["rank"])
    lines = excluded.read_text(encoding="utf-8").splitlines() if excluded else []
    names = frozenset(line.partition("\t")[0] for line in lines)
    training = Training(frozen, Sources(sources, frozen.vocabulary, excluded=names), plan)
    if stored is not None:
        training.adopt(stored)
    if plan.minutes > 0:
        run(training, path, on_message)
    if export:
        training.export(export)
        on_message(f"{export}: {export.stat().st_size / 1e6:.1f} MB")
    return training


def run(training: Training, path: Path, on_message: Callable[[str], None]) -> None:
    """Train until the plan's time or steps are over; save every five minutes and at the end."""
    plan, state = training.plan, training.state
    on_message(f"{training.sources.n_files} files; {state.tokens / 1e6:.3f} M tokens so far; {training.figures()}")
    began = saved = shown = time.monotonic()
    mean, n_tokens, n_steps = None, 0, 0
    while (now := time.monotonic()) - began < plan.minutes * 60 and n_steps < plan.steps:
        loss, n = training.step(1 - (now - began) / (plan.minutes * 60))
        n_tokens, n_steps = n_tokens + n, n_steps + 1
        mean = loss if mean is None else 0.95 * mean + 0.05 * loss
        now = time.monotonic()
        speed = f"{state.tokens / 1e6:.3f} M tokens, {n_tokens / (now - began):.0f}/s"
        on_message(f"step {state.step}: loss {loss:.4f}, mean {mean:.3f}, {speed}")
        if now - saved > SAVE_S:
            training.save(path)
            saved = now
        if now - shown > SHOW_S:
            on_message(training.figures())
            shown = now
    if n_steps:
        training.save(path)
        on_message(f"{state.tokens / 1e6:.3f} M tokens; {training.figures()}")


def read_base(name: str) -> Base:
    """Return a frozen model from a folder or a hub id, with weights in the type in which this processor multiplies fastest.

    Raises EvalError or LoadError.
    """
    folder = loading.find(name)
    try:
        values = checkpoint.stated_values(folder)
        if values["model_type"] not in CAUSAL_TYPES:
            raise EvalError(f"{name} is a {values['model_type']} model; a canvas is trained for {', '.join(CAUSAL_TYPES)}")
        sizes = llama_sizes(values)
        stored = llama_files.check(folder, sizes, in_int8=llama_files.is_quantised(folder, values))
        meter = Meter("reading the weights", sum(one.n_bytes for one in stored.values()), lambda _text, _share: None)
        weights = llama_files.Weights(stored, "cpu", dtype_of("cpu"), meter)
        vocabulary = Vocabulary.from_file(folder / "tokenizer.json")
    except (checkpoint.CheckpointError, fit.GeometryError, ValueError) as error:
        raise EvalError(str(error)) from error
    return Base(name, sizes, vocabulary, weights, lora.base_hash(weights))


def read_state(path: Path, base: Base) -> dict[str, Any]:
    """Return a stored state for this base, or an exported adapter as one; raise EvalError for another file or base."""
    try:
        stored = (
            _exported(path, base) if path.suffix == ".safetensors" else torch.load(path, weights_only=True, map_location="cpu")
        )
    except OSError:
        raise
    except checkpoint.CheckpointError as error:
        raise EvalError(str(error)) from error
    except Exception as error:  # the library raises anything for a foreign file
        raise EvalError(f"{path} is not a state of `dg-lsp train canvas`") from error
    if not isinstance(stored, dict) or not {"adapter", "step", "tokens"} <= stored.keys():
        raise EvalError(f"{path} is not a state of `dg-lsp train canvas`")
    if stored.get("base_hash", base.hash) != base.hash:
        raise EvalError(
            f"{path} is a state for another base model than {base.name}; give that one with --base, or another --state"
        )
    adapter = {name: tensor for name, tensor in stored["adapter"].items() if name not in lora.UNUSED}
    rank = len(adapter.get("0q_a", ()))
    described = lora.shapes(base.sizes, rank)
    for name, tensor in adapter.items():
        if described.get(name) != tuple(tensor.shape):
            raise EvalError(
                f"{path} does not fit {base.name}: {name} has the shape {list(tensor.shape)}; give its base with --base"
            )
    return stored | {"adapter": adapter, "rank": rank}


def dtype_of(device: str) -> torch.dtype:
    """Return the precision to train in: bfloat16 if the device has instructions for it, else float32.

    A processor without them multiplies bfloat16 four to five times slower than float32 (26 against 120 GFLOP/s per
    core, measured on a Cascade Lake core).
    """
    if not device.startswith("cpu"):
        return torch.bfloat16
    # A private name, because torch 2.13 has no public one.
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def _exported(path: Path, base: Base) -> dict[str, Any]:
    """Return an exported adapter as a state without the optimizer's means; raise CheckpointError."""
    adapter = lora.read(path, base.sizes, base.hash)
    tokens, lossy = (
        int(value) if (value := adapter.facts.get(name, "")).isdecimal() else 0 for name in ("tokens", "tokens_with_loss")
    )
    return {"adapter": adapter.tensors, "step": 0, "tokens": tokens, "lossy": lossy}
