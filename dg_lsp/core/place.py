r"""The line at a place in a text: what is before and after the place in it, its indentation, and the text above and below.

A place is made once for a request, and passed on. Its texts have `\n` line ends. Knows text alone: `positions` converts
editors' positions, and knows the other line ends.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A place between two texts. `head` and `tail` are the parts of its line before and after it."""

    before: str
    after: str
    head: str
    tail: str

    @property
    def above(self) -> str:
        """The text above the place's line, without the line end between them."""
        return self.before[: max(len(self.before) - len(self.head) - 1, 0)]

    @property
    def below(self) -> str:
        """The text below the place's line, without the line end between them."""
        return self.after[len(self.tail) + 1 :]

    @property
    def indent(self) -> str:
        """The white space at the start of the line, as far as the place."""
        return self.head[: len(self.head) - len(self.head.lstrip(" \t\f"))]

    @property
    def starts_line(self) -> bool:
        """Whether only white space is before the place in its line."""
        return not self.head.strip()

    @property
    def ends_line(self) -> bool:
        """Whether only white space is after the place in its line."""
        return not self.tail.strip()


def between(before: str, after: str) -> Place:
    """Return the place between two texts."""
    return Place(before, after, last_line(before), first_line(after))


def depth(line: str) -> int:
    """Return how many columns a line is indented; a tab leads to the next of every four."""
    return len(line[: len(line) - len(line.lstrip(" \t"))].expandtabs(4))


def first_line(text: str) -> str:
    """Return the text up to its first line end."""
    return text.partition("\n")[0]


def last_line(text: str) -> str:
    """Return the text after its last line end."""
    return text.rpartition("\n")[2]
