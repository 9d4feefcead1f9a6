"""What an earlier answer is worth now: typed-through text, answers kept by the text on both sides, rejected suggestions.

Pure; the time is passed in. Places are told by the text around the cursor, not by line numbers, so an answer survives
edits elsewhere in the file. Knows nothing of requests in flight or of the protocol.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from dg_lsp.core.confidence import Confidence

# An answer was made for this much text on each side; what lies further off may change without making it wrong.
BEFORE_CHARS, AFTER_CHARS = 1_500, 500
# What editors put behind the cursor by themselves.
_CLOSERS = ")]}>\"'`"
N_KEPT = 100
KEPT_S = 300.0
REJECTED_S = 120.0
# Who has typed more than so much against an answer is about something else.
STRAYED_CHARS = 40
_WORD_END = re.compile(r"\w+\Z")
_PIECE = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Place:
    """A cursor: the document, and the text on both sides as far as an answer depends on it."""

    uri: str
    before: str
    after: str


def place(uri: str, text: str, offset: int) -> Place:
    """Return the place of an offset in a text."""
    return Place(uri, text[max(0, offset - BEFORE_CHARS) : offset], text[offset : offset + AFTER_CHARS])


@dataclass(frozen=True, slots=True)
class Offer:
    """Text that may be shown at the cursor, and how sure the backend is of it."""

    text: str
    confidence: Confidence
    id: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """Earlier offers as they are now; `typed` is how much of them the user has typed since."""

    offers: tuple[Offer, ...]
    typed: int = 0
    n_candidates: int = 1


def advanced(then: Place, now: Place) -> str | None:
    """Return what was typed between two places, "" where they are the same; None where something else happened.

    A bracket or quote that the editor closed by itself counts as typed text too (see `rest`).
    """
    if then.uri != now.uri:
        return None
    tail = then.before[-(BEFORE_CHARS // 2) :]
    if len(tail) < BEFORE_CHARS // 2:
        # All of the document's text before the cursor, so it must be that still.
        whole = len(now.before) < BEFORE_CHARS and now.before.startswith(tail)
        return now.before[len(tail) :] if whole else None
    at = now.before.rfind(tail)
    return now.before[at + len(tail) :] if at >= 0 else None


def closed(then: Place, now: Place) -> str | None:
    """Return what the editor put behind the cursor by itself between two places; None where what follows differs."""
    if now.after == then.after:
        return ""
    for n in range(1, 4):
        added = now.after[:n]
        if len(added) == n and not added.strip(_CLOSERS) and now.after[n:] == then.after[: AFTER_CHARS - n]:
            return added
    return None


def rest(text: str, typed: str, added: str) -> str | None:
    """Return what is left of an offer after some of it was typed; None where it no longer fits.

    Brackets that the editor closed must end the offer's rest, and are left out of it.
    """
    if not text.startswith(typed):
        return None
    left = text[len(typed) :]
    if added:
        if not left.rstrip().endswith(added):
            return None
        left = left.rstrip()[: -len(added)]
    return left


def n_same(text: str, typed: str) -> int:
    """Return with how many characters the two begin alike."""
    pairs = enumerate(zip(text, typed, strict=False))
    return next((idx for idx, (one, other) in pairs if one != other), min(len(text), len(typed)))


def left_over(text: str, typed: str, added: str) -> str:
    """Return what an offer would still write after something else was typed; "" where it fits, or nothing is left.

    From the word on in which the two part, the pieces that were typed (words, spaces, single signs) stand for as many of
    the offer's.
    """
    same = n_same(text, typed)
    if same == len(typed):
        return ""
    parted = len(_WORD_END.sub("", typed[:same]))
    n_typed = len(_PIECE.findall(typed[parted:]))
    left = "".join(_PIECE.findall(text[parted:])[n_typed:])
    if added:
        left = left.rstrip()
        return left[: -len(added)] if left.endswith(added) else ""
    return left


@dataclass(frozen=True, slots=True)
class _Kept:
    place: Place
    offers: tuple[Offer, ...]
    n_candidates: int
    at: float


class Cache:
    """Answers by place, the least recently used forgotten first, and all of them after some minutes."""

    def __init__(self) -> None:
        """Keep nothing."""
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, place: Place, offers: tuple[Offer, ...], n_candidates: int, now: float) -> None:
        """Keep the answer for a place, also that there is none; `asked` is how many offers were wanted."""
        key = _key(place)
        self._kept[key] = _Kept(place, offers, n_candidates, now)
        self._kept.move_to_end(key)
        while len(self._kept) > N_KEPT:
            self._kept.popitem(last=False)

    def find(self, place: Place, now: float) -> Fit | None:
        """Return what was kept for this place, or for one from which the user has typed on; None where nothing fits."""
        exact = self._kept.get(_key(place))
        if exact is not None and now - exact.at <= KEPT_S:
            self._kept.move_to_end(_key(place))
            return Fit(exact.offers, 0, exact.n_candidates)
        best: Fit | None = None
        for entry in reversed(self._kept.values()):
            if now - entry.at > KEPT_S or not entry.offers:
                continue
            fit = advance(entry.place, place, entry.offers, entry.n_candidates)
            # The answer that was made nearest to here knows most.
            if fit is not None and (best is None or fit.typed < best.typed):
                best = fit
        return best

    def left_over(self, place: Place, now: float) -> str:
        """Return what the newest answer that the user has typed against would still write here; "" where there is none."""
        for entry in reversed(self._kept.values()):
            if now - entry.at > KEPT_S or not entry.offers:
                continue
            typed, added = advanced(entry.place, place), closed(entry.place, place)
            if typed and added is not None and len(typed) <= STRAYED_CHARS and not {"\n", "\r"} & set(typed):
                return left_over(entry.offers[0].text, typed, added)
        return ""

    def forget(self, uri: str) -> None:
        """Forget a document."""
        for key in [key for key, entry in self._kept.items() if entry.place.uri == uri]:
            del self._kept[key]


def advance(then: Place, now: Place, offers: tuple[Offer, ...], n_candidates: int) -> Fit | None:
    """Return the offers of an earlier place as they are at a later one, or None where none fits or nothing is left."""
    typed = advanced(then, now)
    added = closed(then, now)
    if typed is None or added is None:
        return None
    left = ((offer, rest(offer.text, typed, added)) for offer in offers)
    fitting = tuple(replace(offer, text=text) for offer, text in left if text and text.strip())
    return Fit(fitting, len(typed), n_candidates) if fitting else None


@dataclass(frozen=True, slots=True)
class Rejections:
    """What was shown and not taken: the line it was offered on, its text, and when."""

    items: tuple[tuple[str, str, str, float], ...] = ()

    def add(self, place: Place, text: str, now: float) -> Rejections:
        """Return the rejections with one more."""
        recent = [item for item in self.items if now - item[3] <= REJECTED_S]
        return Rejections((*recent, (place.uri, _line(place), text.strip(), now))[-50:])

    def holds(self, place: Place, text: str, now: float) -> bool:
        """Return whether this text was rejected on this line a short while ago, there or a few characters further left."""
        line = _line(place)
        for uri, rejected_line, rejected, at in self.items:
            if uri != place.uri or now - at > REJECTED_S:
                continue
            if line == rejected_line and text.strip() == rejected:
                return True
            if line.startswith(rejected_line) and (line[len(rejected_line) :] + text).strip() == rejected:
                return True
        return False

    def without(self, uri: str) -> Rejections:
        """Return the rejections without those of one document."""
        return Rejections(tuple(item for item in self.items if item[0] != uri))


def joins(then: Place, now: Place, *, age_ms: float, latency_ms: float) -> bool:
    """Return whether a request in flight for an earlier place is worth waiting for, rather than a new one.

    It is when nothing changed, and when a little was typed and most of the waiting is done: its answer may begin with that.
    """
    typed = advanced(then, now)
    if typed is None or closed(then, now) is None:
        return False
    return not typed or (len(typed) <= 8 and "\n" not in typed and age_ms >= latency_ms / 2)


Outcome = Literal["typing", "taken", "rejected", "elsewhere"]


def outcome(text: str, at: int, offer: str, now: str) -> Outcome:
    """Return what a change of the text means for what was offered at an offset of it.

    `typing` when the offer still fits, `taken` when all of it stands there, `rejected` when something else happened on its
    line, and `elsewhere` when the change was not there.
    """
    n_new = len(now) - len(text)
    if n_new >= 0 and now.startswith(text[:at]) and now.endswith(text[at:]):
        new = now[at : at + n_new]
        if new == offer:
            return "taken"
        return "typing" if any(rest(offer, *parts) is not None for parts in _typings(new)) else "rejected"
    line = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1
    head = now[: max(len(now) - (len(text) - at), 0)]
    same_line = head.startswith(text[:line]) and not {"\n", "\r"} & set(head[line:])
    return "rejected" if same_line and now.endswith(text[at:]) else "elsewhere"


def realigned(text: str, at: int, offers: tuple[Offer, ...], now: str) -> tuple[int, tuple[Offer, ...]] | None:
    """Return where offers for an offset of a text go in a later text, and what is left of them; None where they don't."""
    n_new = len(now) - len(text)
    if n_new < 0 or not (now.startswith(text[:at]) and now.endswith(text[at:])):
        return None
    for typed, added in _typings(now[at : at + n_new]):
        left = ((offer, rest(offer.text, typed, added)) for offer in offers)
        fitting = tuple(replace(offer, text=part) for offer, part in left if part)
        if fitting:
            return at + len(typed), fitting
    return None


def _typings(new: str) -> Iterator[tuple[str, str]]:
    """Yield how new text may have come about: what was typed, and brackets that the editor put behind it."""
    for n in range(min(len(new), 3) + 1):
        typed, added = new[: len(new) - n], new[len(new) - n :]
        if added.strip(_CLOSERS):
            return
        yield typed, added


def _line(place: Place) -> str:
    return place.before.replace("\r", "\n").rpartition("\n")[2]


def _key(place: Place) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in (place.uri, place.before, place.after):
        digest.update(part.encode("utf-8", "surrogatepass"))
        digest.update(b"\xff")
    return digest.digest()
