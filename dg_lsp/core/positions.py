r"""Convert between places in a text: code-point offsets, lines and characters as editors count them, UTF-8 bytes.

Lines end at `\n`, `\r\n` and `\r` only, as the Language Server Protocol says; form feeds, NEL and U+2028 are ordinary
characters. A lone surrogate counts as what it would be encoded as: three UTF-8 bytes, one UTF-16 unit. Knows nothing of
documents, languages or the protocol's own types.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, overload

from dg_lsp.core.values import Span

Encoding = Literal["utf-8", "utf-16", "utf-32"]

_LINE_END = re.compile(r"\r\n|\r|\n")
_ASTRAL = re.compile(r"[\U00010000-\U0010ffff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# Every byte of UTF-8 that does not start a character: deleting them leaves one byte for each code point.
_CONTINUATION = bytes(range(0x80, 0xC0))
# One checkpoint for so many code points: small enough to count between two, large enough not to double the text's size.
_STRIDE = 256


@dataclass(frozen=True, slots=True)
class Lines:
    """Where each line of a text starts, and where its content ends, before its line end."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

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
        """Return the white space before the offset on its line, or None where more than that stands before it."""
        head = self.text[self.starts[self.at(offset)] : offset]
        return head if not head.strip() else None

    def is_blank(self, line: int) -> bool:
        """Return whether the line holds nothing but white space."""
        return not self.content(line).strip()


def lines(text: str) -> Lines:
    """Return the index of the text's lines; there is always at least one."""
    marks = [match.span() for match in _LINE_END.finditer(text)]
    return Lines(text, (0, *(end for _, end in marks)), (*(start for start, _ in marks), len(text)))


def spliced(index: Lines, span: Span, new: str, text: str | None = None) -> Lines:
    r"""Return the text with `new` in place of the span; lines that the edit does not touch are not looked at again.

    The lines next to the edit count as touched, since an edit can join a `\r` and a `\n` or part them. Whoever has the
    `text` that comes of it can pass it on.
    """
    if text is None:
        text = f"{index.text[: span.start]}{new}{index.text[span.end :]}"
    first = max(index.at(span.start) - 1, 0)
    last = min(index.at(span.end) + 1, len(index) - 1)
    begin = index.starts[first]
    shift = len(new) - (span.end - span.start)
    end = index.starts[last + 1] + shift if last + 1 < len(index) else len(text)
    middle = lines(text[begin:end])
    starts = [begin + at for at in middle.starts]
    ends = [begin + at for at in middle.ends]
    if last + 1 < len(index):
        # The stretch ends with a line end, behind which `middle` counts one more line: the first of those that follow.
        starts, ends = starts[:-1], ends[:-1]
    return Lines(
        text,
        _Offsets.of(index.starts).spliced(first, last + 1, starts, shift),
        _Offsets.of(index.ends).spliced(first, last + 1, ends, shift),
    )


class _Offsets(Sequence[int]):
    """Offsets of which all from one on are shifted by a number, so that a key typed in a long text changes few of them."""

    __slots__ = ("_base", "_pivot", "_shift")

    def __init__(self, base: tuple[int, ...], pivot: int = 0, shift: int = 0) -> None:
        """Hold the offsets; those from the pivot on are so much larger than in the base."""
        self._base, self._pivot, self._shift = base, pivot, shift

    @classmethod
    def of(cls, offsets: Sequence[int]) -> _Offsets:
        """Return the offsets as such."""
        return offsets if isinstance(offsets, _Offsets) else cls(tuple(offsets))

    def spliced(self, start: int, end: int, new: Sequence[int], shift: int) -> _Offsets:
        """Return these with new ones in place of some and all behind them shifted; few are touched near the last such edit."""
        base = self._base
        before, behind = base[:start], base[end:]
        if self._pivot < start:
            before = (*base[: self._pivot], *(at + self._shift for at in base[self._pivot : start]))
        elif self._pivot > end:
            # These are shifted from now on, but were not yet.
            behind = (*(at - self._shift for at in base[end : self._pivot]), *base[self._pivot :])
        return _Offsets(before + tuple(new) + behind, start + len(new), self._shift + shift)

    def __len__(self) -> int:
        return len(self._base)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return tuple(self)[index]
        offset = self._base[index]
        return offset + self._shift if index >= self._pivot or -len(self._base) + self._pivot <= index < 0 else offset

    def __iter__(self) -> Iterator[int]:
        yield from self._base[: self._pivot]
        for at in self._base[self._pivot :]:
            yield at + self._shift

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


def to_offset(index: Lines, line: int, character: int, encoding: Encoding) -> int:
    """Return the code-point offset of an editor's position.

    A character past the line's end is the line's end, a line past the last is the text's end, a negative number is
    zero, and a character inside a surrogate pair or a UTF-8 sequence is the start of that code point.
    """
    if line >= len(index):
        return len(index.text)
    if line < 0:
        return 0
    start, content = index.starts[line], index.content(line)
    if encoding == "utf-32" or content.isascii():
        return start + min(max(character, 0), len(content))
    units = 0
    for column, one in enumerate(content):
        units += _width(one, encoding)
        if units > character:
            return start + column
    return start + len(content)


def to_position(index: Lines, offset: int, encoding: Encoding) -> tuple[int, int]:
    """Return the offset as an editor's line and character; an offset inside a line end is the end of that line's content."""
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


def _width(one: str, encoding: Encoding) -> int:
    if encoding == "utf-16":
        return 1 + (one > "\uffff")
    return 1 + (one > "\x7f") + (one > "\u07ff") + (one > "\uffff")


@dataclass(frozen=True, slots=True)
class ByteOffsets:
    """A text as UTF-8, and the way between its code points and its bytes.

    `checkpoints` holds the byte at every 256th code point, and nothing where the text is ASCII: there both are the same.
    """

    source: bytes
    n_points: int
    checkpoints: tuple[int, ...]

    def to_byte(self, offset: int) -> int:
        """Return the byte at which the code point starts; offsets beyond the text are its end."""
        offset = min(max(offset, 0), self.n_points)
        if not self.checkpoints:
            return offset
        block, rest = divmod(offset, _STRIDE)
        at = self.checkpoints[block]
        for _ in range(rest):
            at += _length(self.source[at])
        return at

    def to_point(self, byte: int) -> int:
        """Return the code point that the byte belongs to; bytes beyond the text are its end."""
        byte = min(max(byte, 0), len(self.source))
        if not self.checkpoints:
            return byte
        block = bisect_right(self.checkpoints, byte) - 1
        # The byte itself is counted where it starts a character, so that one inside a character maps to its start.
        head = self.source[self.checkpoints[block] : byte + 1]
        started = len(head.translate(None, _CONTINUATION))
        return block * _STRIDE + started - (1 if byte < len(self.source) else 0)


def byte_offsets(text: str) -> ByteOffsets:
    """Return the text as valid UTF-8 with its offsets; a lone surrogate becomes U+FFFD, which is as long."""
    if text.isascii():
        return ByteOffsets(text.encode("ascii"), len(text), ())
    encoded = [_SURROGATE.sub("\ufffd", text[at : at + _STRIDE]).encode("utf-8") for at in range(0, len(text) + 1, _STRIDE)]
    checkpoints, total = [], 0
    for block in encoded:
        checkpoints.append(total)
        total += len(block)
    return ByteOffsets(b"".join(encoded), len(text), tuple(checkpoints))


def _length(first: int) -> int:
    return 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)
