"""A text with its syntax tree, and queries on both in code points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import tree_sitter
from tree_sitter import Node

from dg_lsp.core import positions
from dg_lsp.core.languages import Language
from dg_lsp.core.positions import ByteOffsets, Lines
from dg_lsp.core.syntax import facts
from dg_lsp.core.syntax.facts import Facts
from dg_lsp.core.values import Span

# The limits of what an outline shows: the length of a signature, and the lines of a type's definition.
_SIGNATURE_CHARS = 400
_TYPE_LINES = 12


@dataclass(frozen=True, eq=False)
class Syntax:
    """A text and its syntax tree, which may cover only parts of the text.

    The class has no slots, so that derived values can be computed on first use.
    """

    text: str
    language: Language
    tree: tree_sitter.Tree
    offsets: ByteOffsets
    parts: tuple[Span, ...] = ()
    """The parts of the text that were parsed, in order (see `local`); empty if all of it was."""

    @cached_property
    def lines(self) -> Lines:
        """The text's lines."""
        return positions.lines(self.text)

    @cached_property
    def parsed(self) -> str:
        """The text that was parsed."""
        return "".join(self.text[part.start : part.end] for part in self.parts) if self.parts else self.text

    def gaps(self, span: Span) -> tuple[Span, ...]:
        """Return the ranges within the span that the parser skipped, in order."""
        if not self.parts:
            return ()
        starts = [span.start, *(part.end for part in self.parts)]
        ends = [*(part.start for part in self.parts), span.end]
        return tuple(
            Span(max(start, span.start), min(end, span.end))
            for start, end in zip(starts, ends, strict=True)
            if max(start, span.start) < min(end, span.end)
        )

    @cached_property
    def facts(self) -> Facts:
        """The captures of the language's query in the whole tree."""
        return self._facts(None)

    @cached_property
    def errors(self) -> tuple[Span, ...]:
        """The outermost spans that could not be parsed, in order; an empty span is a missing token."""
        return tuple(self.span(node) for node in _error_nodes(self.tree.root_node))

    @cached_property
    def n_errors(self) -> int:
        """The number of syntax errors, including nested ones."""
        return sum(1 for _ in _error_nodes(self.tree.root_node, nested=True))

    def facts_near(self, span: Span) -> Facts:
        """Return the query's captures in nodes that touch the span; in a long file much cheaper than `facts`."""
        return self._facts(span)

    def span(self, node: Node) -> Span:
        """Return the node's span, without the line end that some grammars include in a comment."""
        start, end = self.offsets.to_point(node.start_byte), self.offsets.to_point(node.end_byte)
        return Span(start, max(start, start + len(self.text[start:end].rstrip("\r\n"))))

    def node_at(self, span: Span) -> Node:
        """Return the smallest node that contains the whole span."""
        start, end = self.offsets.to_byte(span.start), self.offsets.to_byte(span.end)
        return self.tree.root_node.descendant_for_byte_range(start, end) or self.tree.root_node

    def token_ends(self, span: Span) -> tuple[int, ...]:
        """Return the end of each token within the span, in order."""
        start, end = self.offsets.to_byte(span.start), self.offsets.to_byte(span.end)
        ends, todo = list[int](), [self.node_at(span)]
        while todo:
            node = todo.pop()
            if node.end_byte <= start or node.start_byte >= end:
                continue
            if node.child_count:
                todo += reversed(node.children)
            elif start <= node.start_byte and node.end_byte <= end:
                ends.append(self.offsets.to_point(node.end_byte))
        return tuple(ends)

    def enclosing_function(self, offset: int) -> Span | None:
        """Return the smallest function or closure around the offset."""
        around = [
            span
            for owner in self.facts_near(Span(offset, offset)).owners
            if owner.kind in ("function", "closure")
            and (span := self.span(owner.node)).start <= offset <= max(owner.inside.end, span.end)
        ]
        return min(around, key=lambda span: span.end - span.start, default=None)

    def outline(self) -> tuple[tuple[Span, str], ...]:
        """Return the signature and span of each function, class and type, in order and indented as in the text."""
        heads = [(self.head(owner.node, owner.inside.start)) for owner in self.facts.owners if owner.kind != "closure"]
        heads += [self._definition(node) for node in self.facts.all("type")]
        return tuple((span, self.text[span.start : span.end]) for span in sorted(heads))

    def head(self, node: Node, end: int) -> Span:
        """Return the span of a definition's signature, from its line's start if only white space is before it, to `end`."""
        start = self.offsets.to_point(node.start_byte)
        line = self.lines.starts[self.lines.at(start)]
        start = line if not self.text[line:start].strip() else start
        return Span(start, start + len(self.text[start : min(end, start + _SIGNATURE_CHARS)].rstrip(" \t\r\n{")))

    def _definition(self, node: Node) -> Span:
        span = self.span(node)
        first, last = self.lines.at(span.start), self.lines.at(span.end)
        return self.head(node, span.end if last - first < _TYPE_LINES else self.lines.ends[first])

    def _facts(self, span: Span | None) -> Facts:
        if span is None:
            return facts.find(self.tree, self.language, self.offsets)
        # An empty range would query the whole tree.
        start = self.offsets.to_byte(max(span.start - 1, 0))
        end = max(self.offsets.to_byte(span.end + 1), start + 1)
        return facts.find(self.tree, self.language, self.offsets, (start, end))


def adds_errors(after: Syntax, before: Syntax) -> bool:
    """Return whether there are more broken stretches than before; a longer one does not count as more."""
    return len(after.errors) > len(before.errors)


def _error_nodes(root: Node, *, nested: bool = False) -> Iterator[Node]:
    todo = [root]
    while todo:
        node = todo.pop()
        if node.is_missing or node.is_error:
            yield node
        if node.has_error and (nested or not node.is_error):
            todo += reversed(node.children)
