"""Choose the parts of a long text to parse for one offset, which takes a twentieth of the time of parsing it all.

An incremental parser is fast when little has to be parsed again. But at half of the positions in a Python file, one key
makes the parser rebuild everything after it, because it does not reuse nodes that it made while its parse was
ambiguous. So only whole lines around the offset are parsed, and with them the lines that open and close the constructs
around those. The parser treats the rest as if it were not there.

The result is as good as a parse of the whole text.
"""

from __future__ import annotations

from collections.abc import Iterable

from tree_sitter import Node, Tree

from dg_lsp.core import values
from dg_lsp.core.positions import ByteOffsets, Lines
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span

LONG_CHARS = 40_000
"""A shorter text is parsed as a whole."""
# What must be parsed before and after the offset: as far as the block opener is searched for, and a few following lines.
NEEDED_CHARS = (8_000, 1_000)
# What is parsed in fact. It is more than needed, so that a small move of the cursor keeps the same parts.
TAKEN_CHARS = (12_000, 3_000)
# A node that is partly near is taken whole, unless it is longer than this.
_WHOLE_BYTES = 4_000
# Of an enclosing node, the short parts of its head are taken. A node with more children than this is a list of statements.
_HEAD_BYTES, _N_HEAD = 800, 16


def covers(syntax: Syntax, offset: int) -> bool:
    """Return whether enough text around the offset was parsed."""
    start, end = max(0, offset - NEEDED_CHARS[0]), min(len(syntax.text), offset + NEEDED_CHARS[1])
    return not syntax.parts or any(part.start <= start and end <= part.end for part in syntax.parts)


def parts(tree: Tree, offsets: ByteOffsets, index: Lines, offset: int) -> tuple[Span, ...]:
    """Return the parts to parse for an offset: the lines around it, and the heads and ends of the enclosing constructs.

    The tree may belong to an earlier text, if later edits were applied to it.
    """
    first = index.at(max(0, offset - TAKEN_CHARS[0]))
    last = index.at(min(len(index.text), offset + TAKEN_CHARS[1]))
    near = (offsets.to_byte(index.start(first)), offsets.to_byte(index.behind(last)))
    ranges, todo = [near], [tree.root_node]
    while todo:
        own, edges = _partly_near(todo.pop(), near)
        ranges += own
        todo += edges
    spans = (Span(offsets.to_point(start), offsets.to_point(end)) for start, end in ranges)
    # Whole lines, because indentation can only be recognised at a line's start.
    return values.joined(
        Span(index.start(index.at(span.start)), index.behind(index.at(max(span.end - 1, span.start)))) for span in spans
    )


def _partly_near(node: Node, near: tuple[int, int]) -> tuple[list[tuple[int, int]], Iterable[Node]]:
    """Return the byte ranges to parse of a node that is partly near, and those of its children that are partly near.

    The ranges are the whole node, without such children, or else its head and its end.
    """
    start, end = near
    if start <= node.start_byte and node.end_byte <= end:
        return [], ()
    # A comment or a string without its beginning reads as something else, so it is taken whole at any length.
    if node.child_count == 0 or node.end_byte - node.start_byte <= _WHOLE_BYTES:
        return [(node.start_byte, node.end_byte)], ()
    heads = node.children
    if node.child_count > _N_HEAD:
        ends = (node.child(0), node.child(node.child_count - 1))
        heads = [child for child in ends if child is not None and not child.is_named]
    ranges = [
        (child.start_byte, child.end_byte)
        for child in heads
        if child.end_byte - child.start_byte <= _HEAD_BYTES and (child.end_byte <= start or child.start_byte >= end)
    ]
    # At most two children cross an edge of the near range: they start before it and end after it.
    edges = dict[Node, None]()
    for at in near:
        cursor = node.walk()  # `Node.first_child_for_byte` crashes if there is no such child
        over = cursor.node if cursor.goto_first_child_for_byte(at) is not None else None
        if over is not None and over.start_byte < at < over.end_byte:
            edges[over] = None
    return ranges, edges
