"""Measure what tuning on a repository adds: python tests/benchmarks/tuned.py FOLDER... [--minutes 10] [--holes 150]

For each repository, a quarter of its files is set aside, and `train.repository` tunes the embedded model on a copy of the
others. Then both models fill the same holes, cut from the files set aside. The JSON has the exact matches before and after,
and the paired difference with its 95 % interval over files. "stored" says whether the engine would use the tuned model; its
figures are printed in both cases.

With --control, the model that was tuned on the repository before in the list fills the holes too. What it gains does not come
from knowing the repository. With --related, both models also get the text of related files, as an editor sends it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from dg_lsp.core.values import Snippet
from dg_lsp.engine.decode import tuned as tuned_models
from dg_lsp.engine.model.loading import Loaded, load_model
from dg_lsp.evaluate import make, methods, run, score
from dg_lsp.evaluate.run import Bench, Setup
from dg_lsp.evaluate.score import Measure, Row
from dg_lsp.evaluate.tasks import Task
from dg_lsp.infill import workspace
from dg_lsp.train import repository, tune_data

ASIDE = 4  # one file in this many is set aside
RELATED_CHARS = 24_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--holes", type=int, default=150)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--related", action="store_true")
    parser.add_argument("--keep", type=Path, help="also write the tuned weights into this folder")
    arguments = parser.parse_args()
    base = load_model(device="cpu", threads=arguments.threads)
    other: Loaded | None = None
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_DATA_HOME"] = scratch  # the user's own store stays as it is
        for folder in arguments.folders:
            adapted, facts = measured(folder.resolve(), Path(scratch), base, other, arguments)
            print(json.dumps(facts), flush=True)
            other = adapted if arguments.control else None
    return 0


def measured(
    folder: Path, scratch: Path, base: Loaded, other: Loaded | None, arguments: argparse.Namespace
) -> tuple[Loaded | None, dict[str, object]]:
    """Return the tuned model, or None if its loss was not lower, and the figures of one repository."""
    aside, copy = split(folder, scratch / "copies" / folder.name, arguments.seed)
    limits = repository.Limits(minutes=arguments.minutes, threads=arguments.threads, seed=arguments.seed)
    began = time.process_time()
    report = repository.run(copy, "embedded", limits, say=note)
    facts: dict[str, object] = {
        "repository": folder.name,
        "files": report.n_files,
        "minutes": round(report.minutes, 2),
        "cpu_s": round(time.process_time() - began),
        "tokens": report.tokens,
        "before_on_held_out": asdict(report.before),
        "after_on_held_out": asdict(report.after),
        "stored": report.entry is not None,
        "files_aside": len(aside),
    }
    corpus = scratch / f"{folder.name}.jsonl"
    corpus.write_text("".join(json.dumps([name, text]) + "\n" for name, text in aside), encoding="utf-8")
    tasks = make.tasks(corpus, arguments.holes, arguments.seed)
    adapted = with_weights(base, report.weights) if report.weights else None
    if adapted and arguments.keep:
        save_file(dict(report.weights), arguments.keep / f"{folder.name}.safetensors")
    models = {"before": base, **({"after": adapted} if adapted else {}), **({"control": other} if other else {})}
    rows = {name: fill(model, tasks, folder if arguments.related else None) for name, model in models.items()}
    facts["holes"] = len(tasks)
    for name, its_rows in rows.items():
        summary = score.summary(its_rows)
        facts[name] = {
            "exact": sum(row.exact for row in its_rows),
            "share": rounded(summary.exact_match),
            "similarity": rounded(summary.edit_similarity),
        }
        if name != "before":
            facts[f"gain_{name}"] = rounded(score.gain(its_rows, rows["before"]))
    return adapted, facts


def split(folder: Path, copy: Path, seed: int) -> tuple[list[tuple[str, str]], Path]:
    """Return the files set aside, and a folder with a copy of the others."""
    train, held = tune_data.texts(folder)
    documents = sorted([*train, *held], key=lambda each: hashlib.sha256(f"aside {seed} {each[0]}".encode()).digest())
    n_aside = max(1, len(documents) // ASIDE)
    for name, text in documents[n_aside:]:
        place = copy / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return documents[:n_aside], copy


def with_weights(base: Loaded, weights: Mapping[str, Tensor]) -> Loaded:
    model = tuned_models.with_weights(base.diffusion.model, dict(weights))
    return replace(base, passes=type(base.diffusion)(model))


def fill(model: Loaded, tasks: list[Task], folder: Path | None) -> list[Row]:
    bench = Bench(Setup((methods.FULL,), device="cpu", threads=model.threads), model)
    if folder is None:
        return [row for task in tasks for row in bench.rows(task)]
    filler = bench.filler(methods.FULL)
    rows = []
    for task in tasks:
        related: tuple[Snippet, ...] = workspace.related(folder, folder / task.path, task.document, RELATED_CHARS)
        filler.cache.clear()
        work = filler.start(replace(task.request(), related=related))
        while work.step():
            pass
        text = run.settled(task, methods.FULL, work.candidates())[0]
        rows.append(run.to_row(task, methods.FULL, run.Answer(text)))
    return rows


def rounded(measure: Measure | None) -> list[float] | None:
    return None if measure is None else [round(value, 4) for value in (measure.value, measure.low, measure.high)]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
