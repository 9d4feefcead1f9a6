"""List what a file defines: the name of each function, class and type, with the signature to show for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tree_sitter import Node

from dg_lsp.core import context
from dg_lsp.core.syntax import Syntax

MAX_CHARS = 600  # of one definition: a class is shown with the signatures of its first members


@dataclass(frozen=True, slots=True)
class Symbol:
    """A definition: its name, and its signature as text."""

    name: str
    text: str


def symbols(syntax: Syntax) -> tuple[Symbol, ...]:
    """Return the file's definitions in order. A class has the signatures of its members in its text."""
    heads = syntax.outline()
    texts = [context.with_newlines(text) for _, text in heads]
    starts = {span.start: position for position, (span, _) in enumerate(heads)}
    found = list[Symbol]()
    for name, node, end in _named(syntax):
        place = starts.get(syntax.head(node, end).start)
        if place is None or not name:
            continue
        lines, size = [texts[place]], len(texts[place])
        for (span, _), text in zip(heads[place + 1 :], texts[place + 1 :], strict=True):
            size += len(text) + 1
            if span.start >= syntax.span(node).end or size > MAX_CHARS:
                break
            lines.append(text)
        found.append(Symbol(name, "\n".join(lines)))
    return tuple(found)


def _named(syntax: Syntax) -> list[tuple[str, Node, int]]:
    """Return the name and the node of each definition, and the end of its head."""
    owners = [(owner.name, owner.node, owner.inside.start) for owner in syntax.facts.owners if owner.kind != "closure"]
    types = [(_name(node), node, syntax.span(node).end) for node in syntax.facts.all("type")]
    return [*owners, *types]


def _name(node: Node) -> str:
    """Return the name of a type's definition, which some grammars keep one level deeper; "" if there is none."""
    for each in (node, *node.named_children):
        name = each.child_by_field_name("name")
        if name is not None and name.text:
            return name.text.decode("utf-8", "replace")
    return ""
