"""A text with its syntax tree, queries on both in code points, and how to parse a text or only what changed in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import tree_sitter
from tree_sitter import Node

from dg_lsp.core import languages, positions, values
from dg_lsp.core.languages import Language
from dg_lsp.core.positions import ByteOffsets, Lines
from dg_lsp.core.syntax import facts
from dg_lsp.core.syntax.facts import Facts
from dg_lsp.core.values import Document, Span

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


def parse(
    text: str,
    language: Language,
    previous: Syntax | None = None,
    parts: Sequence[Span] | None = None,
    lines: Lines | None = None,
) -> Syntax:
    """Return the text's syntax; with the syntax of an earlier text in the same language, only the change is parsed again.

    `lines` are the text's lines, for a caller that already has them: finding them in a long text takes longer than
    parsing a change. With `parts`, in order and without overlaps, the parser skips the rest of the text as if it were
    not there. Without them, the text that was skipped before is skipped again.

    Broken code does not raise: what can't be parsed becomes an error node. Raises GrammarError if the language's
    grammar can't be loaded.
    """
    offsets = positions.byte_offsets(_LONE_RETURN.sub("\n", text) if "\r" in text else text)
    parser = tree_sitter.Parser(languages.grammar(language))
    old = change = None
    if previous is not None and previous.language == language:
        change = difference(previous.offsets.source, offsets.source)
        old = edited_tree(previous, change, offsets.source)
        if parts is None and previous.parts:
            parts = moved_parts(previous, change, offsets)
    parts = tuple(parts or ())
    if parts:
        parser.included_ranges = [_range(span, offsets) for span in parts]
    tree = parser.parse(offsets.source, old) if old is not None else parser.parse(offsets.source)
    syntax = Syntax(text, language, tree, offsets, parts)
    if previous is not None and change is not None and lines is None:
        lines = edited_lines(previous, change, syntax)
    if lines is not None:
        syntax.__dict__["lines"] = lines
    return syntax


def of(document: Document, previous: Syntax | None = None, lines: Lines | None = None) -> Syntax | None:
    """Return the document's syntax, or None if its language is not in the table; see `parse`."""
    language = languages.get(document.language)
    return parse(document.text, language, previous, lines=lines) if language else None


_LONE_RETURN = re.compile("\r(?!\n)")


def _range(span: Span, offsets: ByteOffsets) -> tree_sitter.Range:
    start, end = offsets.to_byte(span.start), offsets.to_byte(span.end)
    # The zeros are safe because nothing reads the rows and columns of these trees.
    return tree_sitter.Range((0, 0), (0, 0), start, end)


@dataclass(frozen=True, slots=True)
class Change:
    """The byte range in which two sources differ: its start, and its end in each of them."""

    start: int
    old_end: int
    new_end: int


def difference(before: bytes, source: bytes) -> Change:
    """Return the range in which the two sources differ, widened to whole characters."""
    start = values.n_common(before, source)
    rest = _common_end(before, source, min(len(before), len(source)) - start)
    # Move both ends outwards to the start of a character.
    while start and start < max(len(before), len(source)) and _continues(before, source, start):
        start -= 1
    while rest and _continues(before, source, -rest):
        rest -= 1
    return Change(start, len(before) - rest, len(source) - rest)


def edited_tree(previous: Syntax, change: Change, source: bytes) -> tree_sitter.Tree:
    """Return a copy of the previous tree with the change applied to its positions."""
    before, start = previous.offsets.source, change.start
    # The previous text's lines are usually known. Counting lines again takes longer than parsing the change.
    line = previous.lines.at(previous.offsets.to_point(start))
    at = (line, start - previous.offsets.to_byte(previous.lines.starts[line]))
    tree = previous.tree.copy()
    old_end, new_end = (_after(at, text[start:end]) for text, end in ((before, change.old_end), (source, change.new_end)))
    tree.edit(start, change.old_end, change.new_end, at, old_end, new_end)
    return tree


def edited_lines(previous: Syntax, change: Change, syntax: Syntax) -> Lines:
    """Return the lines of a text that differs in one range. A lone carriage return ends a line, as a line feed does."""
    old, new = previous.offsets, syntax.offsets
    old_span = Span(old.to_point(change.start), old.to_point(change.old_end))
    inserted = syntax.text[new.to_point(change.start) : new.to_point(change.new_end)]
    return positions.spliced(previous.lines, old_span, inserted, syntax.text)


def moved_parts(previous: Syntax, change: Change, offsets: ByteOffsets) -> tuple[Span, ...]:
    """Return the new positions of the earlier text's parsed parts; one of them contains the whole change."""
    to_byte, to_point = previous.offsets.to_byte, offsets.to_point
    shift = change.new_end - change.old_end
    ranges = [(change.start, change.new_end)]
    for part in previous.parts:
        start, end = to_byte(part.start), to_byte(part.end)
        start = start if start <= change.start else max(start + shift, change.start)
        end = end + shift if end >= change.old_end else min(end, change.new_end)
        ranges.append((start, max(start, end)))
    return values.joined(Span(to_point(start), to_point(end)) for start, end in ranges)


def _after(at: tuple[int, int], text: bytes) -> tuple[int, int]:
    """Return the line and the byte column after a text that starts at `at`."""
    n_lines = text.count(b"\n")
    return at[0] + n_lines, len(text) - text.rfind(b"\n") - 1 + (0 if n_lines else at[1])


def _continues(before: bytes, source: bytes, at: int) -> bool:
    return any(-len(text) <= at < len(text) and text[at] & 0xC0 == 0x80 for text in (before, source))


def _common_end(left: bytes, right: bytes, most: int) -> int:
    """Return the length of the common suffix in bytes, at most `most`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if left[len(left) - middle : len(left) - low] == right[len(right) - middle : len(right) - low]:
            low = middle
        else:
            high = middle - 1
    return low


@lru_cache(maxsize=64)
def indent_unit(text: str, default: str) -> str:
    """Return one indentation level as most of the text's lines use it, or the default if no line is indented."""
    indents = _INDENTS.findall("\n" + text)
    counts: dict[str, int] = {}
    # Counted as pairs, because even ten thousand lines have only a few different pairs of neighbours.
    for (before, indent), n_lines in Counter(pairwise(("", *indents))).items():
        if len(indent) > len(before) and indent.startswith(before):
            step = indent[len(before) :]
            # A wider step is a continued line that is aligned with a bracket.
            if step == "\t" or (step.isspace() and set(step) == {" "} and 2 <= len(step) <= 8):
                counts[step] = counts.get(step, 0) + n_lines
    return max(counts, key=lambda step: (counts[step], -len(step)), default=default)


# The indentation of each line that is not blank. The captured group prevents backtracking.
_INDENTS = re.compile(r"[\r\n](?=([ \t\f]*))\1(?=[^\S\r\n]*\S)")
