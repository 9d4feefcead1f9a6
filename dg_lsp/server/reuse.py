"""Reuse earlier answers: while the user types through them, from a cache, and not when they were rejected.

Pure; the caller passes the time. A place is identified by the text around the cursor, not by line numbers, so an answer
survives edits elsewhere in the file.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from dg_lsp.core.confidence import Confidence
from dg_lsp.core.values import Import, n_common

# A cached answer fits where this much text on each side is the same; text further away may change.
BEFORE_CHARS, AFTER_CHARS = 1_500, 500
# Closing brackets and quotes, which editors insert after the cursor automatically.
_CLOSERS = ")]}>\"'`"
MAX_ENTRIES = 100
FRESH_S = 300.0
REJECTED_S = 120.0
# Past this many diverging characters, assume the user is writing something else.
MAX_DIVERGING_CHARS = 40
_WORD_END = re.compile(r"\w+\Z")
_PIECE = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Place:
    """A cursor position, identified by its document and the text on both sides."""

    uri: str
    before: str
    after: str


def place(uri: str, text: str, offset: int) -> Place:
    """Return the place of an offset in a text."""
    return Place(uri, text[max(0, offset - BEFORE_CHARS) : offset], text[offset : offset + AFTER_CHARS])


@dataclass(frozen=True, slots=True)
class Offer:
    """Text that may be shown at the cursor, the model's confidence in it, and what the file must import for it.

    `is_cut_short`: the deadline ended the engine's work on it.
    """

    text: str
    confidence: Confidence
    id: int = 0
    imports: tuple[Import, ...] = ()
    is_cut_short: bool = False


@dataclass(frozen=True, slots=True)
class Fit:
    """The rest of earlier offers at the current place; `typed` counts the characters the user has typed since."""

    offers: tuple[Offer, ...]
    typed: int = 0
    n_candidates: int = 1


def advanced(then: Place, now: Place) -> str | None:
    """Return the text typed between two places, "" when they are the same; None after any other change.

    A bracket or quote that the editor closed by itself counts as typed text too (see `rest`).
    """
    if then.uri != now.uri:
        return None
    tail = then.before[-(BEFORE_CHARS // 2) :]
    if len(tail) < BEFORE_CHARS // 2:
        # The tail is all text before the cursor, so the document must still start with it.
        whole = len(now.before) < BEFORE_CHARS and now.before.startswith(tail)
        return now.before[len(tail) :] if whole else None
    at = now.before.rfind(tail)
    return now.before[at + len(tail) :] if at >= 0 else None


def closed(then: Place, now: Place) -> str | None:
    """Return the closers that the editor inserted after the cursor between two places; None after any other change."""
    if now.after == then.after:
        return ""
    for n in range(1, 4):
        added = now.after[:n]
        if len(added) == n and not added.strip(_CLOSERS) and now.after[n:] == then.after[: AFTER_CHARS - n]:
            return added
    return None


def rest(text: str, typed: str, added: str) -> str | None:
    """Return the rest of an offer after some of it was typed; None when it no longer fits.

    `added` are closers that the editor inserted. The offer must end with them, and they are removed from the rest.
    """
    if not text.startswith(typed):
        return None
    left = text[len(typed) :]
    if added:
        if not left.rstrip().endswith(added):
            return None
        left = left.rstrip()[: -len(added)]
    return left


def left_over(text: str, typed: str, added: str) -> str:
    """Return the rest of an offer after the user typed something different; "" when the offer still fits or is used up.

    Pieces are words, spaces and single punctuation characters. From the first differing word on, each typed piece replaces
    one piece of the offer.
    """
    same = n_common(text, typed)
    if same == len(typed):
        return ""
    word_start = len(_WORD_END.sub("", typed[:same]))
    n_typed = len(_PIECE.findall(typed[word_start:]))
    left = "".join(_PIECE.findall(text[word_start:])[n_typed:])
    if added:
        left = left.rstrip()
        return left[: -len(added)] if left.endswith(added) else ""
    return left


@dataclass(frozen=True, slots=True)
class _Entry:
    place: Place
    offers: tuple[Offer, ...]
    n_candidates: int
    at: float


class Cache:
    """A cache of answers by place; the least recently used entry is dropped first, and every entry after some minutes."""

    def __init__(self) -> None:
        """Start empty."""
        self._entries: OrderedDict[Place, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, place: Place, offers: tuple[Offer, ...], n_candidates: int, now: float) -> None:
        """Store the answer for a place, also an empty one; `n_candidates` is how many offers were requested."""
        self._entries[place] = _Entry(place, offers, n_candidates, now)
        self._entries.move_to_end(place)
        while len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)

    def find(self, place: Place, now: float, is_sure: Callable[[Offer], bool] = lambda _: True) -> Fit | None:
        """Return the answer for this place, or for one from which the user has typed on; None when nothing fits.

        Typed text makes the rest of an answer likelier than it was. So one from another place fits only if an offer of it
        `is_sure` already, and then goes before an answer for this place without such an offer.
        """
        exact = self._entries.get(place)
        own = Fit(exact.offers, 0, exact.n_candidates) if exact is not None and now - exact.at <= FRESH_S else None
        if own is not None:
            self._entries.move_to_end(place)
            if not own.offers or any(map(is_sure, own.offers)):
                return own
        best: Fit | None = None
        for entry in reversed(self._entries.values()):
            if now - entry.at > FRESH_S or not entry.offers or entry is exact:
                continue
            fit = advance(entry.place, place, entry.offers, entry.n_candidates)
            # Prefer the answer with the least typed text: it was made with the most of the current context.
            if fit is not None and any(map(is_sure, fit.offers)) and (best is None or fit.typed < best.typed):
                best = fit
        return best or own

    def left_over(self, place: Place, now: float) -> str:
        """Return the rest of the newest answer from which the user's text diverged; "" when there is none."""
        for entry in reversed(self._entries.values()):
            if now - entry.at > FRESH_S or not entry.offers:
                continue
            typed, added = advanced(entry.place, place), closed(entry.place, place)
            if typed and added is not None and len(typed) <= MAX_DIVERGING_CHARS and not {"\n", "\r"} & set(typed):
                return left_over(entry.offers[0].text, typed, added)
        return ""

    def forget(self, uri: str) -> None:
        """Drop all answers for a document."""
        for place in [place for place in self._entries if place.uri == uri]:
            del self._entries[place]


def advance(then: Place, now: Place, offers: tuple[Offer, ...], n_candidates: int) -> Fit | None:
    """Return the rest of an earlier place's offers at a later place; None when none fits or nothing is left."""
    typed = advanced(then, now)
    added = closed(then, now)
    if typed is None or added is None:
        return None
    left = ((offer, rest(offer.text, typed, added)) for offer in offers)
    fitting = tuple(replace(offer, text=text) for offer, text in left if text and text.strip())
    return Fit(fitting, len(typed), n_candidates) if fitting else None


@dataclass(frozen=True, slots=True)
class Rejections:
    """The rejected suggestions: for each the document, the line before the cursor, its text and the time."""

    items: tuple[tuple[str, str, str, float], ...] = ()

    def add(self, place: Place, text: str, now: float) -> Rejections:
        """Return the rejections with one more."""
        recent = [item for item in self.items if now - item[3] <= REJECTED_S]
        return Rejections((*recent, (place.uri, _line(place), text.strip(), now))[-50:])

    def holds(self, place: Place, text: str, now: float) -> bool:
        """Return whether this text was recently rejected on this line, at this place or further left."""
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
    """Return whether to wait for a running request for an earlier place instead of starting a new one.

    That is so when nothing changed, or when at most 8 characters were typed on the same line and at least half of the usual
    latency has passed. The answer may then begin with the typed text.
    """
    typed = advanced(then, now)
    if typed is None or closed(then, now) is None:
        return False
    return not typed or (len(typed) <= 8 and "\n" not in typed and age_ms >= latency_ms / 2)


Outcome = Literal["typing", "taken", "rejected", "elsewhere"]


def outcome(text: str, at: int, offer: str, now: str) -> Outcome:
    """Return what a change of the text means for an offer at an offset of the old text.

    `typing`: the offer still fits. `taken`: the whole offer was inserted. `rejected`: its line changed otherwise.
    `elsewhere`: the change was on another line.
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
    """Return the offset in a later text and the rest of the offers; None when no offer fits there."""
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
    """Yield the ways to split new text into typed text and closers that the editor inserted after it."""
    for n in range(min(len(new), 3) + 1):
        typed, added = new[: len(new) - n], new[len(new) - n :]
        if added.strip(_CLOSERS):
            return
        yield typed, added


def _line(place: Place) -> str:
    return place.before.replace("\r", "\n").rpartition("\n")[2]
