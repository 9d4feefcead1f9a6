"""One run of `dg-lsp infill`, from the named paths to the result of each file, with a report instead of terminal output.

The command is one caller, a program may be another. This module combines files, plans, engine, check and write.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, replace
from importlib import util
from pathlib import Path
from typing import Any

from dg_lsp.batch import cluster, discover, keep, plan, report
from dg_lsp.batch import write as writing
from dg_lsp.batch.check import Check, Copies, open_copies
from dg_lsp.batch.discover import Skipped, Source
from dg_lsp.batch.journal import Journal
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.options import Options
from dg_lsp.batch.plan import PLACE_FORM, FilePlan, Location, PlanError
from dg_lsp.batch.report import ReportRow
from dg_lsp.batch.rounds import ContextOf, HoleResult, Rounds
from dg_lsp.batch.scratch import ScratchError
from dg_lsp.client import engine as engines
from dg_lsp.client.life import LifeState
from dg_lsp.client.port import Engine, EngineError, Guarded
from dg_lsp.core import holes
from dg_lsp.core.values import Hole
from dg_lsp.infill.workspace import ContextReader
from dg_lsp.wire import config, model_names, programs
from dg_lsp.wire.config import LOCAL_ONLY, keeps_file, patterns_of
from dg_lsp.wire.extras import install_command

ERRORS = (PlanError, ScratchError, EngineError, config.ConfigError)
"""The errors that `run` raises. The message is a sentence for the user. After an EngineError, another run may succeed."""

# Concurrent requests to one server of a remote model. Each request may need several calls.
N_IN_FLIGHT_REMOTE = 8

# Opens an engine for the duration of a context, given the model's name and a function for progress messages.
Connect = Callable[[str, Callable[[str], None]], "AbstractAsyncContextManager[Engine]"]


@dataclass(frozen=True, slots=True)
class Job:
    """Options with the configured values, the places that they name, and the folder in which the names of a diff begin."""

    options: Options
    locations: tuple[Location, ...] = ()
    root: Path = Path()


Progress = tuple[Callable[[str], None], Callable[[int], None]]
"""Two functions: one shows what the run does now, one gets the number of holes just answered."""


@dataclass(frozen=True, slots=True)
class Front:
    """What a run tells its caller: sentences, and the progress over a number of holes."""

    on_message: Callable[[str], None] = lambda _sentence: None
    progress: Callable[[int], AbstractContextManager[Progress]] = lambda _n_holes: contextlib.nullcontext(
        (lambda _text: None, lambda _n: None)
    )


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run: a row for each hole, the skipped files with the reasons, and the patch.

    `report` is the object that `--json` prints; docs/infill.md describes it. The patch's file names are relative to `root`.
    `is_committed` is False if a commit failed.
    """

    rows: tuple[ReportRow, ...]
    skipped: tuple[Skipped, ...]
    patch: str
    report: dict[str, Any]
    root: Path
    is_committed: bool = True


def resolved(options: Options) -> Job:
    """Return the job of these options and the configuration; raise PlanError or ConfigError for an invalid option."""
    if not (options.paths or options.at or options.places):
        raise PlanError("name files or folders to fill, or a place with --at or --places")
    plan.parse_kinds(options.holes)
    if options.patch and options.resume and len(options.outputs) == 1:
        raise PlanError(f"--patch and --resume name the same file, {options.patch}; name another one")
    locations = tuple(map(plan.parse_place, options.at)) + (plan.read_places(options.places) if options.places else ())
    root = common_root([*options.paths, *(Path(place.file) for place in locations)])
    configured = config.load_config(config.workspace_of(root))
    settings, model = configured.settings, configured.model(options.model)
    config.check_model(model)
    candidates = settings.batch_candidates if options.candidates is None else options.candidates
    deadline = settings.batch_deadline if options.deadline is None else options.deadline
    return Job(replace(options, model=model, candidates=candidates, deadline=deadline), locations, root)


async def run(options: Options, *, connect: Connect | None = None, front: Front | None = None) -> Result:
    """Fill files and folders and return the result. `connect` replaces the user's engine, and Ray's.

    Without the options `write` and `commit`, no file is changed. Raises one of `ERRORS`.
    """
    return await run_job(resolved(options), connect=connect, front=front)


def run_sync(options: Options, **more: Any) -> Result:
    """Call `run` from a program without an event loop."""
    return asyncio.run(run(options, **more))


async def run_job(job: Job, *, connect: Connect | None = None, front: Front | None = None) -> Result:
    """Fill a job's holes, write or commit the fills if it says so, and return the result. Raises one of `ERRORS`."""
    started = time.perf_counter()
    front = front or Front()
    options = job.options
    if connect is None:
        by_ray = options.ray and cluster.connecting(options.ray, options.ray_workers)
        connect = by_ray or functools.partial(resident, on_message=front.on_message, root=job.root)
    file_plans, skipped, left_out = plans(job)
    file_plans, private, patterns = without_private(options.model, file_plans)
    skipped += private
    notes = {each.source.name: text for each in file_plans if (text := report.note(each))}
    for line in report.before(skipped, notes, left_out):
        front.on_message(line)
    filled: Sequence[FileResult] = []
    with Journal(options.resume, options.of_answers) as answers:
        if file_plans:
            filled = await fill(options, file_plans, answers, connect, front, patterns)
    written = [writing.Written(result, result.text) for result in filled]
    if options.writes:
        written = writing.write(filled, front.on_message, commits=options.commit)
    notes |= {each.result.plan.source.name: each.note for each in written if each.note}
    rows = tuple(row for each in written for row in report.rows(each.result))
    ms = round((time.perf_counter() - started) * 1000)
    facts = {"ms": ms, "model": options.model, "seed": options.seed, "written": options.writes}
    patch = ""
    for each in written:
        source = each.result.plan.source
        name = os.path.relpath(source.path, job.root).replace(os.sep, "/")
        patch += report.unified(name, source.document.text, each.text)
    about = report.build(rows, skipped, notes, **facts)
    return Result(rows, tuple(skipped), patch, about, job.root, all(each.is_committed for each in written))


def resident(
    model: str, on_progress: Callable[[str], None], *, on_message: Callable[[str], None], root: Path
) -> AbstractAsyncContextManager[Engine]:
    """Return the user's resident engine with this model, started if needed.

    Raises PlanError if a package that a local model needs is not installed: another try would not help.
    """
    if not model_names.is_remote(model) and util.find_spec("torch") is None:
        raise PlanError(f"the model {model} needs torch, which is not installed; install it with: {install_command('engine')}")

    def on_state(state: LifeState) -> None:
        if state.name in ("starting", "loading"):
            on_progress("starting the engine" if state.name == "starting" else state.message)

    configured = config.load_config(config.workspace_of(root))
    options = engines.connect_options(configured, model=model, interactive=False)
    return engines.connect(options, on_state=on_state, on_message=on_message)


def without_private(model: str, plans: Sequence[FilePlan]) -> tuple[list[FilePlan], list[Skipped], tuple[str, ...]]:
    """Return the plans of files that the model may see, the skipped private files, and the patterns of private ones."""
    if not model_names.is_remote(model):
        return list(plans), [], ()
    patterns = patterns_of(plan.source.path for plan in plans)
    private = {plan.source.path for plan in plans if keeps_file(plan.source.path, patterns)}
    shared = [plan for plan in plans if plan.source.path not in private]
    skipped = [Skipped(plan.source.name, LOCAL_ONLY) for plan in plans if plan.source.path in private]
    return shared, skipped, patterns


def plans(job: Job) -> tuple[list[FilePlan], list[Skipped], dict[str, int]]:
    """Return the files with the chosen holes, the files that can't be used, and how many holes each option left out.

    Named places come first, then the paths in order. Raises PlanError if a path does not exist or can't be looked up.
    """
    options = job.options
    for path in options.paths:
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            raise PlanError(f"there is no {path}") from None
        except OSError as error:
            raise PlanError(f"{path} can't be read: {(error.strerror or str(error)).lower()}") from None
    by_file: dict[Path, list[Location]] = {}
    for place in job.locations:
        by_file.setdefault(source_at(place).path, []).append(place)
    outputs = options.outputs
    file_plans = [plan.for_places(source_at(places[0]), places) for places in by_file.values()]
    skipped: list[Skipped] = []
    kinds = plan.parse_kinds(options.holes)
    for file in [*by_file, *discover.files(options.paths, with_foreign=options.generated)]:
        if file in outputs:
            raise PlanError(f"{outputs[file]} names {discover.show(file)}, which is one of the files to fill; name a new file")
        if file in by_file:
            continue
        source = file if isinstance(file, Skipped) else discover.read(file)
        if isinstance(source, Skipped):
            skipped.append(source)
        elif not (file_plan := plan.for_kinds(source, kinds)).groups:
            if "markers" in kinds and (reason := holes.unread(source.document)):
                skipped.append(Skipped(source.name, reason))
        elif not options.generated and (reason := discover.foreign(source)):
            skipped.append(Skipped(source.name, reason + discover.WITH_GENERATED))
        else:
            file_plans.append(file_plan)
    chosen, left_out = plan.choose(file_plans, options)
    return chosen, skipped, left_out


def source_at(place: Location) -> Source:
    """Return the file of a place; raise PlanError if it can't be used."""
    path = Path(place.file)
    if os.path.isdir(path):  # noqa: PTH112 -- Path.is_dir raises for long names and without permission
        raise PlanError(f"{place.file} is a folder; a place is in a file")
    [file] = discover.files([path])
    # As in `app.py:3`, whose number may be a line or a column.
    if re.search(r":\d+$", place.file) and not os.path.lexists(path):
        raise PlanError(f"{PLACE_FORM}, not {str(place)!r}; there is no file {place.file}")
    source = file if isinstance(file, Skipped) else discover.read(file)
    if isinstance(source, Skipped):
        raise PlanError(f"{source.name} {source.reason}")
    return source


async def fill(
    options: Options,
    file_plans: Sequence[FilePlan],
    answers: Journal,
    connect: Connect,
    front: Front,
    patterns: tuple[str, ...] = (),
) -> list[FileResult]:
    """Fill the holes and return the result of each file, in order. Writes nothing.

    A remote model sees nothing of other files that match the patterns.
    """
    check = Check(options.check, seconds=options.check_timeout, memory_mb=options.check_memory) if options.check else None
    n_left = sum(len(each.holes) for each in file_plans)
    with (
        front.progress(n_left) as (on_progress, done),
        open_copies(check, options.jobs, front.on_message) if check else contextlib.nullcontext() as copies,
    ):

        def count(n: int) -> None:
            nonlocal n_left
            n_left -= n
            done(n)
            if copies and not n_left:
                on_progress("checking")

        async with connect(options.model, on_progress) as engine:
            n_in_flight = cluster.N_IN_FLIGHT if options.ray else N_IN_FLIGHT
            if model_names.is_remote(options.model):
                engine = Guarded(engine, patterns)
                n_in_flight = n_in_flight if options.ray else N_IN_FLIGHT_REMOTE
            of_files = await results(engine, file_plans, options, answers, contexts(), copies, count, n_in_flight)
            return await keep.passing(of_files, copies) if copies else of_files


def contexts() -> ContextOf:
    """Return a function that reads the contexts of files, and each workspace once."""
    reader = ContextReader()
    return lambda file_plan: reader.read(file_plan.source.path, file_plan.source.document)


def common_root(paths: Sequence[Path]) -> Path:
    """Return the folder in which to apply a diff of these files: the current one, or else the smallest that contains all."""
    here = Path(programs.here())
    # Path.resolve may raise for a loop of links.
    real = [Path(os.path.realpath(path)) for path in paths]
    folders = [path if os.path.isdir(path) else path.parent for path in real]  # noqa: PTH112 -- as above
    if not folders or all(folder.is_relative_to(here) for folder in folders):
        return here
    return Path(os.path.commonpath(folders))


# --- Send the requests of all plans to the engine


N_IN_FLIGHT = 2


async def results(
    engine: Engine,
    plans: Sequence[FilePlan],
    options: Options,
    journal: Journal,
    context_of: ContextOf,
    copies: Copies | None = None,
    done: Callable[[int], None] = lambda _n: None,
    n_in_flight: int = N_IN_FLIGHT,
) -> list[FileResult]:
    """Return the result of each plan, in order. `done` is called with the number of holes just answered."""
    slots = asyncio.Semaphore(n_in_flight)

    async def answered(rounds: Rounds, group: tuple[Hole, ...]) -> dict[Hole, HoleResult]:
        async with slots:
            by_hole = await rounds.first(group)
        done(len(group))
        return by_hole

    async def finished(plan: FilePlan, requests: Sequence[asyncio.Task[dict[Hole, HoleResult]]]) -> FileResult:
        by_hole = {hole: result for task in requests for hole, result in (await task).items()}
        return await keep.keep(plan, by_hole, options, copies)

    files: list[asyncio.Task[FileResult]] = []
    # Related text is read before the first request, so that edits during the run do not reach only some requests.
    all_rounds = [Rounds(engine, each, context_of(each), options, journal) for each in plans]
    try:
        async with asyncio.TaskGroup() as group:
            for rounds in all_rounds:
                requests = [group.create_task(answered(rounds, holes)) for holes in rounds.plan.groups]
                files.append(group.create_task(finished(rounds.plan, requests)))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in files]
