"""Run a language's query on a tree: its functions and classes, comments, strings and placeholders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import tree_sitter
from tree_sitter import Node

from dg_lsp.core import languages
from dg_lsp.core.languages import Language
from dg_lsp.core.positions import ByteOffsets
from dg_lsp.core.values import Span


@dataclass(frozen=True, eq=False)
class Owner:
    """A function, class or closure with a body.

    `inside` is the span between its opener and its closer. The class has no slots, so that its items can be computed on
    first use: a class may have thousands.
    """

    kind: str
    node: Node
    name: str
    bases: str
    inside: Span
    closed: bool
    within: tuple[int, int]
    """`inside` in bytes."""
    bodies: frozenset[int]
    """The ids of the nodes that only group the statements of the body."""

    @cached_property
    def items(self) -> tuple[Node, ...]:
        """The nodes in the body, in order."""
        return tuple(_items(self.node, self.within, self.bodies))


@dataclass(frozen=True)
class Facts:
    """The captured nodes of a tree by capture name and node id, and its owners in document order.

    The class has no slots, so that derived values can be computed on first use.
    """

    nodes: dict[str, dict[int, Node]] = field(default_factory=dict)
    owners: tuple[Owner, ...] = ()

    @cached_property
    def named(self) -> dict[int, Owner]:
        """The functions and classes by their nodes' ids."""
        return {owner.node.id: owner for owner in self.owners if owner.kind != "closure"}

    @cached_property
    def heirs(self) -> tuple[Owner, ...]:
        """The classes that have base classes."""
        return tuple(owner for owner in self.owners if owner.kind == "class" and owner.bases)

    def has(self, capture: str, node: Node) -> bool:
        """Return whether the query captured the node under that name."""
        return node.id in self.nodes.get(capture, {})

    def all(self, capture: str) -> tuple[Node, ...]:
        """Return the nodes captured under that name, in document order."""
        return tuple(sorted(self.nodes.get(capture, {}).values(), key=lambda node: (node.start_byte, -node.end_byte)))


def find(tree: tree_sitter.Tree, language: Language, offsets: ByteOffsets, byte_range: tuple[int, int] | None = None) -> Facts:
    """Return the captures of the language's query in the whole tree, or only in nodes that touch the byte range."""
    cursor = tree_sitter.QueryCursor(languages.query(language))
    if byte_range is not None:
        cursor.set_byte_range(*byte_range)
    nodes: dict[str, dict[int, Node]] = {}
    owners: dict[int, Owner] = {}
    for _, captures in cursor.matches(tree.root_node):
        for name, captured in captures.items():
            if not name.startswith("_"):
                nodes.setdefault(name, {}).update((node.id, node) for node in captured)
        for kind in ("function", "class", "closure"):
            if kind in captures:
                owner = _owner(kind, captures, offsets)
                key = captures.get("closer", captures[kind])[0].id
                # A pattern with optional parts matches more than once, and a named closure is also matched as a function.
                if key not in owners or _precedence(owner) < _precedence(owners[key]):
                    owners[key] = owner
    return Facts(nodes, tuple(sorted(owners.values(), key=lambda owner: (owner.inside.start, -owner.inside.end))))


def _owner(kind: str, captures: dict[str, list[Node]], offsets: ByteOffsets) -> Owner:
    node = captures[kind][0]
    bodies = frozenset(body.id for body in captures.get("body", ()))
    opened = max(token.end_byte for token in captures["opener"])
    closers = captures.get("closer")
    closed = min((token.start_byte for token in closers), default=opened) if closers else node.end_byte
    inside = (opened, max(opened, closed))
    return Owner(
        kind,
        node,
        _text(captures.get("name", ())),
        _text(captures.get("bases", ())),
        Span(offsets.to_point(inside[0]), offsets.to_point(inside[1])),
        bool(closers),
        inside,
        bodies,
    )


def _text(nodes: Iterable[Node]) -> str:
    return b" ".join(node.text or b"" for node in nodes).decode("utf-8", "replace")


def _precedence(owner: Owner) -> tuple[bool, int, bool]:
    return owner.kind == "closure", -owner.inside.start, not owner.bases


def _items(node: Node, inside: tuple[int, int], bodies: frozenset[int]) -> Iterator[Node]:
    start, end = inside
    for child in node.children:
        if child.end_byte < start or child.start_byte > end or (child.end_byte == start and child.start_byte < start):
            continue
        if child.id in bodies or child.start_byte < start or child.end_byte > end:
            yield from _items(child, inside, bodies)
        elif child.is_named:
            yield child
