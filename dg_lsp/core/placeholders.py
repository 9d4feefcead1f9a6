"""Recognise lines that stand for missing code, such as `pass` and `todo!()`, in all languages alike.

Where there is a syntax tree, `holes` is more precise. This module is for text without one: what a model wrote, and what
drafts are copied from. `shrinks` recognises an edit that replaces code by less: by a placeholder, by comments or by nothing.
"""

from __future__ import annotations

import difflib
import re
import textwrap

from tree_sitter import Node

from dg_lsp.core import languages, memo, place, syntax
from dg_lsp.core.languages import GrammarError
from dg_lsp.core.syntax import PLACEHOLDERS, Facts

_STATEMENT = r"""(?:pass|\.\.\.|:|(?:todo|unimplemented)!\(.*\)|(?:raise[ ])?NotImplemented(?:Error)?(?:\(.*\))?
    |throw[ ]new[ ](?:\w+\.)*NotImplemented\w*\(.*\)
    |(?:throw[ ]new[ ][\w.\\]+|panic|error|die)[ ]?\(["']TODO\b.*\)
    |(?:(?:throw|raise|return)[ ])?(?:nil,[ ]|new[ ])?
        [\w.:\\]+[ ]?\(["'](?:not[ ](?:yet[ ])?implemented|unimplemented)\b.*\));?"""
_FLAGS = re.IGNORECASE | re.VERBOSE | re.MULTILINE
_LINE = re.compile(_STATEMENT, _FLAGS)
_DOCSTRING = re.compile(r"""^[ \t]*[rRuU]?(\"{3}|'{3}).*?\1[ \t]*$""", re.MULTILINE | re.DOTALL)
_WHOLE_LINE = re.compile(rf"^[ \t]*(?:{_STATEMENT})[ \t]*\n", _FLAGS)


# What may follow a placeholder on its line: the end of the block, or another placeholder.
_FOLLOWING = frozenset({"end", "fi", "done", "esac", "pass", "..."})


def is_line(line: str) -> bool:
    """Return whether the line, without white space around it, is a placeholder of some language.

    It may be followed by more of them and by the ends of blocks, as in `pass   end`.
    """
    while _LINE.fullmatch(line) is None:
        start, _, last = line.rstrip(" \t;").replace("\t", " ").rpartition(" ")
        if last not in _FOLLOWING:
            return False
        line = start.rstrip(" \t")
    return True


def says_nothing(text: str) -> bool:
    """Return whether a text has only placeholders and docstrings, so that it is no body."""
    return not removed(f"{_DOCSTRING.sub('', text)}\n").strip()


def removed(text: str) -> str:
    r"""Return the text without its lines that are placeholders; a last line without a `\n` stays."""
    return _WHOLE_LINE.sub("", text)


# --- Edits that replace code by less

# More pairs of lines are not compared, because that takes too long.
MAX_COMPARED = 250_000


def shrinks(before: str, after: str, language: str) -> bool:
    """Return whether `before` does something and `after` does nothing, or whether a placeholder replaces a part that does.

    Front ends ask the user before they write such an edit.
    """
    if not _does_something(before, language):
        return False
    if not _does_something(after, language):
        return True
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


@memo.of_texts
def _does_something(text: str, language: str) -> bool:
    """Return whether the text holds more than comments, strings that stand alone, and placeholders."""
    language_row = languages.get(language)
    # The code below may close a block comment that is open here. A tree of this text alone takes it for code.
    if languages.kind_at_end(text, language) == "comment":
        text = text[: len(languages.mask(text, language).rstrip("\0"))]
    code = languages.mask(text, language).replace("\0", " ").strip() if language_row is None else text.strip()
    if language_row is None or not code:
        return _has_code(code)
    try:
        # The first line of a selection may lack its indentation.
        here = place.between("", text.strip("\n"))
        tree = syntax.parse(f"{language_row.tag}\n{here.tail.strip()}\n{textwrap.dedent(here.below)}", language_row)
    except GrammarError:
        return True
    rest = list(" " * len(language_row.tag) + tree.text[len(language_row.tag) :])
    for span in (tree.span(node) for node in nothing(tree.facts)):
        rest[span.start : span.end] = " " * (span.end - span.start)
    return _has_code("".join(rest))


def _has_code(text: str) -> bool:
    """Return whether a line is none of these, of any language: a placeholder, a comment, the end of a block."""
    lines = (_without_brackets(line).strip(" ;") for line in text.split("\n"))
    return any(line and not is_line(line) and not _NO_CODE.fullmatch(line) for line in lines)


def _is_placeholder(line: str) -> bool:
    """Return whether the line is a placeholder of any language, alone or next to the brackets of a block."""
    return is_line(_without_brackets(line))


def _without_brackets(line: str) -> str:
    """Return the line without the brackets that end a block at its start, and without those of a block at its end."""
    return line.strip().lstrip("{})], \t").rstrip("{} \t")


def nothing(facts: Facts) -> list[Node]:
    """Return the nodes that do nothing: comments, strings that stand alone, and placeholders."""
    return [node for capture in ("comment", "string.alone", *PLACEHOLDERS) for node in facts.all(capture)]


# The end of a block, or a comment. A block comment may be open at the line's end.
_NO_CODE = re.compile(r"(?:end|fi|done|esac)[,;]*|(?://|--\s|#[\s!]).*|/\*(?:(?!\*/).)*(?:\*/)?")
