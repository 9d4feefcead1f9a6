"""Drop answers that break the code next to them on the same line."""

from __future__ import annotations

import re

from dg_lsp.core import languages, literals
from dg_lsp.core.languages import Language
from dg_lsp.core.polish.around import Around

_NAME_AT_END = re.compile(r"(?<!\w)[^\W\d]\w*\Z")
_NAME_AT_START = re.compile(r"\w+")
_WORD = re.compile(r"[^\W\d_][^\W\d_A-Z]*|\d+")
"""A word of a name such as `max_size2` or `maxSize`."""


def drop_comment_before_code(text: str, around: Around) -> str | None:
    """Drop an answer that starts a comment and thereby comments out the rest of its line."""
    language = languages.get(around.document.language)
    if language is None or not around.rest.strip(" \t)]};,") or around.rest.lstrip().startswith(language.line_comments):
        return text
    line = text.rpartition("\n")[2]
    if not any(mark in line for mark in language.line_comments):
        return text
    is_comment = literals.kind_at_end(around.before + text, language.name) == "comment"
    return None if is_comment and literals.kind_at_end(around.before, language.name) != "comment" else text


def drop_glued(text: str, around: Around) -> str | None:
    """Drop an answer that merges with a name next to it into a name that is not known.

    A name is known if the language or the document has it. Not checked are:

    - holes without code after them on their line, because there the user may be typing the beginning of any name;
    - answers that end with the rest of the line, because they repeat the name after them.

    At a cursor inside a name, a merged name is also accepted if it consists of known words and the name without the answer
    occurs nowhere else.
    """
    language = languages.get(around.document.language)
    if language is None or text.rstrip().endswith(around.rest.rstrip()) or not around.rest.strip(" \t)]};,"):
        return text
    left, first = _NAME_AT_END.search(around.before), _NAME_AT_START.match(text)
    last, right = _NAME_AT_END.search(text), _NAME_AT_START.match(around.rest)
    is_glued = False
    if left and first and right and first.end() == len(text):
        is_new = _n_places(left[0] + right[0], around) == 0 and _has_known_words(left[0], text, right[0], around, language)
        is_glued = not is_new and not _is_known(left[0] + text + right[0], around, language)
        last = None
    elif left and first and text[0].islower():
        is_member = around.before[: left.start()].endswith((".", ":", ">"))
        is_whole = len(left[0]) > 1 and _n_places(left[0], around) > 0
        is_glued = is_whole and not is_member and not _is_known(left[0] + first[0], around, language)
    if last and right:
        head = left[0] if left and first and last.start() == 0 else ""
        is_glued = is_glued or not _is_known(head + last[0] + right[0], around, language)
    if not is_glued or literals.kind_at_end(around.before, language.name) is not None:
        return text
    return None


def _is_known(name: str, around: Around, language: Language) -> bool:
    return name in languages.words(language) or _n_places(name, around) > 0


def _has_known_words(head: str, middle: str, tail: str, around: Around, language: Language) -> bool:
    """Return whether each word of the name `head + middle + tail` that overlaps `middle` is in the document or the language."""
    text, span = around.document.text, around.hole.span
    # Without the name around the hole: its own parts are no evidence.
    others = text[: span.start - len(head)] + " " + text[span.end + len(tail) :]
    known = {word[0].lower() for word in _WORD.finditer(others)} | {word.lower() for word in languages.words(language)}
    start, end = len(head), len(head) + len(middle)
    words = _WORD.finditer(head + middle + tail)
    return all(word[0].lower() in known for word in words if word.start() < end and start < word.end())


def _n_places(name: str, around: Around) -> int:
    """Return how often the name occurs as a whole word in the document, except next to the hole or around it."""
    text, span = around.document.text, around.hole.span
    matches = re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", text)
    return sum(match.end() < span.start or span.end < match.start() for match in matches)
