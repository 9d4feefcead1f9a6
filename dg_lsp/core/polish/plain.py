"""Plain answers, which fit most holes: the errors that they leave are the document's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dg_lsp.core import languages
from dg_lsp.core.languages import Language
from dg_lsp.core.place import depth
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Edit, Hole, Span

ANSWERS = ("", "x", "pass")
NAME_CHARS = 200  # more than any name and the spaces after it
NAME_BEFORE = re.compile(r"\b([^\W\d]\w*) *\Z")


def edits(text: str, holes: Sequence[Hole], language: Language, answer: str) -> tuple[Edit, ...]:
    """Return edits that write a plain answer into each hole."""
    words, made = languages.words(language), []
    for hole in holes:
        word = NAME_BEFORE.search(text[max(0, hole.span.start - NAME_CHARS) : hole.span.start])
        is_behind_keyword = word is not None and word[1] in words and answer[:1].isalpha()
        # Right after a keyword, `x` would make it a name, and `pass` would be an error that changes what the parser reads.
        own = f" {'x' if answer == 'pass' else answer}" if is_behind_keyword else answer
        made.append(edit_of(own, hole, nearest_line_end(text, hole.span)))
    return tuple(made)


def opening(before: Syntax, holes: Sequence[Hole]) -> Iterator[str]:
    """Yield plain answers that open what the next line of code needs, if that is indented more than the cursor's line.

    An answer that opens nothing adds no error, because the error was there before.
    """
    hole, lines = holes[0], before.lines
    if len(holes) > 1 or hole.kind != "cursor" or hole.extent == "block" or hole.trail:
        return
    line = lines.at(hole.span.end)
    head, rest = (
        lines.text[start:end] for start, end in ((lines.start(line), hole.span.start), (hole.span.end, lines.end(line)))
    )
    below = lines.below(line)
    if rest.strip() or below is None or depth(lines.indent(below)) <= depth(hole.indent):
        return
    language = before.language
    bracket = languages.missing_opener(lines.text, hole.span.end, language.name)
    openers = [
        opener for opener in language.openers if opener[-1:] == bracket or opener[-1:] not in tuple(language.brackets[0])
    ]
    quote, brackets = languages.closers(head, language.name)
    # In a string, an answer first closes it.
    starts = dict.fromkeys((quote, quote + brackets) if quote else ("", "x", brackets, f"x{brackets}"))
    yield from (start + opener for opener in openers for start in starts)


def edit_of(answer: str, hole: Hole, line_end: str) -> Edit:
    """Return the edit that writes the answer, with the file's own line ends."""
    return Edit(hole.span, (hole.lead + answer + hole.trail).replace("\n", line_end))


def nearest_line_end(text: str, span: Span) -> str:
    """Return the line end nearest to the hole: that of its own line, else that of the line above."""
    after = re.compile(r"\r\n|\r|\n").search(text, span.end)
    if after:
        return after[0]
    last = max(text.rfind("\n", 0, span.start), text.rfind("\r", 0, span.start))
    if last < 0:
        return "\n"
    return "\r\n" if text[last - 1 : last + 1] == "\r\n" else text[last]
