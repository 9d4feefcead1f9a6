"""What all commands share: groups of commands with the same options, and messages to the user."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import typer

from dg_lsp import is_interrupt
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.visible import visible_message


def command_group(
    *,
    name: str | None = None,
    cls: type[typer.core.TyperGroup] | None = None,
    summary: str | None = None,
    completes: bool = False,
) -> typer.Typer:
    """Return an empty group of commands. A group with a `summary` prints its help if it is run without arguments.

    `completes` adds the options that install the shell's completion; only the outermost group has them.
    """
    return typer.Typer(
        name=name,
        cls=cls,
        help=summary,
        no_args_is_help=summary is not None,
        add_completion=completes,
        rich_markup_mode=None,
        # Our own handlers turn an exception into one sentence.
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def print_message(text: str, who: str = "dg-lsp") -> None:
    """Print a message to standard error, so that it is not part of the results."""
    typer.echo(f"{who}: {visible_message(text)}", err=True)


def fail(text: str, who: str = "dg-lsp", code: int = 2) -> NoReturn:
    """Print a message to standard error, and end the command with this exit status."""
    print_message(text, who)
    raise typer.Exit(code)


@contextlib.contextmanager
def reports(*errors: type[Exception], who: str = "dg-lsp", doing: str = "") -> Iterator[None]:
    """End a command with status 2 and one sentence if one of these errors is raised; used as a decorator.

    With `doing`, such as "measuring", so does a missing package of the engine.
    """
    try:
        yield
    except errors as error:
        fail(str(error), who)
    except ModuleNotFoundError as error:
        if not doing or is_interrupt(error):
            raise
        fail(f"{doing} needs {error.name}, which is not installed; install it with: {install_command('engine')}", who)
