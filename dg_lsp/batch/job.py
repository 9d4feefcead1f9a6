"""One run of `dg-lsp infill`, from what the user named to what became of each file.

Joins the parts: files, plans, engine, check, write. Knows nothing of terminals: what it has to tell it hands back.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from dg_lsp.batch import discover, keep, plan, run, select, together, write
from dg_lsp.batch.check import Check
from dg_lsp.batch.copies import opened
from dg_lsp.batch.discover import Skipped, Source
from dg_lsp.batch.journal import Journal
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.plan import Fill, Location, Plan, PlanError
from dg_lsp.batch.select import Selection
from dg_lsp.core.values import Hole
from dg_lsp.infill import config, workspace
from dg_lsp.infill.port import Engine
from dg_lsp.wire import model_names

MAX_RELATED_CHARS = 8_000
MAX_NAME_CHARS = 400  # a name is there to help the model, and must not crowd out the text

# Requests that one server of a remote model has at once; each may be several calls.
N_IN_FLIGHT_REMOTE = 8

# Given the model's name and a function that hears of progress, an engine that is there while the context is open.
Connect = Callable[[str, Callable[[str], None]], "AbstractAsyncContextManager[Engine]"]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What to fill, with which model, and what to do with the fills."""

    paths: tuple[Path, ...] = ()
    places: tuple[Location, ...] = ()
    kinds: frozenset[str] = frozenset(plan.DEFAULT_KINDS)
    model: str = "embedded"
    options: run.RunOptions = field(default_factory=run.RunOptions)
    write: bool = False
    check: Check | None = None
    n_jobs: int = 1
    acceptance: keep.AcceptanceRule = field(default_factory=keep.AcceptanceRule)
    selection: Selection = field(default_factory=Selection)
    commit: str = ""
    is_interactive: bool = False
    page: Path | None = None
    n_in_flight: int = 0  # requests under way at once; 0: as many as suit the model


def plans(spec: JobSpec) -> tuple[list[Plan], list[Skipped], dict[str, int]]:
    """Return the files with the chosen holes, the files that can't be used, and how many holes each option left out.

    Named places come first, then the paths in order. Raises PlanError when nothing is named, or something that is not there.
    """
    if not spec.paths and not spec.places:
        raise PlanError("name files or folders to fill, or a place with --at")
    for path in spec.paths:
        if not os.path.lexists(path):
            raise PlanError(f"there is no {path}")
    by_file: dict[Path, list[Location]] = {}
    for place in spec.places:
        by_file.setdefault(source_at(place).path, []).append(place)
    file_plans = [plan.for_places(source_at(places[0]), places) for places in by_file.values()]
    skipped: list[Skipped] = []
    for file in discover.files(spec.paths):
        if file in by_file:
            continue
        source = file if isinstance(file, Skipped) else discover.read(file)
        if isinstance(source, Skipped):
            skipped.append(source)
        elif (file_plan := plan.for_kinds(source, spec.kinds)).groups:
            file_plans.append(file_plan)
    chosen, left_out = select.choose(file_plans, spec.selection)
    return chosen, skipped, left_out


def source_at(place: Location) -> Source:
    """Return the file of the place; raise PlanError when it can't be used."""
    path = Path(place.file)
    if os.path.isdir(path):  # noqa: PTH112 -- that of Path raises for names that are too long, and where nobody may look
        raise PlanError(f"{place.file} is a folder; a place is in a file")
    [file] = discover.files([path])
    source = file if isinstance(file, Skipped) else discover.read(file)
    if isinstance(source, Skipped):
        raise PlanError(f"{source.name} {source.reason}")
    return source


async def fill(
    spec: JobSpec,
    file_plans: Sequence[Plan],
    answers: Journal,
    connect: Connect,
    *,
    hear: Callable[[str], None],
    done: Callable[[int], None],
    warn: Callable[[str], None] = lambda _line: None,
) -> list[tuple[FileResult, Mapping[Hole, run.HoleResult]]]:
    """Return what becomes of each file, in order. Writes nothing."""
    with contextlib.ExitStack() as stack:
        copies = stack.enter_context(opened(spec.check, spec.n_jobs, warn)) if spec.check else None
        async with connect(spec.model, hear) as engine:
            kept: dict[Path, FileResult] = {}
            n_left = sum(len(one.holes) for one in file_plans)

            def counted(n: int) -> None:
                nonlocal n_left
                n_left -= n
                done(n)
                if copies and not n_left:
                    hear("checking")

            async def finish(one: Plan, by_hole: Mapping[Hole, run.HoleResult], beside: Mapping[Path, str]) -> str:
                async def more(hole: Hole, number: int, failure: str) -> Sequence[Fill]:
                    view = by_hole[hole].view
                    return await run.again(engine, one, around(one), hole, spec.options, answers, number, failure, view)

                result = await keep.keep(one, by_hole, spec.acceptance, copies, more, beside)
                kept[one.source.path] = result
                return result.text

            follow = run.Following(lambda hole, fill: not spec.acceptance.reason(hole, fill), finish, around)
            results = run.fill(
                engine, file_plans, spec.options, answers, around, counted, follow=follow, n_in_flight=_in_flight(spec)
            )
            async with contextlib.aclosing(results):
                answered = [by_hole async for _, by_hole in results]
            ordered = [kept[one.source.path] for one in file_plans]
            if copies:
                ordered = await together.passing(ordered, copies)
    return list(zip(ordered, answered, strict=True))


def _in_flight(spec: JobSpec) -> int:
    n_servers = model_names.n_servers(spec.model)
    return spec.n_in_flight or (N_IN_FLIGHT_REMOTE * n_servers if n_servers else run.N_IN_FLIGHT)


def written(result: FileResult) -> FileResult:
    """Write a file's fills, and return what became of it: where it can't be written, its holes fail with the reason."""
    if not result.fills:
        return result
    source = result.plan.source
    try:
        write.replace(source.path, result.text.encode(), expected=source.data)
    except write.WriteError as error:
        return result.without(result.fills, str(error))
    return result


def around(file_plan: Plan, texts: Mapping[Path, str] | None = None) -> run.FileContext:
    """Return the file's name below its workspace, and text from files around it that the model may want to see.

    `texts` are those of files that have been filled already.
    """
    path = file_plan.source.path
    root = config.workspace_of(path)
    related = workspace.related(root, path, file_plan.source.document, MAX_RELATED_CHARS, texts=texts)
    return run.FileContext(_bounded(workspace.name_of(path.relative_to(root))), related)


def _bounded(name: str) -> str:
    """Return the name, without its first folders where it is very long."""
    end = name[-MAX_NAME_CHARS:]
    return end if end == name else end.partition("/")[2] or end


def names_begin_at(paths: Sequence[Path]) -> Path:
    """Return the folder from which a diff of these files is applied: the current one, or else the smallest that holds all."""
    here = Path.cwd()
    # Not resolve, which may raise for a loop of links.
    real = [Path(os.path.realpath(path)) for path in paths]
    folders = [path if os.path.isdir(path) else path.parent for path in real]  # noqa: PTH112 -- as above
    if not folders or all(folder.is_relative_to(here) for folder in folders):
        return here
    try:
        return Path(os.path.commonpath(folders))
    except ValueError:  # on different drives: no folder holds all
        return here
