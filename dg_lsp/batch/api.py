"""Run `dg-lsp infill` from a program, with a report instead of terminal output. The command is one caller of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

from dg_lsp.batch import diff, job, report
from dg_lsp.batch import write as writing
from dg_lsp.batch.check import Check
from dg_lsp.batch.discover import Skipped
from dg_lsp.batch.job import Connect, JobSpec
from dg_lsp.batch.journal import Journal, JournalError
from dg_lsp.batch.keep import AcceptanceRule, FileResult
from dg_lsp.batch.plan import DEFAULT_KINDS, FilePlan, Location, PlanError, Selection
from dg_lsp.batch.report import ReportRow
from dg_lsp.batch.rounds import RunOptions
from dg_lsp.batch.scratch import ScratchError
from dg_lsp.infill import client
from dg_lsp.infill.life import Loading, Starting, State
from dg_lsp.infill.port import Engine, EngineError, Guarded, keeps_file, patterns_of
from dg_lsp.wire import config, model_names
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.privacy import LOCAL_ONLY

ERRORS = (PlanError, JournalError, ScratchError, EngineError, config.ConfigError)
"""The errors that `run` raises. The message is a sentence for the user. After an EngineError, another run may succeed."""

Progress = tuple[Callable[[str], None], Callable[[int], None]]
"""Two functions: one shows what the run does now, one gets the number of holes just answered."""


@contextlib.contextmanager
def _no_progress(_n_holes: int) -> Iterator[Progress]:
    yield lambda _text: None, lambda _n: None


@dataclass(frozen=True, slots=True)
class Front:
    """What a run tells its caller: sentences, and the progress over a number of holes. `review` may change the results."""

    on_message: Callable[[str], None] = lambda _sentence: None
    progress: Callable[[int], AbstractContextManager[Progress]] = _no_progress
    review: Callable[[Sequence[FileResult]], Sequence[FileResult]] = lambda results: results


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run: a row for each hole, the skipped files with the reasons, and the patch.

    `report` is the object that `--json` prints; docs/infill.md describes it. The patch's file names are relative to `root`.
    `files` has the rows of each file. `is_committed` is False if a commit failed.
    """

    rows: tuple[ReportRow, ...]
    skipped: tuple[Skipped, ...]
    patch: str
    report: dict[str, Any]
    root: Path
    files: tuple[tuple[FileResult, tuple[ReportRow, ...]], ...] = ()
    is_committed: bool = True


def spec_of(
    paths: Sequence[Path] = (),
    *,
    places: Sequence[Location] | None = None,
    model: str = "",
    kinds: Sequence[str] = DEFAULT_KINDS,
    check: str | Check = "",
    n_jobs: int = 1,
    candidates: int | None = None,
    deadline_ms: int | None = None,
    retries: int = 2,
    allow_shrink: bool = False,
    seed: int = 0,
    min_confidence: float | None = None,
    take_all: bool = False,
    write: bool = False,
    commit_unit: str = "",
    selection: Selection | None = None,
    n_in_flight: int = 0,
) -> JobSpec:
    """Return the job that these options describe; they are those of `dg-lsp infill`.

    `model`, `candidates` and `deadline_ms` are by default those of the configuration. `places` may be empty, but without it
    there must be a path. Raises PlanError for an invalid option, and ConfigError for a model that can't exist.
    """
    if not paths and places is None:
        raise PlanError("name files or folders to fill, or a place with --at or --places")
    if commit_unit not in ("", *writing.UNITS):
        raise PlanError(f"--commit takes file or hole, not {commit_unit!r}")
    root = job.common_root([*paths, *(Path(place.file) for place in places or ())])
    configured = config.load_config(config.workspace_of(root))
    settings, model = configured.settings, configured.model(model)
    config.check_model(model)
    return JobSpec(
        paths=tuple(paths),
        places=tuple(places or ()),
        kinds=frozenset(kinds),
        model=model,
        options=RunOptions(
            settings.batch_candidates if candidates is None else candidates,
            seed,
            settings.batch_deadline if deadline_ms is None else deadline_ms,
            retries,
            allow_shrink,
        ),
        write=write or bool(commit_unit),
        commit=commit_unit,
        check=Check(check) if isinstance(check, str) and check else check or None,
        n_jobs=n_jobs,
        acceptance=AcceptanceRule(min_confidence, take_all),
        selection=selection or Selection(),
        n_in_flight=n_in_flight,
        root=root,
    )


async def run(
    paths: Sequence[Path],
    *,
    journal: Path | None = None,
    connect: Connect | None = None,
    front: Front | None = None,
    **options: Any,
) -> Result:
    """Fill files and folders and return the result; `options` are those of `spec_of`.

    `journal` stores answers and resumes a run. `connect` replaces the user's engine. Without the option `write`, no file is
    changed. Raises one of `ERRORS`.
    """
    return await run_job(spec_of(paths, **options), journal=journal, connect=connect, front=front)


def run_sync(paths: Sequence[Path], **options: Any) -> Result:
    """Call `run` from a program without an event loop."""
    return asyncio.run(run(paths, **options))


async def run_job(
    spec: JobSpec, *, journal: Path | None = None, connect: Connect | None = None, front: Front | None = None
) -> Result:
    """Fill a job's holes, write or commit the fills if it says so, and return the result. Raises one of `ERRORS`."""
    started = time.perf_counter()
    front = front or Front()
    plans, skipped, left_out = job.plans(spec)
    plans, private, connect = guarded(
        spec.model, plans, connect or functools.partial(resident, on_message=front.on_message, spec=spec)
    )
    skipped += private
    notes = {plan.source.name: text for plan in plans if (text := report.note(plan))}
    for line in report.before(skipped, notes, left_out):
        front.on_message(line)
    with Journal(journal, (spec.model, spec.options)) as answers:
        filled = await _filled(spec, plans, answers, connect, front) if plans else []
    files, is_committed = _applied(spec, filled, front)
    rows = tuple(row for _, rows_of_file in files for row in rows_of_file)
    ms = round((time.perf_counter() - started) * 1000)
    facts = {"ms": ms, "model": spec.model, "seed": spec.options.seed, "written": spec.write}
    patch = "".join(_diff(result, spec.root) for result, _ in files)
    about = report.build(rows, skipped, notes, **facts)
    return Result(rows, tuple(skipped), patch, about, spec.root, tuple(files), is_committed)


def resident(
    model: str, on_progress: Callable[[str], None], *, on_message: Callable[[str], None], spec: JobSpec
) -> AbstractAsyncContextManager[Engine]:
    """Return the user's resident engine with this model, started if needed.

    Raises PlanError if a package that a local model needs is not installed: another try would not help.
    """
    if not model_names.is_remote(model) and util.find_spec("torch") is None:
        raise PlanError(f"the model {model} needs torch, which is not installed; install it with: {install_command('engine')}")

    def on_state(state: State) -> None:
        match state:
            case Starting():
                on_progress("starting the engine")
            case Loading(_, message):
                on_progress(message)

    configured = config.load_config(config.workspace_of(spec.root))
    options = client.connect_options(configured, model=model, interactive=False)
    return client.connect(options, on_state=on_state, on_message=on_message)


async def _filled(
    spec: JobSpec, plans: Sequence[FilePlan], answers: Journal, connect: Connect, front: Front
) -> Sequence[FileResult]:
    with front.progress(sum(len(plan.holes) for plan in plans)) as (on_progress, done):
        results = await job.fill(spec, plans, answers, connect, on_progress=on_progress, done=done, on_message=front.on_message)
    return front.review(results)


def _applied(
    spec: JobSpec, filled: Sequence[FileResult], front: Front
) -> tuple[list[tuple[FileResult, tuple[ReportRow, ...]]], bool]:
    """Write or commit the fills; return the results with their rows, and whether all commits succeeded."""
    if spec.commit:
        warnings = (writing.detached_head_warning(result) for result in filled if result.fills)
        for warning in filter(None, dict.fromkeys(warnings)):
            front.on_message(warning)
    files, all_committed = [], True
    for decided in filled:
        result = decided
        if spec.commit:
            result, is_committed = writing.apply_fills(decided, spec.commit, front.on_message)
            all_committed = all_committed and is_committed
        elif spec.write:
            result = job.write_fills(decided)
        files.append((result, tuple(report.rows(result))))
    return files, all_committed


def _diff(result: FileResult, root: Path) -> str:
    source = result.plan.source
    name = os.path.relpath(source.path, root).replace(os.sep, "/")
    return diff.unified(name, source.document.text, result.edits)


def guarded(model: str, plans: Sequence[FilePlan], connect: Connect) -> tuple[list[FilePlan], list[Skipped], Connect]:
    """Return the plans of files that the model may see, the skipped private files, and a connect function that guards them."""
    if not model_names.is_remote(model):
        return list(plans), [], connect
    patterns = patterns_of(plan.source.path for plan in plans)
    private = {plan.source.path for plan in plans if keeps_file(plan.source.path, patterns)}
    shared = [plan for plan in plans if plan.source.path not in private]
    skipped = [Skipped(plan.source.name, LOCAL_ONLY) for plan in plans if plan.source.path in private]
    return shared, skipped, functools.partial(_connected, connect, patterns)


@contextlib.asynccontextmanager
async def _connected(
    connect: Connect, patterns: tuple[str, ...], model: str, on_progress: Callable[[str], None]
) -> AsyncIterator[Engine]:
    async with connect(model, on_progress) as engine:
        yield Guarded(engine, patterns)
