"""Count what users do with suggestions, on this machine only: no text, no names, no network.

Each server writes its own file for each day, so that servers need no locks. `load_counts` adds the files up.
`completion.Usage` sees what happens after suggestions are sent.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dg_lsp.wire import files

FOLDER_VARIABLE = "DG_LSP_STATISTICS_DIR"
MAX_DAYS = 90
# The upper ends of the latency classes, in milliseconds; one more class holds longer ones.
LATENCIES_MS = (1, 2, 5, 10, 20, 50, 100, 200, 350, 500, 750, 1000, 1500, 2000, 3000, 5000)


@dataclass
class Counts:
    """Counters by name, and the number of latencies in each class."""

    numbers: Counter[str] = field(default_factory=Counter)
    latencies: Counter[int] = field(default_factory=Counter)

    def quantile_ms(self, share: float) -> int | None:
        """Return the upper end of the latency class that contains this quantile.

        None when there are no answers, or when the quantile is above all classes.
        """
        n_within, so_far = share * sum(self.latencies.values()), 0
        for idx, limit in enumerate(LATENCIES_MS):
            so_far += self.latencies[idx]
            if so_far and so_far >= n_within:
                return limit
        return None


class Statistics:
    """The counts of this server, and its file of the day."""

    def __init__(self, folder: Path | None) -> None:
        """Write to the folder; None counts without writing."""
        self.folder = folder
        self.writes = True
        self.counts = Counts()
        self._name = f"{os.getpid()}-{secrets.token_hex(3)}.json"
        self._day: str | None = None
        self._last_write: tuple[Counter[str], Counter[int]] | None = None

    def write(self, today: datetime.date) -> None:
        """Write the day's numbers if they have changed; a write error is ignored."""
        day = today.isoformat()
        if self._day is not None and self._day != day:
            yesterday = self._day
            self._put(yesterday)
            self.counts = Counts()
        self._day = day
        self._put(day)

    def _put(self, day: str) -> None:
        now = (self.counts.numbers.copy(), self.counts.latencies.copy())
        if self.folder is None or not self.writes or now == self._last_write or not any(self.counts.numbers.values()):
            return
        data = {"counts": dict(now[0]), "latencies": {str(key): value for key, value in now[1].items()}}
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            files.replace(self.folder / f"{day}-{self._name}", json.dumps(data).encode())
            self._last_write = now


def default_folder() -> Path:
    """Return the folder of the statistics."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        return Path(folder)
    import platformdirs

    return Path(platformdirs.user_state_dir("dg-lsp", appauthor=False)) / "stats"


def prune(folder: Path, today: datetime.date) -> None:
    """Delete files that are older than `MAX_DAYS` days."""
    oldest = (today - datetime.timedelta(days=MAX_DAYS)).isoformat()
    for path in _files(folder):
        if path.name[:10] < oldest:
            with contextlib.suppress(OSError):
                path.unlink()


def load_counts(folder: Path, since: datetime.date) -> Counts:
    """Return the sum of all counts since that day; skip files that can't be read."""
    total = Counts()
    for path in _files(folder):
        if path.name[:10] >= since.isoformat():
            with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
                data = json.loads(path.read_text(encoding="ascii"))
                numbers = Counter({str(name): int(n) for name, n in data["counts"].items()})
                latencies = Counter({int(idx): int(n) for idx, n in data["latencies"].items()})
                total.numbers.update(numbers)
                total.latencies.update(latencies)
    return total


def report(counts: Counts) -> str:
    """Return the counts as lines of text."""
    numbers = counts.numbers
    n_shown, n_accepted = numbers["shown"], numbers["accepted"]
    if not any(numbers.values()):
        return "nothing has been counted yet"
    n_displayed = numbers["on screen"]
    share = f"{round(100 * n_displayed / n_shown)} %; " if n_shown else ""
    reuses = {"typed through": numbers["typed through"], "cached": numbers["cached"], "joined": numbers["joined"]}
    lines = [
        f"suggestions shown      {n_shown}",
        *([f"confirmed on screen    {n_displayed} ({share}only some editors report this)"] if n_displayed else []),
        f"accepted               {n_accepted}{_share(n_accepted, n_shown)}",
        f"accepted in part       {numbers['accepted in part']}{_share(numbers['accepted in part'], n_shown)}",
        f"characters accepted    {numbers['characters accepted']}",
        f"rejected               {numbers['rejected']}{_share(numbers['rejected'], n_shown)}",
        f"asked the engine       {numbers['asked']}",
        f"answered without it    {sum(reuses.values())} ({', '.join(f'{name} {n}' for name, n in reuses.items())})",
        f"code actions           {numbers['actions']} ({numbers['actions filled']} with an edit)",
    ]
    if (median := counts.quantile_ms(0.5)) is not None:
        lines.append(
            f"answers took           at most {median} ms half of the time, {counts.quantile_ms(0.95) or 'more'} ms 95 %"
        )
    suppressions = sorted((name for name in numbers if name.startswith("not: ")), key=lambda name: -numbers[name])
    lines += [f"not suggested, {name.removeprefix('not: '):<12} {numbers[name]}" for name in suppressions]
    return "\n".join(lines)


def _files(folder: Path) -> Iterable[Path]:
    try:
        return sorted(folder.glob("[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]-*.json"))
    except OSError:
        return ()


def _share(part: int, whole: int) -> str:
    return f" ({round(100 * part / whole)} %)" if whole else ""
