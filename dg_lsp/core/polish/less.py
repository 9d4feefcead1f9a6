"""Tell whether code is replaced by less: statements by a placeholder, by comments, or by nothing."""

from __future__ import annotations

import textwrap
from functools import lru_cache

from tree_sitter import Node

from dg_lsp.core import languages, literals, syntax
from dg_lsp.core.languages import GrammarError
from dg_lsp.core.syntax import Facts

# What the queries call code that stands where something is yet to be written.
NOTHING = ("placeholder", "placeholder.weak", "placeholder.inline")


def shrinks(before: str, after: str, language: str) -> bool:
    """Return whether the text before does something, and the one after does nothing: front ends ask before they write it."""
    return _does_something(before, language) and not _does_something(after, language)


@lru_cache(maxsize=64)
def _does_something(text: str, language: str) -> bool:
    """Return whether the text holds more than comments, strings that stand alone, and placeholders."""
    known = languages.get(language)
    code = literals.mask(text, language).replace("\0", " ").strip() if known is None else text.strip()
    if known is None or not code:
        return bool(code)
    try:
        # The first line of a selection may lack its indentation.
        first, line_end, others = text.strip("\n").partition("\n")
        tree = syntax.parse(f"{known.tag}\n{first.strip()}{line_end}{textwrap.dedent(others)}", known)
    except GrammarError:
        return True
    rest = list(" " * len(known.tag) + tree.text[len(known.tag) :])
    for span in (tree.span(node) for node in nothing(tree.facts)):
        rest[span.start : span.end] = " " * (span.end - span.start)
    return bool("".join(rest).strip(" \t\r\n;"))


def nothing(facts: Facts) -> list[Node]:
    """Return the nodes that do nothing."""
    return [node for capture in ("comment", "string.alone", *NOTHING) for node in facts.all(capture)]
