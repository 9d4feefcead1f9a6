"""The syntax of a long text near one place, as good as that of all of it and found in a twentieth of the time.

A parser that keeps an old tree is fast where little has to be parsed again; but at half of the places of a Python file a key
has all that follows put together anew, since the parser does not use nodes again that it made while it was in doubt. Here,
only some whole lines around the place are parsed, with the lines that open and close what stands around them: the rest is
passed over as if it were not there. Knows nothing of holes.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node, Tree

from dg_lsp.core import values
from dg_lsp.core.positions import ByteOffsets, Lines
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span

LONG_CHARS = 40_000
"""A text that is shorter is parsed in whole."""
# What must be parsed on either side: as far as the opener of a block is looked for, and some lines that follow.
NEEDED_CHARS = (8_000, 1_000)
# What is parsed, so that moving a little asks for no other parts.
TAKEN_CHARS = (12_000, 3_000)
# What stands half in it is taken in whole, unless it is longer than this.
_WHOLE_BYTES = 4_000
# Of what stands around, the parts of its head are taken; a node with more children than this is a list of statements.
_HEAD_BYTES, _N_HEAD = 800, 16


def covers(syntax: Syntax, offset: int) -> bool:
    """Return whether enough around the offset was parsed."""
    start, end = max(0, offset - NEEDED_CHARS[0]), min(len(syntax.text), offset + NEEDED_CHARS[1])
    return not syntax.parts or any(part.start <= start and end <= part.end for part in syntax.parts)


def parts(tree: Tree, offsets: ByteOffsets, index: Lines, offset: int) -> tuple[Span, ...]:
    """Return what to parse for an offset: lines around it, and the heads and ends of what stands around those.

    The tree may be that of the text a moment ago, as long as it was told of the edits since.
    """
    first = index.at(max(0, offset - TAKEN_CHARS[0]))
    last = index.at(min(len(index.text), offset + TAKEN_CHARS[1]))
    near = (offsets.to_byte(index.starts[first]), offsets.to_byte(_behind(index, last)))
    ranges = [near, *_around(tree.root_node, near)]
    spans = (Span(offsets.to_point(start), offsets.to_point(end)) for start, end in ranges)
    # Whole lines, as what is indentation can only be told from those.
    return values.joined(
        Span(index.starts[index.at(span.start)], _behind(index, index.at(max(span.end - 1, span.start)))) for span in spans
    )


def _behind(index: Lines, line: int) -> int:
    return index.starts[line + 1] if line + 1 < len(index) else len(index.text)


def _around(node: Node, near: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the bytes to take of a node that is partly near: all of it, or its head and end, and those of its parts."""
    start, end = near
    if start <= node.start_byte and node.end_byte <= end:
        return
    # A comment or a string without its begin reads as something else, however long it is.
    if node.child_count == 0 or node.end_byte - node.start_byte <= _WHOLE_BYTES:
        yield node.start_byte, node.end_byte
        return
    for child in _head(node):
        if child.end_byte - child.start_byte <= _HEAD_BYTES and (child.end_byte <= start or child.start_byte >= end):
            yield child.start_byte, child.end_byte
    # At most two children reach over an end of what is near.
    edges = dict.fromkeys(over for at in near if (over := _child_over(node, at)) is not None)
    for edge in edges:
        yield from _around(edge, near)


def _head(node: Node) -> list[Node]:
    if node.child_count <= _N_HEAD:
        return node.children
    ends = (node.child(0), node.child(node.child_count - 1))
    return [child for child in ends if child is not None and not child.is_named]


def _child_over(node: Node, byte: int) -> Node | None:
    """Return the child that reaches from before the byte to behind it."""
    # Not by `Node.first_child_for_byte`, which crashes where there is no such child.
    cursor = node.walk()
    if cursor.goto_first_child_for_byte(byte) is None:
        return None
    child = cursor.node
    return child if child is not None and child.start_byte < byte < child.end_byte else None
