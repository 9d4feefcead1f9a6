"""Find the function around an offset by the indentation of Python's lines, for code whose tree holds no function there.

If code before a function is broken, such as a bracket that is never closed, the tree's error may cover the function too.
The lines still show where the function begins and ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span


@dataclass(frozen=True, slots=True)
class Function:
    """The whole lines of a function, and whether it is in a class or in another block."""

    span: Span
    is_method: bool = False
    is_in_block: bool = False


def outermost_function(filled: Syntax, answer: Span) -> Function | None:
    """Return the outermost function whose body contains the answer, or None.

    The result is a guess if the code around the answer has strings of several lines. Whether it parses shows whether the
    guess was right.
    """
    lines = filled.lines
    own = lines.at(answer.start)
    line = _line(filled, own)
    width = len(line) - len(line.lstrip())
    # A body may begin on its opener's line. That line is then the first one around the answer.
    if (opener := _HEAD.match(line)) and lines.starts[own] + opener.end() <= answer.start:
        own, width = own + 1, width + 1
    first, first_width, outer_words = -1, 0, list[str]()
    for idx in range(own - 1, -1, -1):
        if width == 0:
            break
        line = _line(filled, idx)
        line_width, head = _width(line), _HEAD.match(line)
        # A line that begins no block may be part of a string or a bracket.
        if line_width is None or line_width >= width or head is None:
            continue
        width = line_width
        if head[1] == "def":
            first, first_width, outer_words = idx, width, []
        else:
            outer_words.append(head[1])
    if first < 0:
        return None
    last = end = lines.at(answer.end)
    for idx in range(end + 1, len(lines.starts)):
        line_width = _width(_line(filled, idx))
        if line_width is not None and line_width <= first_width:
            break
        last = idx
    span = Span(lines.starts[first], lines.ends[last])
    return Function(span, is_method="class" in outer_words, is_in_block=bool(outer_words))


def _line(filled: Syntax, idx: int) -> str:
    return filled.text[filled.lines.starts[idx] : filled.lines.ends[idx]]


def _width(line: str) -> int | None:
    """Return the number of white-space characters that the line begins with.

    Return None for a line whose indentation means nothing: a blank one, a comment, and one that may end a bracket or a string.
    """
    code = line.lstrip()
    return None if not code or code[0] in "#)]}\"'" else len(line) - len(code)


_HEAD = re.compile(r"\s*(?:async[ \t]+)?(def|class|if|elif|else|for|while|with|try|except|finally|match|case)\b")
