"""How likely a checkpoint holds the right answers of tasks to be: python tests/benchmarks/answer_loss.py FILE… --model MODEL…

Prints, for each model, file of tasks and kind of hole, the nats a character of the right answer costs, and the nats of the
token that ends it, read causally in the product's own layout. It tells training runs apart that exact match on some hundred
holes can't. `MODEL@TOKENS` gives the model a shorter prefix. One thread.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from dg_lsp.engine import layout, model
from dg_lsp.engine.layout import Layout
from dg_lsp.engine.model import Loaded
from dg_lsp.evaluate import tasks
from dg_lsp.evaluate.tasks import Task

MOST_TOKENS = 128  # of an answer; a longer one counts without its end


@dataclass(slots=True)
class Sums:
    """Nats and characters of answers, nats and number of ends."""

    nats: float = 0.0
    chars: int = 0
    end_nats: float = 0.0
    n_ends: int = 0

    def __str__(self) -> str:
        """Return both means."""
        return f"{self.nats / max(self.chars, 1):.3f} a character, {self.end_nats / max(self.n_ends, 1):.2f} an end"


@torch.no_grad()
def add(loaded: Loaded, layouts: Layout, task: Task, sums: Sequence[Sums]) -> None:
    """Add what one task's answer costs."""
    sheet = layouts.lay_out(task.request())
    answer = loaded.vocabulary.encode(sheet.heal.decode("utf-8", "ignore") + task.answer)[:MOST_TOKENS]
    end = [sheet.end] if sheet.end is not None and len(answer) < MOST_TOKENS else []
    ids = torch.tensor([[*sheet.kv, *answer, *end]])
    hidden, _ = loaded.passes.encode(ids)
    n_read = len(answer) + len(end)
    logs = loaded.passes.logits(hidden[:, -n_read - 1 : -1]).log_softmax(-1)[0]
    answer_logs = logs.gather(1, ids[0, -n_read:, None])[:, 0]
    for each in sums:
        each.nats -= float(answer_logs[: len(answer)].sum())
        each.chars += len(loaded.vocabulary.decode(answer))
        each.end_nats -= float(answer_logs[len(answer) :].sum())
        each.n_ends += len(end)


def main(arguments: Sequence[str]) -> None:
    """Print the losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--model", nargs="+", default=["embedded"])
    parser.add_argument("--limit", type=int, default=0)
    stated = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for spec in stated.model:
        name, _, tokens = spec.partition("@")
        loaded = model.load_model(name, device="cpu", dtype="float32", threads=1)
        profile = replace(loaded.profile, prefix_tokens=int(tokens)) if tokens else loaded.profile
        layouts = layout.for_profile(profile, loaded.vocabulary)
        for file in stated.files:
            kinds: dict[str, Sums] = defaultdict(Sums)
            for task in tasks.spread(tasks.read(file), stated.limit):
                add(loaded, layouts, task, (kinds[task.kind], kinds["all"]))
            for kind, sums in sorted(kinds.items()):
                print(f"{spec}  {file.name}  {kind}: {sums}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
