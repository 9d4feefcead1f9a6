"""The block that an answer opens in the cursor's line: whether it does, and where it ends.

Reads lines, by the language's table: strings, comments and what its lines open and close. Knows no syntax tree, because the
block is not complete yet.
"""

from __future__ import annotations

import re

from dg_lsp.core import languages
from dg_lsp.core.place import last_line


def block(head: str, text: str, indent: str, language: str) -> tuple[str, bool] | None:
    """Return an answer up to the end of the block that its first line opens, and whether it reaches that end.

    `head` is the text before the answer in its line, which has the indentation. None if the first line opens no block.
    """
    row, depth = languages.row(language), _width(indent)
    # A string of several lines becomes a part of one.
    first, *others = languages.mask(head + text, language)[len(head) :].split("\n")
    if not _opens(head + first, language):
        return None
    end = at = len(first)
    is_closed = False
    for line in others:
        at += 1 + len(line)
        code = line.strip(_HIDDEN)
        if not code:
            continue
        is_inside = _width(line) > depth or (row.outdents and re.match(row.outdents, code))
        goes_on = is_inside or (_width(line) == depth and re.match(row.closes, code))
        if not goes_on or (is_closed and not re.match(_GOES_ON, code)):
            return text[:end], True
        end, is_closed = at, not (is_inside or _opens(line, language) or code.endswith(_OPENERS))
    return text[:end], is_closed and at > end


def may_go_on(head: str, text: str, indent: str, language: str) -> bool:
    """Return whether the last line, of which only the start is written, may belong to the block: by its depth or first word."""
    row, line = languages.row(language), last_line(languages.mask(head + text, language))
    code = line.strip(_HIDDEN)
    if not code or _width(line) > _width(indent) or (row.outdents and re.match(row.outdents, code)):
        return True
    return _width(line) == _width(indent) and re.match(rf"(?:{row.closes})|[a-z]*$|case\b", code) is not None


def is_whole(head: str, text: str, language: str) -> bool:
    """Return whether the block in an answer has lines of its own, and the answer closes all brackets and strings it opens."""
    has_lines = "\n" in text.strip() and languages.kind_at_end(head + text, language) is None
    return has_lines and not languages.n_open(head, text, language)


# What may follow a closed block, at the start of a line.
_GOES_ON = re.compile(r"(?:else|catch|finally)\b|while\b[^{]*$")
_OPENERS = (":", "{", "[", "(")
_HIDDEN = " \t\r\0"  # white space and what `languages.mask` hides


def _opens(line: str, language: str) -> bool:
    return re.search(languages.row(language).opens, line.rstrip(_HIDDEN)) is not None


def _width(line: str) -> int:
    return len(line[: len(line) - len(line.lstrip(" \t"))].expandtabs(4))
