"""Cut what is not part of an answer, format the rest like the file, and drop useless answers, whatever their syntax.

Cut are markup around the answer, repetitions of the following code, and code after the answer's block. The answer gets the
file's indentation, and no trailing white space. It is dropped if it says nothing, or breaks the code next to it on its line.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from dg_lsp.core import extent, holes, indentation, languages, lexing, place, placeholders, values
from dg_lsp.core.context import with_newlines
from dg_lsp.core.extent import Bounds
from dg_lsp.core.holes.body import says_todo
from dg_lsp.core.place import Place, depth, last_line
from dg_lsp.core.polish import frames
from dg_lsp.core.polish.frames import edit_of, nearest_line_end
from dg_lsp.core.syntax import PLACEHOLDERS, TEXTS, Facts, Syntax
from dg_lsp.core.values import Document, Hole, Span

# How many characters on each side the filters read. Only the syntax is checked on the whole file.
NEARBY_CHARS = 4_000
MORE_THAN_A_LINE = 12  # visible characters: a single short line may be in an answer and below it
TIMES = 3  # how often the same lines in a row make a loop: pairs occur in real code
MAX_LOOP = 8  # lines; a model that loops repeats fewer
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

    def first_closer(self, answer: str) -> int | None:
        """Return the offset of the first bracket in the answer that closes what the answer did not open, or None.

        The tree tells, if the file parses with the answer; otherwise the delimiters of the language's strings do.
        """
        filled, language = self.filled(answer) if _CLOSER.search(answer) else None, self.document.language
        if filled is None or filled.errors:
            # Without a grammar, the strings of the language before the answer are not known here.
            return languages.first_closer(answer, language, "" if self.tree is None else self.place.head)
        span, start = answer_span(answer, self), len(answer) - len(answer.lstrip())
        closer = filled.first_closer(span)
        return closer and start + closer - span.start - filled.text.count("\r\n", span.start, closer)

    def n_loose(self, answer: str) -> int:
        """Return how many brackets, tags and quotes of the hole's line lack their partner, with this answer in it."""
        return languages.n_loose(self.place.head + answer + self.place.tail, self.document.language)


_CLOSER = re.compile(r"[)\]}]")
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
    """Cut the answer at its first line end, unless the hole takes several lines."""
    return _bounds(around).cut(text)


def _bounds(around: Around) -> Bounds:
    return extent.of(around.hole, around.place, knows_end=True)


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
    language, head, closer = around.document.language, around.place.head, around.first_closer(text)
    if closer is None or around.first_closer(around.old) is not None:
        return text
    cut = text[:closer]
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


# --- Useless answers


def drop_unreadable(text: str, around: Around) -> str | None:
    """Drop an answer with characters that belong in no file, unless the file has them: control characters, halves of surrogate
    pairs, and what is invisible but no part of a word or an emoji. What overrides the writing direction is always dropped.
    """
    seen, known = _FLAG.sub("", text), around.document.text.removeprefix("\ufeff")
    if _RIGHT_TO_LEFT.search(seen):
        seen = _MARKS.sub("", seen)
    return None if _OVERRIDES.search(seen) or any(char not in known for char in _UNREADABLE.findall(seen)) else text


def drop_untyped(text: str, around: Around) -> str | None:
    """Drop an answer with a character in code that no keyboard for code has.

    Beyond ASCII, code has only letters that are seen, their marks and connectors. Some grammars take other characters for
    names, compilers take digits there at most, and no code has those.
    """
    edit = edit_of(text, around.hole, around.line_end)
    places = [edit.span.start + at for at, char in enumerate(edit.text) if not char.isascii() and _is_no_code(char)]
    filled = replace(around.document, text=values.apply(around.document.text, (edit,)))
    return None if places and _is_in_code(filled, around.filled(text), places) else text


def _is_no_code(char: str) -> bool:
    kind = unicodedata.category(char)
    # Names may have connectors, and the middle dot, which is Catalan.
    is_sign = kind in ("Nd", "No") or (kind[0] in "CPSZ" and kind != "Pc" and char != "\N{MIDDLE DOT}")
    return is_sign or bool(_UNSEEN.match(char))


def _is_in_code(document: Document, tree: Syntax | None, places: Sequence[int]) -> bool:
    """Return whether code has one of these characters. Without a tree, prose has no code, and signs may be operators."""
    text, name = document.text, document.language
    lexer = lexing.named(f"cursor:{name}", name) if languages.get(name) else languages.lexer(document)
    if lexer is None or (tree is None and (lexer.prose or not lexer.delimiters)):
        return False
    end = min(places[-1] + NEARBY_CHARS, len(text))
    masked = cache(lambda: languages.masked(text[:end], lexing.tokens(text, lexer, lexing.far_before(text, places[0]), end)))
    if tree is not None:
        return not all(_is_words(tree, at, masked) or (tree.errors and masked()[at] == "\0") for at in places)
    signs = (at for at in places if text[at] in "−„‚" or unicodedata.category(text[at]) not in _OPERATORS)
    return any(masked()[at] != "\0" for at in signs)


def _is_words(tree: Syntax, at: int, masked: Callable[[], str]) -> bool:
    """Return whether the character is in a comment, a string, a pattern, text between tags, or a directive's text."""
    node = tree.node_at(Span(at, at + 1))
    if tree.language.name == "bash" and node.type in _BASH_WORDS:
        sign = tree.text[max(at - 3, 0) : at + 1].rstrip(_EMOJI_PARTS)[-1:] or "x"
        is_sign = sign != "\N{BRAILLE PATTERN BLANK}" and (unicodedata.category(sign) in ("So", "Sc") or "←" <= sign <= "⇿")
        return is_sign and node.parent is not None and node.parent.type in _BASH_ARGUMENTS
    # A tree does not say what is a string in a macro, nor whether space beside code in a string belongs to it.
    is_doubtful = node.type == "preproc_arg" or (node.child_count > 0 and tree.text[at].isspace())
    if is_doubtful and not _REMARK.match(tree.text, tree.lines.start(tree.lines.at(at))):
        return masked()[at] == "\0"
    return bool(TEXTS.search(node.type))


def drop_blank(text: str, around: Around) -> str | None:
    """Drop an empty answer, or documentation without a word.

    An empty answer is kept if it deletes selected code and that is allowed.
    """
    if around.allow_shrink and around.hole.kind == "selection" and around.old.strip():
        return text
    is_documentation = around.hole.kind == "cursor" and around.hole.lead.strip()
    return text if (re.search(r"\w", text) if is_documentation else text.strip()) else None


def drop_unchanged(text: str, around: Around) -> str | None:
    """Drop an answer that changes nothing."""
    new = around.hole.lead + text + around.hole.trail
    return None if new.strip() == with_newlines(around.old).strip() else text


def drop_shrunk(text: str, around: Around) -> str | None:
    """Drop an answer that replaces working code by a placeholder, by comments or by nothing, unless that is allowed."""
    return text if around.allow_shrink or not placeholders.shrinks(around.old, text, around.document.language) else None


def drop_continued(text: str, around: Around) -> str | None:
    """Drop an answer whose last line goes on in the next line, if the statement there is another one.

    Lines that are indented more than the answer's may be what it goes on with. So may others, where a bracket is open in its
    line, or the line above goes on too. In prose, a backslash breaks a line.
    """
    if indentation.is_prose(around.document):
        return text
    *above, head = around.place.before.split("\n")
    last = next((line for line in reversed(above) if line.strip()), "")
    if _GOES_ON.search(last) or languages.n_open("", head + text, around.document.language):
        return text
    below = next(iter(filled_lines(around.place.below)), "")
    is_other = bool(below) and depth(below) <= depth(around.hole.indent)
    ends = _PIPES if around.document.language == "bash" else _CONTINUED
    return None if is_other and around.place.ends_line and ends.search(text.rstrip(" \t")) else text


# What makes the next line a part of this one.
_CONTINUED = re.compile(r"(?<!\\)\\\Z|(?:&&|\|\|)\s*\Z")
_GOES_ON = re.compile(rf"{_CONTINUED.pattern}|[|(\[{{,]\s*\Z")
_PIPES = re.compile(rf"{_CONTINUED.pattern}|\|\s*\Z")


def drop_repetition(text: str, around: Around) -> str | None:
    """Drop an answer that makes lines like those just before or just after the hole, once or several times.

    A part of a line is compared with the next lines only, and without brackets and commas at their ends. So is a short line:
    `end` and `}` often repeat where they close blocks. What closes none, an item, a call or a selector do not, unless those
    above do.
    """
    place, ends = around.place, "" if around.place.starts_line and around.place.ends_line else _ENDS
    texts = (place.head + text + place.tail, place.above, place.below)
    lines, above, below = ([line.strip() for line in filled_lines(each)] for each in texts)
    if ends or not says_something(text):
        if not re.search(r"\w", text) or (ends and around.hole.extent == "block"):
            return text
        is_item = _ITEM.search("".join(below[:1])) or languages.row(around.document.language).by_indentation
        if above[-1:] == below[:1] or not (is_item or says_something(lines[0])):
            return text
        lines, above, below = ([line.rstrip(ends) for line in each] for each in (lines, [], below))
    for size in range(1, len(lines) + 1):
        again = all(line == lines[idx % size] for idx, line in enumerate(lines))
        if again and lines[:size] in (above[-size:], below[:size]):
            return None
    return text


# An item of a list or an object, a call, a selector.
_ITEM = re.compile(r"\A- |,\Z|\A[\w\"'-]+\s*:|\w\(\);?\Z|\A(?!do\b|try\b)[\w.#]+ \{\Z")


def drop_loop(text: str, around: Around) -> str | None:
    """Drop an answer that has the same lines three times in a row: the model repeats itself and has lost the thread.

    Lines of brackets alone may repeat, and so may lines that the replaced text already repeats.
    """
    lines = [line.strip() for line in filled_lines(text)]
    old = "\n".join(line.strip() for line in filled_lines(around.old))
    for size in range(1, min(len(lines) // TIMES, MAX_LOOP) + 1):
        for start in range(len(lines) - size * TIMES + 1):
            run = lines[start : start + size * TIMES]
            if run == run[:size] * TIMES and says_something("\n".join(run[:size])) and "\n".join(run) not in old:
                return None
    return text


def drop_holes(text: str, around: Around) -> str | None:
    """Drop an answer that adds a FILL comment."""
    # The marker of the hole itself is what the answer replaces; a selection may hold markers that stay.
    old = "" if around.hole.kind == "marker" else around.old
    # The text around it on its line may begin and end the comment.
    head, tail = around.place.head, around.place.tail
    parts = (replace(around.document, text=head + part + tail) for part in (old, text))
    n_old, n_new = (len(holes.markers(part, None)) for part in parts)
    return None if n_new > n_old else text


def drop_nothing(text: str, around: Around) -> str | None:
    """Drop an answer without code: placeholders, comments, words alone, or in a function's body unused definitions alone.

    So is one with a comment of its own which says that the code is missing, unless the text that it replaces has that comment.
    Where a block belongs at a cursor, comments are no code. A placeholder is dropped there only if it is the whole body of a
    function that is not abstract: an `except` may well contain `pass`.
    """
    hole, kind = around.hole, around.hole.kind
    filled = around.filled(text)
    if filled is None or not text.strip() or (kind in ("selection", "error") and around.allow_shrink):
        return text
    # Another language's placeholder may parse, and models mix them up. At a cursor, it may be the beginning of something.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if kind != "cursor" and all(map(placeholders.is_line, lines)):
        return None
    answer = answer_span(text, around)
    facts = filled.facts_near(answer)
    old = "" if kind in ("body", "marker") else around.old
    for span in map(filled.span, facts.all("comment")):
        comment, line = filled.text[span.start : span.end], filled.lines.start(filled.lines.at(span.start))
        is_own = answer.start <= span.start < answer.end and comment not in old
        if is_own and says_todo(comment, filled.language, after_code=bool(filled.text[line : span.start].strip())):
            return None
    nodes = [node for capture in PLACEHOLDERS for node in facts.all(capture)]
    if kind == "cursor":
        nodes = [node for node in nodes if node.id in _whole_bodies(filled, facts) and filled.span(node) == answer]
        nodes += facts.all("comment") if hole.extent == "block" else ()
    elif kind in ("body", "marker") and not (kind == "marker" and _ASKS_WORDS.search(hole.instruction)):
        nodes = placeholders.nothing(facts)
        strings = ((node, filled.span(node)) for node in facts.all("string") if kind == "body")
        said = [node for node, span in strings if says_todo(filled.text[span.start : span.end].strip(_QUOTES), filled.language)]
        nodes += [node.parent for node in said if node.parent is not None and node.parent.type.startswith("return")]
        holders = [owner for owner in facts.owners if owner.inside.holds(answer)]
        inmost = max(holders, key=lambda owner: owner.inside.start, default=None)
        if kind == "body" and inmost is not None and inmost.kind == "function":
            nodes += [owner.node for owner in facts.owners if owner.kind != "closure" and answer.holds(filled.span(owner.node))]
    rest = list(filled.text[answer.start : answer.end])
    for span in map(filled.span, nodes):
        start, end = (min(max(at - answer.start, 0), len(rest)) for at in (span.start, span.end))
        rest[start:end] = " " * (end - start)
    return text if "".join(rest).strip(" \t\r\n;") else None


def _whole_bodies(filled: Syntax, facts: Facts) -> set[int]:
    """Return the ids of the nodes that are all of the body of a function which is not abstract."""
    return {
        owner.items[0].id
        for owner in facts.owners
        if owner.kind == "function"
        and len(owner.items) == 1
        and not any(facts.has(name, node) for node in filled.ancestors(owner.node) for name in ("abstract", "abstract.members"))
    }


_ENDS = ")]},;"
_QUOTES = "\"'`"
# The words of an instruction that asks for text, not code.
_ASKS_WORDS = re.compile(r"\b(?:doc|comment|descri)", re.IGNORECASE)
# Source files have no control characters but tab, newline and form feed. U+FFFD replaces bytes that are not valid UTF-8.
_UNREADABLE = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u2029\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffd\ud800-\udfff\U000e0000-\U000e007f]"
)
_OVERRIDES = re.compile("[\u202a-\u202e\u2066-\u2069]")
# Marks in text with letters of a language that is written from right to left, and the tags in a flag such as England's.
_MARKS = re.compile("[\u061c\u200e\u200f]")
_RIGHT_TO_LEFT = re.compile("[\u05d0-\u05ea\u0620-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_FLAG = re.compile("\U0001f3f4[\U000e0061-\U000e007a]{5}\U000e007f")
# Invisible letters and marks (Unicode's Default_Ignorable_Code_Point).
_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_OPERATORS = frozenset({"Sm", "So", "Sc", "Sk", "Ps", "Pe", "Po", "No"})
# In these nodes of Bash, as a part of those, signs such as arrows stand for themselves. Spaces, quotes and dashes do not.
_BASH_WORDS = frozenset({"word", "regex", "extglob_pattern", "number"})
_BASH_ARGUMENTS = frozenset({"command", "binary_expression", "variable_assignment", "array", "for_statement", "case_item"})
_EMOJI_PARTS = "\u200d\ufe0f🏻🏼🏽🏾🏿"
# Directives whose text is for people.
_REMARK = re.compile(r"[ \t]*#[ \t]*(?:error|warning|region|endregion|pragma)\b")


# --- Answers that break the code next to them on the same line


def drop_comment_before_code(text: str, around: Around) -> str | None:
    """Drop an answer that starts a comment and thereby comments out the rest of its line."""
    language = languages.row(around.document.language)
    if not around.place.tail.strip(" \t)]};,") or around.place.tail.lstrip().startswith(language.line_comments):
        return text
    line = last_line(text)
    if not any(mark in line for mark in language.line_comments):
        return text
    is_comment = languages.kind_at_end(around.place.before + text, language.name) == "comment"
    return None if is_comment and languages.kind_at_end(around.place.before, language.name) != "comment" else text


def drop_merged(text: str, around: Around) -> str | None:
    """Drop an answer whose last name runs into the one behind it, with a word that neither the language nor the file has.

    Between words, an answer may repeat the rest of the line, which is cut; within one, what is left must still be known.
    """
    before, tail, language = around.place.before, around.place.tail, languages.get(around.document.language)
    is_within, behind = re.match(r"\w", before[-1:]) is not None, re.match(r"\w+", tail)
    if language is None or behind is None or (not is_within and text.rstrip().endswith(tail.rstrip())):
        return text
    written = text.removesuffix(tail)
    name = re.search(r"(?<!\w)[^\W\d]\w*\Z", around.place.head + written)
    if not written or (name is None and not is_within) or languages.kind_at_end(before, language.name):
        return text
    # Of a word that the answer splits, the end alone is no word that the file has.
    after = around.place.after[len(behind[0]) * is_within :]
    words = _WORD.findall(f"{before} {after}"), languages.words(language)
    known = {word.lower() for each in words for word in each}
    return text if all(word.lower() in known for word in _WORD.findall((name[0] if name else "") + behind[0])) else None


_WORD = re.compile(r"[^\W\d_][^\W\d_A-Z]*|\d+")
"""A word of a name such as `max_size2` or `maxSize`."""
