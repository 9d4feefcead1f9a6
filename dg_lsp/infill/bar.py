"""A progress bar on the terminal, for commands that ask an engine for many things."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def on_terminal(what: str, total: int) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """Yield a function that shows what is being waited for, and one that counts things as done.

    Both do nothing where standard error is no terminal.
    """
    if not sys.stderr.isatty():
        yield lambda _text: None, lambda _n: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(what, total=total)
        yield (
            lambda text: progress.update(bar, description=text),
            lambda n: progress.update(bar, description=what, advance=n),
        )
