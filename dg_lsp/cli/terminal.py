"""What commands write to a terminal, and what they ask there."""

from __future__ import annotations

import os
import sys

import typer

from dg_lsp.wire.visible import visible

_COLOURS = {"@": "cyan", "+": "green", "-": "red"}


def print_bytes(text: str, *, is_diff: bool = False) -> None:
    """Print text from files as bytes, so that line ends and names stay unchanged.

    On a terminal, a diff is in colour, and control characters are made visible: a file could hide lines of a diff with them.
    """
    if sys.stdout is not None and sys.stdout.isatty():
        text = "\r\n".join(map(visible, text.split("\r\n")))
        if is_diff and "NO_COLOR" not in os.environ:
            lines = text.splitlines(keepends=True)
            styles = ({"bold": True} if line.startswith(("--- ", "+++ ")) else {"fg": _COLOURS.get(line[:1])} for line in lines)
            text = "".join(typer.style(line, **style) for line, style in zip(lines, styles, strict=True))
    typer.echo(text.encode("utf-8", "surrogateescape"), nl=False)


def can_ask() -> bool:
    """Return whether a user can answer questions: standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def ask(question: str, *, end: str, default: str | None = None) -> str:
    """Return the user's answer; `end` if standard input ends, as after Ctrl-D. Raises KeyboardInterrupt on Ctrl-C."""
    suffix = f" [{default}]: " if default else ": "
    typer.echo(question + suffix, nl=False, err=True)
    try:
        answer = input()
    except EOFError:
        typer.echo("", err=True)
        return end
    except UnicodeDecodeError:
        return ""
    return answer or default or ""
