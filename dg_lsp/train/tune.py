"""Tune a model on the code in a folder: train a LoRA adapter with the objective of `train.objective`.

The learning rate and its warm-up follow the published recipe (LoRA of rank 8, 1.5e-4, Adam .95/.99). This module knows
PEFT's adapters and the objective, and nothing of editors.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dg_lsp.engine.model import profile as profiles
from dg_lsp.engine.model.loading import Loaded, load_model
from dg_lsp.engine.model.passes import Passes
from dg_lsp.engine.model.weights import adapter
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.train import tune_data
from dg_lsp.train.loop import mixed_loss
from dg_lsp.train.objective import CanvasBatch, Sampler
from dg_lsp.train.precision import dtype_of

WARM_STEPS = 20
CO_LOSS = 0.5  # the weight of the causal loss relative to the canvas's
CHECK_BATCHES = 4


@dataclass(frozen=True, slots=True)
class Tuning:
    """How to train an adapter. A step is one batch: `rows` windows of `length` tokens, with `canvases` over each."""

    steps: int = 300
    rank: int = 16
    learning_rate: float = 1.5e-4
    rows: int = 4
    canvases: int = 2
    length: int = 512
    canvas: int = 64
    experts: bool = False
    seed: int = 0
    device: str = "auto"
    threads: int = 1
    check_every: int = 50


@dataclass(frozen=True, slots=True)
class Result:
    """The result of tuning: the mean loss on held-out files before and after, and the number of trained weights."""

    before: float
    after: float
    n_trained: int
    folder: Path


def run(sources: Path, init: str, out: Path, tuning: Tuning, *, say: Callable[[str], None] = print) -> Result:
    """Train an adapter for the model `init` on the source files, and write it into `out`.

    Raises EvalError, LoadError or AdapterError, each with a message for users.
    """
    if (out / adapter.CONFIG).exists():
        raise EvalError(f"{out} already has an adapter; remove it, or give another folder with --out")
    train, held = tune_data.texts(sources)
    loaded = load_model(init, device=tuning.device, threads=tuning.threads, dtype=_dtype(tuning.device), trainable=True)
    tokenizer = loaded.vocabulary.tokenizer
    profile = loaded.profile
    batches, checks = (_sampler(part, tokenizer, loaded, tuning, seed) for part, seed in ((train, tuning.seed), (held, 7)))
    torch.manual_seed(tuning.seed)
    model = adapter.new(loaded.diffusion.model, rank=tuning.rank, experts=tuning.experts)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    n_trained = adapter.n_parameters(model)
    say(f"training {n_trained / 1e6:.2f} M weights on {len(train)} files; {len(held)} files are held out")
    fixed = [checks.canvases(tuning.rows, tuning.length, tuning.canvases, noise=0.7) for _ in range(CHECK_BATCHES)]
    passes, device = loaded.diffusion, loaded.device
    before = last = _measured(passes, fixed, device)
    optimizer = torch.optim.AdamW(trained, lr=tuning.learning_rate, betas=(0.95, 0.99), weight_decay=1e-4)
    for step in range(tuning.steps):
        for group in optimizer.param_groups:
            group["lr"] = tuning.learning_rate * _rate(step, tuning.steps)
        batch = batches.canvases(tuning.rows, tuning.length, tuning.canvases)
        conditioned = bool(batches.random.random() < 0.5)
        loss = _loss(passes, batch, device, conditioned=conditioned)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % tuning.check_every == 0 or step + 1 == tuning.steps:
            last = _measured(passes, fixed, device)
            say(f"step {step + 1} of {tuning.steps}: loss on held-out files {last:.3f}, {before:.3f} before")
    _save(model, out, init, profile)
    return Result(before, last, n_trained, out)


def _dtype(device: str) -> str:
    """Return the type of the frozen weights; trained weights are always float32."""
    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available() and not torch.backends.mps.is_available())
    return "float32" if on_cpu else "bfloat16"


def _sampler(documents: list[tuple[str, str]], tokenizer: Tokenizer, loaded: Loaded, tuning: Tuning, seed: int) -> Sampler:
    packed = tune_data.packed(documents, tokenizer)
    return tune_data.sampler(packed, tokenizer, loaded.profile, seed=seed, canvas=tuning.canvas)


def _loss(passes: Passes, batch: CanvasBatch, device: str, *, conditioned: bool) -> Tensor:
    dtype = dtype_of(device) if device != "cpu" else torch.float32
    diffusion, causal = mixed_loss(passes, batch, device, dtype, conditioned=conditioned, on_policy=False)
    return diffusion + CO_LOSS * causal


@torch.no_grad()
def _measured(passes: Passes, batches: list[CanvasBatch], device: str) -> float:
    losses = [float(_loss(passes, batch, device, conditioned=False)) for batch in batches]
    return sum(losses) / len(losses)


def _rate(step: int, steps: int) -> float:
    """Return the current fraction of the learning rate: it rises at first, and falls to a tenth in the last fifth."""
    rising = min(1.0, (step + 1) / min(WARM_STEPS, max(1, steps // 5)))
    left = (steps - step) / max(1, steps / 5)
    return rising * min(1.0, max(0.1, left))


def _save(model: Any, out: Path, init: str, profile: profiles.Profile) -> None:
    """Write the adapter, its base model's name, and the profile.

    The profile has no calibration, because that was fitted on the base model's weights.
    """
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(str(out), save_embedding_layers=False)
    config = json.loads((out / adapter.CONFIG).read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = init
    (out / adapter.CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / "README.md").unlink(missing_ok=True)  # an empty template
    (out / profiles.FILE).write_text(profiles.dump(replace(profile, calibration=None)), encoding="utf-8")
