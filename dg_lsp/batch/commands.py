"""`dg-lsp infill` and `dg-lsp explain`: from the command line to a job, and from its results to the terminal.

What is imported here is paid for by `--help` as well, so the parts are imported where they are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from dg_lsp.engine.entry import ENGINE_COMMAND
from dg_lsp.wire.privacy import LOCAL_ONLY
from dg_lsp.wire.settings import DEFAULTS

if TYPE_CHECKING:
    from dg_lsp.batch.explain import Trace
    from dg_lsp.batch.job import Connect, JobSpec
    from dg_lsp.batch.journal import Journal
    from dg_lsp.batch.plan import Plan
    from dg_lsp.batch.report import Row
    from dg_lsp.core.values import InfillRequest
    from dg_lsp.infill.client import ConnectOptions
    from dg_lsp.infill.config import Config, Privacy
    from dg_lsp.infill.life import State
    from dg_lsp.infill.port import Engine
    from dg_lsp.wire.messages import Done

_COLOURS = {"@": "cyan", "+": "green", "-": "red"}


# Typer reads these annotations at run time, where Python 3.10 needs `Optional` for its defaults.
def infill(
    context: typer.Context,
    paths: Annotated[Optional[list[Path]], typer.Argument(metavar="PATH", help="Files and folders to fill.")] = None,  # noqa: UP045
    holes: Annotated[
        str, typer.Option(metavar="KINDS", help="Which holes: bodies, markers, empty; separated by commas.")
    ] = "bodies,markers",
    at: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            metavar="PLACE", help="Fill one place: FILE:LINE:COL or FILE:LINE:COL-LINE:COL, counted from 1. Repeatable."
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the fills into the files instead of printing a diff.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one report object instead of a diff.")] = False,
    candidates: Annotated[
        int, typer.Option(min=1, max=64, help="How many answers to choose from for each hole.")
    ] = DEFAULTS.batch_candidates,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same text.")] = 0,
    model: Annotated[
        str,
        typer.Option(
            metavar="ID_OR_PATH",
            help="The model: embedded, a folder, a hub id, vllm:URL, or fim:DIALECT:URL#MODEL. Configurable.",
        ),
    ] = DEFAULTS.model,
    deadline: Annotated[
        int, typer.Option(metavar="MS", min=0, help="Milliseconds for each hole; the best so far counts then. 0: no limit.")
    ] = DEFAULTS.batch_deadline,
    check: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="Keep a file's fills only if this shell command passes with them in place; {} stands for the file.",
        ),
    ] = "",
    resume: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Keep answers in this file, and reuse those that an interrupted run left there."),
    ] = None,
) -> None:
    """Fill the holes in files and folders.

    Prints a diff that git apply and patch -p1 accept, and leaves the files alone unless told to write them.
    Ends with 0 when every hole is filled or there is none, 1 when some are not, 2 when it can't be done as asked.
    """
    from dg_lsp.batch import job, plan
    from dg_lsp.batch.journal import JournalError
    from dg_lsp.batch.run import RunOptions
    from dg_lsp.infill import config
    from dg_lsp.infill.port import EngineError

    def is_given(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source.name != "DEFAULT"

    from dg_lsp.batch import recovery

    for said in recovery.recover():
        say(said)
    try:
        places = tuple(plan.parse_place(place) for place in at or ())
        named_paths = [*(paths or ()), *(Path(place.file) for place in places)]
        configuration = config.load(config.workspace_of(job.names_begin_at(named_paths)))
        spec = job.JobSpec(
            paths=tuple(paths or ()),
            places=places,
            kinds=plan.parse_kinds(holes),
            model=model if is_given("model") else configuration.settings.model,
            options=RunOptions(
                candidates if is_given("candidates") else configuration.settings.batch_candidates,
                seed,
                deadline if is_given("deadline") else configuration.settings.batch_deadline,
            ),
            write=write,
            check=check,
        )
        connect = context.obj or functools.partial(resident, configuration=configuration)
        code = asyncio.run(_infill(spec, resume, connect, as_json=as_json))
    except (plan.PlanError, config.ConfigError, JournalError, EngineError) as error:
        say(str(error))
        raise typer.Exit(2) from error
    raise typer.Exit(code)


def explain(
    place: Annotated[str, typer.Argument(metavar="PLACE", help="FILE:LINE:COL or FILE:LINE:COL-LINE:COL, counted from 1.")],
    chars: Annotated[int, typer.Option(min=1, help="How many characters to show on each side.")] = 600,
    fill: Annotated[bool, typer.Option(help="Have the engine fill the hole, and draw the canvas step by step.")] = True,
    model: Annotated[str, typer.Option(metavar="ID_OR_PATH", help="Another model than the configured one.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same text.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object: all that is sent, and each step.")] = False,
) -> None:
    """Show which hole is at a place, what the engine is sent for it, and how the canvas reads step by step.

    Draws the canvas at most every 30 ms, then the answers and what becomes of them, and what each stage took.
    Changes no file.
    """
    from dg_lsp.batch import explain, job, plan
    from dg_lsp.batch.run import RunOptions
    from dg_lsp.infill import config
    from dg_lsp.infill.port import EngineError

    try:
        location = plan.parse_place(place)
        file_plan = plan.for_places(job.source_at(location), [location])
        configuration = config.load(config.workspace_of(file_plan.source.path))
        model = model or configuration.settings.model
        options = RunOptions(configuration.settings.batch_candidates, seed, configuration.settings.batch_deadline)
        request = explain.request_of(file_plan, job.around(file_plan), options)
        if config.is_remote(model):
            privacy = config.privacy([file_plan.source.path])
            if privacy.keeps_file(file_plan.source.path):
                raise EngineError(config.refusal(file_plan.source.name))
            request = privacy.shown(request)
        trace = None
        if not as_json:
            _print(explain.picture(file_plan, request, chars))
        if fill:
            joining = config.connect_options(configuration, command=ENGINE_COMMAND, model=model)
            trace = asyncio.run(_traced(request, joining, is_drawn=not as_json))
        if as_json:
            typer.echo(json.dumps(explain.report(file_plan, request, trace), indent=2))
        elif trace is not None:
            _print(explain.ending(file_plan, request, trace))
    except (plan.PlanError, config.ConfigError, EngineError) as error:
        say(str(error))
        raise typer.Exit(2) from error


async def _traced(request: InfillRequest, options: ConnectOptions, *, is_drawn: bool) -> Trace:
    """Return how the engine fills a request; drawn while it does."""
    from dg_lsp.batch.explain import Step, Trace, frame, plain
    from dg_lsp.infill import client
    from dg_lsp.infill.life import Loading

    steps: list[Step] = []
    ends: list[Done] = []
    paint = _paint if _is_colourful() else plain

    def hear(texts: tuple[str, ...], number: int) -> None:
        last = steps[-1] if steps else None
        steps.append(Step(number, texts))
        if is_drawn and (last is None or last.texts != texts):
            _print(frame(request, steps[-1], last, paint))

    def on_state(state: State) -> None:
        if isinstance(state, Loading) and state.message and sys.stderr.isatty():
            say(f"the engine is loading its model: {state.message}")

    async with client.connect(options, on_state=on_state, on_note=say) as engine:
        if is_drawn:
            _print("--- the canvas as it changes; a step is a unit of work: to read, to draft, to denoise, to score\n")
        candidates = await engine.fill(request, on_draft=hear, on_done=ends.append)
    return Trace(tuple(steps), candidates, ends[-1])


def _print(text: str) -> None:
    """Print text from files as bytes: names and contents stay what they are, but for what a terminal would obey."""
    if sys.stdout is not None and sys.stdout.isatty():
        # Our own colours are all that may stay.
        text = "".join(part if _COLOUR.fullmatch(part) else visible(part) for part in _COLOUR.split(text))
    typer.echo(text.encode("utf-8", "surrogateescape"), nl=False)


_COLOUR = re.compile("(\x1b\\[[0-9;]{0,8}m)")


def _is_colourful() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ


def _paint(text: str, what: str) -> str:
    if what == "held":
        return typer.style(text, dim=True)
    return typer.style(text, fg="yellow") if what == "new" else text


def say(text: str) -> None:
    """Print a line for people, where it does not get into the diff."""
    typer.echo(f"dg-lsp: {visible(text)}", err=True)


def visible(text: str) -> str:
    """Return a text whose control characters are seen instead of obeyed: names of files may hold what a terminal obeys."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in text
    )


def resident(
    model: str, hear: Callable[[str], None], *, configuration: Config | None = None
) -> AbstractAsyncContextManager[Engine]:
    """Return the user's resident engine with this model, started where it is absent."""
    from dg_lsp.infill import client, config
    from dg_lsp.infill.life import Loading, Starting

    def on_state(state: State) -> None:
        match state:
            case Starting():
                hear("starting the engine")
            case Loading(_, message):
                hear(message)

    options = config.connect_options(configuration or config.Config(), command=ENGINE_COMMAND, model=model, interactive=False)
    return client.connect(options, on_state=on_state, on_note=say)


async def _infill(spec: JobSpec, resume: Path | None, connect: Connect, *, as_json: bool) -> int:
    from dg_lsp.batch import job, report
    from dg_lsp.batch.discover import Skipped
    from dg_lsp.batch.journal import Journal
    from dg_lsp.infill import config

    started = time.perf_counter()
    plans, skipped = job.plans(spec)
    if config.is_remote(spec.model):
        privacy = config.privacy(plan.source.path for plan in plans)
        skipped += [Skipped(plan.source.name, LOCAL_ONLY) for plan in plans if privacy.keeps_file(plan.source.path)]
        plans = [plan for plan in plans if not privacy.keeps_file(plan.source.path)]
        connect = functools.partial(_guarded, connect, privacy)
    notes = {plan.source.name: text for plan in plans if (text := report.note(plan))}
    for skip in skipped:
        say(f"skipped {skip.name}: it {skip.reason}")
    for name, text in notes.items():
        say(f"{name} {text}")
    with Journal(resume, (spec.model, spec.options)) as answers, _ending_in_order():
        rows, diffs = await _fill(spec, plans, answers, connect) if plans else ([], [])
    seconds = time.perf_counter() - started
    if as_json:
        facts = {"ms": round(seconds * 1000), "model": spec.model, "seed": spec.options.seed, "written": spec.write}
        typer.echo(json.dumps(report.build(rows, skipped, notes, **facts), indent=2))
    elif diffs and not spec.write:
        _show("".join(diffs))
    for line in report.failures(rows):
        say(line)
    say(report.summary(rows, seconds, written=spec.write))
    if diffs and not spec.write and not as_json and (root := _root(spec)) != Path.cwd():
        say(f"the diff's names begin at {root}; apply it there")
    return report.exit_code(rows)


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """When the system asks the process to end, cancel what is under way, so that files are put back and checks ended.

    Ends with 128 and the signal's number then. A signal that whoever started us has us ignore stays ignored.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    caught: list[int] = []

    def end(number: int) -> None:
        caught.append(number)
        # Once: another would cancel the tidying up.
        if task is not None and len(caught) == 1:
            task.cancel()

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    with contextlib.ExitStack() as stack:
        # Windows has no such handlers, and neither has a thread that is not the main one.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            for number in numbers:
                loop.add_signal_handler(number, end, number)
                stack.callback(loop.remove_signal_handler, number)
        try:
            yield
        # A terminal that is gone refuses the progress bar's last words.
        except (asyncio.CancelledError, OSError):
            if not caught:
                raise
        if caught:
            raise typer.Exit(128 + caught[0])


@contextlib.asynccontextmanager
async def _guarded(connect: Connect, privacy: Privacy, model: str, hear: Callable[[str], None]) -> AsyncIterator[Engine]:
    from dg_lsp.infill import config

    async with connect(model, hear) as engine:
        yield config.Guarded(engine, privacy)


async def _fill(spec: JobSpec, plans: Sequence[Plan], answers: Journal, connect: Connect) -> tuple[list[Row], list[str]]:
    from dg_lsp.batch import diff, job, report
    from dg_lsp.infill import bar

    root = _root(spec)
    rows, diffs = [], []
    with bar.on_terminal("filling", sum(len(plan.holes) for plan in plans)) as (hear, done):
        results = job.fill(spec, plans, answers, connect, hear=hear, done=done)
        async with contextlib.aclosing(results):
            async for result, answers_by_hole in results:
                rows += report.rows(result, answers_by_hole)
                source = result.plan.source
                name = os.path.relpath(source.path, root).replace(os.sep, "/")
                diffs.append(diff.unified(name, source.document.text, [fill.edit for fill in result.fills.values()]))
    return rows, [text for text in diffs if text]


def _root(spec: JobSpec) -> Path:
    from dg_lsp.batch import job

    return job.names_begin_at([*spec.paths, *(Path(place.file) for place in spec.places)])


def _show(diff: str) -> None:
    """Print the diff as bytes, so that line ends and names stay what they are; in colour on a terminal."""
    if _is_colourful():
        diff = "".join(_coloured(line) for line in diff.splitlines(keepends=True))
    _print(diff)


def _coloured(line: str) -> str:
    if line.startswith(("--- ", "+++ ")):
        return typer.style(line, bold=True)
    return typer.style(line, fg=_COLOURS.get(line[:1]))
