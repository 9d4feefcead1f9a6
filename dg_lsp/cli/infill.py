"""`dg-lsp infill`: turn the command line into a job, and print its results.

Modules are imported where they are used, so that `--help` stays fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dg_lsp.batch.options import Options
from dg_lsp.cli.options import print_message, with_options
from dg_lsp.wire import programs
from dg_lsp.wire.visible import visible

if TYPE_CHECKING:
    from dg_lsp.batch.api import Connect, Job


@with_options
def infill(context: typer.Context, options: Options) -> None:
    """Fill the holes in files and folders.

    Prints a diff that git apply and patch -p1 accept. Changes files only with --write or --commit.
    A fill is accepted if a check proves it or its probability is high enough. Other holes stay open.
    Exits with 0 if no hole stays open, 1 if some do (see --fail-on), 2 if the options or the setup are wrong, and 3 if the
    engine or the network failed, so that another try may succeed.
    """
    from dg_lsp.batch import api
    from dg_lsp.batch.report import TRY_AGAIN, WRONG_USE
    from dg_lsp.client.port import EngineError

    try:
        _check_outputs(options)
        job = api.resolved(options)
        if options.dry_run:
            raise typer.Exit(_list(job))
        code = asyncio.run(_infill(job, context.obj))
    except api.ERRORS as error:
        print_message(str(error))
        raise typer.Exit(TRY_AGAIN if isinstance(error, EngineError) else WRONG_USE) from error
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error
    raise typer.Exit(code)


def _check_outputs(options: Options) -> None:
    """Raise PlanError if --fail-on is invalid, or the patch can't be written, as far as that is known before the run."""
    from dg_lsp.batch.plan import PlanError
    from dg_lsp.batch.report import FAIL_ON, is_patch_file
    from dg_lsp.wire import files

    if options.fail_on not in FAIL_ON:
        raise PlanError(f"--fail-on takes {', '.join(FAIL_ON[:-1])} or {FAIL_ON[-1]}, not {options.fail_on!r}")
    if options.patch and (problem := files.output_problem(options.patch, is_patch_file)):
        raise PlanError(f"--patch {options.patch}: {problem}")


def _write_patch(path: Path, patch: str) -> bool:
    """Write the patch into its file, also without any diff, and return whether that succeeded."""
    from dg_lsp.batch.report import is_patch_file, patch_file
    from dg_lsp.wire import files

    try:
        files.write_output(path, patch_file(patch.encode("utf-8", "surrogateescape")), is_own=is_patch_file)
    except OSError as error:
        print_message(f"the patch can't be written to {path}: {(error.strerror or str(error)).lower()}")
        return False
    return True


def _list(job: Job) -> int:
    """Print the holes that a run would fill, and what it would skip; return the exit code."""
    from dg_lsp.batch import api, report

    plans, skipped, left_out = api.plans(job)
    if job.options.as_json:
        typer.echo(json.dumps(report.build_list(plans, skipped, left_out), indent=2))
    else:
        print_bytes(report.list_lines(plans))
        for line in report.before(skipped, {}, left_out):
            print_message(line)
    return int(job.options.fail_on == "any" and bool(plans))


async def _infill(job: Job, connect: Connect | None) -> int:
    from dg_lsp.batch import api, report
    from dg_lsp.cli import progress

    options = job.options
    front = api.Front(print_message, lambda n_holes: progress.counts("filling", n_holes, elsewhere=print_message))
    started = time.perf_counter()
    with _ending_in_order():
        result = await api.run_job(job, connect=connect, front=front)
    is_written = options.patch is None or _write_patch(options.patch, result.patch)
    has_diff = bool(result.patch) and not options.writes
    if options.as_json:
        typer.echo(json.dumps(result.report, indent=2))
    elif has_diff and not options.patch:
        print_bytes(result.patch, is_diff=True)
    for line in report.open_holes(result.rows):
        print_message(line)
    print_message(report.summary(result.rows, time.perf_counter() - started, written=options.writes))
    if advice := report.advice(result.rows, has_check=bool(options.check)):
        print_message(advice)
    if has_diff and (options.patch or not options.as_json) and result.root != Path(programs.here()):
        print_message(f"the diff's file names are relative to {result.root}; apply it there")
    if not is_written:
        return report.WRONG_USE
    return report.exit_code(result.rows, options.fail_on) or int(not result.is_committed)


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """On Ctrl-C, SIGTERM or SIGHUP, cancel the run, so that copies are removed and checks are ended.

    After Ctrl-C raise CancelledError, else end with 128 plus the signal's number as exit status. A signal that the parent
    process set to be ignored stays ignored.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    caught: list[int] = []

    def end(number: int) -> None:
        caught.append(number)
        # Only once: a second cancellation, or a second Ctrl-C as asyncio handles it, would interrupt the cleanup.
        if task is not None and len(caught) == 1:
            task.cancel()

    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    numbers = [number for number in ending if signal.getsignal(number) is not signal.SIG_IGN]
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
            if caught[0] == signal.SIGINT:
                raise asyncio.CancelledError
            raise typer.Exit(128 + caught[0])


_COLOURS = {"@": "cyan", "+": "green", "-": "red"}


def print_bytes(text: str, *, is_diff: bool = False) -> None:
    """Print text from files as bytes, so that line ends and names stay unchanged.

    On a terminal, a diff is in colour, and control characters are made visible: a file could hide lines of a diff with them.
    """
    if sys.stdout is not None and sys.stdout.isatty():
        text = "\r\n".join(map(visible, text.split("\r\n")))
        if is_diff and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb", "unknown"):
            lines = text.splitlines(keepends=True)
            styles = ({"bold": True} if line.startswith(("--- ", "+++ ")) else {"fg": _COLOURS.get(line[:1])} for line in lines)
            text = "".join(typer.style(line, **style) for line, style in zip(lines, styles, strict=True))
    typer.echo(text.encode("utf-8", "surrogateescape"), nl=False)
