"""Classify the parts of a body, and return the hole that replaces its placeholder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tree_sitter import Node

from dg_lsp.core.holes.comments import Comments
from dg_lsp.core.holes.wording import DELIBERATE, FILL, SAYS_NOTHING, TODO
from dg_lsp.core.syntax import Owner, Syntax, indent_unit
from dg_lsp.core.values import Hole, Span


@dataclass(frozen=True, slots=True)
class Part:
    """A statement, docstring or comment in a body, and its role.

    A `todo` is a comment that only says that code is missing. A `task` is one that says what to do; `says` holds its
    words.
    """

    role: str
    span: Span
    says: str = ""


STATEMENTS = ("strong", "weak", "companion")
TODO_ROLES = ("todo", "task")


def parts_of(owner: Owner, syntax: Syntax, comments: Comments) -> list[Part] | None:
    """Return the parts of the body, or None if one of its statements is more than a placeholder."""
    facts, parts = syntax.facts, list[Part]()
    for node in owner.items:
        span = syntax.span(node)
        if facts.has("comment", node):
            parts.append(_comment(span, comments))
        elif facts.has("docstring", node):
            parts.append(Part("docstring", span))
        elif is_overgrown(node):
            return None
        elif facts.has("placeholder", node):
            parts.append(Part("strong", span))
        elif facts.has("placeholder.weak", node):
            parts.append(Part("weak", span))
        elif facts.has("placeholder.with", node):
            parts.append(Part("companion", span))
        else:
            return None
    if not owner.closed:
        parts += [_comment(span, comments) for span in comments.after(owner)]
    return parts


def is_overgrown(node: Node) -> bool:
    """Return whether a node has a syntax error and several lines: then it may have swallowed the code after a placeholder."""
    return node.has_error and node.start_point.row != node.end_point.row


def _comment(span: Span, comments: Comments) -> Part:
    says = comments.says(span)
    if FILL.fullmatch(says):
        return Part("said", span)
    todo = TODO.match(says)
    rest = says[todo.end() :] if todo else says
    if todo or rest:
        if SAYS_NOTHING.fullmatch(rest):
            return Part("todo", span)
        if todo:
            return Part("task", span, rest.lstrip(" :-").strip())
    if says and not DELIBERATE.match(says):
        return Part("said", span, says)
    return Part("deliberate" if says else "directive", span)


def inside_of(owner: Owner, parts: Sequence[Part]) -> Span:
    """Return the inside of the body, including comments after its last node that belong to it."""
    return Span(owner.inside.start, max([owner.inside.end, *(part.span.end for part in parts)]))


def hole_of(owner: Owner, parts: Sequence[Part], syntax: Syntax) -> Hole:
    """Return the hole that replaces the body's placeholder, and keeps the docstrings and meaningful comments before it."""
    text, index = syntax.text, syntax.lines
    statement = next((number for number, part in enumerate(parts) if part.role in STATEMENTS), len(parts))
    n_kept = max(
        (number + 1 for number, part in enumerate(parts[:statement]) if part.role not in ("todo", "directive")), default=0
    )
    replaced_parts = parts[n_kept:]
    instruction = " ".join(part.says for part in replaced_parts if part.says)
    outer = index.indent(index.at(syntax.span(owner.node).start))
    inner = next((own for part in parts if (own := index.indent_before(part.span.start)) is not None), None)
    if inner is None or (len(inner) <= len(outer) and inner != outer):
        inner = outer + indent_unit(text, syntax.language.indent)

    start = replaced_parts[0].span.start if replaced_parts else parts[n_kept - 1].span.end if n_kept else owner.inside.start
    end = replaced_parts[-1].span.end if replaced_parts else start
    if not parts and owner.closed:
        end = owner.inside.end
    else:
        # A semicolon that is part of no statement is replaced with the placeholder.
        rest = re.compile(r"[ \t]*;").match(text, end, index.ends[index.at(end)]) if replaced_parts else None
        end = rest.end() if rest else end
    lead = trail = ""
    if text[index.starts[index.at(start)] : start].strip() or not replaced_parts:
        lead = "\n" + inner
        start = start - (len(text[:start]) - len(text[:start].rstrip(" \t"))) if replaced_parts else start
    if owner.closed and not text[end : owner.inside.end].strip(" \t;"):
        end, trail = owner.inside.end, "\n" + outer
    return Hole(Span(start, end), "body", indent=inner, block=True, instruction=instruction, lead=lead, trail=trail)
