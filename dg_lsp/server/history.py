"""What the user changed last, as the edits that a model is told. Pure: the caller passes the time.

Keystrokes that follow one another at one place are one edit: a run of lines that became others. It is over when the user
changes another place or file, or pauses for some seconds. Undoing takes an edit back. What a formatter or another branch
changed is none: it is too long, or comes to several files at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from dg_lsp.core import edits, secrets
from dg_lsp.core.edits import MOST_EDITS, Edit, Hunk, stripped
from dg_lsp.core.syntax import difference

MOST_CHARS = 1_500
"""The most characters of an edit, its old and new lines together."""
SECRET_CHARS = 8_000
"""How far around a place a secret is looked for: no key is longer, and a whole file would take too long at each pause."""
JOIN_S = 10.0  # changes of one place within so many seconds are one edit
BURST_S, BURST_FILES = 1.0, 3  # so many files that change within this time are not typed


@dataclass(frozen=True)
class Made:
    """An edit of a document: its text before and after, and the offsets in the latter between which it changed, and when."""

    uri: str
    before: str
    after: str
    start: int
    end: int
    at_s: float

    @cached_property
    def edit(self) -> Edit | None:
        """The edit, without a path; None if it is none to remember: equal, blank, too long, or in a secret."""
        edit = edits.edit_between("", in_lf(self.before), in_lf(self.after))
        if edit is None or edit.blank or len(edit.old) + len(edit.new) > MOST_CHARS:
            return None
        # The lines alone do not tell whether they are part of a secret, such as a key of many lines.
        end_before = len(self.before) - (len(self.after) - self.end)
        is_secret = meets_secret(self.before, self.start, end_before) or meets_secret(self.after, self.start, self.end)
        return None if is_secret else edit

    def then(self, before: str, text: str, now_s: float) -> Made | None:
        """Return this edit with another change of its document; None if that is another edit."""
        if self.after != before or now_s - self.at_s > JOIN_S:
            return None
        change = difference(before, text)
        low, high = _line_before(before, self.start), _line_behind(before, self.end)
        if not low <= change.start <= change.old_end <= high:
            return None
        moved = change.new_end - change.old_end
        end = max(self.end, change.old_end) + moved
        return Made(self.uri, self.before, text, min(self.start, change.start), end, now_s)


class History:
    """The last edits, of all documents, oldest first."""

    def __init__(self) -> None:
        self._made: list[Made] = []
        self._recent: deque[tuple[float, str]] = deque()

    def change(self, uri: str, before: str, text: str, now_s: float) -> None:
        """Record that a document's text became another."""
        self._recent.append((now_s, uri))
        while now_s - self._recent[0][0] > BURST_S:
            self._recent.popleft()
        changed = {each for _, each in self._recent}
        if len(changed) >= BURST_FILES:
            self._made = [made for made in self._made if made.uri not in changed]
            return
        undone = next((place for place, made in enumerate(self._made) if made.uri == uri and made.before == text), None)
        if undone is not None:
            self._made = [made for place, made in enumerate(self._made) if place < undone or made.uri != uri]
            return
        last = self._made[-1] if self._made else None
        if last is not None and last.uri == uri and (longer := last.then(before, text, now_s)) is not None:
            self._made[-1] = longer
            return
        change = difference(before, text)
        remembered = [made for made in self._made if made.edit is not None]
        self._made = [*remembered, Made(uri, before, text, change.start, change.new_end, now_s)][-MOST_EDITS:]

    def forget(self, uri: str) -> None:
        """Forget a document that was closed."""
        self._made = [made for made in self._made if made.uri != uri]

    def since_s(self, now_s: float) -> float | None:
        """Return how many seconds ago the last change was made; None without one.

        It may be no edit to remember; it is asked at each key, so nothing is compared.
        """
        return now_s - self._made[-1].at_s if self._made else None

    def uris(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(made.uri for made in self._made))

    def original(self, uri: str, text: str) -> str:
        r"""Return the text of a document before its edits, with `\n` line ends; `text` is what it is now.

        The edits are undone one by one, so that what was changed and forgotten since stays. One whose lines are no longer there
        stays too.
        """
        text = in_lf(text)
        for made in reversed(self._made):
            if made.uri == uri and made.edit is not None:
                is_next = in_lf(made.after) == text
                text = in_lf(made.before) if is_next else made.edit.undone_in_file(text)
        return text

    def edits(self, read: Callable[[str, Edit], Edit | None]) -> tuple[Edit, ...]:
        """Return the edits as they are read, oldest first.

        `read` returns what is shown of a document's edit, with its path, or None.
        """
        shown = (read(made.uri, made.edit) for made in self._made if made.edit is not None)
        return tuple(edit for edit in shown if edit is not None)

    def typed_line(self, uri: str, text: str, offset: int) -> bool:
        """Return whether the cursor is in a line of the last edit."""
        last = self._made[-1] if self._made else None
        if last is None or last.uri != uri or last.after != text:
            return False
        return _line_start(text, last.start) <= offset <= _line_end(text, last.end)


def in_lf(text: str) -> str:
    r"""Return the text with `\n` at the end of each line."""
    return text.replace("\r\n", "\n")


def meets_secret(text: str, start: int, end: int) -> bool:
    """Return whether the lines of a span, or one beside them, hold a part of what looks like a secret."""
    low, high = _line_before(text, start), _line_behind(text, end)
    first = _line_start(text, max(0, low - SECRET_CHARS))
    near = text[first : high + SECRET_CHARS]
    return any(first + span.start < high and first + span.end > low for span in secrets.spans(near))


def is_restored(hunk: Hunk, text: str, made: Sequence[Edit]) -> bool:
    """Return whether a change would only bring back what the user has just removed, or remove what was just written."""
    old, new = stripped(text[hunk.start : hunk.end]), stripped(hunk.text)
    removed, written = set[str](), set[str]()
    for edit in made:
        before, after = stripped(edit.old), stripped(edit.new)
        removed = (removed | set(before)) - set(after)
        written = (written | set(after)) - set(before)
    back = [line for line in new if line not in old]
    gone = [line for line in old if line not in new]
    return all(line in removed for line in back) and all(line in written for line in gone)


def _line_start(text: str, offset: int) -> int:
    return text.rfind("\n", 0, offset) + 1


def _line_end(text: str, offset: int) -> int:
    end = text.find("\n", offset)
    return len(text) if end < 0 else end


def _line_before(text: str, offset: int) -> int:
    return _line_start(text, max(0, _line_start(text, offset) - 1))


def _line_behind(text: str, offset: int) -> int:
    return _line_end(text, min(len(text), _line_end(text, offset) + 1))
