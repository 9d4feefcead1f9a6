"""Find `FILL` comments."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dg_lsp.core import positions
from dg_lsp.core.holes.wording import FILL, words
from dg_lsp.core.positions import Lines
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Hole, Span


def markers(document: Document, syntax: Syntax | None) -> tuple[Hole, ...]:
    """Return a hole for each comment `FILL` or `FILL: instruction`; its span is the comment."""
    index = syntax.lines if syntax else positions.lines(document.text)
    holes = []
    for span, inner in _comments(syntax) if syntax else _plain_comments(document.text):
        if match := FILL.fullmatch(inner):
            instruction = " ".join(re.sub(r"(?m)^[ \t]*\*(?!/)", "", match.group(1) or "").split())
            holes.append(_marker(span, instruction, index))
    return tuple(holes)


# Used where no grammar distinguishes comments from strings.
_PLAIN_FILL = re.compile(
    r"(?:#|//|--)[ \t]*(?P<line>FILL(?::[^\r\n]*)?)[ \t]*$"
    r"|/\*[ \t]*(?P<block>FILL(?::(?:(?!\*/)[^\r\n])*)?)[ \t]*\*/"
    r"|<!--[ \t]*(?P<markup>FILL(?::(?:(?!-->)[^\r\n])*)?)[ \t]*-->",
    re.MULTILINE,
)
_PLAIN_LINE_ENDS = re.compile(r"\r\n?")


def _comments(syntax: Syntax) -> Iterator[tuple[Span, str]]:
    for node in syntax.facts.all("comment"):
        span = syntax.span(node)
        yield span, words(syntax.text[span.start : span.end], syntax.language)


def _plain_comments(text: str) -> Iterator[tuple[Span, str]]:
    # `$` matches only before \n. So both kinds of line end become \n here, with the same length, so that offsets stay valid.
    unix_text = _PLAIN_LINE_ENDS.sub(lambda match: "\n" * len(match.group()), text)
    for match in _PLAIN_FILL.finditer(unix_text):
        yield Span(*match.span()), next(group for group in match.groups() if group).strip()


def _marker(span: Span, instruction: str, index: Lines) -> Hole:
    indent = index.indent_before(span.start)
    alone = indent is not None and not index.text[span.end : index.ends[index.at(span.end)]].strip()
    return Hole(
        span,
        "marker",
        indent=indent if indent is not None else index.indent(index.at(span.start)),
        block=alone,
        instruction=instruction,
    )
