"""What the user rejected or removed lately in a document, so that it is not offered again at its place.

Pure: the caller passes the time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from dg_lsp.core.syntax import difference
from dg_lsp.server.cursor import outcome

REJECTED_S = 120.0
MAX_UNWANTED, MAX_REMOVED_CHARS = 50, 500  # how many texts that were rejected or removed, and how much of each
# So many tokens stand for what begins with them. Fewer, as `(`, do so only for a text that is mostly them.
WANTED_TOKENS = 8  # of a removed text that are typed again
TELLING_TOKENS = 3
_TOKEN = re.compile(r"\w+|[^\w\s]")
_CONTINUES = re.compile(r"""[.(["'`]|::|->|\?\.""")  # behind a name: it is a part of another expression


@dataclass(frozen=True, slots=True)
class _Item:
    """A text that is not offered at an offset, which moves with the text around it, and until when."""

    at: int
    text: str
    until: float

    def left(self, text: str, offset: int) -> tuple[str, ...]:
        """Return the tokens that are not written yet before an offset; none where that is another place."""
        if abs(offset - self.at) > MAX_REMOVED_CHARS or (offset < self.at and text[offset : self.at].strip()):
            return ()
        written, tokens, n = "".join(text[self.at : offset].split()), _tokens(self.text), 0
        while written and n < len(tokens) and written.startswith(tokens[n]):
            written, n = written[len(tokens[n]) :], n + 1
        return () if written else tokens[n:]

    def is_in(self, text: str, end: int) -> bool:
        """Return whether all of this stands at its offset, before `end`. White space is not compared."""
        written = text[self.at : min(end, self.at + 2 * MAX_REMOVED_CHARS)]
        return "".join(written.split()).startswith("".join(self.text.split()))


class Unwanted:
    """What the user rejected or removed lately in one document: it is not offered again at its place.

    A place moves with the text around it, and is forgotten when the text before it is removed. What several keystrokes remove
    one after another is one text. White space is not compared. A text that is written there again is forgotten.
    """

    def __init__(self) -> None:
        self._items: tuple[_Item, ...] = ()
        # The offer on the screen: the document's text when it was made, its offset and its own text.
        self._offer: tuple[str, int, str] | None = None
        # What the last change removed, if it wrote nothing: the next change may go on with it.
        self._removal: _Item | None = None

    def offer(self, text: str, at: int, suggestion: str) -> None:
        """Record that a suggestion is shown at an offset of the text; a later change tells whether it is rejected."""
        self._offer = (text, at, suggestion)

    def is_shown(self, text: str, at: int) -> bool:
        """Return whether a suggestion that was offered at an offset of this text is still on the screen, as far as is known."""
        return self._offer is not None and self._offer[:2] == (text, at)

    def reject(self, at: int, text: str, now_s: float) -> None:
        """Store a suggestion that was rejected at an offset, for some minutes."""
        self._items = (*self._items, _Item(at, text[:MAX_REMOVED_CHARS], now_s + REJECTED_S))[-MAX_UNWANTED:]

    def change(self, before: str, now: str, now_s: float) -> None:
        """Store what a change of the text removed or rejected, move the places, and forget what it wrote again."""
        if (offer := self._offer) is not None and (what := outcome(*offer, now)) != "typing":
            self._offer = None
            if what == "rejected":
                self.reject(*offer[1:], now_s)
        change = difference(before, now)
        start, old_end, end = change.start, change.old_end, change.new_end
        removed, last = before[start:old_end], self._removal
        if not removed or last is None or not start <= last.at <= old_end:
            last = None
        else:
            removed = before[start : last.at] + last.text + before[last.at : old_end]
        items = [
            item if item.at <= start else replace(item, at=max(start, item.at + end - old_end))
            for item in self._items
            if item is not last and (not start < item.at <= old_end or not before[start : item.at].strip())
        ]
        if end > start:
            items = [item for item in items if item.at > start or not item.is_in(now, end)]
        removal = _Item(start, removed[:MAX_REMOVED_CHARS], math.inf)
        self._items = tuple([*items, removal] if removed.strip() else items)[-MAX_UNWANTED:]
        if removed or end > start:
            self._removal = removal if end == start else None

    def holds(self, text: str, offset: int, suggestion: str, now_s: float, keywords: Collection[str] = frozenset()) -> bool:
        """Return whether this suggestion, or the rest of it after some of its tokens were typed, was rejected or removed here.

        Who has typed many of them wants the rest. The beginning of such a text counts too. A text that begins with all of it
        counts if that is some tokens or most of it, or ends with a name that is whole there: who removes `(` or `x` has said
        nothing about the arguments, or about `x.y`. The same is true of `keywords`.
        """
        tokens = _tokens(suggestion)
        for item in self._items:
            if now_s <= item.until and (left := item.left(text, offset)):
                n, n_tokens = min(len(left), len(tokens)), len(_tokens(item.text))
                is_wanted = n_tokens - len(left) >= WANTED_TOKENS
                is_telling = n_tokens >= TELLING_TOKENS or 2 * len("".join(left)) > len("".join(tokens))
                is_name = re.match(r"\w", left[-1]) is not None and left[-1] not in keywords
                is_telling |= is_name and not _CONTINUES.match("".join(tokens[n : n + 2]))
                if n and left[:n] == tokens[:n] and is_telling and not is_wanted:
                    return True
        return False


def _tokens(text: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(text[:MAX_REMOVED_CHARS]))
