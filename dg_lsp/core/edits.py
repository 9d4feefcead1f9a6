"""The text form in which a model is asked for the next edit, and how its answer is read.

It is the form of the published models that Sweep trained for next edits (blocks, not diffs). Pieces follow one another, each
behind the token `SEPARATOR`: the file as it was; each of the last edits, old lines and new lines; and one window of lines
around the cursor, three times: before the last edits, as it is, and as it becomes. The model writes the last one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate

SEPARATOR = "<|file_sep|>"
CURSOR = "<|cursor|>"
LINES_ABOVE, LINES_BELOW = 2, 5
MOST_EDITS = 6
LEAST_LOGP = -0.7
"""The least log-probability of a whole answer that is offered unprompted, for weights of which no other is known: one half."""
LINE_CHARACTERS = 600
"""Longer lines are shown up to here, so a window with one can't be rewritten."""
# A part of a name, as `area` in `areaOf` and in `area_of`, or any other character.
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_a-zA-Z]+|\S")
# The window keeps its first lines, and of the others no more characters than this.
_WINDOW_CHARACTERS = 1792


@dataclass(frozen=True, slots=True)
class Edit:
    """A run of lines that was replaced: `old` and `new` have their line ends, `above` and `below` are the lines beside it.

    `first` is the 0-based line, in the new text, of `above`, or of the edit where nothing is above.
    """

    path: str
    first: int
    old: str
    new: str
    above: str
    below: str

    @property
    def blank(self) -> bool:
        """Return whether only white space around the lines changed."""
        return self.old.strip() == self.new.strip()

    def block(self) -> str:
        """Return the edit as the model reads it, without a separator, empty if nothing would be shown."""
        old, new = self._sides(self.above, self.below)
        if not old.strip() and not new.strip():
            return ""
        last = self.first + sum(len(lines.splitlines()) for lines in (self.above, self.new, self.below))
        old, new = old.strip("\n"), new.strip("\n")
        return f"{self.path}:{self.first + 1}:{last}\noriginal:\n{old}\nupdated:\n{new}"

    def undone(self, text: str) -> str | None:
        """Return the text with its first place of the new lines put back to the old ones; None where it has none."""
        for old, new in (self._sides(self.above, self.below), self._sides("", "")):
            if new.strip() and new in text:
                return text.replace(new, old, 1)
        return None

    def undone_in_file(self, text: str) -> str:
        """Return a file's text with the new lines put back to the old ones, at their place nearest to where they were made.

        Unlike `undone`, which reads as the published models do, it takes whole lines for their place. Where there is none, the
        text stays.
        """
        for above, below in ((self.above, self.below), ("", "")):
            new = above + self.new + below
            if new.strip() and (start := _nearest(text, new, self.first)) is not None:
                rest = below + text[start + len(new) :]
                return text[:start] + above + (_ended(self.old) if rest else self.old) + rest
        return text

    def _sides(self, above: str, below: str) -> tuple[str, str]:
        """Return the old and the new lines between others; the last of above, old, new and below has no line end."""
        above, old, new = _ended(above), _ended(self.old), _ended(self.new)
        if self.below:
            below = below.removesuffix("\n")
        elif new:
            new = new.removesuffix("\n")
        else:
            old = old.removesuffix("\n")
        return above + old + below, above + new + below


def edit_between(path: str, before: str, after: str) -> Edit | None:
    """Return the one run of lines in which two texts differ, or None where they are equal."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    most = min(len(old), len(new))
    head = next((i for i in range(most) if old[i] != new[i]), most)
    tail = next((i for i in range(most - head) if old[-1 - i] != new[-1 - i]), most - head)
    removed, added = old[head : len(old) - tail], new[head : len(new) - tail]
    if not removed and not added:
        return None
    above = new[max(0, head - 1) : head]
    below = new[len(new) - tail : len(new) - tail + 1] if tail else []
    return Edit(path, max(0, head - 1), "".join(removed), "".join(added), "".join(above), "".join(below))


@dataclass(frozen=True, slots=True)
class Window:
    """The lines that the model may rewrite: whole lines of the text from offset `start`, and the cursor's offset in them."""

    start: int
    text: str
    cursor: int


def window_around(text: str, offset: int) -> Window | None:
    """Return the lines around an offset, from two above to five below.

    None where they are blank, or the cursor is not in them. Blank lines at the window's start move it down, and blank
    lines at its end are left out.
    """
    lines = text.splitlines(keepends=True)
    line = min(text.count("\n", 0, offset), len(lines) - 1)
    first, end = max(0, line - LINES_ABOVE), min(len(lines), line + LINES_BELOW + 1)
    while first < end and not lines[first].strip():
        first += 1
        end = min(end + 1, len(lines))
    while end > first and not lines[end - 1].strip():
        end -= 1
    rest = "".join(lines[first + LINES_ABOVE : end])
    if len(rest) > _WINDOW_CHARACTERS:
        rest = "".join(rest[:_WINDOW_CHARACTERS].splitlines(keepends=True)[:-1])
    inside = "".join(lines[first : min(end, first + LINES_ABOVE)]) + rest
    start = sum(map(len, lines[:first]))
    cursor = offset - start
    return Window(start, inside, cursor) if inside and 0 <= cursor <= len(inside) else None


@dataclass(frozen=True, slots=True)
class FilePart:
    """How much of a file is shown: all of it up to `whole` lines, else `lines` lines.

    Those start at a multiple of half as many, so the part stays the same while the cursor moves a little.
    """

    whole: int
    lines: int

    def around(self, text: str, line: int) -> str:
        """Return the part of the text whose middle is nearest to a 0-based line."""
        lines = text.splitlines()
        first = self.first(len(lines), line)
        return text if len(lines) <= self.whole else "\n".join(lines[first : first + self.lines])

    def first(self, n_lines: int, line: int) -> int:
        """Return the first line of the part, of a text with so many lines."""
        stride = self.lines // 2
        return 0 if n_lines <= self.whole else max(0, round((line - self.lines // 2) / stride)) * stride


PUBLISHED = FilePart(whole=800, lines=300)
SHORT = FilePart(whole=60, lines=60)


@dataclass(frozen=True, slots=True)
class Question:
    """What a model is asked: the window that it rewrites, and what it reads before.

    `shown` is a part of the file as it was before the edits, and `line` the one in it nearest to the cursor. `edits` are
    oldest first, of any file.
    """

    shown: str
    line: int
    edits: tuple[Edit, ...]
    window: Window


def question(original: str, text: str, offset: int, edits: Sequence[Edit]) -> Question | None:
    """Return what to ask at an offset of a file's text, which was `original` before the edits; None without a window."""
    if (window := window_around(text, offset)) is None:
        return None
    line = _line_at(original, offset)
    first = PUBLISHED.first(len(original.splitlines()), line)
    return Question(PUBLISHED.around(original, line), line - first, tuple(edits), window)


def _shared_blocks(path: str, shown: str, edits: Sequence[Edit]) -> list[str]:
    """Return what comes before the windows, each behind a separator: the file's shown part, and the last edits."""
    blocks = [block for edit in _kept(edits)[-MOST_EDITS:] if (block := edit.block())]
    file = f"{path}\n{shown}\n"
    ended = [*(f"{block}\n" for block in blocks[:-1]), *(block.rstrip("\n") + "\n" for block in blocks[-1:])]
    return [_cut_lines(block) for block in ([file, *ended] if ended else [file + "\n"])]


def _window_blocks(path: str, edits: Sequence[Edit], window: Window) -> list[str]:
    """Return the window's three blocks, each behind a separator; the last one is only begun."""
    text = window.text[: window.cursor] + CURSOR + window.text[window.cursor :]
    before = _before(window.text, edits)
    if text.endswith("\n") and before.endswith("\n"):
        text, before = text[:-1], before[:-1]
    line = _line_at(window.text, window.cursor)
    span = f"{path}:{line + 1}:{line + len(text.splitlines()) + 1}"
    parts = (f"original/{span}\n{before}\n", f"current/{span}\n{text}\n", f"updated/{span}\n")
    return [_cut_lines(part) for part in parts]


def blocks(path: str, asked: Question, part: FilePart) -> list[str]:
    """Return all that the model reads, each behind a separator. The last block is the one that it continues."""
    shown = part.around(asked.shown, asked.line)
    return [*_shared_blocks(path, shown, asked.edits), *_window_blocks(path, asked.edits, asked.window)]


def _kept(edits: Sequence[Edit]) -> list[Edit]:
    return [edit for edit in edits if not edit.blank]


def _before(text: str, edits: Sequence[Edit]) -> str:
    """Return the window before the last edits, as far back as each of them is found in it."""
    for edit in reversed(_kept(edits)):
        undone = edit.undone(text)
        if undone is None:
            break
        text = undone
    return text


def _nearest(text: str, lines: str, line: int) -> int | None:
    """Return the offset of these whole lines in a text, at their place nearest to a line, from 0; None if it has none."""
    if not lines.endswith("\n"):
        start = len(text) - len(lines)
        return start if text.endswith(lines) and (not start or text[start - 1] == "\n") else None
    # A line end before both makes each place the start of a line. Not all places are compared: there may be thousands.
    whole, needle = f"\n{text}", f"\n{lines}"
    at = sum(len(each) + 1 for each in text.split("\n")[:line])
    places = (place for place in (whole.rfind(needle, 0, at + len(lines)), whole.find(needle, at)) if place >= 0)
    return min(places, key=lambda place: abs(text.count("\n", 0, place) - line), default=None)


def _line_at(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) if offset < len(text) else len(text.splitlines()) - 1


def _ended(lines: str) -> str:
    return lines + "\n" if lines and not lines.endswith("\n") else lines


def _cut_lines(text: str) -> str:
    lines, most, end = text.splitlines(keepends=True), LINE_CHARACTERS, "\n"
    cut = (line.rstrip(end)[:most] + "..." + end * line.endswith(end) if len(line) > most else line for line in lines)
    return "".join(cut)


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines to replace: from `start` to `end` in the file's text, by `text`."""

    start: int
    end: int
    text: str


def hunks(window: Window, answer: str) -> list[Hunk]:
    """Return what the model's answer changes in the window, nearest to the cursor first."""
    old = window.text.splitlines(keepends=True)
    text = answer.replace(CURSOR, "").strip("\n")
    if text and window.text.endswith("\n"):
        text += "\n"
    new = text.splitlines(keepends=True)
    starts = list(accumulate(map(len, old), initial=window.start))
    found = [
        Hunk(starts[a], starts[b], "".join(new[c:d]))
        for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        if tag != "equal"
    ]
    at = window.start + window.cursor
    return sorted(found, key=lambda hunk: max(hunk.start - at, at - hunk.end, 0))


def repeats(asked: Question, answer: str) -> bool:
    """Return whether the nearest change that an answer makes is one of the last edits again, at another place.

    Then one of them removed all parts of names that it removes, and added all that it adds; their case does not count. An edit
    whose lines the change goes on with is at the same place.
    """
    for hunk in hunks(asked.window, answer):
        start = asked.window.start
        old = asked.window.text[hunk.start - start : hunk.end - start]
        if old.split() != hunk.text.split():
            gone, come = _changed_parts(old, hunk.text)
            lines = set(map(str.strip, old.splitlines()))
            elsewhere = (edit for edit in asked.edits if not edit.new.strip() or not lines.issuperset(stripped(edit.new)))
            made = (_changed_parts(edit.old, edit.new) for edit in elsewhere)
            return bool(gone or come) and any(gone <= removed and come <= added for removed, added in made)
    return False


def stripped(text: str) -> list[str]:
    """Return the lines that are not blank, without white space around them."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def _changed_parts(old: str, new: str) -> tuple[set[str], set[str]]:
    """Return the parts of names that a change removes, and those that it adds."""
    before, after = _PART.findall(old), _PART.findall(new)
    gone, come = set[str](), set[str]()
    for tag, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            gone.update(part.casefold() for part in before[a:b] if part.isalnum())
            come.update(part.casefold() for part in after[c:d] if part.isalnum())
    return gone, come
