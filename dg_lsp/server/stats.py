"""Count what users do with suggestions, on this machine only: no text, no names, no network.

`Usage` sees what happens after suggestions are sent, by comparing their text with the current text. Each server writes its own
file for each day, so that servers need no locks. `load_counts` adds the files up.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dg_lsp.core.values import Import
from dg_lsp.server import decisions
from dg_lsp.server.decisions import Offer, Rejections
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

    def add(self, name: str, n: int = 1) -> None:
        """Add `n` to the counter `name`."""
        self.numbers[name] += n

    def took(self, ms: float) -> None:
        """Count one answer of the engine with this latency."""
        self.latencies[sum(ms > limit for limit in LATENCIES_MS)] += 1

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


# --- What happens to the suggestions of one session

# An editor may report about a suggestion long after it was sent. Older ones than the last 200 are forgotten.
MAX_OFFERS = 200


class Usage:
    """The recently sent suggestions, and the counts of what the user did with them."""

    def __init__(self, statistics: Statistics, clock: Callable[[], float]) -> None:
        """Start with no suggestion; count into `statistics`."""
        self._statistics, self._clock = statistics, clock
        self.rejections = Rejections()
        self._visible: dict[str, tuple[str, int, Offer]] = {}
        self._offers: dict[int, Offer] = {}
        self._imports: dict[int, tuple[Import, ...]] = {}
        self._displayed: set[int] = set()

    def sent(self, offers: tuple[Offer, ...]) -> None:
        """Count and remember the suggestions sent for one request."""
        self._statistics.counts.add("shown")
        for offer in offers:
            self._offers.pop(offer.id, None)
            self._offers[offer.id] = offer
            if offer.imports:
                self._imports[offer.id] = offer.imports
        for entries in (self._offers, self._imports):
            while len(entries) > MAX_OFFERS:
                del entries[next(iter(entries))]
        self._displayed &= self._offers.keys()

    def watch(self, uri: str, text: str, at: int, offer: Offer) -> None:
        """Track an offer at an offset of this text, so that `changed` can tell whether it was accepted or rejected."""
        self._visible[uri] = (text, at, offer)

    def changed(self, uri: str, now: str) -> None:
        """Compare a document's new text with the tracked offer, and count the outcome."""
        entry = self._visible.get(uri)
        if entry is None:
            return
        text, at, offer = entry
        outcome = decisions.outcome(text, at, offer.text, now)
        if outcome == "typing":
            return
        del self._visible[uri]
        if outcome == "taken":
            self.accepted(offer.id)
        elif outcome == "rejected":
            self._statistics.counts.add("rejected")
            self.rejections = self.rejections.add(decisions.place(uri, text, at), offer.text, self._clock())

    def displayed(self, offer_id: int) -> None:
        """Count a suggestion that the editor reports as displayed, once; only VS Code reports this."""
        if offer_id in self._offers and offer_id not in self._displayed:
            self._displayed.add(offer_id)
            self._statistics.counts.add("on screen")

    def accepted(self, offer_id: int) -> None:
        """Count an accepted suggestion, once."""
        offer = self._offers.pop(offer_id, None)
        if offer is not None:
            self._statistics.counts.add("accepted")
            self._statistics.counts.add("characters accepted", len(offer.text))

    def imports(self, offer_id: int) -> tuple[Import, ...]:
        """Return what the file must import for a suggestion, once: its acceptance may be seen before it is reported."""
        return self._imports.pop(offer_id, ())

    def accepted_in_part(self, offer_id: int, n_units: int) -> None:
        """Count a partially accepted suggestion."""
        if offer_id in self._offers and n_units > 0:
            self._statistics.counts.add("accepted in part")

    def forget(self, uri: str) -> None:
        """Forget a document that was closed."""
        self._visible.pop(uri, None)
        self.rejections = self.rejections.without(uri)
