"""The `dg-lsp` command: which subcommands there are, and what happens when something goes wrong that nobody foresaw.

Imports nothing of weight: each subcommand's own module is imported when it is called.
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
from typing import Annotated, NoReturn

import typer

from dg_lsp import ENGINE_INSTALL, __version__
from dg_lsp.batch import commands, doctor, explain_command

app = typer.Typer(
    name="dg-lsp",
    help="Fill holes in code with a text-diffusion model, using the text on both sides.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Subcommands whose modules have weight: what they are for, where they live, what brings what they need.
LATER = {
    "serve": ("Run the language server, on standard input and output.", "dg_lsp.server.commands", ""),
    "engine": ("Run, start, stop or look at the resident engine.", "dg_lsp.engine.commands", "engine"),
    "eval": ("Measure how good the fills of a model are.", "dg_lsp.evaluate.commands", "engine"),
    "bench": ("Measure how fast the fills of a model are.", "dg_lsp.evaluate.bench", "engine"),
    "calibrate": ("Measure how likely a model's answers are right, on your own code.", "dg_lsp.evaluate.calibrate_command", ""),
    "stats": ("Show what became of suggestions, on this machine only.", "dg_lsp.server.stats_command", ""),
    "train": ("Train a small model of the same kind.", "dg_lsp.train.commands", "engine"),
}


FULL = (errno.ENOSPC, errno.EDQUOT) if hasattr(errno, "EDQUOT") else (errno.ENOSPC,)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        app(prog_name="dg-lsp")
    except BrokenPipeError:
        # Who read our output has seen enough. Nothing is left to say, and nobody to say it to.
        # The interpreter would try to flush it on its way out.
        sys.stdout = None
        raise SystemExit(141) from None
    except OSError as error:
        if error.errno not in FULL:
            fail(error)
        typer.echo(f"dg-lsp: {error.filename or 'what it prints'} can't be written: {error.strerror}", err=True)
        # What is left of the output would fail once more on the way out.
        sys.stdout = None
        raise SystemExit(2) from None
    except Exception as error:
        fail(error)


def fail(error: Exception) -> NoReturn:
    """End the process because of an error that nobody foresaw, or that any command may meet."""
    told = _last_words(error) if _has_current_folder() else "the current folder is gone; change to one that is there"
    commands.say(told)
    raise SystemExit(2) from None


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dg-lsp {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    pass


app.command("infill")(commands.infill)
app.command("explain")(explain_command.explain)
app.command("doctor")(doctor.doctor)


def _add_later(name: str, about: str, module: str, extra: str) -> None:
    # The subcommand's own parser gets everything behind its name, `--help` too.
    settings = {
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "allow_interspersed_args": False,
        "help_option_names": [],
    }

    def forward(context: typer.Context) -> None:
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            typer.echo(f"dg-lsp: {_missing(name, module, extra, error)}", err=True)
            raise typer.Exit(2) from error
        typer.main.get_command(found.app)(context.args, prog_name=f"dg-lsp {name}")

    app.command(name, help=about, context_settings=settings)(forward)


for _name, (_about, _module, _extra) in LATER.items():
    _add_later(_name, _about, _module, _extra)


def _missing(name: str, module: str, extra: str, error: ModuleNotFoundError) -> str:
    absent = error.name or str(error)
    if absent.startswith("dg_lsp"):
        return f"this installation has no `{name}` ({absent} is missing)"
    cure = f"{ENGINE_INSTALL} brings it" if extra else "install dg-lsp anew"
    return f"`{name}` needs {absent}, which is not installed; {cure}"


def _has_current_folder() -> bool:
    try:
        Path.cwd()
    except OSError:
        return False
    return True


def _last_words(error: Exception) -> str:
    """Return one sentence about an error that nobody foresaw; its details go to a file."""
    import platformdirs

    what = f"stopped by an error of its own, {type(error).__name__}"
    now = datetime.datetime.now(datetime.UTC)
    try:
        folder = Path(platformdirs.user_log_dir("dg-lsp", appauthor=False))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"crash-{now:%Y%m%d-%H%M%S-%f}.log"
        about = f"dg-lsp {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        # It may hold text of the user's files, so only the user may read it.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:  # noqa: PTH123 -- it is open already
            file.write(about + "".join(traceback.format_exception(error)))
    except OSError:
        return f"{what}: {error}"
    return f"{what}; the details are in {path}"
