"""Cut a draft where it repeats the text after the hole."""

from __future__ import annotations

from dg_lsp.core.place import first_line
from dg_lsp.core.values import n_common

SOLID = 8  # this many visible characters of the suffix do not end an answer by chance
MAX_HEAD = 400  # the characters of the suffix to compare a draft with


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


def _suffix_start(text: str, suffix: str, solid: int) -> int | None:
    """Return the offset of the longest run of the suffix's start in a text; None if no run counts."""
    blank = len(suffix) - len(suffix.lstrip())
    line = suffix[:blank] + first_line(suffix[blank:])
    if len(line) == blank:
        return None
    longest, start, at = 0, None, text.find(line)
    while at >= 0:
        run = n_common(text[at:], suffix)
        is_suffix = at + run == len(text) or run == len(suffix) or n_visible(suffix[:run]) >= solid
        if is_suffix and run > longest:
            longest, start = run, at
        at = text.find(line, at + 1)
    for run in range(min(len(text), len(line) - 1), max(longest, blank), -1):  # the run may end within the first line
        if text.endswith(suffix[:run]) and n_visible(suffix[:run]) >= solid:
            return len(text) - run
    return start


def n_visible(text: str) -> int:
    """Return the number of characters that are no white space."""
    return sum(not character.isspace() for character in text)


def rest_of_line(text: str, suffix: str) -> str:
    """Return the draft's first line, without the rest of the hole's line if the draft repeats it."""
    line, rest = first_line(text), first_line(suffix)
    return line.removesuffix(rest) if len(line) < len(text) and rest.strip() else line
