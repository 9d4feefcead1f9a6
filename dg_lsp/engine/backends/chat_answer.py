"""Find the missing code in what a chat model answers: behind prose, inside a code fence, between repeated lines.

A model is asked to begin with the lines before the hole and to go on with what follows it. Many leave one of them out, and
some repeat the whole file. Pure. Knows text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dg_lsp.engine.drafts import SOLID, before_suffix

MAX_PLACES = 200
FEW = 2  # visible characters that an answer must repeat of the line before the cursor to have repeated it
LEAST_LINE = 4  # of a whole line at the answer's beginning: a shorter one, such as `}`, may be the answer's own
CERTAIN = 3 * SOLID  # visible characters that agree with the file where reading may end before the answer does
_END = "\0"  # stands in no code: an answer with it does not end with what it repeats of the suffix by chance
_THOUGHT_END = re.compile(r"</think(?:ing)?>[ \t]*\n?")
_THOUGHT = re.compile(r"\s*<think(?:ing)?>")
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the missing code stands in an answer. `is_marked`: a fence or repeated lines say so. `is_closed`: it has ended."""

    start: int
    end: int
    is_marked: bool = False
    is_closed: bool = False


def locate(content: str, prefix: str, suffix: str, *, block: bool, is_whole: bool) -> Place:
    """Return where the missing code stands in an answer, or in the part of it that has come; nowhere is an empty place.

    A part that nothing marks is no answer yet: it may be the prose before a fence, or the lines before the cursor.
    """
    start, end, is_fenced, is_closed = _fenced(content, is_whole=is_whole)
    code = content[start:end]
    n_repeated, n_visible = _repeated(code, prefix)
    is_marked = is_fenced or n_visible > 0
    if not is_whole and not n_visible and (not is_fenced or _is_in(code, prefix)):
        return Place(end, end)
    text = code[n_repeated:]
    # What ends an answer may be its own: only an answer that repeats the lines before is expected to go on with the suffix.
    goes_on = block and n_visible > 0 and is_whole
    cut = before_suffix(text, suffix) if goes_on else _before_long_suffix(text, suffix, SOLID)
    has_suffix = len(cut) < len(text)
    if block and is_whole and suffix[:1] in ("", "\r", "\n"):
        cut = cut.rstrip("\r\n")
    begin = start + n_repeated
    is_certain = n_visible >= CERTAIN and _is_over(text, suffix, block=block)
    return Place(begin, begin + len(cut), is_marked, is_closed or is_certain or (has_suffix and is_whole))


def _fenced(content: str, *, is_whole: bool) -> tuple[int, int, bool, bool]:
    """Return where the first code block of an answer begins and ends, whether there is one, and whether it has ended.

    Without one, all that stands behind the thought counts.
    """
    start = 0
    opening = _FENCE.search(content)
    thought_end = _THOUGHT_END.search(content, 0, opening.start() if opening and not _THOUGHT.match(content) else len(content))
    if thought_end:
        start = thought_end.end()
        opening = _FENCE.search(content, start)
    elif _THOUGHT.match(content):
        return len(content), len(content), False, False
    if opening is None:
        return start, len(content), False, False
    mark = re.escape(opening[1])
    closing = re.compile(rf"^[ \t]*{mark}|{mark}[ \t]*\Z", re.MULTILINE).search(content, opening.end())
    return opening.end(), closing.start() if closing else len(content), True, closing is not None


def _repeated(code: str, prefix: str) -> tuple[int, int]:
    """Return how many characters of the code lead up to the cursor, and how many visible ones of these agree with the prefix.

    The place counts where most of the text before it agrees, if it is at the code's beginning or agrees long enough.
    """
    written = prefix.rstrip()
    blank, line = prefix[len(written) :], written.rpartition("\n")[2].strip()
    before = "".join(written[: len(written) - len(line)].split())
    best, n_places = (0, 0), 0
    at = code.find(line) if len(line) >= FEW else -1
    while at >= 0 and n_places < MAX_PLACES:
        n_places += 1
        line_start = code.rfind("\n", 0, at) + 1
        end = at + len(line)
        n_blank = _n_common(code[end:], blank)
        # A line may begin with the letters of a shorter one, and a finished line is followed by the end that it has.
        goes_on = n_blank > 0 or not blank or end == len(code)
        if goes_on and not code[line_start:at].strip():
            n_agreeing = _n_agreeing(code[:line_start], before)
            n_visible = _n_visible(line) + n_agreeing
            is_start = not code[:line_start].strip() and ("\n" not in blank or n_visible >= LEAST_LINE)
            is_enough = n_visible >= SOLID or is_start or n_agreeing == len(before)
            if is_enough and n_visible > best[1]:
                best = (end + n_blank, n_visible)
        at = code.find(line, at + 1)
    if best[1]:
        return best
    indent = prefix.rpartition("\n")[2]
    return (len(indent) if indent and not indent.strip() and code.startswith(indent) else 0), 0


def _n_agreeing(code: str, before: str) -> int:
    """Return how many visible characters of the code's last whole lines are those that `before` ends with."""
    n_agreeing = 0
    for line in reversed(code.split("\n")):
        visible = "".join(line.split())
        if not before.endswith(visible, 0, len(before) - n_agreeing):
            break
        n_agreeing += len(visible)
    return n_agreeing


def _is_in(code: str, prefix: str) -> bool:
    """Return whether the code's first line is one of the prefix, as far as it has come."""
    first, end, _ = code.strip().partition("\n")
    lines = {line.strip() for line in prefix.split("\n")}
    return first.strip() in lines if end else any(line.startswith(first.strip()) for line in lines)


def _is_over(text: str, suffix: str, *, block: bool) -> bool:
    """Return whether nothing more can belong to the answer: its line is over, or the suffix has been repeated at length."""
    if not block and "\n" in text:
        return True
    return len(_before_long_suffix(text, suffix, CERTAIN)) < len(text)


def _before_long_suffix(text: str, suffix: str, least: int) -> str:
    """Return the text up to where it repeats so many visible characters of the suffix, wherever the text ends."""
    if _n_visible(suffix) < least:
        return text
    return before_suffix(text + _END, suffix, least).removesuffix(_END)


def _n_common(left: str, right: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _n_visible(text: str) -> int:
    return sum(not character.isspace() for character in text)
