"""Train a canvas adapter: `dg-lsp train canvas`. A run may be killed at any time, and continues from its state.

All randomness depends on the seed and the number of the step, so a run that was killed repeats the steps after its last save
exactly.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from dg_lsp.engine.model import numpy_first  # noqa: F401 -- before torch

# isort: split
import torch
from torch import Tensor

from dg_lsp.engine.model import fit, loading
from dg_lsp.engine.model.fit.geometry import LLAMA_TYPES, LlamaSizes, llama_sizes
from dg_lsp.engine.model.llama import Weight
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.engine.model.weights import canvas_adapter, checkpoint, llama_files
from dg_lsp.engine.model.weights.progress import Meter
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.train.canvas import states
from dg_lsp.train.canvas.holes import HELD, Sources
from dg_lsp.train.canvas.states import Canvas, Mix
from dg_lsp.train.canvas.weights import DISTANCES, TrainedPasses

SAVE_S, SHOW_S = 300.0, 900.0
WARM_STEPS = 20
BETAS, EPS, CLIP = (0.9, 0.98), 1e-8, 1.0
BUCKETS = {"first": range(1), "2-4": range(1, 4), "5-8": range(4, 8), "9-16": range(8, 16)}
# Windows in a batch, tokens of a window, rows of canvases over a window; most files are read in short windows.
SHAPES = ((4, 256, 5), (2, 640, 10))
HOLES_PER_ROW = 5

OnMessage = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How to train, for how many minutes, and at most how many steps. A step has `batches`."""

    minutes: float = 60.0
    steps: int = 1 << 60
    rate: float = 1.5e-3
    cool: bool = False
    rank: int = 32
    batches: int = 2
    threads: int = 1
    seed: int = 1
    most: int = 20  # tokens of an answer
    measured: int = 128  # set-aside canvases
    shapes: tuple[tuple[int, int, int], ...] = SHAPES
    mix: Mix = field(default_factory=Mix)


@dataclass(slots=True)
class State:
    """What a run needs to continue, beside the adapter's weights: both means of Adam, and what was counted."""

    first: Tensor
    second: Tensor
    step: int = 0
    tokens: int = 0
    tokens_with_loss: int = 0
    seconds: float = 0.0


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
        self._aside: list[tuple[states.Batch, Any, list[int], list[float]]] = []

    def step(self, share_left: float) -> tuple[float, int]:
        """Make one step, and return its mean loss and the number of canvas tokens. `share_left` is that of the time."""
        plan, state, passes = self.plan, self.state, self.passes
        random = Random(f"{plan.seed}/{state.step}")
        passes.grad.zero_()
        loss_sum, n_tokens = 0.0, 0
        for _ in range(plan.batches):
            (shape,) = random.choices(plan.shapes, [4.0, *[1.0] * (len(plan.shapes) - 1)])
            n_windows, length, n_rows = shape
            windows = self.sources.windows(random, n_windows, length, n_rows * HOLES_PER_ROW, plan.most)
            batch, kv, _ = states.drawn(passes, random, windows, plan.mix, n_rows)
            hidden = passes.canvas(batch.ids, batch.hints, batch.past(kv), batch.positions, batch.mask)
            weights = batch.weights / (batch.weights.sum() * plan.batches)
            loss = passes.losses(hidden.flatten(0, 1)[batch.rows], batch.targets, weights)[0]
            loss.backward()  # type: ignore[no-untyped-call]
            loss_sum += loss.item()
            n_tokens += int((batch.mask.sum(-1) > 1).sum())
            state.tokens_with_loss += len(batch.rows)
        self._update(plan.rate * min(1.0, (state.step + 1) / WARM_STEPS) * (share_left if plan.cool else 1.0))
        state.step += 1
        state.tokens += n_tokens
        return loss_sum, n_tokens

    @torch.no_grad()
    def figures(self) -> str:
        """Return the losses in nats on set-aside canvases, all open, by place in the answer; the causal model's in brackets.

        The causal model reads the true tokens before each place, and nothing of what follows the gap.
        """
        own: dict[str, list[float]] = {name: [] for name in BUCKETS}
        causal: dict[str, list[float]] = {name: [] for name in BUCKETS}
        for batch, kv, places, causal_losses in self._set_aside():
            hidden = self.passes.canvas(batch.ids, batch.hints, kv, batch.positions, batch.mask)
            losses = self.passes.losses(hidden.flatten(0, 1)[batch.rows], batch.targets, batch.weights)[1].tolist()
            for place, loss, other in zip(places, losses, causal_losses, strict=True):
                name = next(name for name, span in BUCKETS.items() if place in span)
                own[name].append(loss)
                causal[name].append(other)
        return ", ".join(
            f"{name} {sum(own[name]) / len(own[name]):.3f} ({sum(causal[name]) / len(causal[name]):.3f})"
            for name in BUCKETS
            if own[name]
        )

    def adopt(self, stored: Mapping[str, Any], *, moments: bool = True) -> None:
        """Continue from a stored state: the weights, the optimizer's means unless not `moments`, and the counts."""
        with torch.no_grad():
            if "flat" in stored:  # the weights in 32 bits
                self.passes.flat.copy_(stored["flat"])
            else:
                self.passes.load({name: tensor.float() for name, tensor in stored["adapter"].items()})
        self.passes.merge()
        state = self.state
        if moments and "m1" in stored:
            state.first.copy_(stored["m1"])
            state.second.copy_(stored["m2"])
            state.step = int(stored.get("adam_step", stored["step"]))
        state.tokens, state.tokens_with_loss = int(stored["tokens"]), int(stored.get("lossy", 0))
        state.seconds = float(stored.get("secs", 0.0))

    def save(self, path: Path) -> None:
        """Write the state, so that a kill at any time leaves either the old file or the new one."""
        state, new = self.state, path.with_name(f"{path.name}.new")
        torch.save(
            {
                "adapter": {name: tensor.to(torch.bfloat16) for name, tensor in self.passes.adapter().items()},
                "flat": self.passes.flat, "m1": state.first, "m2": state.second, "adam_step": state.step,
                "step": state.step, "tokens": state.tokens, "lossy": state.tokens_with_loss, "secs": state.seconds,
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
            "held": str(HELD),
            "tokens": str(self.state.tokens),
            "tokens_with_loss": str(self.state.tokens_with_loss),
            "steps": str(self.state.step),
            "licence": f"that of the base model; licences of the sources: {licences}",
            "sources": self.sources.reference,
        }
        canvas_adapter.write(path, self.passes.adapter(), facts)

    def _update(self, rate: float) -> None:
        """Apply Adam's step to all weights with the gradients that were summed."""
        state, passes = self.state, self.passes
        grad, count = passes.grad, state.step + 1
        grad.mul_(min(1.0, CLIP / (float(grad.norm()) + 1e-6)))
        with torch.no_grad():
            state.first.mul_(BETAS[0]).add_(grad, alpha=1 - BETAS[0])
            state.second.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
            scale = (state.second / (1 - BETAS[1] ** count)).sqrt_().add_(EPS)
            passes.flat.addcdiv_(state.first, scale, value=-rate / (1 - BETAS[0] ** count))
        passes.merge()

    def _set_aside(self) -> list[tuple[states.Batch, Any, list[int], list[float]]]:
        """Return batches of set-aside canvases without delete tokens, each with the causal losses; always the same ones."""
        random, passes = Random(11), self.passes
        n_windows, length, n_rows = self.plan.shapes[0]
        per_window = 4
        while len(self._aside) * n_windows * per_window < self.plan.measured:
            windows = self.sources.windows(random, n_windows, length, per_window, 16, aside=True)
            _, kv = states.encoded(passes, windows)
            canvases = [
                states.masked(passes, Canvas(index, hole, window.ids[hole.first - 1], [*hole.answer], [*hole.after]))
                for index, window in enumerate(windows)
                for hole in window.holes
            ]
            batch = states.laid_out(canvases, n_windows, kv[0][0].shape[2], n_rows)
            places = [place for canvas in canvases for place in range(len(canvas.body))]
            self._aside.append((batch, batch.past(kv), places, self._causal(batch, batch.past(kv))))
        return self._aside

    def _causal(self, batch: states.Batch, kv: Any) -> list[float]:
        """Return the frozen model's losses at the same places, after the true tokens."""
        ids = batch.ids.clone().view(-1)
        ids[batch.rows + 1] = batch.targets
        size = batch.ids.shape[1]
        mask = batch.mask.clone()
        mask[..., -size:] &= torch.ones(size, size, dtype=torch.bool).tril()
        hidden = self.passes.decode(ids.view_as(batch.ids), kv, positions=batch.positions, mask=mask, adapted=False)
        logits = self.passes.logits(hidden.flatten(0, 1)[batch.rows])
        losses: list[float] = torch.nn.functional.cross_entropy(logits, batch.targets, reduction="none").tolist()
        return losses


def train(
    base: str,
    sources: Sequence[Path],
    path: Path,
    plan: TrainingPlan,
    *,
    excluded: Path | None = None,
    start: Path | None = None,
    export: Path | None = None,
    on_message: OnMessage = print,
) -> Training:
    """Start or continue the run whose state is at `path`, and write its adapter to `export`.

    Raises EvalError, LoadError or OSError, each with a message for users.
    """
    for file in (path, export):
        if file is not None and not os.access(file.parent, os.W_OK | os.X_OK):
            raise EvalError(f"{file} can't be written: {file.parent} is not a folder that you can write to")
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


def run(training: Training, path: Path, on_message: OnMessage, clock: Callable[[], float] = time.monotonic) -> None:
    """Train until the plan's time or steps are over; save every five minutes and at the end."""
    plan, state = training.plan, training.state
    on_message(f"{training.sources.n_files} files; {state.tokens / 1e6:.3f} M tokens so far; {training.figures()}")
    began = saved = shown = last = clock()
    mean, n_tokens, n_steps = None, 0, 0
    while (now := clock()) - began < plan.minutes * 60 and n_steps < plan.steps:
        loss, n = training.step(1 - (now - began) / (plan.minutes * 60))
        n_tokens, n_steps = n_tokens + n, n_steps + 1
        mean = loss if mean is None else 0.95 * mean + 0.05 * loss
        now = clock()
        state.seconds, last = state.seconds + now - last, now
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
        if values["model_type"] not in LLAMA_TYPES:
            raise EvalError(f"{name} is a {values['model_type']} model; a canvas is trained for {', '.join(LLAMA_TYPES)}")
        sizes = llama_sizes(values)
        stored = llama_files.check(folder, sizes, in_int8=llama_files.is_quantised(folder, values))
        meter = Meter("reading the weights", sum(one.n_bytes for one in stored.values()), lambda _text, _share: None)
        weights = llama_files.Weights(stored, "cpu", dtype_of("cpu"), meter)
        vocabulary = Vocabulary.from_file(folder / "tokenizer.json")
    except (checkpoint.CheckpointError, fit.GeometryError, ValueError) as error:
        raise EvalError(str(error)) from error
    return Base(name, sizes, vocabulary, weights, canvas_adapter.base_hash(weights))


def read_state(path: Path, base: Base) -> dict[str, Any]:
    """Return a stored state for this base; raise EvalError for another file, or for a state of another base."""
    try:
        stored = torch.load(path, weights_only=True, map_location="cpu")
    except OSError:
        raise
    except Exception as error:  # the library raises anything for a foreign file
        raise EvalError(f"{path} is not a state of `dg-lsp train canvas`") from error
    if not isinstance(stored, dict) or not {"adapter", "step", "tokens"} <= stored.keys():
        raise EvalError(f"{path} is not a state of `dg-lsp train canvas`")
    if stored.get("base_hash", base.hash) != base.hash:
        raise EvalError(
            f"{path} is a state for another base model than {base.name}; give that one with --base, or another --state"
        )
    rank = len(stored["adapter"].get("0q_a", ()))
    described = canvas_adapter.shapes(base.sizes, rank, DISTANCES)
    for name, tensor in stored["adapter"].items():
        if described.get(name) != tuple(tensor.shape):
            raise EvalError(
                f"{path} does not fit {base.name}: {name} has the shape {list(tensor.shape)}; give its base with --base"
            )
    return stored | {"rank": rank}


def dtype_of(device: str) -> torch.dtype:
    """Return the precision to train in: bfloat16 if the device has instructions for it, else float32.

    A processor without them multiplies bfloat16 four to five times slower than float32 (26 against 120 GFLOP/s per
    core, measured on a Cascade Lake core).
    """
    if not device.startswith("cpu"):
        return torch.bfloat16
    # A private name, because torch 2.13 has no public one.
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
