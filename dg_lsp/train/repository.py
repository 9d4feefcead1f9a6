"""Tune a small model on a repository in a few minutes, and store the result for the engine if it is better.

Some files are held out. The model's loss on them selects the best state, and its exact matches on holes cut from them are
counted before and after. Knows files, the time limit and the store. `all_weights` does the training.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from dg_lsp.engine.model import numpy_first  # noqa: F401 -- before torch

# isort: split
from safetensors.torch import save
from torch import Tensor

from dg_lsp.engine.calibration_store import ModelId
from dg_lsp.engine.decode import tuned as tuned_models
from dg_lsp.engine.model.loading import Loaded, load_model
from dg_lsp.engine.model.weights import tuned_store
from dg_lsp.engine.model.weights.tuned_store import Figures, StoreError, Tuned
from dg_lsp.evaluate import make, methods
from dg_lsp.evaluate.run import Bench, Setup
from dg_lsp.evaluate.tasks import EvalError, Task
from dg_lsp.train import tune_data
from dg_lsp.train.all_weights import Recipe, Training

MIN_FILES = 3
MEASURED_SHARE = 0.15  # of the time, the most that the holes take before training; after it they take about as long again
SPARE_S = 2.0
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long tuning may take in total, on how many threads, and how many holes are filled before and after it.

    Training also ends after `passes` over the files, because more of them repeat the files word by word.
    """

    minutes: float = 10.0
    threads: int = 1
    holes: int = 100
    passes: float = 12.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """The result: the stored entry, or None if the tuned model was not better; the figures; and what it was trained on.

    `weights` are those of the best state by name, also if they were not stored; empty if no state had a lower loss.
    """

    entry: Tuned | None
    before: Figures
    after: Figures
    n_files: int
    n_held: int
    tokens: int
    minutes: float
    weights: Mapping[str, Tensor]


@dataclass(slots=True)
class _Timer:
    """The time limit of a run, and the fraction of the training that is done."""

    clock: Clock
    limits: Limits
    began: float = field(init=False)
    train_from: float = 0.0
    train_until: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def spent_s(self) -> float:
        return self.clock() - self.began

    def start_training(self, measured_s: float) -> None:
        """Plan the training's end so that filling the holes again, which took `measured_s`, still fits the limit."""
        self.train_from = self.clock()
        self.train_until = self.began + self.limits.minutes * 60 - 1.3 * measured_s - SPARE_S

    def left_s(self, share: float) -> float:
        """Return about how many seconds of training are left, given the fraction that is done."""
        by_time = self.train_until - self.clock()
        return max(0.0, min(by_time, (self.clock() - self.train_from) * (1 - share) / max(share, 1e-3)))


def run(
    sources: Path,
    init: str = "embedded",
    limits: Limits | None = None,
    recipe: Recipe | None = None,
    *,
    say: Callable[[str], None] = print,
    progress: Callable[[str], None] = lambda _text: None,
    clock: Clock = time.monotonic,
) -> Report:
    """Tune the model `init` on the source files of a folder, and store the weights if they are better.

    They are better if the loss on held-out files is lower, and no fewer of their holes are filled exactly. An interrupt
    (KeyboardInterrupt) during the training ends it early, with the best state so far. `say` receives lasting messages,
    `progress` changing ones. Raises EvalError, LoadError or StoreError, each with a message for users.
    """
    limits, recipe = limits or Limits(), recipe or Recipe()
    timer = _Timer(clock, limits)
    train, held = tune_data.texts(sources, limits.seed)
    n_files = len({name for name, _ in (*train, *held)})
    if n_files < MIN_FILES:
        raise EvalError(f"{sources} has too few source files: {n_files}, and tuning needs at least {MIN_FILES}")
    base = load_model(init, device="cpu", threads=limits.threads)
    if not tuned_models.suits(base):
        raise EvalError(f"{init} is too large to be tuned per repository; use --out FOLDER, which trains an adapter of it")
    say(f"{len(train)} files to train on, {len(held)} held out")
    training = _training(init, train, held, recipe, limits)
    progress("filling holes of the held-out files before tuning")
    tasks, measured_from = _tasks(held, limits), clock()
    if not tasks:
        raise EvalError(f"no hole can be cut from the {len(held)} held-out files of {sources}; try another --seed")
    exact, n_holes = _exact(base, tasks, lambda: clock() - measured_from < MEASURED_SHARE * limits.minutes * 60)
    before = after = Figures(training.first_loss, exact, n_holes)
    timer.start_training(clock() - measured_from)
    _train(training, timer, progress, say)
    if training.best:
        progress("filling the same holes after tuning")
        adapted = tuned_models.with_weights(base.diffusion.model, training.best)
        exact, _ = _exact(replace(base, passes=type(base.diffusion)(adapted)), tasks[:n_holes], lambda: True)
        after = Figures(training.best_loss, exact, n_holes)
    entry = None
    if training.best and after.exact >= before.exact:
        entry = tuned_store.write(
            sources.resolve(),
            ModelId(init, base.fingerprint),
            save(training.best),
            made=datetime.now().astimezone().isoformat(timespec="seconds"),
            before=before,
            after=after,
            facts={"files": len(train), "held_out": len(held), "tokens": training.tokens, "seed": limits.seed},
        )
    minutes = timer.spent_s / 60
    return Report(entry, before, after, len(train), len(held), training.tokens, minutes, training.best)


def remove(sources: Path) -> int:
    """Remove the stored weights of a repository, and return how many models they were for; raise StoreError."""
    return tuned_store.remove(sources.resolve())


def _training(init: str, train: list[tuple[str, str]], held: list[tuple[str, str]], recipe: Recipe, limits: Limits) -> Training:
    loaded: Loaded = load_model(init, device="cpu", threads=limits.threads, dtype="float32", trainable=True)
    packed_train, packed_held = (tune_data.packed(part, loaded.vocabulary.tokenizer) for part in (train, held))
    return Training(loaded, packed_train, packed_held, recipe, limits.seed)


def _train(training: Training, timer: _Timer, progress: Callable[[str], None], say: Callable[[str], None]) -> None:
    most_tokens = max(1.0, timer.limits.passes * training.n_source_tokens)

    def share_done() -> float:
        total_s = max(1e-6, timer.train_until - timer.train_from)
        share = max((timer.clock() - timer.train_from) / total_s, training.tokens / most_tokens)
        progress(_progress(training, min(1.0, share), timer))
        return share

    try:
        training.run(share_done, lambda share, loss: say(_checked(training, share, loss)))
    except KeyboardInterrupt:
        say(f"interrupted: loss on held-out files {training.finish():.3f}; the best state so far counts")


def _progress(training: Training, share: float, timer: _Timer) -> str:
    left_s = timer.left_s(share)
    left = f"{left_s / 60:.0f} minutes" if left_s >= 90 else f"{left_s:.0f} s"
    return f"training: {100 * share:.0f} %, {training.tokens / 1e6:.2f} M tokens, about {left} left"


def _checked(training: Training, share: float, loss: float) -> str:
    return f"{100 * share:.0f} %: loss on held-out files {loss:.3f}, {training.first_loss:.3f} before tuning"


def _tasks(held: Sequence[tuple[str, str]], limits: Limits) -> list[Task]:
    """Return holes cut from the held-out files, in random order."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "held.jsonl"
        corpus.write_text("".join(json.dumps([name, text]) + "\n" for name, text in held), encoding="utf-8")
        tasks = make.tasks(corpus, limits.holes, limits.seed)
    random.Random(limits.seed).shuffle(tasks)
    return tasks


def _exact(loaded: Loaded, tasks: Sequence[Task], may_continue: Callable[[], bool]) -> tuple[int, int]:
    """Return how many holes the model fills exactly, and how many were filled before `may_continue` returned False."""
    bench = Bench(Setup((methods.FULL,), device="cpu", threads=loaded.threads), loaded)
    n_exact = n_filled = 0
    for task in tasks:
        if n_filled and not may_continue():
            break
        n_exact += sum(row.exact for row in bench.rows(task))
        n_filled += 1
    return n_exact, n_filled


__all__ = ["Limits", "Recipe", "Report", "StoreError", "remove", "run"]
