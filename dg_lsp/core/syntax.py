r"""Parse a document with tree-sitter, tolerant of errors, and answer questions about it in code points.

What a node means is said by captures in `queries/*.scm`:

    @function @class @closure   something with a body; in the same pattern:
      @name                     what it is called
      @bases                    what a class derives from
      @opener                   tokens that end before the body's inside starts; the last one counts
      @closer                   the token that ends the body, where there is one
      @body                     nodes that only group the statements of the body
    @type                       a definition without a body of statements, worth a line in an outline
    @comment @string @docstring
    @decoration                 a decorator, attribute or template header that stands between a comment and what it describes
    @string.alone               a statement that is a string and nothing else, and does nothing
    @opens                      a token after which a block of statements starts
    @placeholder                a statement that says "not written yet"
    @placeholder.weak           a statement that does nothing
    @placeholder.with           a statement that belongs to a placeholder, such as the `return 1` after a message
    @placeholder.inline         an expression that says "not written yet" wherever it stands
    @abstract                   a function whose body is written elsewhere
    @abstract.members           a class all of whose functions are such
    @empty                      a function or class for which an empty body is complete

The parser sees a lone `\r` as `\n` and a lone surrogate as U+FFFD; both are as long as what they replace, so offsets hold.
Knows nothing of holes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import tree_sitter
from tree_sitter import Node

from dg_lsp.core import languages, positions
from dg_lsp.core.languages import Language
from dg_lsp.core.positions import ByteOffsets, Lines
from dg_lsp.core.values import Document, Span

_LONE_RETURN = re.compile("\r(?!\n)")
# A signature longer than this says more than an outline should; the same for the lines of a type's definition.
_SIGNATURE_CHARS = 400
_TYPE_LINES = 12


@dataclass(frozen=True, slots=True)
class Owner:
    """Something with a body: a function, a class or a closure. `inside` reaches from its opener to its closer."""

    kind: str
    node: Node
    name: str
    bases: str
    inside: Span
    items: tuple[Node, ...]
    closed: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What the query says of a tree: the node ids of each capture, and the owners and comments in the order of the text."""

    nodes: dict[str, dict[int, Node]] = field(default_factory=dict)
    owners: tuple[Owner, ...] = ()

    def has(self, capture: str, node: Node) -> bool:
        """Return whether the node was captured under that name."""
        return node.id in self.nodes.get(capture, {})

    def all(self, capture: str) -> tuple[Node, ...]:
        """Return the nodes captured under that name, in the order of the text."""
        return tuple(sorted(self.nodes.get(capture, {}).values(), key=lambda node: (node.start_byte, -node.end_byte)))


@dataclass(frozen=True, eq=False)
class Syntax:
    """A text and its tree. Without slots, so that what is derived from them is computed once, when first asked for."""

    text: str
    language: Language
    tree: tree_sitter.Tree
    offsets: ByteOffsets

    @cached_property
    def lines(self) -> Lines:
        """The text's lines."""
        return positions.lines(self.text)

    @cached_property
    def facts(self) -> Facts:
        """What the language's query says of the whole tree."""
        return self._facts(None)

    @cached_property
    def errors(self) -> tuple[Span, ...]:
        """The spans that could not be parsed, outermost only, and empty ones where a token is missing; in order."""
        return tuple(self.span(node) for node in _error_nodes(self.tree.root_node))

    @cached_property
    def n_errors(self) -> int:
        """How many places could not be parsed, nested ones counted too."""
        return sum(1 for _ in _error_nodes(self.tree.root_node, nested=True))

    def facts_near(self, span: Span) -> Facts:
        """Return what the query says of nodes that touch the span; far cheaper than all of a long file."""
        return self._facts(span)

    def span(self, node: Node) -> Span:
        """Return the node's span, without the line end that some grammars count to a comment."""
        start, end = self.offsets.to_point(node.start_byte), self.offsets.to_point(node.end_byte)
        return Span(start, max(start, start + len(self.text[start:end].rstrip("\r\n"))))

    def node_at(self, span: Span) -> Node:
        """Return the smallest node that holds the whole span."""
        found = self.tree.root_node.descendant_for_byte_range(self.offsets.to_byte(span.start), self.offsets.to_byte(span.end))
        return found or self.tree.root_node

    def enclosing_function(self, offset: int) -> Span | None:
        """Return the smallest function or closure around the offset."""
        return self._enclosing(offset, ("function", "closure"))

    def enclosing_block(self, offset: int) -> Span | None:
        """Return the inside of the smallest body around the offset, a class's too."""
        around = [owner.inside for owner in self._around(offset, ("function", "closure", "class"))]
        return min(around, key=lambda span: span.end - span.start, default=None)

    def outline(self) -> tuple[tuple[Span, str], ...]:
        """Return the signature of each function, class and type with its span, in order and indented as in the text."""
        found = [(self._head(owner.node, owner.inside.start)) for owner in self.facts.owners if owner.kind != "closure"]
        found += [self._definition(node) for node in self.facts.all("type")]
        return tuple((span, self.text[span.start : span.end]) for span in sorted(found))

    def _head(self, node: Node, end: int) -> Span:
        start = self.offsets.to_point(node.start_byte)
        line = self.lines.starts[self.lines.at(start)]
        start = line if not self.text[line:start].strip() else start
        return Span(start, start + len(self.text[start : min(end, start + _SIGNATURE_CHARS)].rstrip(" \t\r\n{")))

    def _definition(self, node: Node) -> Span:
        span = self.span(node)
        first, last = self.lines.at(span.start), self.lines.at(span.end)
        return self._head(node, span.end if last - first < _TYPE_LINES else self.lines.ends[first])

    def _enclosing(self, offset: int, kinds: tuple[str, ...]) -> Span | None:
        around = [self.span(owner.node) for owner in self._around(offset, kinds)]
        return min(around, key=lambda span: span.end - span.start, default=None)

    def _around(self, offset: int, kinds: tuple[str, ...]) -> Iterator[Owner]:
        near = self.facts_near(Span(offset, offset))
        return (
            owner
            for owner in near.owners
            if owner.kind in kinds and self.span(owner.node).start <= offset <= max(owner.inside.end, self.span(owner.node).end)
        )

    def _facts(self, span: Span | None) -> Facts:
        cursor = tree_sitter.QueryCursor(languages.query(self.language))
        if span is not None:
            # A query's range that is empty means all of the tree.
            start = self.offsets.to_byte(max(span.start - 1, 0))
            cursor.set_byte_range(start, max(self.offsets.to_byte(span.end + 1), start + 1))
        nodes: dict[str, dict[int, Node]] = {}
        owners: dict[int, Owner] = {}
        for _, captures in cursor.matches(self.tree.root_node):
            for name, found in captures.items():
                if not name.startswith("_"):
                    nodes.setdefault(name, {}).update((node.id, node) for node in found)
            for kind in ("function", "class", "closure"):
                if kind in captures:
                    owner = self._owner(kind, captures)
                    key = captures.get("closer", captures[kind])[0].id
                    # A pattern with optional parts matches more than once, and a closure that has a name is a function.
                    if key not in owners or _precedence(owner) < _precedence(owners[key]):
                        owners[key] = owner
        return Facts(nodes, tuple(sorted(owners.values(), key=lambda owner: (owner.inside.start, -owner.inside.end))))

    def _owner(self, kind: str, captures: dict[str, list[Node]]) -> Owner:
        node = captures[kind][0]
        bodies = {body.id for body in captures.get("body", ())}
        opened = max(token.end_byte for token in captures["opener"])
        closers = captures.get("closer")
        closed = min((token.start_byte for token in closers), default=opened) if closers else node.end_byte
        inside = (opened, max(opened, closed))
        return Owner(
            kind,
            node,
            _text(captures.get("name", ())),
            _text(captures.get("bases", ())),
            Span(self.offsets.to_point(inside[0]), self.offsets.to_point(inside[1])),
            tuple(_items(node, inside, bodies)),
            bool(closers),
        )


def _text(nodes: Iterable[Node]) -> str:
    return b" ".join(node.text or b"" for node in nodes).decode("utf-8", "replace")


def _precedence(owner: Owner) -> tuple[bool, int, bool]:
    return owner.kind == "closure", -owner.inside.start, not owner.bases


def parse(text: str, language: Language, previous: Syntax | None = None) -> Syntax:
    """Return the text's syntax; with that of an earlier text of the same language, only what changed is parsed again.

    Never fails on broken code: what can't be parsed is an error node in the tree. Raises GrammarError when the
    language's grammar can't be loaded.
    """
    offsets = positions.byte_offsets(_LONE_RETURN.sub("\n", text))
    old = None
    if previous is not None and previous.language == language:
        old = _edited(previous, offsets.source)
    parser = tree_sitter.Parser(languages.grammar(language))
    tree = parser.parse(offsets.source, old) if old is not None else parser.parse(offsets.source)
    return Syntax(text, language, tree, offsets)


def adds_errors(after: Syntax, before: Syntax) -> bool:
    """Return whether more stretches can't be parsed than before; within one, more text is not more errors."""
    return len(after.errors) > len(before.errors)


def of(document: Document, previous: Syntax | None = None) -> Syntax | None:
    """Return the document's syntax, or None where its language isn't in the table."""
    language = languages.get(document.language)
    return parse(document.text, language, previous) if language else None


@lru_cache(maxsize=64)
def indent_unit(text: str, default: str) -> str:
    """Return one level of indentation as most of the text's lines use it, or the default where none is indented."""
    counts: dict[str, int] = {}
    before = ""
    index = positions.lines(text)
    for line in range(len(index)):
        if index.is_blank(line):
            continue
        indent = index.indent(line)
        if len(indent) > len(before) and indent.startswith(before):
            step = indent[len(before) :]
            # A wide step is a continued line, aligned with a bracket.
            if step == "\t" or (step.isspace() and set(step) == {" "} and 2 <= len(step) <= 8):
                counts[step] = counts.get(step, 0) + 1
        before = indent
    return max(counts, key=lambda step: (counts[step], -len(step)), default=default)


def _items(node: Node, inside: tuple[int, int], bodies: set[int]) -> Iterator[Node]:
    start, end = inside
    for child in node.children:
        if child.end_byte < start or child.start_byte > end or (child.end_byte == start and child.start_byte < start):
            continue
        if child.id in bodies or child.start_byte < start or child.end_byte > end:
            yield from _items(child, inside, bodies)
        elif child.is_named:
            yield child


def _error_nodes(root: Node, *, nested: bool = False) -> Iterator[Node]:
    todo = [root]
    while todo:
        node = todo.pop()
        if node.is_missing or node.is_error:
            yield node
        if node.has_error and (nested or not node.is_error):
            todo += reversed(node.children)


def _edited(previous: Syntax, source: bytes) -> tree_sitter.Tree:
    """Return the previous tree, told of the one stretch in which the two sources differ."""
    before = previous.offsets.source
    start = _common(before, source)
    rest = _common(before[start:][::-1], source[start:][::-1])
    # Both ends of the stretch move outwards to where a character starts.
    while start and start < max(len(before), len(source)) and _continues(before, source, start):
        start -= 1
    while rest and _continues(before, source, -rest):
        rest -= 1
    old_end, new_end = len(before) - rest, len(source) - rest
    tree = previous.tree.copy()
    tree.edit(start, old_end, new_end, _point(before, start), _point(before, old_end), _point(source, new_end))
    return tree


def _continues(before: bytes, source: bytes, at: int) -> bool:
    return any(-len(text) <= at < len(text) and text[at] & 0xC0 == 0x80 for text in (before, source))


def _common(left: bytes, right: bytes) -> int:
    """Return how many bytes the two start with in common; comparing halves lets C do the work."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _point(source: bytes, byte: int) -> tuple[int, int]:
    start = source.rfind(b"\n", 0, byte) + 1
    return source.count(b"\n", 0, byte), byte - start


def inside_any(offset: int, spans: Iterable[Span]) -> bool:
    """Return whether the offset lies within one of the spans, not at its edge."""
    return any(span.start < offset < span.end for span in spans)
