"""Drop answers that are of no use, whatever their syntax."""

from __future__ import annotations

import re

from dg_lsp.core import languages
from dg_lsp.core.context import with_newlines
from dg_lsp.core.polish.around import Around, answer_span
from dg_lsp.core.polish.text import filled_lines, says_something


def drop_unreadable(text: str, around: Around) -> str | None:
    """Drop what holds characters that no source file has: half of a character, control characters."""
    bad = set(_UNREADABLE.findall(text))
    return None if bad.difference(around.before, around.after) else text


def drop_blank(text: str, around: Around) -> str | None:
    """Drop what is empty, and documentation without a word."""
    is_documentation = around.hole.kind == "cursor" and around.hole.lead.strip()
    return text if re.search(r"\w" if is_documentation else r"\S", text) else None


def drop_unchanged(text: str, around: Around) -> str | None:
    """Drop what is there already."""
    new = around.hole.lead + text + around.hole.trail
    return None if new.strip() == with_newlines(around.old).strip() else text


def drop_repetition(text: str, around: Around) -> str | None:
    """Drop whole lines that are the same as those just before or just after, and these again and again.

    The end of a line is dropped where it makes the line the same as the next, but for brackets and commas at their ends.
    """
    if not around.starts_line and not around.hole.block:
        line = (around.before.rpartition("\n")[2] + text + around.rest).strip()
        following = next(iter(filled_lines(around.after.partition("\n")[2])), "").strip()
        same = line.rstrip(_ENDS) == following.rstrip(_ENDS)
        return None if same and says_something(line) else text
    if not around.starts_line or around.rest.strip():
        return text
    if not says_something(text):
        # `end` and `}` come again and again where blocks are closed; where none are, a short line does not.
        language = languages.get(around.document.language)
        following = next(iter(filled_lines(around.after)), "").strip()
        repeats = language is not None and language.by_indentation and text.strip() == following
        return None if repeats and re.search(r"\w", text) else text
    lines = [line.strip() for line in filled_lines(text)]
    before = [line.strip() for line in filled_lines(around.before)]
    after = [line.strip() for line in filled_lines(around.after)]
    for size in range(1, len(lines) + 1):
        again = all(line == lines[idx % size] for idx, line in enumerate(lines))
        if again and lines[:size] in (before[-size:], after[:size]):
            return None
    return text


def drop_placeholder(text: str, around: Around) -> str | None:
    """Drop what only says again that something is yet to be written."""
    if around.filled is None or around.hole.kind not in ("body", "marker"):
        return text
    filled, answer = around.filled(text), answer_span(text, around)
    facts = filled.facts_near(answer)
    nodes = [node for capture in _NOTHING for node in facts.all(capture)]
    spans = [filled.span(node) for node in nodes]
    return None if any(span.start <= answer.start and answer.end <= span.end for span in spans) else text


def drop_comments(text: str, around: Around) -> str | None:
    """Drop an answer to a body or a marker that is comments alone, or that leaves a hole of its own."""
    language = languages.get(around.document.language)
    if language is None or around.hole.kind not in ("body", "marker"):
        return text
    lines = [line.strip() for line in filled_lines(text)]
    comments = [line for line in lines if line.startswith(language.line_comments)]
    asks = any(_ASKS.match(line) for line in comments)
    return None if asks or len(comments) == len(lines) else text


def drop_description(text: str, around: Around) -> str | None:
    """Drop an answer to a body or a marker that describes and does nothing, such as a docstring alone or above a `pass`."""
    hole = around.hole
    wants_words = hole.kind == "marker" and _ASKS_WORDS.search(hole.instruction)
    if around.filled is None or hole.kind not in ("body", "marker") or wants_words:
        return text
    filled, answer = around.filled(text), answer_span(text, around)
    facts = filled.facts_near(answer)
    words = sorted(filled.span(node) for capture in ("comment", "string.alone", *_NOTHING) for node in facts.all(capture))
    at = answer.start
    for span in words:
        if filled.text[at : span.start].strip():
            break
        at = max(at, span.end)
    return text if filled.text[at : answer.end].strip() else None


# What the queries call code that stands where something is yet to be written.
_NOTHING = ("placeholder", "placeholder.weak", "placeholder.inline")
_ENDS = ")]},;"
_ASKS = re.compile(r"\W*FILL(?::|\s*$)")
# What a marker says that wants text and not code.
_ASKS_WORDS = re.compile(r"\b(?:doc|comment|descri)", re.IGNORECASE)
# Tab, newline and form feed are all the control characters that source has; U+FFFD stands for bytes that are no UTF-8.
_UNREADABLE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd\ud800-\udfff]")
