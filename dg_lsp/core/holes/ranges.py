"""Turn a range into a hole: a selection, or lines that can't be parsed."""

from __future__ import annotations

from dg_lsp.core import positions
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Hole, Span


def selection(document: Document, span: Span, syntax: Syntax | None, instruction: str = "") -> Hole:
    """Return the selected range as a hole, which is a block if it spans several lines or is all of one.

    Line ends at the end of the selection are left out, so that the answer need not end with them. Indentation before
    the first selected code becomes the lead. A span that reaches beyond the text ends at the text's end. One that
    starts inside a line end starts before it.
    """
    text = document.text
    index = syntax.lines if syntax else positions.lines(text)
    start, end = min(span.start, len(text)), min(span.end, len(text))
    end = start + len(text[start:end].rstrip("\r\n"))
    # Text can't be inserted between \r and \n.
    start, end = (min(offset, index.ends[index.at(offset)]) for offset in (start, end))
    body = text[start:end]
    first = start + len(body) - len(body.lstrip()) if body.strip() else end
    line = index.at(first)
    indent = index.indent(line)
    code_before = text[index.starts[line] : first].strip()
    lead = "" if code_before else text[max(start, index.starts[line]) : first]
    alone = not code_before and not text[end : index.ends[index.at(end)]].strip()
    block = index.at(start) != index.at(end) or (alone and bool(body))
    return Hole(Span(start, end), "selection", indent=indent, block=block, instruction=instruction, lead=lead)


def errors(document: Document, syntax: Syntax | None) -> tuple[Hole, ...]:
    """Return a hole for each run of lines that can't be parsed, in order, without its first indentation and last line end."""
    if syntax is None:
        return ()
    index, runs = syntax.lines, list[tuple[int, int]]()
    for span in syntax.errors:
        first, last = index.at(span.start), index.at(max(span.start, span.end - 1))
        while first < last and index.is_blank(first):
            first += 1
        while first < last and index.is_blank(last):
            last -= 1
        if runs and first <= runs[-1][1]:
            runs[-1] = (runs[-1][0], max(last, runs[-1][1]))
        else:
            runs.append((first, last))
    return tuple(
        Hole(
            Span(index.starts[first] + len(index.indent(first)), index.ends[last]),
            "error",
            indent=index.indent(first),
            block=True,
        )
        for first, last in runs
    )
