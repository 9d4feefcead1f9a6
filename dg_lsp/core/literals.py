"""Find strings, comments and brackets in code without a syntax tree.

The table in `languages` describes how each language writes strings and comments.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Literal

from dg_lsp.core import languages


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a text.

    `start` is its offset. `is_code` is true if it starts outside a string or comment. `nested` is true if it starts
    inside brackets that an earlier line opened.
    """

    start: int
    indent: str
    text: str
    is_code: bool
    nested: bool


def mask(text: str, language: str) -> str:
    r"""Return the text with each character of a string or comment replaced by `\0`, so that offsets stay the same."""
    return _pattern(language).sub(lambda match: "\0" * len(match[0]), text)


def kind_at_end(text: str, language: str) -> Literal["comment", "string"] | None:
    """Return "comment" or "string" if one is open at the end of the text, or None for code."""
    end = next((match for match in _pattern(language).finditer(text + ".") if match.end() == len(text) + 1), None)
    if end is None:
        return None
    row = languages.row(language)
    marks = (*row.line_comments, *(row.block_comment or ())[:1])
    return "comment" if end[0].startswith(marks) else "string"


def split_lines(text: str, language: str) -> list[Line]:
    """Return the lines of the text, each with the facts that indenting and cutting need."""
    code = mask(text, language)
    lines, at, depth = [], 0, 0
    for line in text.split("\n"):
        size = len(line) - len(line.lstrip(" \t"))
        is_code = at == 0 or code[at - 1] == "\n"
        lines.append(Line(at, line[:size], line[size:], is_code, depth > 0))
        for char in code[at : at + len(line)]:
            depth = max(0, depth + (char in "([{") - (char in ")]}"))
        at += len(line) + 1
    return lines


def first_closer(text: str, language: str) -> int | None:
    """Return the offset of the first closing bracket that the text did not open, or None."""
    opening, closing = languages.row(language).brackets
    depth = 0
    for idx, char in enumerate(mask(text, language)):
        depth += (char in opening) - (char in closing)
        if depth < 0:
            return idx
    return None


def n_open(before: str, text: str, language: str) -> int:
    """Return how many brackets the text leaves open; `before` is the preceding text, needed to tell strings from code."""
    opening, closing = languages.row(language).brackets
    depth = 0
    for char in mask(before + text, language)[len(before) :]:
        depth = max(0, depth + (char in opening) - (char in closing))
    return depth


def opens_string(text: str, below: str, language: str) -> bool:
    """Return whether a string is open at the end of the text's last line: its quote is missing, or it continues.

    A line that begins with a quote may begin a docstring. That counts as open only if the lines `below` do not close
    it.
    """
    quotes = languages.row(language).quotes
    if _is_literal(f"{text}\n.", language):
        first_char = text.rpartition("\n")[2].lstrip()[:1] in tuple(quotes)
        return not first_char or _is_literal(f"{text}{below}\n.", language)
    # The line end closes a comment. If a quote also closes what is open, it is a string without its closing quote.
    return _is_literal(f"{text}.", language) and any(not _is_literal(f"{text}{quote}.", language) for quote in quotes)


def string_marks(name: str) -> tuple[str, ...]:
    """Return the marks that begin a string or a block comment, and the mark that ends a block comment."""
    language = languages.row(name)
    return (*language.quotes, *(language.block_comment or ()))


def _is_literal(text: str, language: str) -> bool:
    """Return whether the text's last character is part of a string or a comment."""
    return mask(text, language)[-1] == "\0"


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    """Return a pattern that matches a string or a comment of the language.

    An unclosed block comment or multi-line string matches to the end of the text.
    """
    language = languages.row(name)
    parts = list(language.strings)
    if language.block_comment is not None:
        begin, end = map(re.escape, language.block_comment)
        parts.append(rf"{begin}.*?(?:{end}|\Z)")
    # Excludes `$#`, `${#x}` and `#[attribute]`, which are not comments.
    parts += [rf"(?<![$\w{{]){re.escape(mark)}(?!\[)[^\n]*" for mark in language.line_comments]
    if language.heredoc:
        word = r"[ \t]*(?P<q>[\"']?)(?P<w>[A-Z_]\w*)(?P=q)[^\n]*\n"
        parts.append(rf"{language.heredoc}{word}(?:.*?\n)??[ \t]*(?P=w)(?!\w)")
    for quote in language.quotes:
        within = "" if quote in language.multiline_quotes else r"\n"
        parts.append(rf"{quote}(?:\\.|[^\\{quote}{within}])*(?:{quote}|(?=\n)|\Z)")
    return re.compile("|".join(parts), re.DOTALL)
