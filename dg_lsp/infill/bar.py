"""A progress bar on the terminal, for commands that send many requests to an engine."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

EVERY_S = 10.0
"""The least time between two lines of progress."""


@contextlib.contextmanager
def on_terminal(
    what: str, total: int, *, elsewhere: Callable[[str], None] = lambda _text: None
) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """Yield two functions: one that shows a message, one that advances the bar.

    When standard error is not a terminal, there is no bar, and `elsewhere` gets a line at the start and then now and then.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _text: None, in_lines(what, total, elsewhere)
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


def in_lines(
    what: str, total: int, on_message: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[int], None]:
    """Return a function that counts, and reports the count as a line at most every EVERY_S seconds."""
    n_done, said_at = 0, clock()
    on_message(f"{what} (0 of {total})" if total > 1 else what)

    def count(n: int) -> None:
        nonlocal n_done, said_at
        n_done += n
        if n_done < total and (now := clock()) - said_at >= EVERY_S:
            said_at = now
            on_message(f"{what} ({n_done} of {total})")

    return count


def rate(per_second: float | None) -> str:
    """Return a speed for people: things in a second, or seconds for each."""
    if not per_second:
        return ""
    return f"{per_second:.1f}/s" if per_second >= 1 else f"{1 / per_second:.1f} s each"
