"""How likely a checkpoint holds the right answers of tasks to be: python tests/benchmarks/answer_loss.py FILE… --model MODEL…

Prints, for each model, file of tasks and kind of hole, the nats a character of the right answer costs, first for the model
alone and then mixed with the file's repetitions as the product mixes them, and the nats of the token that ends it, read
causally in the product's own layout. It tells training runs apart that exact match on some hundred holes can't.
`MODEL@TOKENS` gives the model a shorter prefix. `--csv` keeps the values of each hole for compare_losses.py. One thread.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from dg_lsp.engine.decode import layout, scoring
from dg_lsp.engine.decode.fill import FillInput, Switches, gap_tokens
from dg_lsp.engine.decode.layout import Layout
from dg_lsp.engine.model import loading
from dg_lsp.engine.model.loading import Loaded
from dg_lsp.evaluate import tasks
from dg_lsp.evaluate.tasks import Task

MOST_TOKENS = 128  # of an answer; a longer one counts without its end


@dataclass(slots=True)
class Sums:
    """Nats and characters of answers, nats and number of ends. `mixed_nats` are those beside the file's repetitions."""

    nats: float = 0.0
    mixed_nats: float = 0.0
    chars: int = 0
    end_nats: float = 0.0
    n_ends: int = 0

    def add(self, other: Sums) -> None:
        """Add another sum."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def __str__(self) -> str:
        """Return the means."""
        chars = max(self.chars, 1)
        return (
            f"{self.nats / chars:.3f} a character, {self.mixed_nats / chars:.3f} mixed, "
            f"{self.end_nats / max(self.n_ends, 1):.2f} an end"
        )


@torch.no_grad()
def costs(loaded: Loaded, layouts: Layout, task: Task) -> Sums:
    """Return what one task's answer costs."""
    request = task.request()
    sheet = layouts.lay_out(request)
    answer = loaded.vocabulary.encode(sheet.heal.decode("utf-8", "ignore") + task.answer)[:MOST_TOKENS]
    end = [sheet.end] if sheet.end is not None and len(answer) < MOST_TOKENS else []
    ids = torch.tensor([[*sheet.kv, *answer, *end]])
    hidden, _ = loaded.passes.encode(ids)
    n_read = len(answer) + len(end)
    logs = loaded.passes.logits(hidden[:, -n_read - 1 : -1]).log_softmax(-1)[0]
    answer_logs = logs.gather(1, ids[0, -n_read:, None])[:, 0]
    own = answer_logs[: len(answer)]
    file = FillInput(request, sheet, loaded, gap_tokens(loaded), Switches()).file_model(loaded.profile.file_weight)
    return Sums(
        nats=-float(own.sum()),
        mixed_nats=-sum(scoring.mixed(file, answer, own.tolist()) if file else own.tolist()),
        chars=len(loaded.vocabulary.decode(answer)),
        end_nats=-float(answer_logs[len(answer) :].sum()),
        n_ends=len(end),
    )


def main(arguments: Sequence[str]) -> None:
    """Print the losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--model", nargs="+", default=["embedded"])
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="write what each hole costs to this file")
    stated = parser.parse_args(arguments)
    torch.set_num_threads(1)
    holes: list[dict[str, object]] = []
    for spec in stated.model:
        name, _, tokens = spec.partition("@")
        loaded = loading.load_model(name, device="cpu", dtype="float32", threads=1)
        profile = replace(loaded.profile, prefix_tokens=int(tokens)) if tokens else loaded.profile
        layouts = layout.for_profile(profile, loaded.vocabulary)
        for file in stated.files:
            kinds: dict[str, Sums] = defaultdict(Sums)
            for task in tasks.spread(tasks.read(file), stated.limit):
                cost = costs(loaded, layouts, task)
                kinds[task.kind].add(cost)
                kinds["all"].add(cost)
                holes.append({"model": spec, "file": file.name, "task_id": task.task_id, "kind": task.kind, **asdict(cost)})
            for kind, sums in sorted(kinds.items()):
                print(f"{spec}  {file.name}  {kind}: {sums}", flush=True)
    if stated.csv:
        with stated.csv.open("w", encoding="utf-8", newline="") as target:
            writer = csv.DictWriter(target, ["model", "file", "task_id", "kind", *(each.name for each in fields(Sums))])
            writer.writeheader()
            writer.writerows(holes)


if __name__ == "__main__":
    main(sys.argv[1:])
