"""Read code without a tree: where its strings, comments and brackets are.

What a string and a comment look like is said by the table of `languages`. Knows nothing of holes or answers.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Literal

from dg_lsp.core import languages


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a text: where it starts, whether it starts outside strings, and inside brackets opened before."""

    start: int
    indent: str
    text: str
    is_code: bool
    nested: bool


def mask(text: str, language: str) -> str:
    """Return the text with the characters of strings and comments replaced, one for one."""
    return _pattern(language).sub(lambda match: "\0" * len(match[0]), text)


def kind_at_end(text: str, language: str) -> Literal["comment", "string"] | None:
    """Return what is still open at the end of the text, read character by character; None for code."""
    end = next((match for match in _pattern(language).finditer(text + ".") if match.end() == len(text) + 1), None)
    if end is None:
        return None
    known = languages.get(language)
    marks = (*known.line_comments, *(known.block_comment or ())[:1]) if known else ()
    return "comment" if end[0].startswith(marks) else "string"


def split_lines(text: str, language: str) -> list[Line]:
    """Return the lines of the text, each with what it needs to be indented or cut."""
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
    """Return where the text closes a bracket that it did not open, or None."""
    opening, closing = brackets(language)
    depth = 0
    for idx, char in enumerate(mask(text, language)):
        depth += (char in opening) - (char in closing)
        if depth < 0:
            return idx
    return None


def n_open(before: str, text: str, language: str) -> int:
    """Return how many brackets the text leaves open; what stands `before` tells what is a string in it."""
    opening, closing = brackets(language)
    depth = 0
    for char in mask(before + text, language)[len(before) :]:
        depth = max(0, depth + (char in opening) - (char in closing))
    return depth


def opens_string(text: str, below: str, language: str) -> bool:
    """Return whether a string is open at the end of the text's last line: one that lacks its quote, or reaches further.

    A line that begins with a quote may begin a docstring, which is wrong only where the lines `below` do not end it.
    """
    quotes = _quotes(language)
    if _is_literal(f"{text}\n.", language):
        begins = text.rpartition("\n")[2].lstrip()[:1] in tuple(quotes)
        return not begins or _is_literal(f"{text}{below}\n.", language)
    # The end of a line ends a comment; what a quote ends as well is a string that lacks it.
    return _is_literal(f"{text}.", language) and any(not _is_literal(f"{text}{quote}.", language) for quote in quotes)


def brackets(name: str) -> tuple[str, str]:
    """Return the brackets of the language: those that open, and those that close them."""
    language = languages.get(name)
    return language.brackets if language else languages.BRACKETS


def string_marks(name: str) -> tuple[str, ...]:
    """Return what begins a string or a comment of several lines."""
    language = languages.get(name)
    return (*_quotes(name), *((language.block_comment or ()) if language else ()))


def _quotes(name: str) -> str:
    language = languages.get(name)
    return language.quotes if language else languages.QUOTES


def _is_literal(text: str, language: str) -> bool:
    """Return whether the last character is part of a string or a comment."""
    return mask(text, language)[-1] == "\0"


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    """Return what matches a string or a comment of the language; one that never ends reaches to the end."""
    language = languages.get(name)
    parts = list(language.strings) if language else []
    quotes, multiline = languages.QUOTES, languages.MULTILINE_QUOTES
    if language is not None:
        quotes, multiline = language.quotes, language.multiline_quotes
        if language.block_comment is not None:
            begin, end = map(re.escape, language.block_comment)
            parts.append(rf"{begin}.*?(?:{end}|\Z)")
        # `$#` and `${#x}` are no comments, nor is `#[attribute]`.
        parts += [rf"(?<![$\w{{]){re.escape(mark)}(?!\[)[^\n]*" for mark in language.line_comments]
        if language.heredoc:
            word = r"[ \t]*(?P<q>[\"']?)(?P<w>[A-Z_]\w*)(?P=q)[^\n]*\n"
            parts.append(rf"{language.heredoc}{word}(?:.*?\n)??[ \t]*(?P=w)(?!\w)")
    for quote in quotes:
        within = "" if quote in multiline else r"\n"
        parts.append(rf"{quote}(?:\\.|[^\\{quote}{within}])*(?:{quote}|(?=\n)|\Z)")
    return re.compile("|".join(parts), re.DOTALL)
