"""Read the text around a hole, cut what is not part of the answer, and format the rest like the file.

Cut are markup around the answer, repetitions of the following code, and code after the answer's block. The answer gets the
file's indentation, and no trailing white space.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dg_lsp.core import extent, indentation, languages, place
from dg_lsp.core.context import with_newlines
from dg_lsp.core.extent import Bounds
from dg_lsp.core.place import Place, depth
from dg_lsp.core.polish import frames
from dg_lsp.core.polish.frames import edit_of, nearest_line_end
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Hole, Span

# How many characters on each side the filters read. Only the syntax is checked on the whole file.
NEARBY_CHARS = 4_000
MORE_THAN_A_LINE = 12  # visible characters: a single short line may be in an answer and below it
MAX_CUTS = 4  # of an answer that may repeat the rest of its line; each costs a parse, and the first is nearly always right


@dataclass(frozen=True, slots=True)
class Around:
    r"""The text around a hole, with `\n` line ends.

    In `document`, the holes after this one are already filled. The texts of `place` include the hole's lead and trail, and are
    at most `NEARBY_CHARS` long. `old` is the text that the answer replaces. With `allow_shrink`, less code may replace
    working code. `tree` is the document's syntax; None if its language has no grammar.
    """

    document: Document
    hole: Hole
    place: Place
    old: str
    line_end: str
    allow_shrink: bool
    tree: Syntax | None

    def filled(self, answer: str) -> Syntax | None:
        """Return the syntax of the document with an answer."""
        return None if self.tree is None else frames.after(self.tree, (edit_of(answer, self.hole, self.line_end),))

    def worse_by(self, one: str, other: str) -> int:
        """Return how many more errors answer `one` leaves than answer `other`.

        Without a grammar, and in code that is broken anyway, the brackets, tags and quotes of the line tell.
        """
        if self.tree is not None:
            edits = [(edit_of(answer, self.hole, self.line_end),) for answer in (one, other)]
            n_one, n_other = frames.errors(self.tree, (self.hole,), edits)
            if n_one != n_other or not n_one:
                return n_one - n_other
        return self.n_loose(one) - self.n_loose(other)

    def n_loose(self, answer: str) -> int:
        """Return how many brackets, tags and quotes of the hole's line lack their partner, with this answer in it."""
        return languages.n_loose(self.place.head + answer + self.place.tail, self.document.language)


# Returns the text, changed or not, or None to drop the candidate.
Filter = Callable[[str, Around], "str | None"]


def around_hole(document: Document, hole: Hole, tree: Syntax | None, *, allow_shrink: bool = False) -> Around:
    """Return the text around the hole; `tree` is the document's syntax, or None if its language has no grammar."""
    text, span = document.text, hole.span
    here = place.between(
        with_newlines(text[max(0, span.start - NEARBY_CHARS) : span.start]) + hole.lead,
        hole.trail + with_newlines(text[span.end : span.end + NEARBY_CHARS]),
    )
    return Around(
        document,
        hole,
        here,
        old=text[span.start : span.end],
        line_end=nearest_line_end(text, span),
        allow_shrink=allow_shrink,
        tree=tree,
    )


def answer_span(text: str, around: Around) -> Span:
    """Return the answer's span in the filled document, without surrounding white space."""
    lead = around.hole.lead + text[: len(text) - len(text.lstrip())]
    start = around.hole.span.start + len(lead.replace("\n", around.line_end))
    return Span(start, start + len(text.strip().replace("\n", around.line_end)))


def filled_lines(text: str) -> list[str]:
    """Return the lines that are not blank, without trailing white space."""
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def says_something(text: str) -> bool:
    """Return whether the text is more than brackets and a closing word such as `end`."""
    return bool(re.search(r"\w{4}|\w\W+\w", text))


# --- What is not part of the answer


def cut_at_control(text: str, around: Around) -> str:
    """Cut at a control token that was decoded as text, unless the code itself contains that token."""
    token = _CONTROL.search(text)
    if token is None or any(token[0] in near for near in (around.place.before, around.place.after, around.old)):
        return text
    cut = text[: token.start()]
    # If the cut adds an error, the token was part of a string.
    return text if around.tree and around.worse_by(cut, text) > 0 else cut


def cut_at_fence(text: str, around: Around) -> str:
    """Extract the text from a Markdown fence, and cut at a closing fence that was never opened."""
    if around.document.language in ("", "markdown"):
        return text
    fences = list(_FENCE.finditer(text))
    if fences and not text[: fences[0].start()].strip():
        end = fences[1].start() if len(fences) > 1 else len(text)
        return text[fences[0].end() : end].removesuffix("\n").removeprefix("\n")
    # Paired fences belong to a comment or a string that shows an example.
    return text[: fences[0].start()] if len(fences) % 2 else text


def cut_at_line_end(text: str, around: Around) -> str:
    """Cut the answer at its first line end, unless the hole takes several lines, or else at the end of the block it opens."""
    return _bounds(around).cut(text)


def _bounds(around: Around) -> Bounds:
    return extent.of(around.hole, around.place, around.document.language, knows_end=True)


def cut_repeated_rest(text: str, around: Around) -> str:
    """Cut the answer where it goes on like the rest of its line: at the longest run that repeats the rest's beginning.

    `g(x)` before the `)` of `f(…)` ends like the rest, but repeats nothing. So a run is cut if that leaves fewer errors. If it
    leaves as many, it is cut at the answer's end if it is a word, an operator, or a bracket that the answer did not open.
    """
    trimmed = text.rstrip()
    cuts = itertools.islice(_repetitions(trimmed, around), MAX_CUTS)
    return next((cut for cut, repeats in cuts if around.worse_by(cut, trimmed) < repeats), text)


def _repetitions(trimmed: str, around: Around) -> Iterator[tuple[str, bool]]:
    """Yield the answer up to where it may repeat the rest of its line, and whether it surely does, the longest run first."""
    tail = around.place.tail.rstrip()
    rest, closer = tail.strip(), languages.first_closer(trimmed, around.document.language)
    runs = extent.runs(trimmed, rest) if rest else []
    for start, size in sorted(runs, key=lambda run: (-run[1], -run[0])):
        run, left = rest[:size], trimmed[max(start - 1, 0) : start + 1]
        is_whole, is_end = size == len(rest), start + size == len(trimmed)
        is_within_word = re.match(r"\w\w", left) is not None and not (is_whole and is_end)
        is_tag = run == "<" and rest.startswith("</")
        if is_within_word or (not is_end and (is_tag or not trimmed[:start].strip())):
            continue
        # The cursor may be in the middle of `++`.
        is_half = not tail[0].isspace() and not is_whole and re.fullmatch(r"[-+*/&|=>.]", run) is not None
        is_token = not (is_half or _WITHIN_TOKEN.match(left) or _WITHIN_TOKEN.match(rest[size - 1 : size + 1]))
        is_solid = is_end or (is_whole and size >= extent.SOLID)
        repeats = is_end and (start == closer or (is_whole and trimmed.endswith(tail) and _PARTS.search(tail)))
        repeats = repeats or (is_solid and is_token and _WORD_OR_OPERATOR.search(run))
        yield trimmed[:start].rstrip() if tail[0].isspace() else trimmed[:start], bool(repeats)


_PAIR = re.compile(r"[()\[\]{}\"'`]")
_PARTS = re.compile(r"\A\w|\s|\w\w")  # what has them is no bracket that may be nested
_WITHIN_TOKEN = re.compile(r"\w\w|([-+*/%<>=!&|?:.^~])(?:\1|=)")
# A word of two letters, a closing tag, a quote of TeX, or nothing but operators.
_WORD_OR_OPERATOR = re.compile(rf"[^\W\d]\w|/\w|\A(?:''|``|(?:(?!{_PAIR.pattern})\W)*)\Z")


def cut_repeated_lines(text: str, around: Around) -> str:
    """Cut where the answer continues with the lines that follow the hole."""
    return extent.before_suffix(text, f"\n{around.place.below}", MORE_THAN_A_LINE)


def cut_at_dedent(text: str, around: Around) -> str:
    """Cut at the first line that is indented less than the block, if the cut adds no syntax error."""
    if not _bounds(around).takes_lines or around.hole.kind in ("selection", "error"):
        return text
    own, row = depth(around.hole.indent), languages.row(around.document.language)
    lines = (line for line in languages.split_lines(text, row.name)[1:] if line.is_code and line.text and not line.nested)
    shallow = (line for line in lines if depth(line.indent) < own and not (row.outdents and re.match(row.outdents, line.text)))
    # A here document is indented less but ends nothing, so a few of the lines are tried.
    for line in itertools.islice(shallow, 4):
        cut = text[: line.start].rstrip()
        if around.tree is None or around.worse_by(cut, text) <= 0:
            return cut
    return text


def cut_at_closer(text: str, around: Around) -> str:
    """Cut at a bracket that closes an outer construct, if the document already closes that construct."""
    language = around.document.language
    closer = languages.first_closer(text, language)
    if closer is None or languages.first_closer(around.old, language) is not None:
        return text
    cut, head = text[:closer], around.place.head
    if around.tree is None:
        # `) + f(` before a `)` closes a bracket, and opens another.
        is_even = not around.place.ends_line and around.n_loose(text) <= around.n_loose("")
        return text if is_even or not around.place.after.lstrip().startswith(text[closer]) else cut
    if _ALTERNATIVE.match(text) and around.hole.extent != "block" and around.worse_by(text, cut) <= 0:
        return text
    # Someone who types `for (` closes the block that the answer opens (`checks.with_block_closed`).
    is_line = around.hole.kind == "cursor" and around.hole.extent != "block" and around.place.ends_line
    opens = is_line and text.rstrip().endswith("{") and languages.n_open("", head, language) > 0
    is_worse = around.worse_by(cut, text) > 0 or (opens and around.worse_by(cut, f"{text}\n}}") > 0)
    return text if is_worse else cut


# A line that closes a block and opens the next.
_ALTERNATIVE = re.compile(r"\}\s*(?:else|elseif|catch|finally)\b")


# Control tokens of the embedded checkpoint, of Gemma, and of common fill-in-the-middle models. Excluded are tokens that
# are also HTML tags, and the `<eos>` of `Vec<eos>`.
_CONTROL = re.compile(
    r"(?<![^\W\d])<(?:pad|eos|bos|unk|delete|suf|eom|EOT)>"
    r"|<(?:unused\d+|\w+_of_turn|fim_\w+|file_sep|\|(?:turn|channel)|(?:turn|channel)\||\|[\w-]{2,40}\|)>"
    r"|<｜[^｜\n]{2,40}｜>"
)
_FENCE = re.compile(r"^[ \t]*```[\w+#.-]*[ \t]*$", re.MULTILINE)


# --- The file's formatting


def restore_start(text: str, around: Around) -> str:
    """Remove leading blank lines, and indentation that the document already has before the hole."""
    head = around.place.head
    if head.strip():
        return text
    body = re.sub(r"\A(?:[ \t\f]*\n)+", "", text) if around.hole.extent == "block" else text
    start = len(body) - len(body.lstrip(" \t"))
    missing = around.hole.indent.removeprefix(head) if around.hole.indent.startswith(head) else ""
    # At the very start of a line, the answer's own indentation counts.
    return missing + body[start:] if head and start > len(missing) else body


def restore_indent(text: str, around: Around) -> str:
    """Indent new lines with tabs or spaces as the file does. White space in strings and alignment stays."""
    text_above = with_newlines(around.document.text[: around.hole.span.start]) + around.hole.lead
    return indentation.as_around(text, around.document, around.place, around.hole.indent, text_above)


def trim_end(text: str, around: Around) -> str:
    """Trim trailing white space of each line, except in strings."""
    code = languages.mask(text, around.document.language)
    lines, at = [], 0
    for line in text.split("\n"):
        end = at + len(line)
        ends_in_code = end == len(text) or code[end] == "\n"
        lines.append(line.rstrip(" \t") if ends_in_code and end < len(text) else line)
        at = end + 1
    trimmed = "\n".join(lines)
    return trimmed.rstrip() if around.place.ends_line else trimmed
