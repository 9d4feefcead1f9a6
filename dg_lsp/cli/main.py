"""The `dg-lsp` command: its subcommands, and the handling of unexpected errors.

The module of each heavy subcommand is imported only when that subcommand runs, so that the command line starts fast.
"""

from __future__ import annotations

import datetime
import errno
import importlib
import os
import platform
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from dg_lsp import INTERRUPTED, __version__, is_interrupt
from dg_lsp.cli import infill
from dg_lsp.cli.options import command_group, print_message
from dg_lsp.wire import programs
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.visible import visible_message

# Subcommands with heavy modules: the help text, the module, and the extra that it needs.
LATER = {
    "doctor": ("Show what is installed, how fast it fills, and how to fix what is missing.", "dg_lsp.cli.doctor", ""),
    "setup": ("Choose a model: what fits this machine, what it costs, how good it is.", "dg_lsp.cli.setup", ""),
    "engine": ("Run, start, stop or inspect the resident engine.", "dg_lsp.cli.engine", "engine"),
    "bench": ("Measure how fast the fills of a model are.", "dg_lsp.cli.bench", "engine"),
    "calibrate": ("Measure how likely a model's answers are right, on your own code.", "dg_lsp.cli.calibrate", "engine"),
}


class Lazy(typer.core.TyperGroup):
    """A command group that imports some commands only when they run, or when their options are completed."""

    def list_commands(self, ctx: Any) -> list[str]:  # click's own context, or the one that a newer typer brings
        """Return the names of all commands."""
        return [*super().list_commands(ctx), *LATER]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; one of `LATER` without its options, which is enough for a list of commands."""
        if cmd_name not in LATER:
            return super().get_command(ctx, cmd_name)
        return typer.core.TyperCommand(cmd_name, help=LATER[cmd_name][0])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the complete command and the remaining arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return (name, _loaded(name), rest) if name in LATER else (name, command, rest)


def _loaded(name: str) -> Any:
    try:
        return typer.main.get_command(importlib.import_module(LATER[name][1]).app)
    except ModuleNotFoundError as error:
        if is_interrupt(error):
            raise
        absent, is_extra = error.name or str(error), LATER[name][2]
        remedy = f"install it with: {install_command('engine')}" if is_extra else "reinstall dg-lsp"
        problem = f"`{name}` needs {absent}, which is not installed; {remedy}"
        if absent.startswith("dg_lsp"):
            problem = f"this installation has no `{name}` ({absent} is missing)"
        typer.echo(f"dg-lsp: {problem}", err=True)
        raise typer.Exit(2) from error


app = command_group(
    name="dg-lsp",
    cls=Lazy,
    summary="Fill holes in code with a language model on your machine, using the text on both sides.",
    completes=True,
)

INSTALL_COMPLETION = "--install-completion"
SHOW_COMPLETION = "to add the script by hand, print it with: dg-lsp --show-completion"
FULL = (errno.ENOSPC, errno.EDQUOT)


def main() -> None:
    """Run the command line and end the process with its exit code; raise an unexpected error."""
    try:
        app(prog_name="dg-lsp")
    except BrokenPipeError:
        # The reader of our output has closed the pipe, as `head` does. Without this, the interpreter would try to flush
        # standard output at exit, and fail again.
        sys.stdout = None
        raise SystemExit(141) from None
    except SystemExit as end:
        # typer turns Ctrl-C into this exit code without a message.
        if end.code == INTERRUPTED:
            print_message("interrupted")
        raise
    except (OSError, UnicodeDecodeError) as error:
        if INSTALL_COMPLETION in sys.argv:
            reason = "the shell's own file is not UTF-8"
            if isinstance(error, OSError):
                reason = f"{error.filename}: {(error.strerror or str(error)).lower()}"
            print_message(f"completion can't be installed: {reason}; {SHOW_COMPLETION}")
        elif isinstance(error, OSError) and error.errno in FULL:
            typer.echo(f"dg-lsp: {error.filename or 'the output'} can't be written: {error.strerror}", err=True)
            # Flushing the rest of the output at exit would fail again.
            sys.stdout = None
        else:
            raise
        raise SystemExit(2) from None


def _version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"dg-lsp {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    pass


app.command("infill")(infill.infill)


@app.command()
def serve(
    stdio: Annotated[bool, typer.Option("--stdio", help="Use standard input and output, as always.")] = False,
    log: Annotated[
        str, typer.Option(metavar="LEVEL", help="Log level on standard error: debug, info, warning or error.")
    ] = "warning",
    engine: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", hidden=True)] = "",
) -> None:
    """Run the language server; editors start this command. Exits with 0 after the editor's shutdown request, else with 1."""
    from dg_lsp.server import start

    start.serve(log=log, engine=engine)


def about(error: BaseException) -> str:
    """Return one sentence about an unexpected error, whose details are written to a file unless its cause is known."""
    if isinstance(error, FileNotFoundError) and not programs.here():
        return "the current folder no longer exists; change to another one, or name full paths"
    import platformdirs

    what = f"stopped because of an internal error, {type(error).__name__}"
    now = datetime.datetime.now(datetime.UTC)
    try:
        folder = Path(platformdirs.user_log_dir("dg-lsp", appauthor=False))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"crash-{now:%Y%m%d-%H%M%S-%f}.log"
        about = f"dg-lsp {__version__}, Python {platform.python_version()}, {' '.join(os.uname()[0::2])}\n"
        # The traceback may contain text of the user's files, so only the user may read the file.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:  # noqa: PTH123 -- it is open already
            file.write(about + "".join(traceback.format_exception(error)))
    except OSError:
        return visible_message(f"{what}: {error}")
    return visible_message(f"{what}; the details are in {path}")
