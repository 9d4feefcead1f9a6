"""Where an answer ends: while a model writes it, and once it is written.

    hole, place ── of ──> Bounds
    while it is written:  Bounds.stops (for servers), is_over
    once it is written:   Bounds.of_draft, of_canvas, of_server, and `cut` before polishing
    before it is shown:   doubt and cuts, where a token is uncertain

An answer ends with its line or with the block that it is in, and before what follows it in the file. Only what the text shows
counts: a model's own end token and a server's limit come on top of it, and polishing looks at the syntax too. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dg_lsp.core.place import Place, first_line, last_line
from dg_lsp.core.values import Candidate, Hole, n_common


@dataclass(frozen=True, slots=True)
class Bounds:
    """What ends the answer of one hole.

    It may have several lines if it `takes_lines`; otherwise it ends with its line. `place` is where it is, and `indent` the
    white space before each of its lines.
    """

    takes_lines: bool
    place: Place
    indent: str

    # --- While it is written

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts at which a server stops writing."""
        return () if self.takes_lines else ("\n",)

    def is_over(self, written: str) -> bool:
        """Return whether an answer has ended: with its line, or before a line that is indented less."""
        if not self.takes_lines:
            return "\n" in written or "\r" in written
        return "\n" in written and is_outside(last_line(written), self.indent)

    # --- Once it is written

    def of_draft(self, text: str) -> str:
        """Return the answer in a draft, which may go on into what follows it."""
        text = before_suffix(text, self.place.after)
        return text if self.takes_lines else self._line(text)

    def of_canvas(self, text: str, *, is_held: bool) -> str:
        """Return the answer in a canvas; if the text after it was held, the canvas does not repeat it."""
        if not self.takes_lines:
            return self._line(text)
        return text if is_held else before_suffix(text, self.place.after)

    def of_server(self, text: str) -> str:
        """Return the answer in a server's text, which may have any line ends."""
        return text if self.takes_lines else re.split(r"[\r\n]", text, maxsplit=1)[0]

    def cut(self, text: str) -> str:
        """Return an answer up to its end by its lines alone: all of it, or its line."""
        return text if self.takes_lines else first_line(text)

    def _line(self, text: str) -> str:
        """Return a text's first line, without the rest of the place's line if the text repeats it."""
        line = first_line(text)
        return line.removesuffix(self.place.tail) if len(line) < len(text) and not self.place.ends_line else line


def of(hole: Hole, place: Place, *, knows_end: bool = False) -> Bounds:
    """Return what ends the answer of a hole at a place.

    In an empty line, an answer may have several lines if who writes it `knows_end`, such as a model with a token for it.
    """
    return Bounds(hole.extent == "block" or (hole.extent == "lines" and knows_end), place, hole.indent)


def is_outside(line: str, indent: str) -> bool:
    """Return whether a line is indented less than a block, so that it ends the block."""
    return bool(line.strip()) and not line.startswith(indent)


# --- Where an answer repeats what follows it

SOLID = 8  # this many visible characters of the suffix do not end an answer by chance
MAX_HEAD = 400  # the characters of the suffix to compare a draft with
_END = "\0"  # never occurs in code: appended so that a chance repetition at a text's end does not count


def before_suffix(text: str, suffix: str, solid: int = SOLID) -> str:
    """Return a draft up to where it continues with the suffix, which is the longest run of the suffix's start in it.

    A run counts if it contains the suffix's first line with text. It also needs `solid` visible characters, unless the draft
    ends with it, because an answer may contain a line such as `}`. If the suffix starts with several line ends, they
    count as one.
    """
    if suffix.startswith("\n"):
        start = _suffix_start(text, f"\n{suffix.lstrip(chr(10))[:MAX_HEAD]}", solid)
        return text if start is None else text[:start].rstrip("\n")
    return text[: _suffix_start(text, suffix[:MAX_HEAD], solid)]


def before_long_suffix(text: str, suffix: str, least: int) -> str:
    """Return a draft up to where it repeats at least `least` visible characters of the suffix, also at its end."""
    if n_visible(suffix) < least:
        return text
    return before_suffix(text + _END, suffix, least).removesuffix(_END)


def _suffix_start(text: str, suffix: str, solid: int) -> int | None:
    """Return the offset of the longest run of the suffix's start in a text; None if no run counts."""
    blank = len(suffix) - len(suffix.lstrip())
    line = blank + len(first_line(suffix[blank:]))
    for start, size in runs(text, suffix) if line > blank else ():
        is_solid, is_end = n_visible(suffix[:size]) >= solid, start + size == len(text)
        if (size >= line and (is_solid or is_end or size == len(suffix))) or (is_end and is_solid):
            return start
    return None


def runs(text: str, suffix: str) -> list[tuple[int, int]]:
    """Return where a text goes on like a suffix, and how far: the longest first, and of equal ones the first."""
    starts = (match.start() for match in re.finditer(re.escape(suffix[:1]), text))
    return sorted(((start, n_common(text[start : start + len(suffix)], suffix)) for start in starts), key=lambda run: -run[1])


def n_visible(text: str) -> int:
    """Return the number of characters that are no white space."""
    return sum(not character.isspace() for character in text)


# --- Where an answer becomes uncertain

MAX_CUTS = 6
"""Each costs a parse."""
_WORD = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Doubt:
    """The offset of a text's first uncertain token, and whether it is exact or estimated."""

    at: int
    is_exact: bool


def doubt(candidate: Candidate, text: str, threshold: float) -> Doubt | None:
    """Return where the first token below the confidence threshold starts in the text; None when there is none.

    The text is the candidate after polishing. Tokens are assumed to be equally long when the engine does not send token
    lengths, or when polishing changed more than the end.
    """
    confidences = candidate.confidences[0] if candidate.confidences else ()
    first = next((idx for idx, chance in enumerate(confidences) if chance < threshold), None)
    if first is None or not text:
        return None
    lengths = candidate.lengths[0] if candidate.lengths else ()
    if len(lengths) == len(confidences):
        sure_text = candidate.texts[0][: sum(lengths[:first])]
        if sure_text.startswith(text):
            return None
        if text.startswith(sure_text):
            return Doubt(len(sure_text), is_exact=True)
    return Doubt(int(first / len(confidences) * len(text)), is_exact=False)


def cuts(text: str, doubt: Doubt | None, ends: Iterable[int] = ()) -> Iterator[str]:
    r"""Yield cuts of the text before its first uncertain token, longest first: at ends of syntax tokens, then of lines.

    `ends` are the end offsets of the syntax tokens. They are used only on the uncertain token's own line, and only when its
    offset is exact. Otherwise the cuts end before that line. A cut within the line must contain a word.
    """
    if doubt is None:
        return
    end = text.rfind("\n", 0, doubt.at + 1)
    line_ends = [at for at in ends if max(end, 0) < at <= doubt.at] if doubt.is_exact else []
    for at in sorted(line_ends, reverse=True)[:MAX_CUTS]:
        if _WORD.search(text, max(end, 0), at):
            yield text[:at]
    while end > 0:
        head = text[:end].rstrip("\r\n")
        if not head.strip():
            return
        yield head
        end = text.rfind("\n", 0, end)
