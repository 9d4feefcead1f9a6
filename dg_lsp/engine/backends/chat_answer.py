"""Find the missing code in a chat model's answer: after prose, inside a code fence, between repeated lines.

The prompt asks the model to repeat the lines before the hole, and to continue with the lines after it. Many models leave
out one of the two, and some repeat the whole file. This module is pure and knows only text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dg_lsp.core import repeats
from dg_lsp.core.repeats import SOLID, before_suffix
from dg_lsp.core.values import n_common

MAX_PLACES = 200
MIN_CURSOR_CHARS = 2  # visible characters of the cursor's line that count as a repetition of it
MIN_LINE_CHARS = 4  # visible characters of a whole repeated line at the answer's start: `}` may be part of the answer
CERTAIN = 3 * SOLID  # visible characters that must agree with the file before reading may stop early
_END = "\0"  # never occurs in code: appended so that a chance repetition at the answer's end does not count
_THOUGHT_END = re.compile(r"</think(?:ing)?>[ \t]*\n?")
_THOUGHT = re.compile(r"\s*<think(?:ing)?>")
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CodeSpan:
    """The position of the missing code in an answer.

    `is_marked`: a fence or repeated lines delimit it. `is_closed`: it is complete.
    """

    start: int
    end: int
    is_marked: bool = False
    is_closed: bool = False


def locate(content: str, prefix: str, suffix: str, *, block: bool, is_whole: bool) -> CodeSpan:
    """Return the position of the missing code in an answer, or in the part received so far; an empty span if there is none.

    Unmarked text counts only in a whole answer: in a part it may be prose before a fence, or the lines before the cursor.
    """
    start, end, is_fenced, is_closed = _fenced(content, is_whole=is_whole)
    code = content[start:end]
    n_repeated, n_visible = _repeated(code, prefix)
    is_marked = is_fenced or n_visible > 0
    if not is_whole and not n_visible and (not is_fenced or _is_in(code, prefix)):
        return CodeSpan(end, end)
    text = code[n_repeated:]
    # The answer's last lines may be its own. Only one that repeats the lines before the hole should continue with the suffix.
    repeats_suffix = block and n_visible > 0 and is_whole
    cut = before_suffix(text, suffix) if repeats_suffix else _before_long_suffix(text, suffix, SOLID)
    has_suffix = len(cut) < len(text)
    if block and is_whole and suffix[:1] in ("", "\r", "\n"):
        cut = cut.rstrip("\r\n")
    begin = start + n_repeated
    is_certain = n_visible >= CERTAIN and _is_over(text, suffix, block=block)
    return CodeSpan(begin, begin + len(cut), is_marked, is_closed or is_certain or (has_suffix and is_whole))


def _fenced(content: str, *, is_whole: bool) -> tuple[int, int, bool, bool]:
    """Return the start and end of an answer's first code block, whether there is one, and whether it is closed.

    Without a code block, all text after the model's thoughts counts.
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
    """Return how many characters of the code repeat the text before the cursor, and how many of them are visible.

    The repetition with the longest agreement counts, if it is at the code's start or long enough.
    """
    stripped = prefix.rstrip()
    blank, line = prefix[len(stripped) :], stripped.rpartition("\n")[2].strip()
    before = "".join(stripped[: len(stripped) - len(line)].split())
    best, n_places = (0, 0), 0
    at = code.find(line) if len(line) >= MIN_CURSOR_CHARS else -1
    while at >= 0 and n_places < MAX_PLACES:
        n_places += 1
        line_start = code.rfind("\n", 0, at) + 1
        end = at + len(line)
        n_blank = n_common(code[end:], blank)
        # A longer line may begin with the same letters, so the text after the line must agree as well.
        is_complete = n_blank > 0 or not blank or end == len(code)
        if is_complete and not code[line_start:at].strip():
            n_agreeing = _n_agreeing(code[:line_start], before)
            n_visible = repeats.n_visible(line) + n_agreeing
            is_start = not code[:line_start].strip() and ("\n" not in blank or n_visible >= MIN_LINE_CHARS)
            is_enough = n_visible >= SOLID or is_start or n_agreeing == len(before)
            if is_enough and n_visible > best[1]:
                best = (end + n_blank, n_visible)
        at = code.find(line, at + 1)
    if best[1]:
        return best
    indent = prefix.rpartition("\n")[2]
    return (len(indent) if indent and not indent.strip() and code.startswith(indent) else 0), 0


def _n_agreeing(code: str, before: str) -> int:
    """Return how many visible characters of the code's last whole lines equal the end of `before`."""
    n_agreeing = 0
    for line in reversed(code.split("\n")):
        visible = "".join(line.split())
        if not before.endswith(visible, 0, len(before) - n_agreeing):
            break
        n_agreeing += len(visible)
    return n_agreeing


def _is_in(code: str, prefix: str) -> bool:
    """Return whether the code's first line, as far as it is received, is a line of the prefix."""
    first, end, _ = code.strip().partition("\n")
    lines = {line.strip() for line in prefix.split("\n")}
    return first.strip() in lines if end else any(line.startswith(first.strip()) for line in lines)


def _is_over(text: str, suffix: str, *, block: bool) -> bool:
    """Return whether the missing code is complete: its line has ended, or much of the suffix is repeated."""
    if not block and "\n" in text:
        return True
    return len(_before_long_suffix(text, suffix, CERTAIN)) < len(text)


def _before_long_suffix(text: str, suffix: str, least: int) -> str:
    """Return the text up to where it repeats at least `least` visible characters of the suffix, also at its end."""
    if repeats.n_visible(suffix) < least:
        return text
    return before_suffix(text + _END, suffix, least).removesuffix(_END)
