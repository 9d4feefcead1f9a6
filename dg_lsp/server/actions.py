"""List the code actions for a cursor or a selection, and the holes that each action fills.

Pure. No model runs to build a menu.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from dg_lsp.core import holes
from dg_lsp.core.syntax import Owner, Syntax
from dg_lsp.core.values import Document, Hole, Span
from dg_lsp.server.methods import KINDS, What

# With more broken places than this in one request, too little fixed text is left to guide the model.
MAX_REPAIRS = 4


@dataclass(frozen=True, slots=True)
class Action:
    """A menu entry, and the span that it applies to."""

    title: str
    what: What
    span: Span


def offered(document: Document, syntax: Syntax | None, span: Span, only: Iterable[str] | None = None) -> tuple[Action, ...]:
    """Return the actions for a cursor or a selection; `only` limits them to these kinds, None returns all."""
    # A kind includes those below it, and the empty kind all.
    prefixes = ("",) if only is None else tuple(f"{kind}." if kind else "" for kind in only)
    return tuple(action for action in _all(document, syntax, span) if f"{KINDS[action.what]}.".startswith(prefixes))


def attempts(
    what: str, document: Document, syntax: Syntax | None, span: Span, instruction: str = ""
) -> tuple[tuple[Hole, ...], ...]:
    """Return the sets of holes to try for an action, in order; empty when there is nothing to fill.

    The caller uses the first set that yields an edit. Raises ValueError for an unknown action.
    """
    if what in ("body", "hole"):
        touched = [hole for hole in _placeholders(document, syntax) if hole.span.touches(span)]
        touched = touched or _pointed_at(document, syntax, span)
        return ((touched[0],),) if touched else ()
    if what == "all":
        placeholders = _placeholders(document, syntax)
        return (placeholders,) if placeholders else ()
    if what == "regenerate":
        hole_at = holes.at_place if span.start != span.end else holes.selection
        return ((hole_at(document, span, syntax, instruction),),)
    if what == "repair":
        return _repairs(document, syntax, span)
    if what == "docstring":
        owner = _undocumented(syntax, span)
        return ((_docstring(syntax, owner),),) if syntax is not None and owner is not None else ()
    raise ValueError(f"unknown action {what!r}; use one of {', '.join(KINDS)}")


def _all(document: Document, syntax: Syntax | None, span: Span) -> Iterable[Action]:
    placeholders = _placeholders(document, syntax)
    nearby_holes = [hole for hole in placeholders if _is_near(hole, syntax, span)]
    # A body that may be empty on purpose is offered only on its own line.
    if near_or_pointed := nearby_holes or _pointed_at(document, syntax, span):
        hole = near_or_pointed[0]
        if hole.kind == "body":
            yield Action("Fill function body", "body", hole.span)
        else:
            yield Action(f"Fill this hole{_quoted(hole.instruction)}", "hole", hole.span)
    if len(placeholders) > 1 or (placeholders and not nearby_holes):
        n = len(placeholders)
        yield Action(f"Fill all {n} holes in this file" if n > 1 else "Fill the hole in this file", "all", Span(0, 0))
    if document.text[span.start : span.end].strip():
        yield Action("Regenerate selection", "regenerate", span)
    if _repairs(document, syntax, span):
        yield Action("Repair syntax here", "repair", span)
    if span.start == span.end and (owner := _undocumented(syntax, span)) is not None:
        yield Action(f"Write docstring for {owner.name}" if owner.name else "Write docstring", "docstring", span)


def _placeholders(document: Document, syntax: Syntax | None) -> tuple[Hole, ...]:
    return holes.in_document(document, syntax, frozenset({"bodies", "markers"}))


def _pointed_at(document: Document, syntax: Syntax | None, span: Span) -> list[Hole]:
    """Return the body or statement whose placeholder is on the cursor's line or in the selection, if there is one."""
    if syntax is not None and span.start == span.end:
        line = syntax.lines.at(span.start)
        span = Span(syntax.lines.starts[line], syntax.lines.ends[line])
    hole = holes.at_placeholder(document, span, syntax)
    return [hole] if hole is not None else []


def _is_near(hole: Hole, syntax: Syntax | None, span: Span) -> bool:
    """Return whether the span touches the hole's lines, or lies in the function whose body it is."""
    if hole.span.touches(span):
        return True
    if syntax is None:
        return False
    index = syntax.lines
    if index.at(hole.span.start) <= index.at(span.end) and index.at(span.start) <= index.at(hole.span.end):
        return True
    around = syntax.enclosing_function(hole.span.start)
    return around is not None and around.start <= span.start <= around.end and syntax.enclosing_function(span.start) == around


def _repairs(document: Document, syntax: Syntax | None, span: Span) -> tuple[tuple[Hole, ...], ...]:
    """Return the sets of holes to try in order to repair the span's lines: the unparsable parts, then the whole lines."""
    if syntax is None:
        return ()
    index = syntax.lines
    first, last = index.at(span.start), index.at(span.end)
    lines = [hole for hole in holes.errors(syntax) if index.at(hole.span.start) <= last and first <= index.at(hole.span.end)]
    if not lines:
        return ()
    errors = [error for error in syntax.errors if any(hole.span.start <= error.start <= hole.span.end for hole in lines)]
    attempts = [tuple(lines[:1])]
    if len(errors) <= MAX_REPAIRS and all(left.end <= right.start for left, right in pairwise(errors)):
        tight = tuple(
            Hole(error, "error", indent=index.indent(index.at(error.start)), block="\n" in syntax.text[error.start : error.end])
            for error in errors
        )
        if tight and tight != attempts[0]:
            attempts.insert(0, tight)
    return tuple(attempts)


def _undocumented(syntax: Syntax | None, span: Span) -> Owner | None:
    """Return the function or class whose header contains the span's start, when it has no documentation; else None."""
    if syntax is None:
        return None
    line = syntax.lines.at(span.start)
    for owner in syntax.facts.owners:
        if owner.kind == "closure":
            continue
        first = syntax.lines.at(syntax.span(owner.node).start)
        if first <= line <= syntax.lines.at(owner.inside.start):
            return None if _is_described(syntax, owner, first) else owner
    return None


def _is_described(syntax: Syntax, owner: Owner, first: int) -> bool:
    if syntax.language.by_indentation:
        same_line = syntax.lines.at(owner.inside.start) == syntax.lines.at(_first_item(syntax, owner))
        first_bytes = [item.start_byte for item in owner.items[:1]]
        return same_line or any(node.start_byte in first_bytes for node in syntax.facts.all("docstring"))
    ends = {syntax.lines.at(syntax.span(node).end) for node in syntax.facts.all("comment")}
    return first - 1 in ends


def _first_item(syntax: Syntax, owner: Owner) -> int:
    return syntax.offsets.to_point(owner.items[0].start_byte) if owner.items else owner.inside.start


def _docstring(syntax: Syntax, owner: Owner) -> Hole:
    """Return the hole for a one-line docstring.

    It lies in the body in languages that use indentation for blocks, else above the definition.
    """
    language, index = syntax.language, syntax.lines
    at = _first_item(syntax, owner) if language.by_indentation else index.at(syntax.span(owner.node).start)
    if not language.by_indentation:
        at = index.starts[at] + len(index.indent(at))
    indent = index.indent(index.at(at))
    if language.by_indentation:
        opening, closing = '"""', '"""'
    elif language.block_comment == ("/*", "*/"):
        # In languages with /* */ comments, documentation comments start with /**.
        opening, closing = "/** ", " */"
    else:
        opening, closing = f"{language.line_comments[0]} ", ""
    return Hole(
        Span(at, at), "cursor", indent=indent, lead=opening, trail=f"{closing}\n{indent}", instruction="describe it in one line"
    )


def _quoted(instruction: str) -> str:
    return f": {instruction[:40]}{'…' if len(instruction) > 40 else ''}" if instruction else ""
