"""Find the hole at the cursor: the rest of the line, or a block if an empty block starts there."""

from __future__ import annotations

import re

from dg_lsp.core import positions
from dg_lsp.core.languages import Language
from dg_lsp.core.positions import Lines
from dg_lsp.core.syntax import Facts, Syntax, indent_unit
from dg_lsp.core.values import Document, Hole, Span, inside_any

# How many characters back the opener of a block is searched for: first a short way, where it usually is. The second
# distance also reaches past a long docstring, but not through a whole long file.
_LOOK_BACK = (800, 8_000)


def at_cursor(document: Document, offset: int, syntax: Syntax | None) -> Hole:
    """Return the hole at the cursor: a block where an empty one starts, else the rest of the line. Its span is empty.

    Text right of the cursor stays, such as brackets that the editor closed. After `{` or `:`, the lead is the line end
    and indentation that the body needs. Between `{` and `}` on one line, the trail is the line end and indentation that
    `}` needs. An offset beyond the text counts as the text's end.
    """
    text = document.text
    offset = min(max(offset, 0), len(text))
    index = syntax.lines if syntax else positions.lines(text)
    line = index.at(offset)
    # Text can't be inserted between \r and \n.
    offset = min(offset, index.ends[line])
    before, after = text[index.starts[line] : offset], text[offset : index.ends[line]]
    opener_line = _opened_line(document, offset, syntax, index)
    closer = after.strip()[:1] == "}" and before.rstrip().endswith("{")
    if opener_line is None or (after.strip() and not closer) or (not closer and _has_content(index, line, opener_line)):
        return Hole(Span(offset, offset), "cursor", indent=index.indent(line) if before.strip() else before)
    outer = index.indent(opener_line)
    inner = outer + (indent_unit(syntax.parsed, syntax.language.indent) if syntax else indent_unit(text, "    "))
    trail = "\n" + outer if closer else ""
    if before.strip():
        return Hole(Span(offset, offset), "cursor", indent=inner, block=True, lead="\n" + inner, trail=trail)
    if len(before) > len(outer) and before.startswith(outer):
        return Hole(Span(offset, offset), "cursor", indent=before, block=True)
    lead = inner[len(before) :] if inner.startswith(before) else ""
    return Hole(Span(offset, offset), "cursor", indent=before + lead, block=True, lead=lead)


def _opened_line(document: Document, offset: int, syntax: Syntax | None, index: Lines) -> int | None:
    """Return the line of the block opener if it is the last code before the offset, or None where no block starts."""
    text = document.text
    if syntax is None:
        head = text[: index.starts[index.at(offset)]].rstrip()
        blank = not text[index.starts[index.at(offset)] : offset].strip()
        return index.at(len(head) - 1) if blank and head.endswith((":", "{")) else None
    for far in _LOOK_BACK:
        near = syntax.facts_near(Span(max(0, offset - far), offset))
        end = _last_code(near, syntax, offset)
        if end > offset - far:
            break
    comments = [syntax.span(node) for node in near.all("comment")]
    strings = [syntax.span(node) for node in near.all("string")]
    marks = syntax.language.line_comments
    if inside_any(offset, [*strings, *comments]) or any(
        span.end == offset and text.startswith(marks, span.start) for span in comments
    ):
        return None
    if end == 0:
        return None
    opens = {syntax.span(node).end for node in (*near.all("opens"), *near.all("opener"))}
    line = index.at(end - 1)
    if end in opens:
        return _first_line(near, syntax, end, line)
    node = syntax.node_at(Span(end - 1, end))
    while not node.is_error and node.parent is not None:
        node = node.parent
    return line if node.is_error and _opens(syntax.language, text[index.starts[line] : end]) else None


def _last_code(near: Facts, syntax: Syntax, offset: int) -> int:
    """Return the end of the last code before the offset, ignoring comments, docstrings and white space."""
    skipped_spans = {
        span.end: span.start for kind in ("comment", "docstring") for span in (syntax.span(node) for node in near.all(kind))
    }
    end = len(syntax.text[:offset].rstrip())
    while end in skipped_spans:
        end = len(syntax.text[: skipped_spans[end]].rstrip())
    return end


def _opens(language: Language, code: str) -> bool:
    """Return whether a line that can't be parsed looks like the opener of a block."""
    is_closed = all(code.count(left) <= code.count(right) for left, right in ("()", "[]"))
    return is_closed and re.search(language.opens, code) is not None


def _first_line(facts: Facts, syntax: Syntax, end: int, line: int) -> int:
    """Return the first line of the block's head: if the parameters span several lines, its indentation counts."""
    heads = [owner.node for owner in facts.owners if owner.inside.start == end]
    return min([line, *(syntax.lines.at(syntax.span(node).start) for node in heads)])


def _has_content(index: Lines, line: int, opener_line: int) -> bool:
    """Return whether the lines below belong, by their indentation, to the block that the opener's line starts."""
    for below in range(line + 1, len(index)):
        if not index.is_blank(below):
            return len(index.indent(below)) > len(index.indent(opener_line))
    return False
