"""Run `dg-lsp infill` from a program, with a report instead of terminal output."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dg_lsp.batch import diff, guard, job, report
from dg_lsp.batch.check import Check
from dg_lsp.batch.discover import Skipped
from dg_lsp.batch.job import Connect, JobSpec
from dg_lsp.batch.journal import Journal, JournalError
from dg_lsp.batch.keep import AcceptanceRule
from dg_lsp.batch.plan import DEFAULT_KINDS, PlanError
from dg_lsp.batch.report import Row
from dg_lsp.batch.run import RunOptions
from dg_lsp.batch.scratch import ScratchError
from dg_lsp.batch.select import Selection
from dg_lsp.infill import config
from dg_lsp.infill.port import EngineError

ERRORS = (PlanError, JournalError, ScratchError, EngineError, config.ConfigError)
"""The errors that `run` raises. The message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run: a row for each hole, the skipped files with the reasons, and the patch.

    `report` is the object that `--json` prints; docs/infill.md describes it.
    """

    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]
    patch: str
    report: dict[str, Any]


async def run(
    paths: Sequence[Path],
    *,
    model: str = "",
    kinds: Sequence[str] = DEFAULT_KINDS,
    check: str = "",
    n_jobs: int = 1,
    candidates: int | None = None,
    retries: int = 2,
    allow_shrink: bool = False,
    seed: int = 0,
    min_confidence: float | None = None,
    take_all: bool = False,
    write: bool = False,
    journal: Path | None = None,
    selection: Selection | None = None,
    n_in_flight: int = 0,
    connect: Connect | None = None,
    done: Callable[[int], None] = lambda _n: None,
) -> Result:
    """Fill files and folders and return the result; the parameters are the options of `dg-lsp infill`.

    `candidates` is by default the setting `batch.candidates`. `connect` replaces the user's engine. `done` is called with
    the number of holes just answered. Without `write`, no file is changed. Raises one of `ERRORS`.
    """
    from dg_lsp.batch.commands import resident

    started = time.perf_counter()
    configured = config.load_config(config.workspace_of(job.names_begin_at(paths)))
    spec = JobSpec(
        paths=tuple(paths),
        kinds=frozenset(kinds),
        model=configured.model(model),
        options=RunOptions(
            configured.settings.batch_candidates if candidates is None else candidates,
            seed,
            configured.settings.batch_deadline,
            retries,
            allow_shrink,
        ),
        write=write,
        check=Check(check) if check else None,
        n_jobs=n_jobs,
        acceptance=AcceptanceRule(min_confidence, take_all),
        selection=selection or Selection(),
        n_in_flight=n_in_flight,
    )
    plans, skipped, _ = job.plans(spec)
    connect = connect or functools.partial(resident, configuration=configured)
    plans, private, connect = guard.guarded(spec.model, plans, connect)
    with Journal(journal, job.answer_settings(spec, plans)) as answers:
        results = await job.fill(spec, plans, answers, connect, hear=lambda _text: None, done=done) if plans else []
    rows: list[Row] = []
    patch: list[str] = []
    root = job.names_begin_at(spec.paths)
    for drafted, by_hole in results:
        result = job.write_fills(drafted) if write else drafted
        rows += report.rows(result, by_hole)
        source = result.plan.source
        name = os.path.relpath(source.path, root).replace(os.sep, "/")
        edits = [fill.edit for fill in result.fills.values()]
        patch.append(diff.unified(name, source.document.text, edits))
    skipped += private
    ms = round((time.perf_counter() - started) * 1000)
    facts = {"ms": ms, "model": spec.model, "seed": seed, "written": write}
    notes = {plan.source.name: text for plan in plans if (text := report.note(plan))}
    return Result(tuple(rows), tuple(skipped), "".join(patch), report.build(rows, skipped, notes, **facts))


def run_sync(paths: Sequence[Path], **options: Any) -> Result:
    """Call `run` from a program without an event loop."""
    return asyncio.run(run(paths, **options))
