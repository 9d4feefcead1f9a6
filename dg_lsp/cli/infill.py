"""`dg-lsp infill`: turn the command line into a job, and print its results.

Modules are imported where they are used, so that `--help` stays fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dg_lsp.cli import completions
from dg_lsp.cli.command_group import print_message
from dg_lsp.cli.terminal import print_bytes
from dg_lsp.wire.settings import DEFAULTS

if TYPE_CHECKING:
    from dg_lsp.batch.api import Connect, JobSpec, Result
    from dg_lsp.batch.plan import Location


# Long, because each option is one parameter with its help, and one field of the job. Typer reads the annotations at run time;
# a default of None needs `| None` there.
def infill(
    context: typer.Context,
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH", help="Files and folders to fill.")] = None,
    holes: Annotated[
        str,
        typer.Option(
            metavar="KINDS",
            help="The kinds of holes to fill: bodies, markers, empty; separated by commas.",
            autocompletion=completions.several_of(completions.of("dg_lsp.batch.plan", "KINDS")),
        ),
    ] = "bodies,markers",
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            help="Fill the hole at a place: FILE:LINE:COL or FILE:LINE:COL-LINE:COL, counted from 1. Repeatable.",
        ),
    ] = None,
    places: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Fill the holes at the places in this file, or in standard input with -: one on each line, as for --at, with "
            "a colon and a comment of what to write after it. Also reads ast-grep's --json=stream.",
        ),
    ] = "",
    lang: Annotated[
        list[str] | None,
        typer.Option(
            "--lang",
            metavar="NAME",
            help="Only files in this language. Repeatable.",
            autocompletion=completions.language,
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only files that match, as in .gitignore. Repeatable."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Skip files that match, as in .gitignore. Repeatable."),
    ] = None,
    changed_since: Annotated[str, typer.Option(metavar="REV", help="Only files that differ from this git revision.")] = "",
    symbol: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only holes in this function, method or class. Repeatable."),
    ] = None,
    max_holes: Annotated[int, typer.Option(min=0, help="Maximum number of holes to fill. 0: no limit.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the holes and the skipped files, and fill nothing.")] = False,
    check: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="Accept a fill if this shell command proves it. The command runs in a copy of the project. It must fail while "
            "the hole raises an error, and pass with the fill. A fill with which it fails is dropped. {} is the path of the "
            "file in the copy. If the command runs pytest, each test is judged by its own result.",
        ),
    ] = "",
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Number of checks that run at once, each in its own copy.")] = 1,
    check_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            help="Stop a check that takes longer. Default: ten times as long as those before it, at least 60 and at most 600.",
        ),
    ] = None,
    check_memory: Annotated[
        int,
        typer.Option(
            metavar="MIB",
            min=0,
            help="Stop a check whose processes use more memory. 0: no limit. Linux only.",
        ),
    ] = 0,
    min_confidence: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            min=0.0,
            max=1.0,
            help="Accept a fill that no check proves only if its probability is at least this. "
            "Default: 0.8 for bodies, 0.5 for a place or a selection (--at) and for a marker, 0.8 if that gets several lines. "
            "A probability of 0.8 means that eight of ten such fills are right.",
            show_default=False,
        ),
    ] = None,
    take_all: Annotated[
        bool, typer.Option("--all", help="Accept every fill that parses and that the check does not reject.")
    ] = False,
    candidates: Annotated[
        int, typer.Option(min=1, max=64, help="Number of answers to choose from for each hole.")
    ] = DEFAULTS.batch_candidates,
    retries: Annotated[
        int,
        typer.Option(min=0, max=64, help="Number of further rounds for a hole without an acceptable answer."),
    ] = 2,
    allow_shrink: Annotated[
        bool,
        typer.Option(
            "--allow-shrink",
            help="Allow a fill to replace working code with a placeholder, comments or nothing. Refused by default.",
        ),
    ] = False,
    write: Annotated[
        bool,
        typer.Option("--write", help="Write the fills into the files instead of printing a diff."),
    ] = False,
    commit: Annotated[
        str,
        typer.Option(
            metavar="UNIT",
            help="Write the fills and commit them to git: a commit for each `file` or each `hole`.",
            autocompletion=completions.one_of(completions.of("dg_lsp.batch.write", "UNITS")),
        ),
    ] = "",
    fail_on: Annotated[
        str,
        typer.Option(
            metavar="HOLES",
            help="Which holes let the command exit with 1: open (unsure or failed), failed, any (filled ones too), or never.",
            autocompletion=completions.one_of(completions.of("dg_lsp.batch.report", "FAIL_ON")),
        ),
    ] = "open",
    patch: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the diff into this file instead of printing it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object instead of a diff.")] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Store answers in this file, and reuse those of an interrupted run.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same text.")] = 0,
    model: Annotated[
        str,
        completions.model_option(
            "The model: embedded, a folder, a hub id, vllm:URL, chat:URL#MODEL, or fim:DIALECT:URL#MODEL. Configurable."
        ),
    ] = DEFAULTS.model,
    deadline: Annotated[
        int,
        typer.Option(metavar="MS", min=0, help="Milliseconds for each hole; then the best answer so far is used. 0: no limit."),
    ] = DEFAULTS.batch_deadline,
    ray: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Run on a Ray cluster with an engine in each worker: local, auto, or the cluster's address. Needs "
            "dg-lsp[ray].",
            autocompletion=completions.one_of(lambda: ("local", "auto")),
        ),
    ] = "",
    ray_workers: Annotated[
        int, typer.Option(min=0, help="Number of workers on the cluster. 0: one per GPU, or else one per CPU.")
    ] = 0,
) -> None:
    """Fill the holes in files and folders.

    Prints a diff that git apply and patch -p1 accept. Changes files only with --write or --commit.
    A fill is accepted if a check proves it or its probability is high enough. Other holes stay open.
    Exits with 0 if no hole stays open, 1 if some do (see --fail-on), 2 if the options or the setup are wrong, and 3 if the
    engine or the network failed, so that another try may succeed.
    """
    from dg_lsp.batch import api, cluster, plan
    from dg_lsp.batch.check import Check, CheckLimits
    from dg_lsp.batch.report import TRY_AGAIN, WRONG_USE
    from dg_lsp.infill.port import EngineError

    def is_given(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source.name != "DEFAULT"

    try:
        outputs = _Outputs(patch, as_json, fail_on)
        outputs.check()
        named_places = [plan.parse_place(place) for place in at or ()] + (_read_places(places) if places else [])
        spec = api.spec_of(
            tuple(paths or ()),
            places=named_places if at or places else None,
            kinds=tuple(plan.parse_kinds(holes)),
            model=model if is_given("model") else "",
            candidates=candidates if is_given("candidates") else None,
            deadline_ms=deadline if is_given("deadline") else None,
            seed=seed,
            retries=retries,
            allow_shrink=allow_shrink,
            write=write,
            commit_unit=commit,
            check=Check(check, CheckLimits(check_timeout, check_memory)) if check else "",
            n_jobs=jobs,
            min_confidence=min_confidence,
            take_all=take_all,
            selection=plan.Selection(
                tuple(lang or ()), tuple(include or ()), tuple(exclude or ()), changed_since, tuple(symbol or ()), max_holes
            ),
            n_in_flight=cluster.N_IN_FLIGHT if ray else 0,
        )
        if dry_run:
            raise typer.Exit(_list(spec, outputs))
        connect = cluster.connecting(ray, ray_workers) if ray else context.obj
        code = asyncio.run(_infill(spec, resume, connect, outputs))
    except api.ERRORS as error:
        print_message(str(error))
        raise typer.Exit(TRY_AGAIN if isinstance(error, EngineError) else WRONG_USE) from error
    raise typer.Exit(code)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Where a run's results go, and for which holes it exits with 1."""

    patch: Path | None
    as_json: bool
    fail_on: str

    def check(self) -> None:
        """Raise PlanError if an option is invalid, or a file can't be written, as far as that is known before the run."""
        from dg_lsp.batch.plan import PlanError
        from dg_lsp.batch.report import FAIL_ON
        from dg_lsp.wire import files

        if self.fail_on not in FAIL_ON:
            raise PlanError(f"--fail-on takes {', '.join(FAIL_ON[:-1])} or {FAIL_ON[-1]}, not {self.fail_on!r}")
        if self.patch and (problem := files.output_problem(self.patch)):
            raise PlanError(f"--patch {self.patch}: {problem}")

    def write(self, result: Result) -> bool:
        """Write the patch if it has a file, and return whether that succeeded."""
        from dg_lsp.wire import files

        if self.patch:
            try:
                files.write_output(self.patch, result.patch.encode("utf-8", "surrogateescape"))
            except OSError as error:
                print_message(f"the patch can't be written to {self.patch}: {(error.strerror or str(error)).lower()}")
                return False
        return True


def _read_places(name: str) -> list[Location]:
    """Return the places in a file, or in standard input for `-`; raise PlanError if it can't be read or a line is invalid."""
    from dg_lsp.batch import plan

    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise plan.PlanError(f"--places {name} is not UTF-8") from error
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise plan.PlanError(f"--places {name} can't be read: {reason.lower()}") from error
    return plan.parse_places(text, f"--places {name}")


def _list(spec: JobSpec, outputs: _Outputs) -> int:
    """Print the holes that a run would fill, and what it would skip; return the exit code."""
    from dg_lsp.batch import api, report

    plans, skipped, left_out = api.plans(spec)
    cost = report.cost(plans, spec.options, api.contexts())
    if outputs.as_json:
        typer.echo(json.dumps(report.build_list(plans, skipped, left_out, cost), indent=2))
    else:
        print_bytes(report.list_lines(plans, cost))
        for line in report.before(skipped, {}, left_out):
            print_message(line)
    return int(outputs.fail_on == "any" and bool(plans))


async def _infill(spec: JobSpec, resume: Path | None, connect: Connect | None, outputs: _Outputs) -> int:
    from dg_lsp.batch import api, report
    from dg_lsp.cli import progress

    front = api.Front(print_message, lambda n_holes: progress.counts("filling", n_holes, elsewhere=print_message))
    started = time.perf_counter()
    with _ending_in_order():
        result = await api.run_job(spec, journal=resume, connect=connect, front=front)
    is_written = outputs.write(result)
    has_diff = bool(result.patch) and not spec.write
    if outputs.as_json:
        typer.echo(json.dumps(result.report, indent=2))
    elif has_diff and not outputs.patch:
        print_bytes(result.patch, is_diff=True)
    for line in report.open_holes(result.rows):
        print_message(line)
    print_message(report.summary(result.rows, time.perf_counter() - started, written=spec.write))
    if advice := report.advice(result.rows, has_check=spec.check is not None):
        print_message(advice)
    if has_diff and (outputs.patch or not outputs.as_json) and result.root != Path.cwd():
        print_message(f"the diff's file names are relative to {result.root}; apply it there")
    if not is_written:
        return report.WRONG_USE
    return report.exit_code(result.rows, outputs.fail_on) or int(not result.is_committed)


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
