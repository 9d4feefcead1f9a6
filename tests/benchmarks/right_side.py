"""Keep the holes whose right side decides: python tests/benchmarks/right_side.py TASKS OUT [MODEL] [--most N]

TASKS are holes, as `dg-lsp eval --make` cuts them; those of one line are read. A hole is kept if the answer that is likeliest
after its left side is wrong, and the right side is at least twenty times as likely after the true answer as after that one. The
model's canvas adapter is not used for that. Compare with the kept holes what the adapter adds:

    dg-lsp eval OUT --model MODEL --ablation
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from dg_lsp.engine.decode.filler import LocalFiller
from dg_lsp.engine.decode.rank import Proposal
from dg_lsp.engine.model import loading
from dg_lsp.evaluate import score, tasks
from dg_lsp.evaluate.tasks import Task

LEAST_GAIN = math.log(20)  # nats of the right side


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--most", type=int, default=200, help="how many holes to keep")
    arguments = parser.parse_args(argv)
    loaded = loading.load_model(arguments.model, device="cpu")
    filler = LocalFiller(replace(loaded, profile=replace(loaded.profile, right_tokens=0)))
    kept: list[Task] = []
    n_read = 0
    for task in tasks.read(arguments.tasks):
        if len(kept) < arguments.most and "\n" not in task.answer:
            n_read += 1
            if decides(filler, task):
                kept.append(task)
                print(f"{len(kept)} of {n_read} holes", flush=True)
    tasks.write(arguments.out, kept)
    return 0


def decides(filler: LocalFiller, task: Task) -> bool:
    """Return whether the right side speaks for the true answer, and against the one that is likeliest without it."""
    work = filler.start(task.request())
    while work.step():
        pass
    filling = work._filling
    if filling is None or not filling.proposals:
        return False
    likeliest = max(filling.proposals, key=lambda proposal: sum(proposal.own))
    if score.is_exact(likeliest.text, task.answer):
        return False
    with torch.inference_mode():
        (true,) = filling.scorer.score([Proposal(task.answer, "causal")])
    return true.after_sum - likeliest.after_sum >= LEAST_GAIN


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
