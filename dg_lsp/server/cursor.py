"""A cursor's place, and what the user has typed since an earlier text.

A place is identified by the text around the cursor and by its offset, which moves with changes above, so an answer survives
edits elsewhere in the file. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from dg_lsp.core.syntax import Change, difference

if TYPE_CHECKING:
    from dg_lsp.core.polish import Suggestion  # imported for the first request

# Cursors are equal where this much text on each side is the same; text further away may change.
BEFORE_CHARS, AFTER_CHARS = 1_500, 500
# So much of the text before an earlier cursor is still before a later one, if the user has only typed.
TAIL_CHARS = BEFORE_CHARS // 2
# Closing brackets and quotes, which editors insert after the cursor automatically when what opens them is typed.
OPENERS = dict(zip(")]}>\"'`", "([{<\"'`", strict=True))
MAX_CLOSERS = 3


@dataclass(frozen=True, slots=True)
class Cursor:
    """A cursor position, identified by its document, its offset, and the text on both sides as it was at first.

    The anchor is the first offset at which the present text may differ from that, because text was accepted, typed or deleted.
    `others` stands for the other files and cells that an answer is judged by.
    """

    uri: str
    before: str
    after: str
    offset: int
    anchor: int = field(compare=False)
    others: object = None

    def moved(self, text: str, change: Change) -> Cursor:
        """Return the cursor after a change of its document's text: it moves with a change above the line of its anchor."""
        if change.old_end <= text.rfind("\n", 0, self.anchor):
            more = change.new_end - change.old_end
            return replace(self, offset=self.offset + more, anchor=self.anchor + more)
        return replace(self, anchor=min(self.anchor, change.start))


def at(uri: str, text: str, offset: int, anchor: int | None = None, others: object = None) -> Cursor:
    before, after = text[max(0, offset - BEFORE_CHARS) : offset], text[offset : offset + AFTER_CHARS]
    return Cursor(uri, before, after, offset, offset if anchor is None else anchor, others)


Typing = tuple[str, str]
"""The text that the user typed, and the closers that the editor inserted after it."""


def typed(then: Cursor, now: Cursor) -> Typing | None:
    """Return what was typed between two cursors, ("", "") when they are the same; None after any other change."""
    n_before, n_typed = len(now.before), now.offset - then.offset
    end = n_before - n_typed
    if then.uri != now.uri or not 0 <= n_typed <= n_before or now.before[:end][-TAIL_CHARS:] != then.before[-TAIL_CHARS:]:
        return None
    openers = {*now.before[max(end - 1, 0) :]}
    for n in range(MAX_CLOSERS + 1):
        closers = now.after[:n]
        if openers.issuperset(map(OPENERS.get, closers)) and now.after[n:] == then.after[: AFTER_CHARS - n]:
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
    left = text[len(written) :].rstrip() if closers else text[len(written) :]
    return left.removesuffix(closers) if text.startswith(written) and left.endswith(closers) else None


def followed(text: str, offset: int, now: str) -> dict[int, Typing]:
    """Return where a cursor may be in a later text, with what was typed: after closers, or before those of the editor.

    There is no such place if the user did more than type there and change what is above.
    """
    then, last = at("", text, offset).moved(text, difference(text, now)), offset + len(now) - len(text)
    places = range(last, last - MAX_CLOSERS - 1, -1)
    return {place: typing for place in places if (typing := typed(then, at("", now, place)))}


Outcome = Literal["typing", "over", "rejected"]


def outcome(text: str, offset: int, suggestion: str, now: str) -> Outcome:
    """Return what a change of the text means for a suggestion at an offset of the old text.

    `typing`: the suggestion still fits. `rejected`: something else was inserted at its place. `over`: the whole suggestion was
    inserted, or the change was elsewhere.
    """
    typings = tuple(followed(text, offset, now).values())
    if not typings or typings[0] == (suggestion, ""):
        return "over"
    return "typing" if any(_rest(suggestion, typing) is not None for typing in typings) else "rejected"
