"""Fit a laptop model's probabilities at positions of real commits, which no model has read.

    python benchmarks/replay_fit.py collect OUT --mirror DIR [--set dev|fit] [--model MODEL]
    python benchmarks/replay_fit.py collect OUT --tasks FILE --repository OWNER/NAME [--model MODEL]
    python benchmarks/replay_fit.py fit OUT… [--into FILE]

`collect` runs the whole pipeline at each position, with the files around it. It adds a line with the features of the
answers, of those without branches, and of the first draft, and which of them are right. A third of the positions get the
shortest window of a first answer. With `--tasks`, the holes are those that `evaluate.py --make` cut from new files of one
repository: blocks and bodies, which commits have hardly any of.
`fit` prints how well the probabilities hold, in five folds: those of some repositories are fitted on the others. It writes
them into a profile.

A collection that was stopped goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import commits
from benchmarks.commits import Mirrors
from dg_lsp.core import holes, languages, syntax
from dg_lsp.core.calibration import POSITIONS
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.backends import local
from dg_lsp.engine.causal import answer
from dg_lsp.engine.causal.answer import first_draft, first_evidence
from dg_lsp.engine.causal.filler import CausalFiller
from dg_lsp.engine.causal.layout import LEAST_NEW, SHORT_SUFFIX, CausalInputs
from dg_lsp.engine.common import answering
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.evaluate import fitting
from dg_lsp.evaluate import tasks as evaluation
from dg_lsp.evaluate.fitting import Features, Judged, Sample
from dg_lsp.evaluate.tasks import Task
from dg_lsp.infill import pipeline
from dg_lsp.infill.workspace import ContextReader

MODEL = "qwen2.5-coder-0.5b"
# Chosen by dropping the weakest of all features in turn: as many answers are right as with all of them.
OF_ANSWERS = frozenset(
    {"chance", "joint", "mean", "least", "after", "margin", "texts", "length", "causal", "copied", "agree", "left", "right"}
    | {"whole", "behind left", "behind right", "new names", "open", "continues", "missing", "incomplete"}
    | {"settled", "onward"}
)
OF_DRAFTS = frozenset({"chance", "least", "margin", "sure", "length", "agree", "new names", "open"})
BINS = 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.01
N_CANDIDATES = (2, 4)

Hole = tuple[str, Task, InfillRequest]
"""A repository, a task cut there, and the request for it."""


def collect(options: argparse.Namespace) -> int:
    """Add a line to the file for each hole that it lacks."""
    loaded = local.load_model(options.model, device="cpu", threads=options.threads)
    short = replace(loaded.profile, prefix_tokens=LEAST_NEW, suffix_tokens=SHORT_SUFFIX, related_tokens=0)
    fillers = [CausalFiller(replace(loaded, profile=profile)) for profile in (short, loaded.profile, loaded.profile)]
    out = Path(options.out)
    done = {json.loads(line)["id"] for line in out.read_text("utf-8").splitlines()} if out.exists() else set()
    wanted = _of_tasks(options, done) if options.tasks else _of_commits(Mirrors(options.mirror), options.set, done)
    with out.open("a", encoding="utf-8") as rows:
        for number, (repository, task, request) in enumerate(wanted):
            print(json.dumps(_row(fillers, repository, task, request)), file=rows, flush=True)
            print(f"\r{number + 1}", end="", flush=True)
    return 0


def _of_tasks(options: argparse.Namespace, done: set[str]) -> Iterator[Hole]:
    for number, task in enumerate(evaluation.read(options.tasks)):
        if task.task_id not in done:
            yield options.repository, task, task.request(seed=number)


def _of_commits(mirrors: Mirrors, name: str, done: set[str]) -> Iterator[Hole]:
    by_commit = defaultdict[tuple[str, str], list[commits.Position]](list)
    for position in commits.read(name):
        if position.id not in done:
            by_commit[position.repository, position.commit].append(position)
    for (repository, commit), own in by_commit.items():
        with tempfile.TemporaryDirectory(prefix="fit-") as folder:
            root = Path(folder).resolve() / repository.rpartition("/")[2]
            root.mkdir()
            mirrors.checkout(repository, commit, root)
            (root / ".git").mkdir(exist_ok=True)  # where the workspace begins
            found = [mirrors.hole(position) for position in own]
            for hole in found:
                (root / hole.position.path).write_text(hole.opened, encoding="utf-8", newline="")
            reader = ContextReader()
            for hole in found:
                language = languages.for_path(hole.position.path)
                assert language is not None
                place = hole.position
                task = Task(place.id, hole.before, hole.after, hole.truth, language=language.name, path=place.path)
                path, document = root / place.path, task.document
                tree = syntax.of(document)
                target = holes.at_cursor(document, place.cursor, tree)
                yield repository, task, pipeline.to_request(document, (target,), reader.read(path, document), syntax=tree)


def _row(fillers: Sequence[CausalFiller], repository: str, task: Task, request: InfillRequest) -> dict[str, Any]:
    number = zlib.crc32(task.task_id.encode())
    filler = fillers[number % len(fillers)]
    filler.cache.clear()
    n_candidates = N_CANDIDATES[number // len(fillers) % len(N_CANDIDATES)]
    work = filler.start(replace(request, budget=replace(request.budget, candidates=n_candidates)))
    finished = list[Proposal | None]()

    def noted(*parts: Any) -> Proposal | None:
        finished.append(first_draft(*parts))
        return finished[-1]

    with patch.object(answer, "first_draft", noted):
        while work.step():
            pass
    inputs, proposals = work.inputs, work.progress.proposals
    assert isinstance(inputs, CausalInputs)
    first = next((first_evidence(inputs, draft, proposals) for draft in finished if draft is not None), None)
    own = {first.candidate.texts[0]} if first is not None else set[str]()
    without_branches = [each for each in proposals if each.row == "copy" or each.text in own]
    evidence = {
        "answers": work.evidence(),
        "straight": answering.evidence(inputs, without_branches),
        "draft": () if first is None else (first,),
    }
    samples = {name: fitting.judged_sample(task, each) for name, each in evidence.items()}
    work.close()
    rows = {name: [sample.features, sample.right] for name, sample in samples.items()}
    return {"id": task.task_id, "repository": repository, **rows}


def fit_all(options: argparse.Namespace) -> int:
    """Print how well both calibrations hold, and write them."""
    rows = [json.loads(line) for out in options.outs for line in out.read_text("utf-8").splitlines()]
    fitted = {}
    for keys, name, names in (
        (("answers", "straight"), "calibration", OF_ANSWERS),
        (("draft",), "draft_calibration", OF_DRAFTS),
    ):
        samples = [sample for key in keys for sample in _samples(rows, key, names | set(POSITIONS)) if sample.features]
        if not samples:
            continue
        judged = fitting.cross_judged(samples)
        n_first = sum(sample.right[0] for sample in samples)
        n_fitted = sum(map(_is_right, judged))
        print(f"{name}: {len(samples)} holes, right {n_first} in the order of the likelihood, {n_fitted} fitted")
        for low, high in pairwise(BINS):
            own = [each for each in judged if low <= each.probability < high]
            stated = sum(each.probability for each in own) / max(len(own), 1)
            print(f"  {low:.2f} to {min(high, 1):.2f}: {len(own)} stated {stated:.2f}, right {sum(map(_is_right, own))}")
        fitted[name] = asdict(fitting.fit(samples))
    if options.into:
        profile = json.loads(options.into.read_text("utf-8"))
        options.into.write_text(json.dumps(profile | fitted, indent=2) + "\n", encoding="utf-8")
    return 0


def _samples(rows: Iterable[dict[str, Any]], key: str, names: frozenset[str]) -> Iterator[Sample]:
    for row in rows:
        features, right = row[key]
        kept: list[Features] = [{name: value for name, value in each.items() if name in names} for each in features]
        yield Sample(row["repository"], tuple(kept), tuple(right))


def _is_right(each: Judged) -> bool:
    return each.right


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="do", required=True)
    one = commands.add_parser("collect", help="run the model at the positions")
    one.add_argument("out", help="the file of the features")
    one.add_argument("--mirror", type=Path, metavar="DIR", help="the folder of the git folders")
    one.add_argument("--set", choices=("dev", "fit"), default="fit")
    one.add_argument("--tasks", type=Path, metavar="FILE", help="tasks in place of positions of commits")
    one.add_argument("--repository", metavar="OWNER/NAME", help="where the tasks were cut, as in the sets of positions")
    one.add_argument("--model", default=MODEL)
    one.add_argument("--threads", type=int, default=1)
    two = commands.add_parser("fit", help="fit the calibrations")
    two.add_argument("outs", type=Path, nargs="+", metavar="OUT")
    two.add_argument("--into", type=Path, metavar="FILE", help="the profile to write them into")
    options = parser.parse_args(arguments)
    if options.do == "collect" and not (options.repository if options.tasks else options.mirror):
        parser.error("name --mirror, or --tasks and --repository")
    return collect(options) if options.do == "collect" else fit_all(options)


if __name__ == "__main__":
    sys.exit(main())
