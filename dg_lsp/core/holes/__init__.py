r"""Find the holes of a document: at the cursor, in placeholder bodies, at FILL comments, in a selection, at syntax errors.

Each language's query says what a placeholder is and which bodies are empty on purpose (see `syntax`). This package
decides only where a hole starts and ends. Leads and trails use `\n`; the code that applies an edit restores the file's
line ends.

A document without a known language has holes too: at the cursor, in selections and at FILL comments.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace

from dg_lsp.core import indentation, languages, lexing, positions
from dg_lsp.core.holes.body import FILL, Body, at_placeholder, find_bodies, trimmed
from dg_lsp.core.place import depth
from dg_lsp.core.positions import Lines
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Extent, Hole, Span, joined

__all__ = ["KINDS", "at_cursor", "at_place", "at_placeholder", "errors", "in_document", "markers", "selection", "unread"]

KINDS = frozenset({"bodies", "markers", "empty"})


def at_place(document: Document, span: Span, syntax: Syntax | None, instruction: str = "") -> Hole:
    """Return the hole for a place that the user points at.

    It is that of a FILL comment, else a placeholder's body, else the cursor's hole or the selection.
    """
    # The FILL comment may have a placeholder that belongs to it. Only a file with such comments is searched for bodies.
    found = in_document(document, syntax, frozenset({"bodies", "markers"})) if markers(document, syntax) else ()
    code = trimmed(document.text, span)
    marked = next((hole for hole in found if hole.kind == "marker" and hole.span.holds(code)), None)
    if hole := marked or at_placeholder(document, span, syntax):
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
    bodies = sorted(find_bodies(document, syntax, empty="empty" in kinds), key=lambda body: body.inside.start)
    found, around = list(markers(document, syntax) if "markers" in kinds else ()), dict[int, Body]()
    for body in bodies:
        # The last marker in a body is the one next to the placeholder. An inner body comes after the outer one.
        number = bisect_right(found, body.inside.end, key=lambda marker: marker.span.start) - 1
        if number >= 0 and body.inside.holds(found[number].span):
            around[number] = body
    for number, body in around.items():
        found[number] = _with_placeholder(found[number], body, document.text)
    marked = set(around.values())
    found += [body.hole for body in bodies if body not in marked and ("empty" if body.bare else "bodies") in kinds]
    return tuple(sorted(found, key=lambda hole: hole.span))


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
    start, end = (min(offset, index.end(index.at(offset))) for offset in (start, end))
    body = text[start:end]
    first = start + len(body) - len(body.lstrip()) if body.strip() else end
    line = index.at(first)
    indent = index.indent(line)
    code_before = text[index.start(line) : first].strip()
    lead = "" if code_before else text[max(start, index.start(line)) : first]
    alone = not code_before and not text[end : index.end(index.at(end))].strip()
    extent: Extent = "block" if index.at(start) != index.at(end) or (alone and body) else "line"
    return Hole(Span(start, end), "selection", indent=indent, extent=extent, instruction=instruction, lead=lead)


def errors(syntax: Syntax | None) -> tuple[Hole, ...]:
    """Return a hole for each run of lines that can't be parsed, in order, without its first indentation and last line end."""
    if syntax is None:
        return ()
    index, runs = syntax.lines, list[Span]()
    for span in syntax.errors:
        first, last = index.at(span.start), index.at(max(span.start, span.end - 1))
        while first < last and index.is_blank(first):
            first += 1
        while first < last and index.is_blank(last):
            last -= 1
        runs.append(Span(first, last))
    holes = []
    for run in joined(runs):
        indent = index.indent(run.start)
        span = Span(index.start(run.start) + len(indent), index.end(run.end))
        holes.append(Hole(span, "error", indent=indent, extent="block"))
    return tuple(holes)


def _with_placeholder(marker: Hole, body: Body, text: str) -> Hole:
    """Return the marker's hole, including a placeholder right after it; a marker on the opener's line opens the body."""
    hole = body.hole
    if hole.span.start < marker.span.end or text[marker.span.end : hole.span.start].strip():
        return marker
    before = text[body.inside.start : marker.span.start]
    opens = not before.strip(" \t")
    if marker.extent != "block" and before.strip():
        return marker
    return replace(
        marker,
        span=Span(body.inside.start if opens else marker.span.start, hole.span.end),
        indent=hole.indent if opens else marker.indent,
        extent="block",
        instruction=" ".join(part for part in (marker.instruction, hole.instruction) if part),
        lead="\n" + hole.indent if opens else "",
        trail=hole.trail,
    )


# --- At the cursor

# How many characters back the opener of a block is searched for: first a short way, where it usually is. The second
# distance also reaches past a long docstring, but not through a whole long file.
_LOOK_BACK = (800, 8_000)


def at_cursor(document: Document, offset: int, syntax: Syntax | None) -> Hole:
    """Return the hole at the cursor: a block where an empty one starts, else the rest of the line. Its span is empty.

    Text right of the cursor stays, such as brackets that the editor closed. After `{` or `:`, the lead is the line end
    and indentation that the body needs. Between `{` and `}`, the trail is the line end and indentation that `}` needs.

    Before the first code of a line, the answer is a line of its own above that line: the lead completes its indentation, and
    the trail is the line end, and the white space before the cursor. An offset beyond the text counts as the text's end.
    """
    text = document.text
    offset = min(max(offset, 0), len(text))
    index = syntax.lines if syntax else positions.lines(text)
    line = index.at(offset)
    # Text can't be inserted between \r and \n.
    offset = min(offset, index.end(line))
    before, after = text[index.start(line) : offset], text[offset : index.end(line)]
    document = indentation.part(document, text[:offset]) if text.startswith("---") else document
    code, is_start = after.lstrip(), not before.strip()
    closes = _CLOSES.match(code) is not None
    is_between = closes if is_start else code[:1] == "}" and before.rstrip().endswith("{")
    opener_line = _opened_line(document, offset, syntax, index)
    if opener_line is not None and not is_between:
        # The lines below may belong to the block by their indentation.
        below = index.below(line)
        has_content = below is not None and len(index.indent(below)) > len(index.indent(opener_line))
        opener_line = None if code or has_content else opener_line
    if opener_line is None:
        if not (is_start and code) or _ENDS_STRING.match(code):
            indent = before if is_start else index.indent(line)
            extent: Extent = "lines" if is_start and not code and _takes_lines(offset, indent, syntax, index) else "line"
            return Hole(Span(offset, offset), "cursor", indent=indent, extent=extent)
        indent = _indent_above(document, line, syntax, index) if closes else index.indent(line)
        lead = indent[len(before) :] if indent.startswith(before) else ""
        return Hole(Span(offset, offset), "cursor", indent=before + lead, lead=lead, trail=f"\n{before}")
    outer = index.indent(opener_line)
    inner = outer + _unit(document, syntax)
    # A closer that is indented too far moves to its place, unless that white space is right of the cursor.
    trail = "\n" + (before if is_start and after != code else outer) if is_between else ""
    if not is_start:
        return Hole(Span(offset, offset), "cursor", indent=inner, extent="block", lead="\n" + inner, trail=trail)
    if len(before) > len(outer) and before.startswith(outer):
        return Hole(Span(offset, offset), "cursor", indent=before, extent="block", trail=trail)
    lead = inner[len(before) :] if inner.startswith(before) else ""
    return Hole(Span(offset, offset), "cursor", indent=before + lead, extent="block", lead=lead, trail=trail)


def _takes_lines(offset: int, indent: str, syntax: Syntax | None, index: Lines) -> bool:
    """Return whether an answer in an empty line with this indentation may have more lines.

    It may in code, unless the line below is indented more: then the answer is the line that opens it.
    """
    if syntax is None or re.search("comment|string|template", syntax.node_at(Span(offset, offset)).type):
        return False
    below = index.below(index.at(offset))
    return below is None or depth(index.indent(below)) <= depth(indent)


def _unit(document: Document, syntax: Syntax | None) -> str:
    """Return one indentation level of the document."""
    return indentation.unit(document, syntax.parsed if syntax else document.text)


def _indent_above(document: Document, line: int, syntax: Syntax | None, index: Lines) -> str:
    """Return the indentation of the last line in what this line closes."""
    own = index.indent(line)
    above = index.above(line)
    if above is None:
        return own
    indent = index.indent(above) + (_unit(document, syntax) if _OPENS.search(index.content(above).strip()) else "")
    return indent if indent.startswith(own) else own


# What ends a block, or a part of one such as that of `if` before its `else`, in any language.
_CLOSES = re.compile(
    r"[)\]}]|</|\{%-?\s*(?:end|else)|\{\{/|end(?:case|class|def|for|foreach|function|if|macro|module|sub|try|while)\b"
    r"|(?:end|fi|done|esac)\b(?!\s*[:=.(,\[])"
    r"|(?:else|elif|elsif|elseif|except|finally|rescue|ensure|catch|until)\b(?!\s*[=.,\[])"
)
# The end of a line above the first item of a list, an object or an element.
_OPENS = re.compile(r"[(\[{]$|^<\w(?:[^<>]*[^<>/])?>$")
# The end of a string that began in a line above.
_ENDS_STRING = re.compile(r"(?:`|\"(?:\"\")?|'(?:'')?)[\s;,.)\]}]*\Z")


def _opened_line(document: Document, offset: int, syntax: Syntax | None, index: Lines) -> int | None:
    """Return the line of the block opener if it is the last code before the offset, or None where no block starts."""
    text = document.text
    if syntax is None:
        head = text[: index.start(index.at(offset))].rstrip()
        before = text[index.start(index.at(offset)) : offset]
        line = index.at(max(len(head) - 1, 0))
        is_opened = indentation.opens(document, index.content(line).rstrip(), is_indented=bool(before))
        return line if is_opened and not before.strip() else None
    for far in _LOOK_BACK:
        near = syntax.facts_near(Span(max(0, offset - far), offset))
        comments = [syntax.span(node) for node in near.all("comment")]
        skipped = {span.end: span.start for span in (*comments, *map(syntax.span, near.all("docstring")))}
        # The end of the last code before the offset.
        end = len(text[:offset].rstrip())
        while end in skipped:
            end = len(text[: skipped[end]].rstrip())
        if end > offset - far:
            break
    strings = [syntax.span(node) for node in near.all("string")]
    marks = syntax.language.line_comments
    if any(span.start < offset < span.end for span in (*strings, *comments)) or any(
        span.end == offset and text.startswith(marks, span.start) for span in comments
    ):
        return None
    if end == 0:
        return None
    opens = {syntax.span(node).end for node in (*near.all("opens"), *near.all("opener"))}
    line = index.at(end - 1)
    if end in opens:
        # If the head's parameters span several lines, the indentation of its first line counts.
        heads = [owner.node for owner in near.owners if owner.inside.start == end]
        return min([line, *(syntax.lines.at(syntax.span(node).start) for node in heads)])
    code = text[index.start(line) : end]
    is_broken = any(node.is_error for node in syntax.ancestors(syntax.node_at(Span(end - 1, end))))
    is_closed = all(code.count(left) <= code.count(right) for left, right in ("()", "[]"))
    return line if is_broken and is_closed and re.search(syntax.language.opens, code) else None


# --- FILL comments

# The longest line that a person writes. A comment in a longer one is in what a program wrote.
_MOST_LINE_CHARS = 2_000


def markers(document: Document, syntax: Syntax | None) -> tuple[Hole, ...]:
    """Return a hole for each comment `FILL` or `FILL: instruction`; its span is the comment.

    There is none in a string, in an example in a text, or in a file of data. What may be in a string counts as in one where
    there is no syntax tree, and behind a syntax error of its line.
    """
    text, holes = document.text, list[Hole]()
    if "FILL" not in text:
        return ()
    index = syntax.lines if syntax else positions.lines(text)
    for token in sorted(_comments(document, syntax), key=lambda token: token.span):
        match = FILL.fullmatch(text[token.inner.start : token.inner.end].strip().lstrip("*!").strip())
        if match is None or token.ends == "text":
            continue
        span, line = token.span, index.at(token.span.start)
        indent = index.indent_before(span.start)
        if syntax is None and index.end(line) - index.start(line) > _MOST_LINE_CHARS:
            continue
        if syntax is not None and _is_in_open_string(syntax, Span(index.start(line), span.start)):
            continue
        is_alone = indent is not None and not text[span.end : index.end(index.at(span.end))].strip()
        hole = Hole(
            span,
            "marker",
            indent=indent if indent is not None else index.indent(line),
            extent="block" if is_alone else "line",
            instruction=" ".join(re.sub(r"(?m)^[ \t]*\*(?!/)", "", match.group(1) or "").split()),
        )
        holes.append(hole)
    return tuple(holes)


def _is_in_open_string(syntax: Syntax, before: Span) -> bool:
    """Return whether a string may begin in a part of a line that the parser could not read, and go on behind it."""
    is_broken = any(error.start <= before.end and error.end >= before.start for error in syntax.errors)
    return is_broken and languages.kind_at_end(syntax.text[before.start : before.end], syntax.language.name) == "string"


def unread(document: Document) -> str:
    """Return why FILL comments of a document are left alone, as the end of a sentence that begins with "it", or ""."""
    lexer = languages.lexer(document)
    if lexer is None or document.language or not re.search(r"\bFILL\b", document.text):
        return ""
    if lexer.is_data:
        return "holds data or plain text, where FILL is no comment; use --at to fill at a place"
    spans = [token.inner for token in lexing.comments(document.text, lexer)]
    if any(FILL.fullmatch(document.text[span.start : span.end].strip()) for span in spans):
        return "has FILL comments that may be part of a string; use --at to fill at a place"
    return ""


def _comments(document: Document, syntax: Syntax | None) -> Iterator[lexing.Token]:
    """Yield the comments, of those in a syntax tree only what may be a marker."""
    if syntax is None:
        own = languages.lexer(document) or lexing.named("unknown")
        yield from () if own.is_data else lexing.sure_comments(document.text, own)
        return
    lexer = lexing.named(syntax.language.name)
    for span in (syntax.span(node) for capture in ("comment", "unparsed") for node in syntax.facts.all(capture)):
        if syntax.text.find("FILL", span.start, span.end) >= 0:
            yield from lexing.comments(syntax.text, lexer, span.start, span.end)
