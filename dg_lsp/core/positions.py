r"""Convert between positions in a text: code-point offsets, editors' lines and characters, and UTF-8 bytes.

Only `\n`, `\r\n` and `\r` end a line, as the Language Server Protocol says. Form feeds, NEL and U+2028 are ordinary
characters. A lone surrogate counts as it would be encoded: three UTF-8 bytes, one UTF-16 unit.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from dg_lsp.core.values import Span

Encoding = Literal["utf-8", "utf-16", "utf-32"]

_LINE_END = re.compile(r"\r\n|\r|\n")
_ASTRAL = re.compile(r"[\U00010000-\U0010ffff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# Every byte of UTF-8 that does not start a character: deleting them leaves one byte for each code point.
_CONTINUATION = bytes(range(0x80, 0xC0))
# Code points per checkpoint: few enough to count quickly between two, many enough to use little memory.
_STRIDE = 256


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a text.

    `head` are the starts of the first lines, and `tail` those of the others, less `shift`. So an edit near the earlier one
    changes few of many numbers.
    """

    text: str
    head: tuple[int, ...]
    tail: tuple[int, ...] = ()
    shift: int = 0

    def __len__(self) -> int:
        return len(self.head) + len(self.tail)

    def at(self, offset: int) -> int:
        """Return the index of the line that holds the offset; a line holds its own line end."""
        if self.tail and offset >= self.tail[0] + self.shift:
            return len(self.head) + bisect_right(self.tail, offset - self.shift) - 1
        return bisect_right(self.head, offset) - 1

    def start(self, line: int) -> int:
        """Return where the line starts."""
        n_head = len(self.head)
        return self.head[line] if line < n_head else self.tail[line - n_head] + self.shift

    def end(self, line: int) -> int:
        """Return where the line ends, before its line end."""
        if line == len(self) - 1:
            return len(self.text)
        after = self.start(line + 1)
        return after - 2 if self.text.startswith("\r\n", after - 2) else after - 1

    def behind(self, line: int) -> int:
        """Return the offset behind the line's end, where the next one starts."""
        return self.start(line + 1) if line + 1 < len(self) else len(self.text)

    def content(self, line: int) -> str:
        """Return the line's text without its line end."""
        return self.text[self.start(line) : self.end(line)]

    def indent(self, line: int) -> str:
        """Return the white space that the line starts with."""
        content = self.content(line)
        return content[: len(content) - len(content.lstrip(" \t\f"))]

    def indent_before(self, offset: int) -> str | None:
        """Return the white space between the line's start and the offset, or None if other text is there."""
        head = self.text[self.start(self.at(offset)) : offset]
        return head if not head.strip() else None

    def is_blank(self, line: int) -> bool:
        """Return whether the line holds nothing but white space."""
        return not self.content(line).strip()

    def above(self, line: int) -> int | None:
        """Return the last line with text above this one, or None."""
        return next((above for above in range(line - 1, -1, -1) if not self.is_blank(above)), None)

    def below(self, line: int) -> int | None:
        """Return the first line with text below this one, or None."""
        return next((below for below in range(line + 1, len(self)) if not self.is_blank(below)), None)


def lines(text: str) -> Lines:
    """Return the lines of the text; there is always at least one."""
    return Lines(text, (0, *[match.end() for match in _LINE_END.finditer(text)]))


def spliced(index: Lines, span: Span, new: str, text: str | None = None) -> Lines:
    r"""Return the lines of the text with `new` in place of the span. Lines that the edit does not touch are not scanned again.

    The lines next to the edit count as touched, because an edit can join or separate a `\r` and a `\n`. `text` is the
    edited text, for a caller that already has it.
    """
    if text is None:
        text = f"{index.text[: span.start]}{new}{index.text[span.end :]}"
    first = max(index.at(span.start) - 1, 0)
    after = min(index.at(span.end) + 2, len(index))  # the first line that the edit does not touch
    begin = index.start(first)
    shift = len(new) - (span.end - span.start)
    middle = lines(text[begin : index.start(after) + shift if after < len(index) else len(text)]).head
    if after < len(index):
        middle = middle[:-1]  # the rescanned stretch ends with a line end, and is followed by the first untouched line
    n_head, old_shift = len(index.head), index.shift
    before = (*index.head[:first], *[at + old_shift for at in index.tail[: max(first - n_head, 0)]])
    behind = (*[at - old_shift for at in index.head[after:]], *index.tail[max(after - n_head, 0) :])
    return Lines(text, (*before, *[begin + at for at in middle]), behind, old_shift + shift)


def to_offset(index: Lines, line: int, character: int, encoding: Encoding) -> int:
    """Return the code-point offset of an editor's position.

    A character past the line's end gives the line's end. A line past the last gives the text's end. A negative number
    counts as zero. A character inside a surrogate pair or a UTF-8 sequence gives the start of that code point.
    """
    if line >= len(index):
        return len(index.text)
    if line < 0:
        return 0
    start, content = index.start(line), index.content(line)
    if encoding == "utf-32" or content.isascii():
        return start + min(max(character, 0), len(content))
    n_units = 0
    for column, one in enumerate(content):
        n_units += units(one, encoding)
        if n_units > character:
            return start + column
    return start + len(content)


def to_position(index: Lines, offset: int, encoding: Encoding) -> tuple[int, int]:
    """Return the editor's line and character for an offset; one inside a line end gives the end of the line's content."""
    offset = min(max(offset, 0), len(index.text))
    line = index.at(offset)
    head = index.text[index.start(line) : min(offset, index.end(line))]
    return line, units(head, encoding)


def units(text: str, encoding: Encoding) -> int:
    """Return the text's length in the encoding's code units."""
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-16":
        return len(text) + sum(1 for _ in _ASTRAL.finditer(text))
    return len(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class ByteOffsets:
    """A text, or some parts of it joined, as UTF-8, and the conversion between the text's code points and these bytes.

    `checkpoints` holds the byte at every 256th code point of what was encoded. It is empty for ASCII, where bytes and code
    points are the same. `parts` are the parts in order, empty if all of the text was encoded, and `starts` the code point
    of each in the joined text.
    """

    source: bytes
    n_points: int
    checkpoints: tuple[int, ...]
    parts: tuple[Span, ...] = ()
    starts: tuple[int, ...] = ()

    def to_byte(self, offset: int) -> int:
        """Return the byte at which the code point starts; an offset beyond the text gives the text's end.

        An offset between two parts gives the byte at which the next part starts.
        """
        if self.parts:
            index = max(bisect_right(self.parts, Span(offset, sys.maxsize)) - 1, 0)
            part = self.parts[index]
            offset = self.starts[index] + min(max(offset - part.start, 0), part.end - part.start)
        offset = min(max(offset, 0), self.n_points)
        if not self.checkpoints:
            return offset
        block, rest = divmod(offset, _STRIDE)
        at = self.checkpoints[block]
        for _ in range(rest):
            first = self.source[at]
            at += 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)
        return at

    def to_point(self, byte: int) -> int:
        """Return the code point that the byte belongs to; a byte beyond the text gives the text's end."""
        point = self._point(byte)
        if not self.parts:
            return point
        index = bisect_right(self.starts, point) - 1
        return self.parts[index].start + point - self.starts[index]

    def to_end(self, byte: int) -> int:
        """Return the code point before which something ends: where parts meet, the end of the one before."""
        point = self._point(byte)
        if not self.parts:
            return point
        index = max(bisect_left(self.starts, point) - 1, 0)
        return self.parts[index].start + point - self.starts[index]

    def _point(self, byte: int) -> int:
        byte = min(max(byte, 0), len(self.source))
        if not self.checkpoints:
            return byte
        block = bisect_right(self.checkpoints, byte) - 1
        # The byte itself is included, so that a byte inside a character maps to that character's start.
        head = self.source[self.checkpoints[block] : byte + 1]
        started = len(head.translate(None, _CONTINUATION))
        return block * _STRIDE + started - (1 if byte < len(self.source) else 0)


def byte_offsets(text: str, parts: tuple[Span, ...] = ()) -> ByteOffsets:
    """Return the text as valid UTF-8, with its offsets. A lone surrogate becomes U+FFFD, which has the same length.

    With `parts`, which are in order and do not touch, only they are encoded.
    """
    starts = []
    if parts:
        n_points = 0
        for part in parts:
            starts.append(n_points)
            n_points += part.end - part.start
        text = "".join(text[part.start : part.end] for part in parts)
    if text.isascii():
        return ByteOffsets(text.encode("ascii"), len(text), (), parts, tuple(starts))
    try:
        source = text.encode()
    except UnicodeEncodeError:
        text = _SURROGATE.sub("\ufffd", text)
        source = text.encode()
    sizes = (len(text[at : at + _STRIDE].encode()) for at in range(0, len(text) - len(text) % _STRIDE, _STRIDE))
    return ByteOffsets(source, len(text), tuple(accumulate(sizes, initial=0)), parts, tuple(starts))
