"""Find the parts of a source file that can be cut out, by its syntax, the same way as the product finds holes.

This module knows source text and its syntax tree, and nothing of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dg_lsp.core.syntax import Owner, Syntax
from dg_lsp.core.values import Span
from dg_lsp.evaluate import make

CutKind = Literal["line", "block", "body", "documented"]
KINDS: tuple[CutKind, ...] = ("line", "block", "body", "documented")
LINE_CHARS = range(3, 161)
BLOCK_LINES = 16
DOCUMENTED_LINES = 10  # the most lines in the body of a short documented function


@dataclass(frozen=True, slots=True)
class Cut:
    """A span of code that can be cut out: the code of a line, a block of statements, or a function's body.

    The body of a short function with a docstring has the kind `documented`.
    """

    span: Span
    kind: CutKind


def find(path: str, text: str) -> tuple[str, list[Cut]]:
    """Return the text to train on and its cuts, in order; ("", []) if the file can't be used.

    The text lacks the licence at the top of the file, if there is one.
    """
    source = make.read(path, text)
    if source is None:
        return "", []
    tree = source.syntax
    cuts: list[Cut] = []
    for line in range(len(tree.lines)):
        start, code = tree.lines.start(line), tree.lines.content(line)
        if len(code.strip()) in LINE_CHARS:
            first = start + len(tree.lines.indent(line))
            cuts.append(Cut(Span(first, start + len(code.rstrip())), "line"))
    cuts += [Cut(span, "block") for span in make.blocks(source)]
    for owner in tree.facts.owners:
        if owner.kind == "function" and (span := make.body(owner, tree)):
            short = tree.text.count("\n", span.start, span.end) < DOCUMENTED_LINES
            cuts.append(Cut(span, "documented" if short and _is_documented(tree, owner) else "body"))
    cuts = [cut for cut in cuts if tree.text.count("\n", cut.span.start, cut.span.end) < BLOCK_LINES]
    return tree.text, _outside(cuts, source.barred)


def _is_documented(tree: Syntax, owner: Owner) -> bool:
    return any(tree.facts.has("docstring", item) for item in owner.items[:1])


def _outside(cuts: list[Cut], barred: tuple[Span, ...]) -> list[Cut]:
    """Return the cuts that share no character with a barred span; `barred` must be in order."""
    outside: list[Cut] = []
    at = 0
    for cut in sorted(cuts, key=lambda cut: cut.span):
        while at < len(barred) and barred[at].end <= cut.span.start:
            at += 1
        if not any(span.overlaps(cut.span) for span in barred[at : at + 8]):
            outside.append(cut)
    return outside
