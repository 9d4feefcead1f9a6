r"""Find the holes of a document: at the cursor, in placeholder bodies, at FILL comments, in a selection, at syntax errors.

Each language's query says what a placeholder is and which bodies are empty on purpose (see `syntax`). This package
decides only where a hole starts and ends. Leads and trails use `\n`; the code that applies an edit restores the file's
line ends.

A document without a known language has holes too: at the cursor, in selections and at FILL comments.
"""

from __future__ import annotations

from dataclasses import replace

from dg_lsp.core import positions
from dg_lsp.core.holes.body import Body, at_placeholder, find_bodies, trimmed
from dg_lsp.core.holes.comments import markers
from dg_lsp.core.holes.cursor import at_cursor
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Hole, Span

__all__ = ["KINDS", "at_cursor", "at_place", "at_placeholder", "errors", "in_document", "markers", "selection"]

KINDS = frozenset({"bodies", "markers", "empty"})


def at_place(document: Document, span: Span, syntax: Syntax | None, instruction: str = "") -> Hole:
    """Return the hole for a place that the user points at.

    It is that of a FILL comment, else a placeholder's body, else the cursor's hole or the selection.
    """
    if hole := _at_marker(document, span, syntax) or at_placeholder(document, span, syntax):
        return replace(hole, instruction=" ".join(part for part in (instruction, hole.instruction) if part))
    if span.start == span.end:
        return replace(at_cursor(document, span.start, syntax), instruction=instruction)
    return selection(document, span, syntax, instruction)


def in_document(document: Document, syntax: Syntax | None, kinds: frozenset[str]) -> tuple[Hole, ...]:
    """Return all holes of the given kinds ("bodies", "markers", "empty"), in order and without overlaps.

    A marker inside a placeholder body replaces the body's hole. Its hole includes the placeholder that follows the
    marker. A marker on the line of the body's opener moves to a line of its own.

    Raises ValueError for an unknown kind.
    """
    if unknown := kinds - KINDS:
        raise ValueError(f"unknown kind of hole: {', '.join(sorted(unknown))}; known kinds: {', '.join(sorted(KINDS))}")
    open_bodies = list(find_bodies(document, syntax, empty="empty" in kinds))
    marker_holes: list[Hole] = []
    # From the last to the first, because the last marker is the one next to the placeholder.
    for marker in reversed(markers(document, syntax) if "markers" in kinds else ()):
        within = [body for body in open_bodies if body.inside.holds(marker.span)]
        body = max(within, key=lambda body: body.inside.start, default=None)
        marker_holes.append(_with_placeholder(marker, body, document.text) if body else marker)
        open_bodies = [other for other in open_bodies if other is not body]
    body_holes = [body.hole for body in open_bodies if ("empty" if body.bare else "bodies") in kinds]
    return tuple(sorted([*marker_holes, *body_holes], key=lambda hole: hole.span))


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


def errors(syntax: Syntax | None) -> tuple[Hole, ...]:
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


def _at_marker(document: Document, span: Span, syntax: Syntax | None) -> Hole | None:
    """Return the hole of the FILL comment at the cursor or selection, with a placeholder that belongs to it."""
    code = trimmed(document.text, span)
    # Only a file with markers is searched for bodies.
    holes = in_document(document, syntax, frozenset({"bodies", "markers"})) if markers(document, syntax) else ()
    around = [hole for hole in holes if hole.kind == "marker" and hole.span.holds(code)]
    return around[0] if around else None


def _with_placeholder(marker: Hole, body: Body, text: str) -> Hole:
    """Return the marker's hole, including a placeholder right after it; a marker on the opener's line opens the body."""
    hole = body.hole
    if hole.span.start < marker.span.end or text[marker.span.end : hole.span.start].strip():
        return marker
    before = text[body.inside.start : marker.span.start]
    opens = not before.strip(" \t")
    if not marker.block and before.strip():
        return marker
    return replace(
        marker,
        span=Span(body.inside.start if opens else marker.span.start, hole.span.end),
        indent=hole.indent if opens else marker.indent,
        block=True,
        instruction=" ".join(part for part in (marker.instruction, hole.instruction) if part),
        lead="\n" + hole.indent if opens else "",
        trail=hole.trail,
    )
