r"""Convert between positions in a text: code-point offsets, editors' lines and characters, and UTF-8 bytes.

Only `\n`, `\r\n` and `\r` end a line, as the Language Server Protocol says. Form feeds, NEL and U+2028 are ordinary
characters. A lone surrogate counts as it would be encoded: three UTF-8 bytes, one UTF-16 unit.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
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
    """The lines of a text: where each one starts, and where it ends before its line end."""

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.starts)

    def at(self, offset: int) -> int:
        """Return the index of the line that holds the offset; a line holds its own line end."""
        return bisect_right(self.starts, offset) - 1

    def content(self, line: int) -> str:
        """Return the line's text without its line end."""
        return self.text[self.starts[line] : self.ends[line]]

    def indent(self, line: int) -> str:
        """Return the white space that the line starts with."""
        content = self.content(line)
        return content[: len(content) - len(content.lstrip(" \t\f"))]

    def indent_before(self, offset: int) -> str | None:
        """Return the white space between the line's start and the offset, or None if other text is there."""
        head = self.text[self.starts[self.at(offset)] : offset]
        return head if not head.strip() else None

    def is_blank(self, line: int) -> bool:
        """Return whether the line holds nothing but white space."""
        return not self.content(line).strip()


def lines(text: str) -> Lines:
    """Return the lines of the text; there is always at least one."""
    marks = [match.span() for match in _LINE_END.finditer(text)]
    return Lines(text, (0, *(end for _, end in marks)), (*(start for start, _ in marks), len(text)))


def spliced(index: Lines, span: Span, new: str, text: str | None = None) -> Lines:
    r"""Return the lines of the text with `new` in place of the span. Lines that the edit does not touch are not scanned again.

    The lines next to the edit count as touched, because an edit can join or separate a `\r` and a `\n`. `text` is the
    edited text, for a caller that already has it.
    """
    if text is None:
        text = f"{index.text[: span.start]}{new}{index.text[span.end :]}"
    first = max(index.at(span.start) - 1, 0)
    last = min(index.at(span.end) + 1, len(index.starts) - 1)
    begin = index.starts[first]
    shift = len(new) - (span.end - span.start)
    end = index.starts[last + 1] + shift if last + 1 < len(index.starts) else len(text)
    middle = lines(text[begin:end])
    # The rescanned stretch ends with a line end, after which `middle` counts one more line: the first untouched one.
    n_new = len(middle.starts) - (last + 1 < len(index.starts))
    starts, ends = (
        (*old[:first], *[begin + at for at in new[:n_new]], *[at + shift for at in old[last + 1 :]])
        for old, new in ((index.starts, middle.starts), (index.ends, middle.ends))
    )
    return Lines(text, starts, ends)


def to_offset(index: Lines, line: int, character: int, encoding: Encoding) -> int:
    """Return the code-point offset of an editor's position.

    A character past the line's end gives the line's end. A line past the last gives the text's end. A negative number
    counts as zero. A character inside a surrogate pair or a UTF-8 sequence gives the start of that code point.
    """
    if line >= len(index.starts):
        return len(index.text)
    if line < 0:
        return 0
    start, content = index.starts[line], index.content(line)
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
    head = index.text[index.starts[line] : min(offset, index.ends[line])]
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
    """A text as UTF-8, and the conversion between its code points and its bytes.

    `checkpoints` holds the byte at every 256th code point. It is empty for ASCII, where bytes and code points are the
    same.
    """

    source: bytes
    n_points: int
    checkpoints: tuple[int, ...]

    def to_byte(self, offset: int) -> int:
        """Return the byte at which the code point starts; an offset beyond the text gives the text's end."""
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
        byte = min(max(byte, 0), len(self.source))
        if not self.checkpoints:
            return byte
        block = bisect_right(self.checkpoints, byte) - 1
        # The byte itself is included, so that a byte inside a character maps to that character's start.
        head = self.source[self.checkpoints[block] : byte + 1]
        started = len(head.translate(None, _CONTINUATION))
        return block * _STRIDE + started - (1 if byte < len(self.source) else 0)


def byte_offsets(text: str) -> ByteOffsets:
    """Return the text as valid UTF-8, with its offsets. A lone surrogate becomes U+FFFD, which has the same length."""
    if text.isascii():
        return ByteOffsets(text.encode("ascii"), len(text), ())
    encoded = [_SURROGATE.sub("\ufffd", text[at : at + _STRIDE]).encode("utf-8") for at in range(0, len(text) + 1, _STRIDE)]
    checkpoints, total = [], 0
    for block in encoded:
        checkpoints.append(total)
        total += len(block)
    return ByteOffsets(b"".join(encoded), len(text), tuple(checkpoints))
