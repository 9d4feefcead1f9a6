"""Recognise an edit that replaces code by less: statements by a placeholder, by comments or by nothing."""

from __future__ import annotations

import difflib
import re
import textwrap
from functools import lru_cache

from tree_sitter import Node

from dg_lsp.core import languages, literals, placeholders, syntax
from dg_lsp.core.languages import GrammarError
from dg_lsp.core.syntax import Facts

# The captures for code that marks where something is missing.
NOTHING = ("placeholder", "placeholder.weak", "placeholder.inline")

# More pairs of lines are not compared, because that takes too long.
MAX_COMPARED = 250_000


def shrinks(before: str, after: str, language: str) -> bool:
    """Return whether `before` does something and `after` does nothing, or whether a placeholder replaces a part that does.

    Front ends ask the user before they write such an edit.
    """
    if not _does_something(before, language):
        return False
    return not _does_something(after, language) or _puts_placeholder(before, after, language)


def _puts_placeholder(before: str, after: str, language: str) -> bool:
    """Return whether a run of lines that does something is replaced by a run of placeholders."""
    old, new = ([line.strip() for line in text.splitlines()] for text in (before, after))
    if len(old) * len(new) > MAX_COMPARED or not any(_is_placeholder(line) for line in new):
        return False
    for what, old_start, old_end, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        removed, added = "\n".join(old[old_start:old_end]), new[start:end]
        if (
            what == "replace"
            and any(_is_placeholder(line) for line in added)
            and not _does_something("\n".join(added), language)
            and _does_something(removed, language)
        ):
            return True
    return False


@lru_cache(maxsize=64)
def _does_something(text: str, language: str) -> bool:
    """Return whether the text holds more than comments, strings that stand alone, and placeholders."""
    language_row = languages.get(language)
    # The code below may close a block comment that is open here. A tree of this text alone takes it for code.
    if literals.kind_at_end(text, language) == "comment":
        text = text[: len(literals.mask(text, language).rstrip("\0"))]
    code = literals.mask(text, language).replace("\0", " ").strip() if language_row is None else text.strip()
    if language_row is None or not code:
        return _has_code(code)
    try:
        # The first line of a selection may lack its indentation.
        first, line_end, others = text.strip("\n").partition("\n")
        tree = syntax.parse(f"{language_row.tag}\n{first.strip()}{line_end}{textwrap.dedent(others)}", language_row)
    except GrammarError:
        return True
    rest = list(" " * len(language_row.tag) + tree.text[len(language_row.tag) :])
    for span in (tree.span(node) for node in nothing(tree.facts)):
        rest[span.start : span.end] = " " * (span.end - span.start)
    return _has_code("".join(rest))


def _has_code(text: str) -> bool:
    """Return whether a line is none of these, of any language: a placeholder, a comment, the end of a block."""
    lines = (_without_brackets(line).strip(" ;") for line in text.split("\n"))
    return any(line and not placeholders.is_line(line) and not _NO_CODE.fullmatch(line) for line in lines)


def _is_placeholder(line: str) -> bool:
    """Return whether the line is a placeholder of any language, alone or next to the brackets of a block."""
    return placeholders.is_line(_without_brackets(line))


def _without_brackets(line: str) -> str:
    """Return the line without the brackets that end a block at its start, and without those of a block at its end."""
    return line.strip().lstrip("{})], \t").rstrip("{} \t")


def is_placeholder_elsewhere(text: str) -> bool:
    """Return whether every line is a placeholder of some language. Many parse in another language, and models mix them up."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return bool(lines) and all(placeholders.is_line(line) for line in lines)


def nothing(facts: Facts) -> list[Node]:
    """Return the nodes that do nothing: comments, strings that stand alone, and placeholders."""
    return [node for capture in ("comment", "string.alone", *NOTHING) for node in facts.all(capture)]


# The end of a block, or a comment. A block comment may be open at the line's end.
_NO_CODE = re.compile(r"(?:end|fi|done|esac)[,;]*|(?://|--\s|#[\s!]).*|/\*(?:(?!\*/).)*(?:\*/)?")
