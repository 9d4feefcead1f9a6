"""Parse a text, or what changed of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import tree_sitter

from dg_lsp.core import languages, positions
from dg_lsp.core.languages import Language
from dg_lsp.core.positions import ByteOffsets, Lines
from dg_lsp.core.syntax.change import difference, edited_lines, edited_tree, moved_parts
from dg_lsp.core.syntax.tree import Syntax
from dg_lsp.core.values import Document, Span


def parse(
    text: str,
    language: Language,
    previous: Syntax | None = None,
    parts: Sequence[Span] | None = None,
    lines: Lines | None = None,
) -> Syntax:
    """Return the text's syntax; with that of an earlier text of the same language, only what changed is parsed again.

    Whoever has the text's `lines` already can pass them on: finding them in a long text takes longer than to parse a change.
    With `parts`, in order and apart from each other, the rest of the text is passed over as if it were not there; without
    them, what was passed over in the earlier text is so here too. Never fails on broken code: what can't be parsed is an
    error node in the tree. Raises GrammarError when the language's grammar can't be loaded.
    """
    offsets = positions.byte_offsets(_LONE_RETURN.sub("\n", text) if "\r" in text else text)
    parser = tree_sitter.Parser(languages.grammar(language))
    old = change = None
    if previous is not None and previous.language == language:
        change = difference(previous.offsets.source, offsets.source)
        old = edited_tree(previous, change, offsets.source)
        if parts is None and previous.parts:
            parts = moved_parts(previous, change, offsets)
    parts = tuple(parts or ())
    if parts:
        parser.included_ranges = [_range(span, offsets) for span in parts]
    tree = parser.parse(offsets.source, old) if old is not None else parser.parse(offsets.source)
    syntax = Syntax(text, language, tree, offsets, parts)
    if previous is not None and change is not None and lines is None:
        lines = edited_lines(previous, change, syntax)
    if lines is not None:
        syntax.__dict__["lines"] = lines
    return syntax


def of(document: Document, previous: Syntax | None = None, lines: Lines | None = None) -> Syntax | None:
    """Return the document's syntax, or None where its language isn't in the table; see `parse`."""
    language = languages.get(document.language)
    return parse(document.text, language, previous, lines=lines) if language else None


_LONE_RETURN = re.compile("\r(?!\n)")


def _range(span: Span, offsets: ByteOffsets) -> tree_sitter.Range:
    start, end = offsets.to_byte(span.start), offsets.to_byte(span.end)
    # Nothing reads the lines and columns of these trees.
    return tree_sitter.Range((0, 0), (0, 0), start, end)
