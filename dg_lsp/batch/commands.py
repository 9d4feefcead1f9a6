"""`dg-lsp infill`: turn the command line into a job, and print its results.

Modules are imported where they are used, so that `--help` stays fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from dg_lsp.batch import options
from dg_lsp.wire.entry import ENGINE_COMMAND
from dg_lsp.wire.settings import DEFAULTS
from dg_lsp.wire.visible import visible, visible_message

if TYPE_CHECKING:
    from dg_lsp.batch.discover import Skipped
    from dg_lsp.batch.job import Connect, JobSpec
    from dg_lsp.batch.journal import Journal
    from dg_lsp.batch.page import Section
    from dg_lsp.batch.plan import Plan
    from dg_lsp.batch.report import Row
    from dg_lsp.infill.config import Config
    from dg_lsp.infill.life import State
    from dg_lsp.infill.port import Engine

_COLOURS = {"@": "cyan", "+": "green", "-": "red"}


# Long, because each option is one parameter and one field of the job.
def infill(
    context: typer.Context,
    paths: options.Paths = None,
    holes: options.Holes = "bodies,markers",
    at: options.At = None,
    lang: options.Languages = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    changed_since: options.ChangedSince = "",
    symbol: options.Symbol = None,
    max_holes: options.MaxHoles = 0,
    dry_run: options.DryRun = False,
    check: options.Check = "",
    jobs: options.Jobs = 1,
    check_timeout: options.CheckTimeout = 600.0,
    check_memory: options.CheckMemory = 0,
    min_confidence: options.MinConfidence = None,
    take_all: options.TakeAll = False,
    candidates: options.Candidates = DEFAULTS.batch_candidates,
    retries: options.Retries = 2,
    allow_shrink: options.AllowShrink = False,
    write: options.Write = False,
    commit: options.Commit = "",
    interactive: options.Interactive = False,
    report: options.Report = None,
    as_json: options.AsJson = False,
    resume: options.Resume = None,
    seed: options.Seed = 0,
    model: options.Model = DEFAULTS.model,
    deadline: options.Deadline = DEFAULTS.batch_deadline,
    ray: options.Ray = "",
    ray_workers: options.RayWorkers = 0,
) -> None:
    """Fill the holes in files and folders.

    Prints a diff that git apply and patch -p1 accept. Changes files only with --write or --commit.
    A fill is accepted if a check proves it or its probability is high enough. Other holes stay open.
    Exits with 0 if no hole stays open, 1 if some do, and 2 if the options or the setup are wrong.
    """
    from dg_lsp.batch import cluster, job, plan
    from dg_lsp.batch.check import Check, Limits
    from dg_lsp.batch.commit import parse_unit
    from dg_lsp.batch.journal import JournalError
    from dg_lsp.batch.keep import AcceptanceRule
    from dg_lsp.batch.run import RunOptions
    from dg_lsp.batch.scratch import ScratchError
    from dg_lsp.batch.select import Selection
    from dg_lsp.infill import config
    from dg_lsp.infill.port import EngineError
    from dg_lsp.wire import files

    def is_given(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source.name != "DEFAULT"

    try:
        places = tuple(plan.parse_place(place) for place in at or ())
        named_paths = [*(paths or ()), *(Path(place.file) for place in places)]
        configuration = config.load_config(config.workspace_of(job.names_begin_at(named_paths)))
        spec = job.JobSpec(
            paths=tuple(paths or ()),
            places=places,
            kinds=plan.parse_kinds(holes),
            model=configuration.model(model if is_given("model") else ""),
            options=RunOptions(
                candidates if is_given("candidates") else configuration.settings.batch_candidates,
                seed,
                deadline if is_given("deadline") else configuration.settings.batch_deadline,
                retries,
                allow_shrink,
            ),
            write=write or bool(commit),
            commit=parse_unit(commit),
            is_interactive=interactive,
            page=report,
            check=Check(check, Limits(check_timeout, check_memory)) if check else None,
            n_jobs=jobs,
            acceptance=AcceptanceRule(min_confidence, take_all),
            selection=Selection(
                tuple(lang or ()), tuple(include or ()), tuple(exclude or ()), changed_since, tuple(symbol or ()), max_holes
            ),
            n_in_flight=cluster.N_IN_FLIGHT if ray else 0,
        )
        if report and (problem := files.replace_problem(report)):
            raise plan.PlanError(f"--report {report}: {problem}")
        if dry_run:
            _list(spec, as_json=as_json)
            raise typer.Exit(0)
        if interactive and not can_ask():
            raise plan.PlanError("--interactive asks about each hole, so it needs a terminal as standard input")
        connect = context.obj or functools.partial(resident, configuration=configuration)
        if ray:
            connect = cluster.connecting(cluster.ClusterOptions(ray, ray_workers))
        code = asyncio.run(_infill(spec, resume, connect, as_json=as_json))
    except (plan.PlanError, config.ConfigError, JournalError, ScratchError, EngineError) as error:
        say(str(error))
        raise typer.Exit(2) from error
    raise typer.Exit(code)


def print_bytes(text: str) -> None:
    """Print text from files as bytes, unchanged. On a terminal, control characters are made visible."""
    print_painted(_for(sys.stdout, text))


def print_painted(text: str, *, err: bool = False) -> None:
    """Print text as bytes; the caller has made control characters visible, and may have added colours."""
    typer.echo(text.encode("utf-8", "surrogateescape"), nl=False, err=err)


def _for(stream: TextIO | None, text: str) -> str:
    """Return the text, with its control characters visible if the stream is a terminal. Line ends stay."""
    if stream is None or not stream.isatty():
        return text
    return "\r\n".join(map(visible, text.split("\r\n")))


def is_colourful() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ


def can_ask() -> bool:
    """Return whether a user can answer questions: standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def say(text: str) -> None:
    """Print a message to standard error, so that it is not part of the diff."""
    typer.echo(f"dg-lsp: {visible_message(text)}", err=True)


def resident(
    model: str, hear: Callable[[str], None], *, configuration: Config | None = None
) -> AbstractAsyncContextManager[Engine]:
    """Return the user's resident engine with this model, started if needed."""
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


def _list(spec: JobSpec, *, as_json: bool) -> None:
    """Print the holes that a run would fill, and what it would skip."""
    from dg_lsp.batch import job, listing, report

    plans, skipped, left_out = job.plans(spec)
    cost = listing.cost(plans, spec.options, job.context_source())
    if as_json:
        typer.echo(json.dumps(listing.build(plans, skipped, left_out, cost), indent=2))
        return
    print_bytes(listing.lines(plans, cost))
    for skip in skipped:
        say(f"skipped {skip.name}: it {skip.reason}")
    for line in report.left_out(left_out):
        say(line)


async def _infill(spec: JobSpec, resume: Path | None, connect: Connect, *, as_json: bool) -> int:
    from dg_lsp.batch import guard, job, report
    from dg_lsp.batch.journal import Journal

    started = time.perf_counter()
    plans, skipped, left_out = job.plans(spec)
    plans, private, connect = guard.guarded(spec.model, plans, connect)
    skipped += private
    notes = {plan.source.name: text for plan in plans if (text := report.note(plan))}
    for skip in skipped:
        say(f"skipped {skip.name}: it {skip.reason}")
    for name, text in notes.items():
        say(f"{name} {text}")
    for line in report.left_out(left_out):
        say(line)
    with Journal(resume, job.answer_settings(spec, plans)) as answers, _ending_in_order():
        outcome = await _fill(spec, plans, answers, connect) if plans else _Outcome()
    rows, diffs = outcome.rows, outcome.diffs
    seconds = time.perf_counter() - started
    facts = {"ms": round(seconds * 1000), "model": spec.model, "seed": spec.options.seed, "written": spec.write}
    if spec.page:
        _write_page(spec.page, outcome, skipped, facts)
    if as_json:
        typer.echo(json.dumps(report.build(rows, skipped, notes, **facts), indent=2))
    elif diffs and not spec.write:
        _show("".join(diffs))
    for line in report.open_holes(rows):
        say(line)
    say(report.summary(rows, seconds, written=spec.write))
    if advice := report.advice(rows, has_check=spec.check is not None):
        say(advice)
    if diffs and not spec.write and not as_json and (root := _root(spec)) != Path.cwd():
        say(f"the diff's file names are relative to {root}; apply it there")
    return report.exit_code(rows) or int(not outcome.is_committed)


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """On SIGTERM or SIGHUP, cancel the run, so that files are restored and checks are ended.

    The exit status is then 128 plus the signal's number. A signal that the parent process set to be ignored stays ignored.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    caught: list[int] = []

    def end(number: int) -> None:
        caught.append(number)
        # Only once: a second cancellation would interrupt the cleanup.
        if task is not None and len(caught) == 1:
            task.cancel()

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    with contextlib.ExitStack() as stack:
        # Only the main thread can have signal handlers.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            for number in numbers:
                loop.add_signal_handler(number, end, number)
                stack.callback(loop.remove_signal_handler, number)
        try:
            yield
        # If the terminal is closed, the progress bar's last line raises OSError.
        except (asyncio.CancelledError, OSError):
            if not caught:
                raise
        if caught:
            raise typer.Exit(128 + caught[0])


@dataclass(slots=True)
class _Outcome:
    """The output of a run: its rows, its diffs, the sections of its page, and whether all commits were made."""

    rows: list[Row] = field(default_factory=list)
    diffs: list[str] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    is_committed: bool = True


async def _fill(spec: JobSpec, plans: Sequence[Plan], answers: Journal, connect: Connect) -> _Outcome:
    from dg_lsp.batch import commit, diff, job, report, review
    from dg_lsp.infill import bar

    root, outcome = _root(spec), _Outcome()
    with bar.on_terminal("filling", sum(len(plan.holes) for plan in plans), elsewhere=say) as (hear, done):
        results = await job.fill(spec, plans, answers, connect, hear=hear, done=done, warn=say)
    if spec.is_interactive:
        terminal = review.Terminal(lambda text: _show(text, err=True), _ask_letter, _edit_text)
        reviewed = review.review([result for result, _ in results], terminal)
        results = [(result, by_hole) for result, (_, by_hole) in zip(reviewed, results, strict=True)]
    for line in dict.fromkeys(commit.detached_head_warning(result) for result, _ in results if spec.commit and result.fills):
        if line:
            say(line)
    for decided, by_hole in results:
        result = decided
        if spec.commit:
            result, is_committed = commit.apply_fills(decided, spec.commit, say)
            outcome.is_committed = outcome.is_committed and is_committed
        elif spec.write:
            result = job.write_fills(decided)
        rows = report.rows(result, by_hole)
        outcome.rows += rows
        source = result.plan.source
        name = os.path.relpath(source.path, root).replace(os.sep, "/")
        if text := diff.unified(name, source.document.text, [fill.edit for fill in result.fills.values()]):
            outcome.diffs.append(text)
        if spec.page:
            from dg_lsp.batch import page

            outcome.sections += page.sections(result, rows)
    return outcome


def _ask_letter(question: str) -> str:
    while (answer := str(typer.prompt(question, err=True)).strip().lower()) not in tuple("arneq"):
        say("answer with one of the letters")
    return answer


def _edit_text(text: str) -> str | None:
    """Return the text as edited in the user's editor; None if the editor is missing or fails."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    handle, name = tempfile.mkstemp(suffix=".dg-lsp")
    path = Path(name)
    try:
        os.close(handle)
        path.write_text(text, "utf-8", "surrogateescape")
        code = subprocess.run([*shlex.split(editor), name], check=False).returncode  # noqa: S603 -- the user's own editor
        if code == 0:
            edited = path.read_text("utf-8", "surrogateescape")
            return edited if text.endswith("\n") else edited.removesuffix("\n")
        say(f"the editor exited with status {code}")
    except (OSError, ValueError) as error:
        say(f"the editor {editor!r} can't be used: {error}")
    finally:
        path.unlink(missing_ok=True)
    return None


def _write_page(path: Path, outcome: _Outcome, skipped: Sequence[Skipped], facts: dict[str, object]) -> None:
    from dg_lsp.batch import page
    from dg_lsp.wire import files

    try:
        files.replace(path, page.write(outcome.sections, skipped, facts).encode())
    except OSError as error:
        say(f"the report can't be written to {path}: {(error.strerror or str(error)).lower()}")


def _root(spec: JobSpec) -> Path:
    from dg_lsp.batch import job

    return job.names_begin_at([*spec.paths, *(Path(place.file) for place in spec.places)])


def _show(diff: str, *, err: bool = False) -> None:
    """Print the diff as bytes, so that line ends and names stay unchanged.

    On a terminal it is in colour, and control characters are made visible: a file could hide lines of the diff with them.
    """
    diff = _for(sys.stderr if err else sys.stdout, diff)
    if is_colourful():
        diff = "".join(_coloured(line) for line in diff.splitlines(keepends=True))
    print_painted(diff, err=err)


def _coloured(line: str) -> str:
    if line.startswith(("--- ", "+++ ")):
        return typer.style(line, bold=True)
    return typer.style(line, fg=_COLOURS.get(line[:1]))
