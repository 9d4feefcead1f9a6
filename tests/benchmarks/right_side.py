"""Measure what the canvas adapter adds where the right side decides: python tests/benchmarks/right_side.py TASKS OUT [MODEL]

TASKS are holes, as `dg-lsp eval --make` cuts them, of files that nothing was trained on. They are read in a random order. A
hole is kept if the right side speaks against what the causal model writes from left to right, its own answer, by one of two
rules. Both ask the causal model alone how likely the right side's first tokens are (the profile's `held_tokens`):

"true": at least twenty times as likely after the true answer as after its own. This rule knows the answer, so its own answer
is always wrong in these holes, and any other way to answer has a head start.
"another": at least twenty times as likely after the likeliest other candidate (by the answer and the right side together) as
after its own. This rule does not know what is right. The engine without the adapter ranks by the same likelihood.

The arms answer the kept holes on the path of `dg-lsp eval`: without the adapter, with it, with it in every kind of hole but
bodies, and without it but with eight branches. The last one is the control: it shows what any second way to answer brings.
Prints a table for each rule. OUT gets the holes (true.jsonl.gz, another.jsonl.gz) and all answers (answers.csv).

With --every, all holes in which the adapter reads are answered, so that the table is an ablation: "reranked" has the
candidates of the causal model alone, ranked as with the adapter, so without drafts that were read under the right side.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from dg_lsp.core import calibration
from dg_lsp.core.values import Candidate
from dg_lsp.engine.causal import layout
from dg_lsp.engine.causal.filler import CausalFiller
from dg_lsp.engine.causal.generation import Generation
from dg_lsp.engine.common.local import LocalFiller, LocalTask
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.evaluate import run, score, tasks
from dg_lsp.evaluate.run import Method, MethodAnswer
from dg_lsp.evaluate.score import Measure, ResultRow
from dg_lsp.evaluate.tasks import Task

LEAST_GAIN = math.log(20)  # nats of the right side
RULES = ("true", "another")
# The right side hardly ever decides a block, and bodies are never read with the adapter.
MOST = {"whole-line": 80, "block": 20, "rest-of-line": 50, "span": 50}
WITHOUT = Method("without", profile=(("right_tokens", 0),))
WITH, EVERYWHERE, RERANKED = Method("with"), Method("everywhere"), Method("reranked")
BRANCHES = Method("8 branches", profile=(("right_tokens", 0), ("branches", 8)))
ARMS: tuple[Method, ...] = (WITHOUT, WITH, EVERYWHERE, BRANCHES)
ARMS_OF_EVERY: tuple[Method, ...] = (WITHOUT, WITH, RERANKED)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--every", action="store_true", help="do not choose: the ablation")
    parser.add_argument("--kinds", default="", help="with --every: only these kinds, with commas")
    parser.add_argument("--seed", type=int, default=0)
    for kind, n in MOST.items():
        parser.add_argument(f"--{kind}", type=int, default=n, help=f"how many holes of this kind a set has at most; {n}")
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    holes = tasks.read(arguments.tasks)
    random.Random(arguments.seed).shuffle(holes)
    bench = run.load_bench(run.Setup((*ARMS, RERANKED), arguments.model, device="cpu"))
    if arguments.every:
        kinds = arguments.kinds.split(",") if arguments.kinds else {task.kind for task in holes}
        every = [task for task in holes if task.kind in kinds and reads(bench.fillers[WITH], task)]
        sets, arms = {"every": every}, ARMS_OF_EVERY
    else:
        most = {kind: getattr(arguments, kind.replace("-", "_")) for kind in MOST}
        sets, arms = chosen(bench.fillers[WITHOUT], holes, most), ARMS
        for rule, of_rule in sets.items():
            tasks.write(arguments.out / f"{rule}.jsonl.gz", of_rule)
    distinct = {task.task_id: task for of_rule in sets.values() for task in of_rule}
    rows = [row for of_task in answered(bench, distinct.values(), arms) for row in of_task]
    write(arguments.out / "answers.csv", rows, sets)
    for rule, of_rule in sets.items():
        names = {task.task_id for task in of_rule}
        print(f"\n{rule}: {len(of_rule)} holes\n\n{table([row for row in rows if row.task_id in names], arms)}")
    return 0


# Choosing the holes.


def chosen(filler: LocalFiller, holes: Sequence[Task], most: Mapping[str, int]) -> dict[str, list[Task]]:
    """Return the holes of each rule, the first `most` of each kind, until the set of the rule "true" has all of its own."""
    sets: dict[str, list[Task]] = {rule: [] for rule in RULES}
    counts: Counter[tuple[str, str]] = Counter()
    n_read: Counter[str] = Counter()
    for task in holes:
        if counts["true", task.kind] >= most.get(task.kind, 0):
            continue
        n_read[task.kind] += 1
        for rule in rules_that_keep(filler, task):
            if counts[rule, task.kind] < most[task.kind]:
                counts[rule, task.kind] += 1
                sets[rule].append(task)
        if not n_read.total() % 25:
            print(f"{n_read.total()} read, {dict(counts)}", file=sys.stderr, flush=True)
    print("read: " + ", ".join(f"{kind} {n}" for kind, n in n_read.items()))
    return sets


def rules_that_keep(filler: LocalFiller, task: Task) -> list[str]:
    """Return the rules by which the right side speaks against the causal model's own answer."""
    filling = finished(filler, task).generation
    own = next((proposal for proposal in filling.proposals if proposal.row == "causal"), None) if filling else None
    if not isinstance(filling, Generation) or own is None:
        return []
    return [rule for rule, gain in gains(filling, task.answer, own).items() if gain >= LEAST_GAIN]


def gains(filling: Generation, answer: str, own: Proposal) -> dict[str, float]:
    """Return by how many nats the right side is likelier after the text that each rule compares with, than after `own`."""
    best = max(filling.proposals, key=lambda proposal: proposal.joint_logp)
    with torch.inference_mode():
        (true,) = filling.scorer.score([Proposal(answer, "causal")])
    return {"true": true.suffix_sum - own.suffix_sum, "another": best.suffix_sum - own.suffix_sum}


def finished(filler: LocalFiller, task: Task) -> LocalTask:
    """Return the work of a filler with nothing cached, at its end."""
    filler.cache.clear()
    work = filler.start(task.request())
    while work.step():
        pass
    return work


# Answering them.


def answered(bench: run.Bench, holes: Iterable[Task], arms: Sequence[Method]) -> Iterator[list[ResultRow]]:
    """Yield the rows of each hole, one for each arm."""
    for n_done, task in enumerate(holes, 1):
        works: dict[Method, LocalTask] = {}
        yield [run.to_row(task, arm, MethodAnswer(text_of(bench, task, arm, works))) for arm in arms]
        if not n_done % 20:
            print(f"{n_done} answered", file=sys.stderr, flush=True)


def text_of(bench: run.Bench, task: Task, arm: Method, works: dict[Method, LocalTask]) -> str:
    """Return the arm's answer. `works` are those of the arms before it; where the adapter would not read, its is the first."""
    if arm is RERANKED:
        candidates = reranked(works[WITHOUT], works[WITH])
    else:
        with reading_everywhere(arm is EVERYWHERE):
            is_same = arm in (WITH, EVERYWHERE) and not reads(bench.fillers[arm], task)
            works[arm] = works[WITHOUT] if is_same else finished(bench.fillers[arm], task)
        candidates = works[arm].candidates()
    return run.settled(task, arm, candidates)[0]


def reranked(without: LocalTask, with_adapter: LocalTask) -> Sequence[Candidate]:
    """Return the candidates of the causal model alone, scored and ranked as those of the adapter."""
    filling = with_adapter.generation
    if not isinstance(filling, Generation):
        return ()
    with torch.inference_mode():
        filling.proposals = filling.scorer.score([Proposal(each.text, each.row) for each in without.proposals()])
    return calibration.to_candidates(filling.evidence(), filling.middle.calibration)


def reads(filler: LocalFiller, task: Task) -> bool:
    """Return whether the canvas adapter reads the right side of the hole."""
    return isinstance(filler, CausalFiller) and bool(filler.layout.lay_out(task.request()).suffix)


@contextmanager
def reading_everywhere(is_on: bool) -> Iterator[None]:
    """Let the canvas adapter read the right side of all holes but bodies, if `is_on`."""
    positions = ("line", "block", "end", "inside") if is_on else layout.READS_SUFFIX
    with mock.patch.object(layout, "READS_SUFFIX", positions):
        yield


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table: the arms' shares of right answers, and the differences to the arm without the adapter."""

    name: str
    n: int
    shares: Sequence[float]
    gains: Sequence[Measure | None]

    def __str__(self) -> str:
        cells = [f"{share:.3f}" for share in self.shares]
        cells += [f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]" if gain else "" for gain in self.gains]
        return f"| {self.name} | {self.n} | {' | '.join(cells)} |"


def table(rows: Sequence[ResultRow], arms: Sequence[Method]) -> str:
    """Return a table in Markdown. The intervals are bootstrapped over files."""
    heads = ["", "holes", *(arm.name for arm in arms), *(f"{arm.name} less {arms[0].name}" for arm in arms[1:])]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for kind in (*sorted({row.kind for row in rows}), "all"):
        of_arm = [[row for row in rows if row.method == arm.name and kind in (row.kind, "all")] for arm in arms]
        shares = [sum(row.exact for row in each) / len(each) for each in of_arm if each]
        lines.append(str(Line(kind, len(of_arm[0]), shares, [score.gain(each, of_arm[0]) for each in of_arm[1:]])))
    return "\n".join(lines)


def write(path: Path, rows: Sequence[ResultRow], sets: Mapping[str, Sequence[Task]]) -> None:
    names = {rule: {task.task_id for task in of_rule} for rule, of_rule in sets.items()}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("task_id", "kind", "method", "exact", "text", *sets))
        for row in rows:
            kept_by = [int(row.task_id in names[rule]) for rule in sets]
            writer.writerow((row.task_id, row.kind, row.method, int(row.exact), row.text, *kept_by))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
