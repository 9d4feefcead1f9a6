r"""Parse a document with tree-sitter, which tolerates errors, and answer questions about it in code points.

Captures in `queries/*.scm` say what a node means:

    @function @class @closure   a construct with a body; in the same pattern:
      @name                     its name
      @bases                    the base classes of a class
      @opener                   tokens that end before the body's inside starts; the last one counts
      @closer                   the token that ends the body, if there is one
      @body                     nodes that only group the statements of the body
    @type                       a definition without a body of statements that an outline lists
    @comment @string @docstring
    @unparsed                   text that may hold comments which the grammar does not see
    @decoration                 a decorator, attribute or template header between a comment and what it describes
    @string.alone               a statement that is only a string, and so does nothing
    @opens                      a token that starts a block of statements
    @placeholder                a statement that says "not written yet"
    @placeholder.weak           a statement that does nothing
    @placeholder.with           a statement that belongs to a placeholder, such as the `return 1` after a message
    @placeholder.inline         an expression that says "not written yet" in any position
    @abstract                   a function whose body is written elsewhere
    @abstract.members           a class whose functions are all abstract
    @empty                      a function or class for which an empty body is complete

The parser sees a lone `\r` as `\n`, a lone surrogate as U+FFFD, ` | ` for the `...` of a case in C, and `_` where a comment
would begin in a string that its grammar misreads. All have the same length, so offsets stay valid.
"""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from operator import attrgetter
from typing import TypeVar

import tree_sitter
from tree_sitter import Node

from dg_lsp.core import languages, lexing, memo, positions, values
from dg_lsp.core.languages import GrammarError, Language
from dg_lsp.core.memo import Memo
from dg_lsp.core.positions import ByteOffsets, Lines
from dg_lsp.core.values import Document, Span

TEXTS = re.compile("string|comment|text|heredoc|char|rune|content|format|escape|regex|extglob|preproc_arg")
"""Matches the names of the grammars' tokens that are text, and not code."""
PLACEHOLDERS = ("placeholder", "placeholder.weak", "placeholder.inline")
"""The captures for code that marks where something is missing."""


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
    def overrides(self) -> Callable[[str, str], bool]:
        """Whether a class has that word among its base classes, and a function with that name in it."""
        heirs, functions = defaultdict[str, list[Span]](list), defaultdict[str, list[int]](list)
        for owner in self.owners:
            if owner.kind == "function":
                functions[owner.name].append(owner.inside.start)
            for word in set(re.findall(r"\w+", owner.bases)) if owner.kind == "class" else ():
                if not heirs[word] or heirs[word][-1].end <= owner.inside.start:  # else it is in the class before
                    heirs[word].append(owner.inside)

        @cache
        def overrides(base: str, name: str) -> bool:
            (spans, starts), at = (heirs[base], functions[name]), 0
            while at < len(spans) and (idx := bisect_left(starts, spans[at].start)) < len(starts):
                if starts[idx] < spans[at].end:
                    return True
                at = bisect_right(spans, starts[idx], at, key=attrgetter("end"))
            return False

        return overrides

    def has(self, capture: str, node: Node) -> bool:
        """Return whether the query captured the node under that name."""
        return node.id in self.nodes.get(capture, {})

    def all(self, capture: str) -> tuple[Node, ...]:
        """Return the nodes captured under that name, in document order."""
        return tuple(sorted(self.nodes.get(capture, {}).values(), key=lambda node: (node.start_byte, -node.end_byte)))


# That are begun at a time; each waits through all that follows beside it, so a function with thousands of decorators would take
# minutes. Of 4,075 real files in 14 languages none needs as many.
_MOST_MATCHES = 256


def find_facts(
    tree: tree_sitter.Tree, language: Language, offsets: ByteOffsets, byte_range: tuple[int, int] | None = None
) -> Facts:
    """Return the captures of the language's query in the whole tree, or only in nodes that touch the byte range."""
    cursor = tree_sitter.QueryCursor(languages.query(language), match_limit=_MOST_MATCHES)
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
                opened = max(token.end_byte for token in captures["opener"])
                closers = captures.get("closer")
                closed = min((token.start_byte for token in closers), default=opened) if closers else captures[kind][0].end_byte
                within = (opened, max(opened, closed))
                start = offsets.to_end(opened)
                owner = Owner(
                    kind,
                    captures[kind][0],
                    name=_text(captures.get("name", ()), offsets),
                    bases=_text(captures.get("bases", ()), offsets),
                    inside=Span(start, max(start, offsets.to_point(within[1]) if closers else offsets.to_end(within[1]))),
                    closed=bool(closers),
                    within=within,
                    bodies=frozenset(body.id for body in captures.get("body", ())),
                )
                key = captures.get("closer", captures[kind])[0].id
                # A pattern with optional parts matches more than once, and a named closure is also matched as a function.
                if key not in owners or _precedence(owner) < _precedence(owners[key]):
                    owners[key] = owner
    return Facts(nodes, tuple(sorted(owners.values(), key=lambda owner: (owner.inside.start, -owner.inside.end))))


def _text(nodes: Iterable[Node], offsets: ByteOffsets) -> str:
    return b" ".join(offsets.source[node.start_byte : node.end_byte] for node in nodes).decode("utf-8", "replace")


def _precedence(owner: Owner) -> tuple[bool, int, bool]:
    return owner.kind == "closure", -owner.inside.start, not owner.bases


def _items(node: Node, inside: tuple[int, int], bodies: frozenset[int]) -> Iterator[Node]:
    (start, end), todo = inside, node.children[::-1]
    while todo:
        child = todo.pop()
        if child.end_byte < start or child.start_byte > end or (child.end_byte == start and child.start_byte < start):
            continue
        if child.id in bodies or child.start_byte < start or child.end_byte > end:
            todo += reversed(child.children)
        elif child.is_named:
            yield child


# The limits of what an outline shows: the length of a signature, and the lines of a type's definition.
_SIGNATURE_CHARS = 400
_TYPE_LINES = 12
MOST_DERIVED = 32  # cached results of functions of a tree
MOST_AROUND = 3_000
"""Nodes around a place. Real code has less than a hundred; the time of a query grows with their square."""


@dataclass(frozen=True, eq=False)
class Syntax:
    """A text and its syntax tree, which may cover only parts of the text.

    The class has no slots, so that derived values can be computed on first use.
    """

    text: str
    language: Language
    tree: tree_sitter.Tree
    offsets: ByteOffsets
    known_lines: Lines | tuple[Lines, Span, str] | None = field(default=None, repr=False, compare=False)
    """The text's lines, or those of an earlier text and the edit that made this one: finding all lines takes longer."""
    memo: Memo = field(default_factory=lambda: Memo(MOST_DERIVED), repr=False, compare=False)
    """What `memo.in_tree` caches: among it, trees of this text with an answer."""

    @cached_property
    def lines(self) -> Lines:
        """The text's lines."""
        known = self.known_lines
        if known is None:
            return positions.lines(self.text)
        return known if isinstance(known, Lines) else positions.spliced(*known, self.text)

    @property
    def parts(self) -> tuple[Span, ...]:
        """The parts of the text that were parsed, in order (see `local`); empty if all of it was."""
        return self.offsets.parts

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
        return find_facts(self.tree, self.language, self.offsets)

    @cached_property
    def errors(self) -> tuple[Span, ...]:
        """The outermost spans that could not be parsed, in order; an empty span is a missing token."""
        spans, todo = list[Span](), [self.tree.root_node]
        while todo:
            node = todo.pop()
            children = node.children if node.has_error and not node.is_error else []
            # What is missing may be hidden: then the node that lacks it is the smallest with an error.
            if any(child.has_error for child in children):
                todo += reversed(children)
            elif node.has_error:
                spans.append(self.span(node))
        return tuple(spans)

    def facts_near(self, span: Span) -> Facts:
        """Return the query's captures in nodes that touch the span; in a long file much cheaper than `facts`."""
        # An empty range would query the whole tree.
        start = self.offsets.to_byte(max(span.start - 1, 0))
        end = max(self.offsets.to_byte(span.end + 1), start + 1)
        return find_facts(self.tree, self.language, self.offsets, (start, end))

    def span(self, node: Node) -> Span:
        """Return the node's span, without the line end that some grammars include in a comment."""
        start, end = self.offsets.to_point(node.start_byte), self.offsets.to_end(node.end_byte)
        return Span(start, max(start, start + len(self.text[start:end].rstrip("\r\n"))))

    def node_at(self, span: Span) -> Node:
        """Return the smallest node that contains the whole span."""
        start, end = self.offsets.to_byte(span.start), self.offsets.to_byte(span.end)
        return self.tree.root_node.descendant_for_byte_range(start, end) or self.tree.root_node

    def ancestors(self, node: Node) -> list[Node]:
        """Return a node of the tree and the nodes around it, from the inside out.

        They are found from the root on, because `Node.parent` starts there too, at each step.
        """
        path = [self.tree.root_node]
        while path[-1] != node and (inner := path[-1].child_with_descendant(node)) is not None:
            path.append(inner)
        return path[::-1]

    def is_deep(self, offset: int) -> bool:
        """Return whether the code at the offset is nested too deeply to be queried."""
        return len(self.ancestors(self.node_at(Span(offset, offset)))) > MOST_AROUND

    def tokens(self, span: Span) -> Iterator[Node]:
        """Yield the tokens within the span, in order."""
        start, end = self.offsets.to_byte(span.start), self.offsets.to_byte(span.end)
        todo = [self.node_at(span)]
        while todo:
            node = todo.pop()
            if node.end_byte <= start or node.start_byte >= end:
                continue
            if node.child_count:
                todo += reversed(node.children)
            elif start <= node.start_byte and node.end_byte <= end:
                yield node

    def first_closer(self, span: Span) -> int | None:
        """Return the offset of the first closing bracket in the span that the span did not open, or None."""
        (opening, closing), depth = self.language.brackets, 0
        for token in (token for token in self.tokens(span) if not TEXTS.search(token.type)):
            start = self.offsets.to_point(token.start_byte)
            for at, char in enumerate(self.text[start : self.offsets.to_end(token.end_byte)], start):
                depth += (char in opening) - (char in closing)
                if depth < 0:
                    return at
        return None

    def enclosing_function(self, offset: int) -> Span | None:
        """Return the smallest function or closure around the offset."""
        around = [
            span
            for owner in self.facts_near(Span(offset, offset)).owners
            if owner.kind in ("function", "closure")
            and (span := self.span(owner.node)).start <= offset <= max(owner.inside.end, span.end)
        ]
        return min(around, key=lambda span: span.end - span.start, default=None)

    @cached_property
    def outline(self) -> tuple[tuple[Span, str], ...]:
        """The signature and span of each function, class and type, in order and indented as in the text."""
        heads = [(self.head(owner.node, owner.inside.start)) for owner in self.facts.owners if owner.kind != "closure"]
        for node in self.facts.all("type"):
            span = self.span(node)
            first, last = self.lines.at(span.start), self.lines.at(span.end)
            heads.append(self.head(node, span.end if last - first < _TYPE_LINES else self.lines.end(first)))
        return tuple((span, self.text[span.start : span.end]) for span in sorted(heads))

    def head(self, node: Node, end: int) -> Span:
        """Return the span of a definition's signature, from its line's start if only white space is before it, to `end`."""
        start = self.offsets.to_point(node.start_byte)
        line = self.lines.start(self.lines.at(start))
        start = line if not self.text[line:start].strip() else start
        return Span(start, start + len(self.text[start : min(end, start + _SIGNATURE_CHARS)].rstrip(" \t\r\n{")))


def adds_errors(after: Syntax, before: Syntax) -> bool:
    """Return whether there are more broken stretches than before; a longer one does not count as more."""
    return len(after.errors) > len(before.errors)


class ParseLimitError(GrammarError):
    """The parser took longer than its limit, or the code is nested too deeply: it counts as a text without a grammar."""


def limit_s(source: bytes) -> float:
    """Return how many seconds of processor time a parse may take; one of a change may take half of it.

    Real files of all languages take at most 1 µs a byte on a processor of 2023. A server waits for a parse, so the limit of a
    long file is closer to that.
    """
    return min(0.2 + 5e-6 * len(source), max(1.5, 1.5e-6 * len(source)))


def parse(
    text: str,
    language: Language,
    previous: Syntax | None = None,
    parts: Sequence[Span] | None = None,
    lines: Lines | None = None,
) -> Syntax:
    """Return the text's syntax; with the syntax of an earlier text in the same language, only the change is parsed again.

    `lines` are the text's lines, for a caller that already has them: finding them in a long text takes longer than
    parsing a change. With `parts`, which are whole lines in order that do not touch, the parser sees only these, as one
    text. Without them, the text that was skipped before is skipped again.

    Broken code does not raise: what can't be parsed becomes an error node. Raises ParseLimitError if the parser takes
    longer than `limit_s`, and GrammarError if the language's grammar can't be loaded.
    """
    if previous is not None and previous.language != language:
        previous = None
    seen, change = _seen(text, language), None
    if previous is not None and (lines is None or (parts is None and previous.parts)):
        change = difference(_seen(previous.text, language), seen)
        if parts is None and previous.parts:
            parts = moved_parts(previous.parts, change)
    offsets = positions.byte_offsets(seen, tuple(parts or ()))
    tree = _tree(offsets.source, language, previous)
    known: Lines | tuple[Lines, Span, str] | None = lines
    if previous is not None and change is not None and lines is None:
        # A lone carriage return ends a line, as a line feed does.
        known = previous.lines, Span(change.start, change.old_end), text[change.start : change.new_end]
    return Syntax(text, language, tree, offsets, known)


def of(document: Document, previous: Syntax | None = None, lines: Lines | None = None) -> Syntax | None:
    """Return the document's syntax; None if its language is not in the table, or if the parser took too long; see `parse`."""
    language = languages.get(document.language)
    try:
        return parse(document.text, language, previous, lines=lines) if language else None
    except ParseLimitError:
        return None


def _tree(source: bytes, language: Language, previous: Syntax | None) -> tree_sitter.Tree:
    """Return the tree of the source. In some texts the parsers of some grammars never end, so each parse has a limit.

    The limit counts the thread's own processor time: on a busy machine, a parse that would end is not stopped.
    """
    limit = limit_s(source) / (1 if previous is None else 2)
    end = time.thread_time() + limit

    # The parser never frees what it reads, so that is one buffer of each thread, which is emptied after the parse. Queries
    # that compare a node's text read it later, and need bytes.
    chunk, is_parsed = _CHUNKS.setdefault(threading.get_ident(), bytearray()), False

    def read(byte: int, _point: tree_sitter.Point) -> bytes | bytearray:
        if is_parsed:
            return source[byte : byte + _NAME_BYTES]
        chunk[:] = source[byte : byte + _CHUNK_BYTES]
        return chunk

    def is_over(_byte: int, _has_error: bool) -> bool:
        return time.thread_time() > end

    parser = tree_sitter.Parser(languages.grammar(language))
    try:
        # The parser looks at the limit only if it reads the text piece by piece.
        if previous is None:
            return parser.parse(read, progress_callback=is_over)
        before, old = previous.offsets.source, previous.tree.copy()
        change = difference(before, source)
        at = _row_and_column(before, change.start)
        ends = _row_and_column(before, change.old_end), _row_and_column(source, change.new_end)
        old.edit(change.start, change.old_end, change.new_end, at, *ends)
        return parser.parse(read, old, progress_callback=is_over)
    except ValueError as error:
        raise ParseLimitError(f"parsing {language.name} took more than {limit:.1f} s") from error
    finally:
        is_parsed = True
        chunk.clear()


# The parser asks for the text in pieces of this size.
_CHUNK_BYTES = 16_384
_CHUNKS = dict[int, bytearray]()  # by the thread that parses
_NAME_BYTES = 64  # most names have fewer


def _row_and_column(source: bytes, byte: int) -> tuple[int, int]:
    return source.count(b"\n", 0, byte), byte - 1 - source.rfind(b"\n", 0, byte)


def _seen(text: str, language: Language) -> str:
    r"""Return the text as the parser sees it: `\r` ends a line, a range is an operation, no comment begins in a string."""
    text = _LONE_RETURN.sub("\n", text) if "\r" in text else text
    if language.ranges and "..." in text:
        text = re.sub(rf"({language.ranges})\.\.\.", r"\1 | ", text)
    if not language.misread or language.block_comment is None:
        return text
    opener, lexer, pieces, at = language.block_comment[0][:3], lexing.named(language.name), list[str](), 0
    for match in re.finditer(language.misread, text, re.MULTILINE):
        for token in lexing.tokens(text, lexer, *match.span()) if opener in match[0] else ():
            if token.kind == "string" and opener in text[token.span.start : token.span.end]:
                pieces += text[at : token.span.start], text[token.span.start : token.span.end].replace(opener, f"_{opener[1:]}")
                at = token.span.end
    return "".join((*pieces, text[at:])) if pieces else text


_LONE_RETURN = re.compile("\r(?!\n)")


@dataclass(frozen=True, slots=True)
class Change:
    """The range in which two texts differ: its start, and its end in each of them."""

    start: int
    old_end: int
    new_end: int


Characters = TypeVar("Characters", str, bytes)


def difference(before: Characters, after: Characters) -> Change:
    """Return the range in which two texts, or two texts as bytes, differ."""
    start = values.n_common(before, after)
    # The length of the common suffix, at most what the prefix leaves. Comparing slices leaves the work to C.
    rest, most = 0, min(len(before), len(after)) - start
    while rest < most:
        middle = (rest + most + 1) // 2
        is_common = before[len(before) - middle : len(before) - rest] == after[len(after) - middle : len(after) - rest]
        rest, most = (middle, most) if is_common else (rest, middle - 1)
    return Change(start, len(before) - rest, len(after) - rest)


def moved_parts(parts: Sequence[Span], change: Change) -> tuple[Span, ...]:
    """Return the new positions of the earlier text's parsed parts; one of them contains the whole change."""
    shift = change.new_end - change.old_end
    spans = [Span(change.start, change.new_end)]
    for part in parts:
        start = part.start if part.start <= change.start else max(part.start + shift, change.start)
        end = part.end + shift if part.end >= change.old_end else min(part.end, change.new_end)
        spans.append(Span(start, max(start, end)))
    return values.joined(spans)


@memo.of_texts
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
