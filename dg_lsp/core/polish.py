"""Turn a candidate's texts into edits: what follows the answer is cut off, its form becomes the file's own, and what
would not help is dropped.

Each filter has one idea, and their order stands in `FILTERS`. Knows nothing of how the texts were made: a text that
was denoised between held tokens needs few of these, one that a plain completion endpoint wrote needs most.
"""

from __future__ import annotations

import ast
import functools
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from dg_lsp.core import languages, syntax, values
from dg_lsp.core.context import with_newlines
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Candidate, Document, Edit, Hole, Span

# How much text on each side the filters look at; only the syntax is judged on the whole file.
NEARBY_CHARS = 4_000
# How far on each side strings are read where no tree tells, and how far back a function may begin that is broken.
READ_CHARS, FUNCTION_CHARS = 50_000, 12_000


@dataclass(frozen=True, slots=True)
class Polished:
    """What became of a candidate.

    Either `edits` holds one edit for each hole, in their order, or it is empty and `dropped` says why, as the end of a
    sentence that begins with "it". `fired` names the filters that changed or dropped a text, once for each text.
    """

    edits: tuple[Edit, ...] = ()
    fired: tuple[str, ...] = ()
    dropped: str = ""


@dataclass(frozen=True, slots=True)
class Around:
    r"""What the filters know of a hole: the text next to it, with `\n` line ends, and how to judge a filling.

    `document` has the holes behind this one already filled. `before` and `after` include the hole's lead and trail,
    and reach `NEARBY_CHARS` far. `filled` returns the syntax of the document with a given answer; it
    is None where the language has no grammar.
    """

    document: Document
    hole: Hole
    before: str
    after: str
    line_end: str
    filled: Callable[[str], Syntax] | None = None

    @property
    def old(self) -> str:
        """The text that the answer replaces."""
        return self.document.text[self.hole.span.start : self.hole.span.end]

    @property
    def rest(self) -> str:
        """What follows the hole on its own line."""
        return self.after.partition("\n")[0]

    @property
    def starts_line(self) -> bool:
        """Whether only white space stands before the hole on its line."""
        return not self.before.rpartition("\n")[2].strip()

    def is_worse(self, one: str, other: str) -> bool | None:
        """Return whether the one answer leaves more syntax errors than the other; None where nobody can tell."""
        return syntax.adds_errors(self.filled(one), self.filled(other)) if self.filled else None


@dataclass(frozen=True, slots=True)
class Whole:
    """A candidate whose texts are all polished: the edits, the document before them, and its syntax before and after."""

    edits: tuple[Edit, ...]
    holes: tuple[Hole, ...]
    document: Document
    before: Syntax
    after: Syntax


# Returns the text, changed or not, or None where the candidate is of no use.
Filter = Callable[[str, Around], "str | None"]

# Returns whether the candidate is of use.
Check = Callable[[Whole], bool]


def to_edits(candidate: Candidate, holes: tuple[Hole, ...], document: Document, *, syntax: Syntax | None = None) -> Polished:
    """Return the candidate as edits of the document, or the reason why it is of no use.

    One useless text drops the whole candidate: its texts were written to fit each other. `syntax` is the document's;
    without it no answer is dropped for its syntax. Never raises, whatever the texts hold.
    """
    if len(candidate.texts) != len(holes):
        return Polished(dropped=f"has {len(candidate.texts)} texts for {len(holes)} holes")
    fired: list[str] = []
    edits: list[Edit] = []
    filled, tree = document, syntax
    # From the last hole to the first, so that the spans of those to come stay true while the text grows.
    for hole, raw in reversed(list(zip(holes, candidate.texts, strict=True))):
        around = _around(filled, hole, tree)
        text = with_newlines(raw.removeprefix("\ufeff"))
        for keep in FILTERS:
            result = keep(text, around)
            if result != text:
                fired.append(keep.__name__)
            if result is None:
                return Polished(fired=tuple(fired), dropped=_REASONS[keep.__name__])
            text = result
        edits.insert(0, _edit(text, hole, around.line_end))
        filled = replace(filled, text=values.apply(filled.text, (edits[0],)))
        tree = around.filled(text) if around.filled else None
    if syntax is not None and tree is not None:
        whole = Whole(tuple(edits), holes, document, syntax, tree)
        for check in CHECKS:
            if not check(whole):
                return Polished(fired=(*fired, check.__name__), dropped=_REASONS[check.__name__])
    return Polished(tuple(edits), tuple(fired))


# --- What the model wrote beside the answer ---------------------------------------------------------------------------


def cut_at_control(text: str, around: Around) -> str:
    """Cut at a control token that was decoded as text, unless the code itself speaks of such tokens."""
    found = _CONTROL.search(text)
    if found is None or any(found[0] in near for near in (around.before, around.after, around.old)):
        return text
    cut = text[: found.start()]
    # A string that is cut in two says that the token was part of it.
    return text if around.is_worse(cut, text) else cut


def cut_at_fence(text: str, around: Around) -> str:
    """Take the text out of a Markdown fence, and cut at one that is closed but was never opened."""
    if around.document.language in ("", "markdown"):
        return text
    fences = list(_FENCE.finditer(text))
    if fences and not text[: fences[0].start()].strip():
        end = fences[1].start() if len(fences) > 1 else len(text)
        return text[fences[0].end() : end].removesuffix("\n").removeprefix("\n")
    # Fences in pairs are part of a comment or a string that shows an example.
    return text[: fences[0].start()] if len(fences) % 2 else text


def cut_at_line_end(text: str, around: Around) -> str:
    """Cut an answer within a line at the end of that line."""
    return text if around.hole.block else text.partition("\n")[0]


def cut_repeated_rest(text: str, around: Around) -> str:
    """Cut the end of the answer where it repeats what follows the hole on its line."""
    rest = around.rest.rstrip()
    trimmed = text.rstrip()
    if not rest.strip() or not trimmed.endswith(rest):
        return text
    cut = trimmed.removesuffix(rest)
    if around.is_worse(cut, text):
        return text
    if around.is_worse(text, cut):
        return cut
    # `g(x)` before the `)` of `f(…)` ends like the rest of its line and yet repeats nothing. Words do, also where the rest is
    # the end of one: with it the answer reads as it was written.
    repeats = _first_closer(trimmed, around.document.language) is not None or _says_something(rest)
    return cut if repeats else text


def cut_repeated_lines(text: str, around: Around) -> str:
    """Cut where the answer goes on with the lines that follow the hole."""
    following = _filled_lines(around.after.partition("\n")[2])
    lines = text.split("\n")
    for idx in range(1 if not around.starts_line else 0, len(lines)):
        line = around.before.rpartition("\n")[2] + lines[idx] if idx == 0 else lines[idx]
        if not following or line.rstrip() not in following[:1]:
            continue
        rest = [line.rstrip(), *_filled_lines("\n".join(lines[idx + 1 :]))]
        same = _common(rest, following)
        # The last line may have been cut off by the end of the canvas.
        ends = same == len(rest) or (same == len(rest) - 1 and same < len(following) and following[same].startswith(rest[-1]))
        if (ends or same > 1) and any(_says_something(line) for line in rest[:same]):
            return "\n".join(lines[:idx])
    return text


# --- The file's own form ----------------------------------------------------------------------------------------------


def restore_start(text: str, around: Around) -> str:
    """Leave out blank lines and indentation that the document already has before the hole."""
    given = around.before.rpartition("\n")[2]
    if given.strip():
        return text
    body = re.sub(r"\A(?:[ \t\f]*\n)+", "", text) if around.hole.block else text
    start = len(body) - len(body.lstrip(" \t"))
    missing = around.hole.indent.removeprefix(given) if around.hole.indent.startswith(given) else ""
    # At the very start of a line the answer's own choice of a level counts.
    return missing + body[start:] if given and start > len(missing) else body


def restore_indent(text: str, around: Around) -> str:
    """Indent new lines with tabs or spaces, whichever the file has; what a string or an alignment holds stays."""
    unit = _unit(around)
    lines = _lines(text, around.document.language)
    if unit.startswith(" "):
        indents = [line.indent.replace("\t", unit) for line in lines]
    elif unit:
        indents = _tabbed(lines, around.hole.indent)
    else:
        return text
    new = (indent if line.is_code else line.indent for line, indent in zip(lines[1:], indents[1:], strict=True))
    return "\n".join(indent + line.text for indent, line in zip((lines[0].indent, *new), lines, strict=True))


def trim_end(text: str, around: Around) -> str:
    """Trim white space at the ends of lines, strings excepted."""
    code = _code(text, around.document.language)
    lines, at = [], 0
    for line in text.split("\n"):
        end = at + len(line)
        ends_in_code = end == len(text) or code[end] == "\n"
        lines.append(line.rstrip(" \t") if ends_in_code and end < len(text) else line)
        at = end + 1
    joined = "\n".join(lines)
    return joined if around.rest.strip() else joined.rstrip()


# --- The end of the block ---------------------------------------------------------------------------------------------


def cut_at_dedent(text: str, around: Around) -> str:
    """Cut at the first line that is indented less than the block, where the document is no worse for it."""
    if not around.hole.block or around.hole.kind in ("selection", "error"):
        return text
    depth = len(around.hole.indent.expandtabs(4))
    lines = [line for line in _lines(text, around.document.language)[1:] if line.is_code and line.text and not line.nested]
    shallow = [line for line in lines if len(line.indent.expandtabs(4)) < depth]
    language = languages.get(around.document.language)
    if language is not None and language.outdents:
        shallow = [line for line in shallow if not re.match(language.outdents, line.text)]
    # A here document stands further left as well, and ends nothing; a few tries tell.
    for line in shallow[:4]:
        cut = text[: line.start].rstrip()
        if not around.is_worse(cut, text):
            return cut
    return text


def cut_at_closer(text: str, around: Around) -> str:
    """Cut at a bracket that closes what the hole stands in, where the document closes it already."""
    language = around.document.language
    closer = _first_closer(text, language)
    if closer is None or _first_closer(around.old, language) is not None:
        return text
    cut = text[:closer]
    worse = around.is_worse(cut, text)
    if worse is None:
        worse = not around.after.lstrip().startswith(text[closer])
    return text if worse else cut


def cut_next_line(text: str, around: Around) -> str:
    """Cut the last line where it is the next one, though indented otherwise: the answer went on too far."""
    *kept, last = text.rstrip().split("\n")
    following = next(iter(_filled_lines(around.after.partition("\n")[2])), "").strip()
    repeats = kept and not around.rest.strip() and last.strip() == following and _says_something(last)
    return "\n".join(kept).rstrip() if repeats else text


# --- What is of no use ------------------------------------------------------------------------------------------------


# What the queries call code that stands where something is yet to be written.
_NOTHING = ("placeholder", "placeholder.weak", "placeholder.inline")


def drop_unreadable(text: str, around: Around) -> str | None:
    """Drop what holds characters that no source file has: half of a character, control characters."""
    bad = set(_UNREADABLE.findall(text))
    return None if bad.difference(around.before, around.after) else text


def drop_blank(text: str, around: Around) -> str | None:
    """Drop what is empty, and documentation without a word."""
    is_documentation = around.hole.kind == "cursor" and around.hole.lead.strip()
    return text if re.search(r"\w" if is_documentation else r"\S", text) else None


def drop_unchanged(text: str, around: Around) -> str | None:
    """Drop what is there already."""
    new = around.hole.lead + text + around.hole.trail
    return None if new.strip() == with_newlines(around.old).strip() else text


def drop_repetition(text: str, around: Around) -> str | None:
    """Drop whole lines that are the same as those just before or just after, and these again and again.

    The end of a line is dropped where it makes the line the same as the next, but for brackets and commas at their ends.
    """
    if not around.starts_line and not around.hole.block:
        line = (around.before.rpartition("\n")[2] + text + around.rest).strip()
        following = next(iter(_filled_lines(around.after.partition("\n")[2])), "").strip()
        same = line.rstrip(_ENDS) == following.rstrip(_ENDS)
        return None if same and _says_something(line) else text
    if not around.starts_line or around.rest.strip():
        return text
    if not _says_something(text):
        # `end` and `}` come again and again where blocks are closed; where none are, a short line does not.
        language = languages.get(around.document.language)
        following = next(iter(_filled_lines(around.after)), "").strip()
        repeats = language is not None and language.by_indentation and text.strip() == following
        return None if repeats and re.search(r"\w", text) else text
    lines = [line.strip() for line in _filled_lines(text)]
    before = [line.strip() for line in _filled_lines(around.before)]
    after = [line.strip() for line in _filled_lines(around.after)]
    for size in range(1, len(lines) + 1):
        again = all(line == lines[idx % size] for idx, line in enumerate(lines))
        if again and lines[:size] in (before[-size:], after[:size]):
            return None
    return text


def drop_placeholder(text: str, around: Around) -> str | None:
    """Drop what only says again that something is yet to be written."""
    if around.filled is None or around.hole.kind not in ("body", "marker"):
        return text
    filled, answer = around.filled(text), _answer(text, around)
    facts = filled.facts_near(answer)
    nodes = [node for capture in _NOTHING for node in facts.all(capture)]
    spans = [filled.span(node) for node in nodes]
    return None if any(span.start <= answer.start and answer.end <= span.end for span in spans) else text


def drop_comments(text: str, around: Around) -> str | None:
    """Drop an answer to a body or a marker that is comments alone, or that leaves a hole of its own."""
    language = languages.get(around.document.language)
    if language is None or around.hole.kind not in ("body", "marker"):
        return text
    lines = [line.strip() for line in _filled_lines(text)]
    comments = [line for line in lines if line.startswith(language.line_comments)]
    asks = any(_ASKS.match(line) for line in comments)
    return None if asks or len(comments) == len(lines) else text


def drop_description(text: str, around: Around) -> str | None:
    """Drop an answer to a body or a marker that describes and does nothing, such as a docstring alone or above a `pass`."""
    hole = around.hole
    asked = hole.kind == "marker" and _ASKS_WORDS.search(hole.instruction)
    if around.filled is None or hole.kind not in ("body", "marker") or asked:
        return text
    filled, answer = around.filled(text), _answer(text, around)
    facts = filled.facts_near(answer)
    words = sorted(filled.span(node) for capture in ("comment", "string.alone", *_NOTHING) for node in facts.all(capture))
    at = answer.start
    for span in words:
        if filled.text[at : span.start].strip():
            break
        at = max(at, span.end)
    return text if filled.text[at : answer.end].strip() else None


def parses(whole: Whole) -> bool:
    """Return whether there are no more syntax errors than with the holes as they are, or plainly filled."""
    if syntax.adds_errors(whole.after, whole.before):
        return False
    return not whole.after.errors or not any(syntax.adds_errors(whole.after, _plainly_filled(whole, plain)) for plain in _PLAIN)


def closes(whole: Whole) -> bool:
    """Return whether code that stays broken has no string and no bracket open for the answer's sake.

    Such an error is hidden from `parses` where code can't be parsed anyway: the parser counts one stretch of them, and
    takes all that follows for a string.
    """
    if not whole.after.errors:
        return True
    text, language = whole.document.text, whole.document.language
    is_better = len(whole.after.errors) < len(whole.before.errors)
    for edit in whole.edits:
        before = with_newlines(text[max(0, edit.span.start - READ_CHARS) : edit.span.start])
        line, end, below = with_newlines(text[edit.span.end : edit.span.end + READ_CHARS]).partition("\n")
        old = with_newlines(text[edit.span.start : edit.span.end]) + line
        new = with_newlines(edit.text) + line
        # Most answers have neither, and reading takes time.
        if _has_any(edit.text, _string_marks(language)) and (
            _opens_string(before + new, end + below, language) and not _opens_string(before + old, end + below, language)
        ):
            return False
        # A bracket that is opened for those below to close it leaves less of an error.
        if (
            not is_better
            and _has_any(edit.text, _brackets(language)[0])
            and _n_open(before, new, language) > _n_open(before, old, language)
        ):
            return False
    return True


def compiles(whole: Whole) -> bool:
    """Return whether the language's own compiler takes it where it takes the holes as they are, or plainly filled.

    Only Python's is at hand. Its grammar takes much that Python refuses, such as `return` outside a function, or an
    argument without a name behind one with a name. Where the code is broken in any case, it has to take it as the
    beginning of something, up to the end of the answer's line, where it takes one of the others so.
    """
    if whole.document.language != "python":
        return True
    for region, edits in _by_statement(whole):
        # What the parser passed over is far off, and takes long to compile.
        gaps = [Edit(span, "") for span in whole.before.gaps(region)]
        if not _compiles(_inside(whole.document.text, region, [*edits, *gaps])):
            plain = [[Edit(edit.span, _plain(whole, edit, plain)) for edit in edits] for plain in _PLAIN]
            if any(_compiles(_inside(whole.document.text, region, [*other, *gaps])) for other in ([], *plain)):
                return False
            if _ends_nowhere(whole, region, edits):
                return False
    return True


FILTERS: tuple[Filter, ...] = (
    cut_at_control,
    cut_at_fence,
    cut_at_line_end,
    cut_repeated_rest,
    cut_repeated_lines,
    restore_start,
    restore_indent,
    cut_at_dedent,
    cut_at_closer,
    cut_next_line,
    trim_end,
    drop_unreadable,
    drop_blank,
    drop_unchanged,
    drop_repetition,
    drop_placeholder,
    drop_comments,
    drop_description,
)

CHECKS: tuple[Check, ...] = (parses, closes, compiles)

_REASONS = {
    "drop_unreadable": "holds characters that are no text",
    "drop_blank": "is blank",
    "drop_unchanged": "changes nothing",
    "drop_repetition": "repeats the lines next to it",
    "drop_placeholder": "is a placeholder again",
    "drop_comments": "is a comment, or leaves a hole of its own",
    "drop_description": "only describes, and does nothing",
    "parses": "adds a syntax error",
    "closes": "leaves a string or a bracket open",
    "compiles": "does not compile",
}

_ENDS = ")]},;"
_ASKS = re.compile(r"\W*FILL(?::|\s*$)")
# What a marker says that wants text and not code.
_ASKS_WORDS = re.compile(r"\b(?:doc|comment|descri)", re.IGNORECASE)

# Fillings that fit most holes; the errors they leave are the document's own.
_PLAIN = ("", "x", "pass")
# Beginnings that fit most holes in Python, behind `if`, `from`, `for x` and `def` too.
_PLAIN_BEGINNINGS = (*_PLAIN, "x:", "x():", "x import x", "in x:")

# The tokens of the embedded checkpoint, of Gemma, and of the common fill-in-the-middle models; not those that are also
# tags of HTML, and not the `<eos>` of `Vec<eos>`.
_CONTROL = re.compile(
    r"(?<![^\W\d])<(?:pad|eos|bos|unk|delete|suf|eom|EOT)>"
    r"|<(?:unused\d+|\w+_of_turn|fim_\w+|file_sep|\|(?:turn|channel)|(?:turn|channel)\||\|[\w-]{2,40}\|)>"
    r"|<｜[^｜\n]{2,40}｜>"
)
_FENCE = re.compile(r"^[ \t]*```[\w+#.-]*[ \t]*$", re.MULTILINE)
# Tab, newline and form feed are all the control characters that source has; U+FFFD stands for bytes that are no UTF-8.
_UNREADABLE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd\ud800-\udfff]")


def _around(document: Document, hole: Hole, tree: Syntax | None) -> Around:
    text, span = document.text, hole.span
    before = with_newlines(text[max(0, span.start - NEARBY_CHARS) : span.start]) + hole.lead
    after = hole.trail + with_newlines(text[span.end : span.end + NEARBY_CHARS])
    around = Around(document, hole, before, after, _line_end(text, span))
    if tree is None:
        return around
    known = tree

    # Several filters ask about the same few texts.
    @functools.cache
    def filled(answer: str) -> Syntax:
        edit = _edit(answer, hole, around.line_end)
        return syntax.parse(values.apply(text, (edit,)), known.language, known)

    return replace(around, filled=filled)


def _answer(text: str, around: Around) -> Span:
    """Return where the answer stands in the filled document, without the white space around it."""
    lead = around.hole.lead + text[: len(text) - len(text.lstrip())]
    start = around.hole.span.start + len(lead.replace("\n", around.line_end))
    return Span(start, start + len(text.strip().replace("\n", around.line_end)))


def _edit(answer: str, hole: Hole, line_end: str) -> Edit:
    """Return the edit that writes the answer, with the file's own line ends."""
    return Edit(hole.span, (hole.lead + answer + hole.trail).replace("\n", line_end))


def _plainly_filled(whole: Whole, plain: str) -> Syntax:
    edits = tuple(Edit(edit.span, _plain(whole, edit, plain)) for edit in whole.edits)
    return syntax.parse(values.apply(whole.document.text, edits), whole.before.language, whole.before)


def _plain(whole: Whole, edit: Edit, plain: str) -> str:
    hole = whole.holes[whole.edits.index(edit)]
    return _edit(plain, hole, _line_end(whole.document.text, hole.span)).text


def _line_end(text: str, span: Span) -> str:
    """Return the line end nearest to the hole: that of its own line, or else of the one above."""
    after = re.compile(r"\r\n|\r|\n").search(text, span.end)
    if after:
        return after[0]
    last = max(text.rfind("\n", 0, span.start), text.rfind("\r", 0, span.start))
    if last < 0:
        return "\n"
    return "\r\n" if text[last - 1 : last + 1] == "\r\n" else text[last]


# --- Python's own opinion ---------------------------------------------------------------------------------------------


def _by_statement(whole: Whole) -> list[tuple[Span, list[Edit]]]:
    """Return the stretches of the module that hold edits, each with its edits.

    A few statements are enough to ask a compiler about, and take no longer as the file grows.
    """
    found: list[tuple[Span, list[Edit]]] = []
    for edit in whole.edits:
        region = _statements(whole.before, edit.span)
        if found and region.start <= found[-1][0].end:
            last, edits = found.pop()
            found.append((Span(min(last.start, region.start), max(last.end, region.end)), [*edits, edit]))
        else:
            found.append((region, [edit]))
    return found


def _statements(tree: Syntax, span: Span) -> Span:
    """Return the lines of the module's statements from the one that the hole is in or behind, up to the hole's end."""
    start, end = tree.offsets.to_byte(span.start), tree.offsets.to_byte(span.end)
    nodes = [node for node in tree.tree.root_node.children if node.type != "comment" and node.start_byte <= end]
    first = max((node.start_byte for node in nodes if node.start_byte <= start), default=start)
    last = max((node.end_byte for node in nodes), default=end)
    lines = tree.lines
    # A hole between \r and \n reaches beyond what its line holds.
    return Span(
        lines.starts[lines.at(tree.offsets.to_point(first))],
        max(lines.ends[lines.at(tree.offsets.to_point(max(last, end)))], span.end),
    )


def _inside(text: str, region: Span, edits: list[Edit]) -> str:
    moved = (replace(edit, span=Span(edit.span.start - region.start, edit.span.end - region.start)) for edit in edits)
    return values.apply(text[region.start : region.end], tuple(moved))


def _ends_nowhere(whole: Whole, region: Span, edits: list[Edit]) -> bool:
    """Return whether no program begins as the code around the edits does with them, though one does with plain ones.

    Judged from the function or class around, up to the end of the last edit's line.
    """
    text = whole.document.text
    nearest = max(0, edits[0].span.start - FUNCTION_CHARS)
    definitions = list(_DEFINITION.finditer(text, nearest, edits[0].span.start))
    start = definitions[-1].start() if definitions else region.start
    if start < nearest:
        return False
    end = whole.before.lines.ends[whole.before.lines.at(edits[-1].span.end)]
    begun = Span(start, max(end, edits[-1].span.end))

    def is_beginning(edits: list[Edit]) -> bool:
        source = _inside(text, begun, edits)
        return _compiles(f"if 1:\n{source}" if source[:1].isspace() else source, unfinished=True)

    plain = ([Edit(edit.span, _plain(whole, edit, plain)) for edit in edits] for plain in _PLAIN_BEGINNINGS)
    return not is_beginning(edits) and any(is_beginning(other) for other in ([], *plain))


def _compiles(source: str, *, unfinished: bool = False) -> bool:
    """Return whether Python takes the source; if it may be `unfinished`, as the beginning of something it would take."""
    flags = ast.PyCF_ONLY_AST | _ALLOW_UNFINISHED if unfinished else 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(source, "hole", "exec", flags, dont_inherit=True)
        except SyntaxError as error:
            return unfinished and "incomplete input" in str(error.msg)
        # Deep nesting and lone surrogates are not syntax errors to Python, but it does not compile them either.
        except (ValueError, OverflowError, RecursionError, MemoryError):
            return False
    return True


_DEFINITION = re.compile(r"^[ \t]*(?:async[ \t]+def|def|class)[ \t]", re.MULTILINE)
_ALLOW_UNFINISHED = 0x4000  # what the compiler calls PyCF_ALLOW_INCOMPLETE_INPUT


# --- A light reading of code: where strings, comments and brackets are -------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of an answer: where it starts, whether it starts outside strings, and inside brackets opened before."""

    start: int
    indent: str
    text: str
    is_code: bool
    nested: bool


def _lines(text: str, language: str) -> list[_Line]:
    code = _code(text, language)
    lines, at, depth = [], 0, 0
    for line in text.split("\n"):
        size = len(line) - len(line.lstrip(" \t"))
        is_code = at == 0 or code[at - 1] == "\n"
        lines.append(_Line(at, line[:size], line[size:], is_code, depth > 0))
        for char in code[at : at + len(line)]:
            depth = max(0, depth + (char in "([{") - (char in ")]}"))
        at += len(line) + 1
    return lines


def _first_closer(text: str, language: str) -> int | None:
    """Return where the text closes a bracket that it did not open, or None."""
    opening, closing = _brackets(language)
    depth = 0
    for idx, char in enumerate(_code(text, language)):
        depth += (char in opening) - (char in closing)
        if depth < 0:
            return idx
    return None


def _n_open(before: str, text: str, language: str) -> int:
    """Return how many brackets the text leaves open; what stands `before` tells what is a string in it."""
    opening, closing = _brackets(language)
    depth = 0
    for char in _code(before + text, language)[len(before) :]:
        depth = max(0, depth + (char in opening) - (char in closing))
    return depth


def _opens_string(text: str, below: str, language: str) -> bool:
    """Return whether a string is open at the end of the text's last line: one that lacks its quote, or reaches further.

    A line that begins with a quote may begin a docstring, which is wrong only where the lines `below` do not end it.
    """
    quotes = _quotes(language)
    if _is_literal(f"{text}\n.", language):
        begins = text.rpartition("\n")[2].lstrip()[:1] in tuple(quotes)
        return not begins or _is_literal(f"{text}{below}\n.", language)
    # The end of a line ends a comment; what a quote ends as well is a string that lacks it.
    return _is_literal(f"{text}.", language) and any(not _is_literal(f"{text}{quote}.", language) for quote in quotes)


def _has_any(text: str, marks: Iterable[str]) -> bool:
    return any(mark in text for mark in marks)


def _brackets(name: str) -> tuple[str, str]:
    language = languages.get(name)
    return language.brackets if language else languages.BRACKETS


def _quotes(name: str) -> str:
    language = languages.get(name)
    return language.quotes if language else languages.QUOTES


def _string_marks(name: str) -> tuple[str, ...]:
    """Return what begins a string or a comment of several lines."""
    language = languages.get(name)
    return (*_quotes(name), *((language.block_comment or ()) if language else ()))


def _is_literal(text: str, language: str) -> bool:
    """Return whether the last character is part of a string or a comment."""
    return _code(text, language)[-1] == "\0"


def unended(text: str, language: str) -> Literal["comment", "string"] | None:
    """Return what is still open at the end of the text, read character by character; None for code."""
    end = next((match for match in _literals(language).finditer(text + ".") if match.end() == len(text) + 1), None)
    if end is None:
        return None
    found = languages.get(language)
    marks = (*found.line_comments, *(found.block_comment or ())[:1]) if found else ()
    return "comment" if end[0].startswith(marks) else "string"


def _code(text: str, language: str) -> str:
    """Return the text with the characters of strings and comments replaced, one for one."""
    return _literals(language).sub(lambda match: "\0" * len(match[0]), text)


@functools.cache
def _literals(name: str) -> re.Pattern[str]:
    """Return what matches a string or a comment of the language; one that never ends reaches to the end."""
    language = languages.get(name)
    parts = list(language.strings) if language else []
    quotes, multiline = languages.QUOTES, languages.MULTILINE_QUOTES
    if language is not None:
        quotes, multiline = language.quotes, language.multiline_quotes
        if language.block_comment is not None:
            begin, end = map(re.escape, language.block_comment)
            parts.append(rf"{begin}.*?(?:{end}|\Z)")
        # `$#` and `${#x}` are no comments, nor is `#[attribute]`.
        parts += [rf"(?<![$\w{{]){re.escape(mark)}(?!\[)[^\n]*" for mark in language.line_comments]
        if language.heredoc:
            word = r"[ \t]*(?P<q>[\"']?)(?P<w>[A-Z_]\w*)(?P=q)[^\n]*\n"
            parts.append(rf"{language.heredoc}{word}(?:.*?\n)??[ \t]*(?P=w)(?!\w)")
    for quote in quotes:
        within = "" if quote in multiline else r"\n"
        parts.append(rf"{quote}(?:\\.|[^\\{quote}{within}])*(?:{quote}|(?=\n)|\Z)")
    return re.compile("|".join(parts), re.DOTALL)


def _unit(around: Around) -> str:
    """Return one level of indentation as the text next to the hole writes it, or "" where it has none or mixes them."""
    nearby = around.before + "\n" + around.after
    indents = re.findall(r"^(?: *\t|  )", f"{nearby}\n{around.hole.indent}", re.MULTILINE)
    n_tabs = sum("\t" in indent for indent in indents)
    if "\t" in around.hole.indent or (n_tabs and not around.hole.indent):
        # Beside tabs, spaces align; a few lines of them do not make a file mixed.
        return "\t" if (len(indents) - n_tabs) * 10 <= len(indents) else ""
    if n_tabs or not indents:
        return ""
    unit = syntax.indent_unit(nearby, "    ")
    return unit if unit.startswith(" ") else "    "


def _tabbed(lines: list[_Line], base: str) -> list[str]:
    """Return the lines' indentation with tabs for spaces, unless the answer knows tabs: then its spaces align."""
    inner = [line.indent.removeprefix(base) for line in lines]
    measured = [indent for indent, line in zip(inner[1:], lines[1:], strict=True) if line.is_code and indent]
    if any("\t" in indent for indent in measured):
        return [line.indent for line in lines]
    # Lines that do not begin with the block's own tabs write its level in spaces too.
    levels = 0 if any(line.indent.startswith(base) for line in lines[1:] if line.is_code and line.text) else base.count("\t")
    width = _width([len(indent) for indent in measured], levels)
    return [
        line.indent.removesuffix(indent) + "\t" * (len(indent) // width) + " " * (len(indent) % width)
        for line, indent in zip(lines, inner, strict=True)
    ]


def _width(widths: list[int], levels: int) -> int:
    """Return how many spaces the answer writes for a level, given its lines' widths and the level of its block."""
    least = min(widths, default=4)
    for width in (least // levels, least) if levels and least % levels == 0 else (least,):
        if width in (2, 3, 4, 8) and all(other % width == 0 for other in widths):
            return width
    return 4


def _filled_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def _common(left: list[str], right: list[str]) -> int:
    """Return how many first lines are the same."""
    pairs = zip(left, right, strict=False)
    return next((idx for idx, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))


def _says_something(text: str) -> bool:
    """Return whether the text is more than brackets and a closing word such as `end`."""
    return bool(re.search(r"\w{4}|\w\W+\w", text))
