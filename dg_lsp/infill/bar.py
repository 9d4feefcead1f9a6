"""A progress bar on the terminal, for commands that send many requests to an engine."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def on_terminal(what: str, total: int) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """Yield two functions: one that shows a message, one that advances the bar.

    Both do nothing when standard error is not a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda _text: None, lambda _n: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(compact=True),
    )
    # A model on a CPU may take a minute for one thing.
    with Progress(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=600) as progress:
        bar = progress.add_task(what, total=total, rate="")

        def count(n: int) -> None:
            progress.update(bar, description=what, advance=n, rate=rate(progress.tasks[0].speed))

        yield lambda text: progress.update(bar, description=text), count


def rate(per_second: float | None) -> str:
    """Return a speed for people: things in a second, or seconds for each."""
    if not per_second:
        return ""
    return f"{per_second:.1f}/s" if per_second >= 1 else f"{1 / per_second:.1f} s each"
