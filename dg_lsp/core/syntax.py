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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise

import tree_sitter
from tree_sitter import Node

from dg_lsp.core import languages, positions
from dg_lsp.core.languages import Language
from dg_lsp.core.positions import ByteOffsets, Lines
from dg_lsp.core.values import Document, Span

_LONE_RETURN = re.compile("\r(?!\n)")
# The white space behind a line end that something else than white space follows on its line; never tried twice.
_INDENTS = re.compile(r"[\r\n](?=([ \t\f]*))\1(?=[^\S\r\n]*\S)")
# A signature longer than this says more than an outline should; the same for the lines of a type's definition.
_SIGNATURE_CHARS = 400
_TYPE_LINES = 12


@dataclass(frozen=True, eq=False)
class Owner:
    """Something with a body: a function, a class or a closure. `inside` reaches from its opener to its closer.

    Without slots, so that its items are found when first asked for: a class may have thousands.
    """

    kind: str
    node: Node
    name: str
    bases: str
    inside: Span
    closed: bool
    within: tuple[int, int]
    """`inside` in bytes, and `bodies` the ids of the nodes that only group its statements."""
    bodies: frozenset[int]

    @cached_property
    def items(self) -> tuple[Node, ...]:
        """What stands in the body, in order."""
        return tuple(_items(self.node, self.within, self.bodies))


@dataclass(frozen=True)
class Facts:
    """What the query says of a tree: the node ids of each capture, and the owners and comments in the order of the text.

    Without slots, so that what is derived from them is computed once, when first asked for.
    """

    nodes: dict[str, dict[int, Node]] = field(default_factory=dict)
    owners: tuple[Owner, ...] = ()

    @cached_property
    def named(self) -> dict[int, Owner]:
        """The functions and classes by the ids of their nodes."""
        return {owner.node.id: owner for owner in self.owners if owner.kind != "closure"}

    @cached_property
    def heirs(self) -> tuple[Owner, ...]:
        """The classes that name others as their bases."""
        return tuple(owner for owner in self.owners if owner.kind == "class" and owner.bases)

    def has(self, capture: str, node: Node) -> bool:
        """Return whether the node was captured under that name."""
        return node.id in self.nodes.get(capture, {})

    def all(self, capture: str) -> tuple[Node, ...]:
        """Return the nodes captured under that name, in the order of the text."""
        return tuple(sorted(self.nodes.get(capture, {}).values(), key=lambda node: (node.start_byte, -node.end_byte)))


@dataclass(frozen=True, eq=False)
class Syntax:
    """A text and its tree, which may be of some parts of it only.

    Without slots, so that what is derived from them is computed once, when first asked for.
    """

    text: str
    language: Language
    tree: tree_sitter.Tree
    offsets: ByteOffsets
    parts: tuple[Span, ...] = ()
    """What of the text was parsed, in order (see `local`); all of it where there is none."""

    @cached_property
    def lines(self) -> Lines:
        """The text's lines."""
        return positions.lines(self.text)

    @cached_property
    def parsed(self) -> str:
        """What of the text was parsed."""
        return "".join(self.text[part.start : part.end] for part in self.parts) if self.parts else self.text

    def gaps(self, span: Span) -> tuple[Span, ...]:
        """Return what was passed over within the span, in order."""
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

    def token_ends(self, span: Span) -> tuple[int, ...]:
        """Return where the tokens end that lie within the span, in order."""
        start, end = self.offsets.to_byte(span.start), self.offsets.to_byte(span.end)
        found, todo = list[int](), [self.node_at(span)]
        while todo:
            node = todo.pop()
            if node.end_byte <= start or node.start_byte >= end:
                continue
            if node.child_count:
                todo += reversed(node.children)
            elif start <= node.start_byte and node.end_byte <= end:
                found.append(self.offsets.to_point(node.end_byte))
        return tuple(found)

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
            Span(self.offsets.to_point(inside[0]), self.offsets.to_point(inside[1])),
            bool(closers),
            inside,
            bodies,
        )


def _text(nodes: Iterable[Node]) -> str:
    return b" ".join(node.text or b"" for node in nodes).decode("utf-8", "replace")


def _precedence(owner: Owner) -> tuple[bool, int, bool]:
    return owner.kind == "closure", -owner.inside.start, not owner.bases


def parse(
    text: str,
    language: Language,
    previous: Syntax | None = None,
    parts: Sequence[Span] | None = None,
    lines: Lines | None = None,
) -> Syntax:
    """Return the text's syntax; with that of an earlier text of the same language, only what changed is parsed again.

    Whoever has the text's `lines` already can pass them on: finding them in a long text takes longer than to parse a change.
    With `parts`, in order and apart from each other, the rest of the text is passed over as if it were not there; without
    them, what was passed over in the earlier text is so here too. Never fails on broken code: what can't be parsed is an
    error node in the tree. Raises GrammarError when the language's grammar can't be loaded.
    """
    offsets = positions.byte_offsets(_LONE_RETURN.sub("\n", text) if "\r" in text else text)
    parser = tree_sitter.Parser(languages.grammar(language))
    old = change = None
    if previous is not None and previous.language == language:
        change = _difference(previous.offsets.source, offsets.source)
        old = _edited(previous, change, offsets.source)
        if parts is None and previous.parts:
            parts = _moved(previous, change, offsets)
    parts = tuple(parts or ())
    if parts:
        parser.included_ranges = [_range(span, offsets) for span in parts]
    tree = parser.parse(offsets.source, old) if old is not None else parser.parse(offsets.source)
    found = Syntax(text, language, tree, offsets, parts)
    if previous is not None and change is not None and lines is None:
        lines = _spliced(previous, change, found)
    if lines is not None:
        found.__dict__["lines"] = lines
    return found


def adds_errors(after: Syntax, before: Syntax) -> bool:
    """Return whether more stretches can't be parsed than before; within one, more text is not more errors."""
    return len(after.errors) > len(before.errors)


def of(document: Document, previous: Syntax | None = None, lines: Lines | None = None) -> Syntax | None:
    """Return the document's syntax, or None where its language isn't in the table; see `parse`."""
    language = languages.get(document.language)
    return parse(document.text, language, previous, lines=lines) if language else None


@lru_cache(maxsize=64)
def indent_unit(text: str, default: str) -> str:
    """Return one level of indentation as most of the text's lines use it, or the default where none is indented."""
    indents = _INDENTS.findall("\n" + text)
    counts: dict[str, int] = {}
    # Of ten thousand lines only a few pairs of neighbours differ from all others.
    for (before, indent), n_lines in Counter(pairwise(("", *indents))).items():
        if len(indent) > len(before) and indent.startswith(before):
            step = indent[len(before) :]
            # A wide step is a continued line, aligned with a bracket.
            if step == "\t" or (step.isspace() and set(step) == {" "} and 2 <= len(step) <= 8):
                counts[step] = counts.get(step, 0) + n_lines
    return max(counts, key=lambda step: (counts[step], -len(step)), default=default)


def _items(node: Node, inside: tuple[int, int], bodies: frozenset[int]) -> Iterator[Node]:
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


@dataclass(frozen=True, slots=True)
class _Change:
    """The one stretch of bytes in which two sources differ: where it starts, and where it ends in either."""

    start: int
    old_end: int
    new_end: int


def _difference(before: bytes, source: bytes) -> _Change:
    start = _common_start(before, source)
    rest = _common_end(before, source, min(len(before), len(source)) - start)
    # Both ends of the stretch move outwards to where a character starts.
    while start and start < max(len(before), len(source)) and _continues(before, source, start):
        start -= 1
    while rest and _continues(before, source, -rest):
        rest -= 1
    return _Change(start, len(before) - rest, len(source) - rest)


def _edited(previous: Syntax, change: _Change, source: bytes) -> tree_sitter.Tree:
    """Return the previous tree, told of the change."""
    before, start = previous.offsets.source, change.start
    # The lines are known already more often than not, and counting them takes longer than what is parsed anew.
    line = previous.lines.at(previous.offsets.to_point(start))
    at = (line, start - previous.offsets.to_byte(previous.lines.starts[line]))
    tree = previous.tree.copy()
    old_end, new_end = (_after(at, text[start:end]) for text, end in ((before, change.old_end), (source, change.new_end)))
    tree.edit(start, change.old_end, change.new_end, at, old_end, new_end)
    return tree


def _spliced(previous: Syntax, change: _Change, found: Syntax) -> Lines:
    """Return the lines of a text that differs in one stretch; a lone carriage return ends a line as a line feed does."""
    old, new = previous.offsets, found.offsets
    old_span = Span(old.to_point(change.start), old.to_point(change.old_end))
    inserted = found.text[new.to_point(change.start) : new.to_point(change.new_end)]
    return positions.spliced(previous.lines, old_span, inserted, found.text)


def _after(at: tuple[int, int], text: bytes) -> tuple[int, int]:
    """Return the line and the byte in it behind a text that starts there."""
    n_lines = text.count(b"\n")
    return at[0] + n_lines, len(text) - text.rfind(b"\n") - 1 + (0 if n_lines else at[1])


def _moved(previous: Syntax, change: _Change, offsets: ByteOffsets) -> tuple[Span, ...]:
    """Return where the parts of the earlier text are now; one holds all that changed."""
    to_byte, to_point = previous.offsets.to_byte, offsets.to_point
    shift = change.new_end - change.old_end
    found = [(change.start, change.new_end)]
    for part in previous.parts:
        start, end = to_byte(part.start), to_byte(part.end)
        start = start if start <= change.start else max(start + shift, change.start)
        end = end + shift if end >= change.old_end else min(end, change.new_end)
        found.append((start, max(start, end)))
    return joined(Span(to_point(start), to_point(end)) for start, end in found)


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the spans in order, those that touch or overlap as one."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and span.start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return tuple(found)


def _range(span: Span, offsets: ByteOffsets) -> tree_sitter.Range:
    start, end = offsets.to_byte(span.start), offsets.to_byte(span.end)
    # Nothing reads the lines and columns of these trees.
    return tree_sitter.Range((0, 0), (0, 0), start, end)


def _continues(before: bytes, source: bytes, at: int) -> bool:
    return any(-len(text) <= at < len(text) and text[at] & 0xC0 == 0x80 for text in (before, source))


def _common_start(left: bytes, right: bytes) -> int:
    """Return how many bytes the two start with in common; comparing halves lets C do the work."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_end(left: bytes, right: bytes, most: int) -> int:
    """Return how many bytes the two end with in common, `most` at most."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if left[len(left) - middle : len(left) - low] == right[len(right) - middle : len(right) - low]:
            low = middle
        else:
            high = middle - 1
    return low


def inside_any(offset: int, spans: Iterable[Span]) -> bool:
    """Return whether the offset lies within one of the spans, not at its edge."""
    return any(span.start < offset < span.end for span in spans)
