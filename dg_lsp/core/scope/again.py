"""Find what an answer declares or imports although its scope has it already.

The queries tell which names a scope binds, and may bind only once (see `syntax`).
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from dg_lsp.core.syntax import Facts, Syntax, ancestors
from dg_lsp.core.values import Span


def declared(filled: Syntax, answer: Span) -> frozenset[str]:
    """Return the names and imports in the answer that its own scope has elsewhere too."""
    own = {key: node for key, node in _bound(filled.facts_near(answer)) if filled.span(node).overlaps(answer)}
    if not own:
        return frozenset()
    others = {key for key, node in _bound(filled.facts) if not filled.span(node).overlaps(answer)}
    return frozenset(filled.text[span.start : span.end] for span in (filled.span(own[key]) for key in own.keys() & others))


def _bound(facts: Facts) -> Iterator[tuple[tuple[int, bytes], Node]]:
    """Yield what scopes bind, each with its scope and its text."""
    for capture in ("binds", "binds.signature", "binds.whole"):
        for node in facts.all(capture):
            scope = next((each for each in ancestors(node.parent) if facts.has("scope", each)), None)
            statement = next((each for each in ancestors(node) if each.parent == scope), node)
            before, definition = statement.prev_named_sibling if "decoration" in facts.nodes else None, node.parent
            while before is not None and facts.has("comment", before):
                before = before.prev_named_sibling
            # A condition such as `#[cfg(unix)]` may choose between two. What is broken may bind another name.
            is_conditional = before is not None and facts.has("decoration", before)
            if scope is None or definition is None or definition.has_error or is_conditional:
                continue
            text = node.text or b""
            if capture == "binds.whole":
                text = (definition.text or b"")[: node.end_byte - definition.start_byte]
            elif capture == "binds.signature":
                parts = (definition.child_by_field_name(field) for field in ("type_parameters", "parameters"))
                text = b"".join(_unnamed(part, facts) for part in (node, *filter(None, parts)))
            yield (scope.id, b"".join(text.split())), node


def _unnamed(node: Node, facts: Facts) -> bytes:
    """Return the node's text without the names of parameters in it."""
    parts, todo = list[bytes](), [node]
    while todo:
        each = todo.pop()
        if not facts.has("binds.parameter", each):
            todo += reversed(each.children)
            parts += [] if each.children else [each.text or b""]
    return b"".join(parts)
