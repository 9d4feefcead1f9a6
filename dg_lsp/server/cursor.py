"""A cursor's place, and what the user has typed since an earlier text.

A place is identified by the text around the cursor, not by line numbers, so an answer survives edits elsewhere in the file.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dg_lsp.core.polish import Suggestion  # imported for the first request

# Cursors are equal where this much text on each side is the same; text further away may change.
BEFORE_CHARS, AFTER_CHARS = 1_500, 500
# So much of the text before an earlier cursor is still before a later one, if the user has only typed.
TAIL_CHARS = BEFORE_CHARS // 2
# Closing brackets and quotes, which editors insert after the cursor automatically.
CLOSERS = ")]}>\"'`"
MAX_CLOSERS = 3


@dataclass(frozen=True, slots=True)
class Cursor:
    """A cursor position, identified by its document and the text on both sides."""

    uri: str
    before: str
    after: str
    offset: int = field(compare=False)


def at(uri: str, text: str, offset: int) -> Cursor:
    return Cursor(uri, text[max(0, offset - BEFORE_CHARS) : offset], text[offset : offset + AFTER_CHARS], offset)


Typing = tuple[str, str]
"""The text that the user typed, and the closers that the editor inserted after it."""


def typed(then: Cursor, now: Cursor) -> Typing | None:
    """Return what was typed between two cursors, ("", "") when they are the same; None after any other change."""
    if then.uri != now.uri:
        return None
    tail, n_before = then.before[-TAIL_CHARS:], len(now.before)
    end = n_before - (now.offset - then.offset)
    if not (end <= n_before and len(tail) <= end and now.before.endswith(tail, 0, end)):
        # The text above has changed, so the offset says nothing. Where text repeats itself, nothing else does.
        start = now.before.find(tail)
        if len(tail) < TAIL_CHARS or start < 0 or start != now.before.rfind(tail):
            return None
        end = start + TAIL_CHARS
    for n in range(MAX_CLOSERS + 1):
        closers = now.after[:n]
        if len(closers) == n and not closers.strip(CLOSERS) and now.after[n:] == then.after[: AFTER_CHARS - n]:
            return now.before[end:], closers
    return None


def rests(suggestions: tuple[Suggestion, ...], typing: Typing) -> tuple[Suggestion, ...]:
    """Return the rests of the suggestions that begin with the typed text, without those of which nothing is left to insert."""
    left = ((suggestion, _rest(suggestion.text, typing)) for suggestion in suggestions)
    return tuple(suggestion.with_text(text) for suggestion, text in left if text and text.strip())


def _rest(text: str, typing: Typing) -> str | None:
    """Return the rest of a suggestion after some of it was typed; None when it no longer fits.

    The suggestion must end with the closers that the editor inserted, and they are removed from the rest.
    """
    written, closers = typing
    if not text.startswith(written):
        return None
    left = text[len(written) :]
    if closers:
        if not left.rstrip().endswith(closers):
            return None
        left = left.rstrip()[: -len(closers)]
    return left


def _moves(text: str, offset: int, now: str) -> Iterator[tuple[int, Typing]]:
    """Yield where the cursor may be in a later text if the user typed on, and what was typed; nothing after another change."""
    then = at("", text, offset)
    for n in range(MAX_CLOSERS + 1):
        moved = offset + len(now) - len(text) - n
        typing = typed(then, at("", now, moved)) if moved >= offset else None
        if typing is not None and len(typing[1]) == n:
            yield moved, typing


Outcome = Literal["typing", "over", "rejected"]


def outcome(text: str, offset: int, suggestion: str, now: str) -> Outcome:
    """Return what a change of the text means for a suggestion at an offset of the old text.

    `typing`: the suggestion still fits. `rejected`: something else was inserted at its place. `over`: the whole suggestion was
    inserted, or the change was elsewhere.
    """
    typings = [typing for _, typing in _moves(text, offset, now)]
    if not typings or typings[0] == (suggestion, ""):
        return "over"
    return "typing" if any(_rest(suggestion, typing) is not None for typing in typings) else "rejected"


def realigned(
    text: str, offset: int, suggestions: tuple[Suggestion, ...], now: str
) -> tuple[int, tuple[Suggestion, ...]] | None:
    """Return the offset in a later text and the rests of the suggestions; None when no suggestion fits there."""
    return next(((moved, left) for moved, typing in _moves(text, offset, now) if (left := rests(suggestions, typing))), None)
