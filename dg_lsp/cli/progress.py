"""Progress on standard error: on a terminal a bar, elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dg_lsp.wire.visible import visible_line

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY_S = 10.0
"""The least time between two lines of progress."""


@contextlib.contextmanager
def counts(
    what: str, total: int, *, elsewhere: Callable[[str], None] = lambda _text: None
) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """Yield two functions: one that shows a message, one that advances the bar by a number of things.

    When standard error is not a terminal, there is no bar, and `elsewhere` gets a line at the start and then now and then.
    """
    if not _is_terminal():
        yield lambda _text: None, in_lines(what, total, elsewhere)
        return
    from rich.progress import MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (MofNCompleteColumn(), "{task.fields[rate]}", TimeElapsedColumn(), "left", TimeRemainingColumn(compact=True))
    with _bar("{task.description}", *columns) as progress:
        bar = progress.add_task(what, total=total, rate="")

        def count(n: int) -> None:
            progress.update(bar, description=what, advance=n, rate=rate(progress.tasks[0].speed))

        yield lambda text: progress.update(bar, description=text), count


@contextlib.contextmanager
def shares() -> Iterator[Callable[[str, float], None]]:
    """Yield a function that shows a text and the share that is done, from 0 to 1."""
    if not _is_terminal():
        show = at_intervals(lambda text: print(visible_line(text), file=sys.stderr, flush=True))
        yield lambda text, _share: show(text)
        return
    with _bar("", "{task.percentage:>4.0f}%", "{task.description}") as progress:
        bar = progress.add_task("", total=1.0)
        yield lambda text, share: progress.update(bar, description=visible_line(text), completed=share)


def in_lines(
    what: str, total: int, on_message: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[int], None]:
    """Return a function that counts, and reports the count as a line at most every EVERY_S seconds."""
    n_done, show = 0, at_intervals(on_message, clock)
    show(f"{what} (0 of {total})" if total > 1 else what)

    def count(n: int) -> None:
        nonlocal n_done
        n_done += n
        if n_done < total:
            show(f"{what} ({n_done} of {total})")

    return count


def at_intervals(on_message: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> Callable[[str], None]:
    """Return a function that passes a text on if it is new, and at most every EVERY_S seconds."""
    last, said_at = "", -math.inf

    def show(text: str) -> None:
        nonlocal last, said_at
        if text and text != last and (now := clock()) - said_at >= EVERY_S:
            last, said_at = text, now
            on_message(text)

    return show


def rate(per_second: float | None) -> str:
    """Return a speed for people: things in a second, or seconds for each."""
    if not per_second:
        return ""
    return f"{per_second:.1f}/s" if per_second >= 1 else f"{1 / per_second:.1f} s each"


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _bar(before: str, *after: Any) -> Progress:
    """Return a bar between columns, each of which may be a template."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = [TextColumn(each, markup=False) if isinstance(each, str) else each for each in after]
    # A model on a CPU may take a minute for one thing.
    return Progress(
        TextColumn(before, markup=False),
        BarColumn(),
        *columns,
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=600,
    )
