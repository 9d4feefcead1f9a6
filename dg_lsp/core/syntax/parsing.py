"""Parse a text, or only what changed in it."""

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
    """Return the text's syntax; with the syntax of an earlier text in the same language, only the change is parsed again.

    `lines` are the text's lines, for a caller that already has them: finding them in a long text takes longer than
    parsing a change. With `parts`, in order and without overlaps, the parser skips the rest of the text as if it were
    not there. Without them, the text that was skipped before is skipped again.

    Broken code does not raise: what can't be parsed becomes an error node. Raises GrammarError if the language's
    grammar can't be loaded.
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
    """Return the document's syntax, or None if its language is not in the table; see `parse`."""
    language = languages.get(document.language)
    return parse(document.text, language, previous, lines=lines) if language else None


_LONE_RETURN = re.compile("\r(?!\n)")


def _range(span: Span, offsets: ByteOffsets) -> tree_sitter.Range:
    start, end = offsets.to_byte(span.start), offsets.to_byte(span.end)
    # The zeros are safe because nothing reads the rows and columns of these trees.
    return tree_sitter.Range((0, 0), (0, 0), start, end)
