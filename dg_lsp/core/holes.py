r"""Find the holes of a document: at the cursor, in placeholder bodies, at FILL comments, in a selection, where parsing fails.

What a language calls a placeholder, or leaves empty on purpose, is said by its query (see `syntax`); here is only where a
hole starts and ends. Leads and trails are written with `\n`; whoever applies an edit restores the file's line ends. Knows
nothing of models or editors. A document without a known language has holes too: at the cursor, in selections, at FILL.
"""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core import positions
from dg_lsp.core.languages import Language
from dg_lsp.core.positions import Lines
from dg_lsp.core.syntax import Facts, Owner, Syntax, indent_unit, inside_any
from dg_lsp.core.values import Document, Hole, HoleKind, Span

KINDS = frozenset({"bodies", "markers", "empty"})

# How far back the token is looked for that opens a block: first where it mostly is, then past a long docstring, but not
# through a long file.
_LOOK_BACK = (800, 8_000)

_FILL = re.compile(r"FILL(?::\s*(.*))?", re.DOTALL)
# Where no grammar tells comments from strings.
_PLAIN_FILL = re.compile(
    r"(?:#|//|--)[ \t]*(?P<line>FILL(?::[^\r\n]*)?)[ \t]*$"
    r"|/\*[ \t]*(?P<block>FILL(?::(?:(?!\*/)[^\r\n])*)?)[ \t]*\*/"
    r"|<!--[ \t]*(?P<markup>FILL(?::(?:(?!-->)[^\r\n])*)?)[ \t]*-->",
    re.MULTILINE,
)
_PLAIN_LINE_ENDS = re.compile(r"\r\n?")
_TODO = re.compile(r"(?:TODO|FIXME|XXX)\b(?:\([^)]*\))?", re.IGNORECASE)
# What is left of a TODO that doesn't say what to do, and comments that are a TODO without the word.
_SAYS_NOTHING = re.compile(
    r"""\W*(?:(?:
        auto-?generated\ (?:method|constructor|function)\ stub
      | (?:please\ )?(?:implement|write|fill(?:\ in)?|complete|finish)
        (?:\ (?:this|me|it|here|later|code|body|implementation|the|method|function|class|logic))*
      | not\ (?:yet\ )?implemented(?:\ yet)? | unimplemented
      | (?:(?:add|write|put|insert)\ )?(?:your\ |the\ )?(?:code|implementation|solution|logic|body)(?:\ goes)?\ here
      | implementation | later | stub | \.\.\. | …
    )\W*)?""",
    re.IGNORECASE | re.VERBOSE,
)
# A comment that means: this is empty on purpose.
_DELIBERATE = re.compile(
    r"""\W*(?:
        (?:no-?op|nothing|do(?:es)?\ nothing|ignored?|unused|empty|not\ (?:needed|used|required|applicable))\b
        (?:\ (?:to\ do|to\ be\ done|here|by\ default|by\ design|on\ purpose|needed|yet
              |body|block|method|function|constructor|implementation))*\W*$
      | .*\b(?:intentional|intentionally|deliberate|deliberately|on\ purpose)\b
    )""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
# A docstring that means: this does nothing until a derived class says otherwise.
_HOOK = re.compile(
    r"""^\W*(?:hook\b|called\ (?:when|whenever|by|once|before|after|at|on|if|for|just)\b)
      | \bsub-?class(?:es)?\ (?:may|can|should|must|needs?\ to|have\ to)\b
      | \b(?:do|does)\ nothing\b
      | \boverrid\w+\ (?:by|in|this\ in)\ (?:the\ |a\ )?(?:sub|derived|child)
    """,
    re.IGNORECASE | re.VERBOSE,
)
_WORDS = re.compile(r"[\w\s]*")
_QUOTES = re.compile(r"""^[a-zA-Z]*(?:\"{3}|'{3}|"|')|(?:\"{3}|'{3}|"|')$""")
# A comment for a tool says nothing of the code.
_DIRECTIVE = re.compile(
    r"""\W*(?:
        noqa | type: | pragma | pylint | mypy: | ruff: | flake8 | fmt: | isort:
      | eslint | tslint | ts- | prettier | jshint | istanbul | c8\  | v8\  | nolint | go:
      | clippy | rustfmt | nosonar | checkstyle | noinspection | rubocop | shellcheck
      | luacheck | phpcs | phpstan | psalm | resharper | clang-format | -\*- | !/
    )""",
    re.IGNORECASE | re.VERBOSE,
)
# A placeholder that says so is written in a derived class, or stands for something that isn't to be had; it is no gap.
_ELSEWHERE = re.compile(
    r"""\b(?:
        sub-?class(?:es)? | (?:derived|child|concrete|inherit\w*)\ (?:class|type)
      | (?:must|should|to|needs\ to)\ (?:be\ )?(?:overrid|implement)\w*
      | (?:must|should)\ (?:define|provide) | abstract
      | not\ (?:be\ )?(?:supported|allowed|available|applicable|needed|required)(?!\ yet) | unsupported
      | does\ ?n[o']t | can\ ?not | can't | (?:must|should)\ not | meaningless | unlikely
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class _Body:
    """A body hole, and the inside of the body that it fills."""

    hole: Hole
    inside: Span
    bare: bool


def at_cursor(document: Document, offset: int, syntax: Syntax | None) -> Hole:
    """Return the hole at the cursor: a block where an empty one starts, else the rest of the line. Its span is empty.

    What stands right of the cursor, such as brackets the editor closed, stays. With the cursor behind `{` or `:`, the lead
    is the line end and indentation that the body needs; between `{` and `}` on one line, the trail is what `}` needs. An
    offset beyond the text is the text's end.
    """
    text = document.text
    offset = min(max(offset, 0), len(text))
    index = syntax.lines if syntax else positions.lines(text)
    line = index.at(offset)
    # Between \r and \n is no place to write.
    offset = min(offset, index.ends[line])
    before, after = text[index.starts[line] : offset], text[offset : index.ends[line]]
    opened = _opened_line(document, offset, syntax, index)
    closer = after.strip()[:1] == "}" and before.rstrip().endswith("{")
    if opened is None or (after.strip() and not closer) or (not closer and _has_content(index, line, opened)):
        return Hole(Span(offset, offset), "cursor", indent=index.indent(line) if before.strip() else before)
    outer = index.indent(opened)
    inner = outer + (indent_unit(syntax.parsed, syntax.language.indent) if syntax else indent_unit(text, "    "))
    trail = "\n" + outer if closer else ""
    if before.strip():
        return Hole(Span(offset, offset), "cursor", indent=inner, block=True, lead="\n" + inner, trail=trail)
    if len(before) > len(outer) and before.startswith(outer):
        return Hole(Span(offset, offset), "cursor", indent=before, block=True)
    lead = inner[len(before) :] if inner.startswith(before) else ""
    return Hole(Span(offset, offset), "cursor", indent=before + lead, block=True, lead=lead)


def bodies(document: Document, syntax: Syntax | None, *, empty: bool = False) -> tuple[Hole, ...]:
    """Return a hole for each body that is a placeholder, and for each placeholder expression, in order.

    Docstrings and comments that say something stay before the hole; one that follows the placeholder becomes the hole's
    instruction. With `empty`, a body that does nothing counts even where no comment or docstring describes it.
    """
    return tuple(body.hole for body in _bodies(document, syntax, empty=empty))


def markers(document: Document, syntax: Syntax | None) -> tuple[Hole, ...]:
    """Return a hole for each comment `FILL` or `FILL: instruction`; its span is the comment."""
    index = syntax.lines if syntax else positions.lines(document.text)
    found = []
    for span, inner in _comments(syntax) if syntax else _plain_comments(document.text):
        if match := _FILL.fullmatch(inner):
            instruction = " ".join(re.sub(r"(?m)^[ \t]*\*(?!/)", "", match.group(1) or "").split())
            found.append(_marker(span, instruction, index))
    return tuple(found)


def selection(document: Document, span: Span, syntax: Syntax | None, instruction: str = "") -> Hole:
    """Return the selected range as a hole, a block when it spans lines or is all of one.

    Line ends at the selection's end are left out of it, so that the answer doesn't have to end with them. White space
    before the first selected code on its line becomes the lead. A span that reaches beyond the text ends with it; one that
    starts inside a line end starts before it.
    """
    text = document.text
    index = syntax.lines if syntax else positions.lines(text)
    start, end = min(span.start, len(text)), min(span.end, len(text))
    end = start + len(text[start:end].rstrip("\r\n"))
    # Between \r and \n is no place to write.
    start, end = (min(offset, index.ends[index.at(offset)]) for offset in (start, end))
    body = text[start:end]
    first = start + len(body) - len(body.lstrip()) if body.strip() else end
    line = index.at(first)
    indent = index.indent(line)
    begun = text[index.starts[line] : first].strip()
    lead = "" if begun else text[max(start, index.starts[line]) : first]
    alone = not begun and not text[end : index.ends[index.at(end)]].strip()
    block = index.at(start) != index.at(end) or (alone and bool(body))
    return Hole(Span(start, end), "selection", indent=indent, block=block, instruction=instruction, lead=lead)


def errors(document: Document, syntax: Syntax | None) -> tuple[Hole, ...]:
    """Return a hole for each run of lines that can't be parsed, in order, without their indentation and last line end."""
    if syntax is None:
        return ()
    index, runs = syntax.lines, list[tuple[int, int]]()
    for span in syntax.errors:
        first, last = index.at(span.start), index.at(max(span.start, span.end - 1))
        while first < last and index.is_blank(first):
            first += 1
        while first < last and index.is_blank(last):
            last -= 1
        if runs and first <= runs[-1][1]:
            runs[-1] = (runs[-1][0], max(last, runs[-1][1]))
        else:
            runs.append((first, last))
    return tuple(
        Hole(
            Span(index.starts[first] + len(index.indent(first)), index.ends[last]),
            "error",
            indent=index.indent(first),
            block=True,
        )
        for first, last in runs
    )


def in_document(document: Document, syntax: Syntax | None, kinds: frozenset[str]) -> tuple[Hole, ...]:
    """Return all holes of the kinds ("bodies", "markers", "empty"), in order, none overlapping another.

    A marker inside a placeholder body takes the body's place, and the placeholder that follows it goes with it; from the
    line of the body's opener it moves to one of its own. Raises ValueError for a kind that doesn't exist.
    """
    if unknown := kinds - KINDS:
        raise ValueError(f"no such kind of hole: {', '.join(sorted(unknown))}; there are {', '.join(sorted(KINDS))}")
    found = list(_bodies(document, syntax, empty="empty" in kinds))
    marked: list[Hole] = []
    # From the last, which stands next to the placeholder.
    for marker in reversed(markers(document, syntax) if "markers" in kinds else ()):
        within = [body for body in found if body.inside.start <= marker.span.start and marker.span.end <= body.inside.end]
        body = max(within, key=lambda body: body.inside.start, default=None)
        marked.append(_joined(marker, body, document.text) if body else marker)
        found = [other for other in found if other is not body]
    wanted = [body.hole for body in found if ("empty" if body.bare else "bodies") in kinds]
    return tuple(sorted([*marked, *wanted], key=lambda hole: hole.span))


# Bodies


def _bodies(document: Document, syntax: Syntax | None, *, empty: bool) -> tuple[_Body, ...]:
    if syntax is None or document.uri.endswith(syntax.language.stub_suffixes or "\0"):
        return ()
    facts = syntax.facts
    comments = _Comments(syntax)
    kept: list[_Body] = []
    for body in (_body(owner, syntax, comments, empty=empty) for owner in facts.owners):
        # An outer body stands before those in it. Where code is broken, even a placeholder may hold another body.
        if body and not any(body.hole.span.overlaps(other.hole.span) for other in _around(kept, body.hole.span)):
            insort(kept, body, key=_span)
    strays = {hole.span: hole for hole in (*_inline(syntax, facts), *_stranded(syntax, facts))}
    for span in sorted(strays):
        if not any(_touches(span, body.hole.span) for body in _around(kept, span)):
            insort(kept, _Body(strays[span], span, bare=False), key=_span)
    return tuple(kept)


def _around(kept: Sequence[_Body], span: Span) -> Iterator[_Body]:
    """Yield which of the bodies, in order and none overlapping another, touch the span."""
    for at in range(bisect_right(kept, span.end, key=lambda body: body.hole.span.start) - 1, -1, -1):
        if kept[at].hole.span.end < span.start:
            return
        yield kept[at]


def _span(body: _Body) -> Span:
    return body.hole.span


class _Comments:
    """The comments of a text, found by the line they end on."""

    def __init__(self, syntax: Syntax) -> None:
        self.syntax = syntax
        index = syntax.lines
        self.spans = [syntax.span(node) for node in syntax.facts.all("comment")]
        self.alone = {
            index.at(span.end): span
            for span in self.spans
            if not syntax.text[index.starts[index.at(span.start)] : span.start].strip()
        }
        self.decorations = {
            index.at(span.end): index.at(span.start) for span in (syntax.span(node) for node in syntax.facts.all("decoration"))
        }

    def says(self, span: Span) -> str:
        """Return the comment's own words, without what a TODO that says nothing adds."""
        inner = _inner(self.syntax.text[span.start : span.end], self.syntax.language)
        return "" if _DIRECTIVE.match(inner) else inner

    def describes(self, owner: Owner) -> bool:
        """Return whether a comment that says something stands right above the owner, or above its decorators."""
        index = self.syntax.lines
        start = self.syntax.span(owner.node).start
        line = index.at(start)
        # What stands behind other code on its line, as in minified files, is not what the comment speaks of.
        if not _WORDS.fullmatch(self.syntax.text, index.starts[line], start):
            return False
        indent = index.indent(line)
        while line > 0:
            line -= 1
            if line in self.decorations:
                line = self.decorations[line]
            elif line in self.alone and index.indent(index.at(self.alone[line].start)) == indent:
                says = self.says(self.alone[line])
                if says:
                    return not (_DELIBERATE.match(says) or _HOOK.search(says))
                line = index.at(self.alone[line].start)
            else:
                break
        return False

    def after(self, owner: Owner) -> list[Span]:
        """Return the comments that belong to a body by their indentation but stand behind its last node."""
        index, text = self.syntax.lines, self.syntax.text
        end, outer = owner.inside.end, index.indent(index.at(self.syntax.span(owner.node).start))
        found = []
        for span in self.spans:
            if span.start < end:
                continue
            indent = index.indent(index.at(span.start))
            same_line = index.at(span.start) == index.at(end)
            if text[end : span.start].strip() or not (
                same_line or (len(indent) > len(outer) and span == self.alone.get(index.at(span.end)))
            ):
                break
            found.append(span)
            end = span.end
        return found


def _body(owner: Owner, syntax: Syntax, comments: _Comments, *, empty: bool) -> _Body | None:
    """Return the hole that fills the owner's body, or None where there is something in it or it should stay empty."""
    facts, text = syntax.facts, syntax.text
    parts = _parts(owner, syntax, comments)
    if parts is None:
        return None
    statements = [part for part in parts if part.role in _STATEMENTS]
    todo = any(part.role in ("todo", "task") for part in parts)
    if any(part.role == "companion" for part in statements) and not any(part.role in ("strong", "todo") for part in parts):
        return None
    strong = any(part.role == "strong" for part in statements) and owner.kind != "class"
    said = any(part.role in ("said", "docstring", "task") for part in parts)
    described = said or (owner.kind != "closure" and comments.describes(owner))
    bare = False
    if not todo:
        if _meant_to_be_elsewhere(owner, facts, described=described) or any(
            _ELSEWHERE.search(text[p.span.start : p.span.end]) for p in statements
        ):
            return None
        if not strong:
            if facts.has("empty", owner.node):
                return None
            docstrings = [_QUOTES.sub("", text[part.span.start : part.span.end]) for part in parts if part.role == "docstring"]
            complete = owner.kind == "class" and not statements and bool(docstrings)
            hook = any(_HOOK.search(words) or _DELIBERATE.match(words) for words in docstrings)
            bare = not described or complete or hook or any(part.role == "deliberate" for part in parts)
            if bare and not empty:
                return None
    return _Body(_shape(owner, parts, syntax), _whole(owner, parts), bare)


@dataclass(frozen=True, slots=True)
class _Part:
    """Something that stands in a body. A `todo` is a comment that says no more; a `task` one that says what to do."""

    role: str
    span: Span
    says: str = ""


_STATEMENTS = ("strong", "weak", "companion")


def _parts(owner: Owner, syntax: Syntax, comments: _Comments) -> list[_Part] | None:
    """Return what the body holds, or None where one of its statements is more than a placeholder."""
    facts, parts = syntax.facts, list[_Part]()
    for node in owner.items:
        span = syntax.span(node)
        if facts.has("comment", node):
            parts.append(_comment(span, comments))
        elif facts.has("docstring", node):
            parts.append(_Part("docstring", span))
        elif facts.has("placeholder", node):
            parts.append(_Part("strong", span))
        elif facts.has("placeholder.weak", node):
            parts.append(_Part("weak", span))
        elif facts.has("placeholder.with", node):
            parts.append(_Part("companion", span))
        else:
            return None
    if not owner.closed:
        parts += [_comment(span, comments) for span in comments.after(owner)]
    return parts


def _comment(span: Span, comments: _Comments) -> _Part:
    says = comments.says(span)
    if _FILL.fullmatch(says):
        return _Part("said", span)
    todo = _TODO.match(says)
    rest = says[todo.end() :] if todo else says
    if todo or rest:
        if _SAYS_NOTHING.fullmatch(rest):
            return _Part("todo", span)
        if todo:
            return _Part("task", span, rest.lstrip(" :-").strip())
    if says and not _DELIBERATE.match(says):
        return _Part("said", span, says)
    return _Part("deliberate" if says else "directive", span)


def _meant_to_be_elsewhere(owner: Owner, facts: Facts, *, described: bool) -> bool:
    """Return whether the body is written in another place: in a class that implements or derives from this one's."""
    if facts.has("abstract", owner.node):
        return True
    owners = facts.named
    node = owner.node.parent
    while node is not None:
        if facts.has("abstract.members", node):
            return owner.kind != "class"
        if node.id in owners:
            # What has a docstring of its own may well be missing here too.
            return not described and owners[node.id].kind == "class" and _is_overridden(owner, owners[node.id], facts)
        node = node.parent
    return False


def _is_overridden(method: Owner, base: Owner, facts: Facts) -> bool:
    if not base.name:
        return False
    word = re.compile(rf"\b{re.escape(base.name)}\b")
    derived = [other.inside for other in facts.heirs if word.search(other.bases)]
    # Most have none, and of a long file all functions are many.
    return bool(derived) and any(
        other.kind == "function" and other.name == method.name and span.start <= other.inside.start < span.end
        for other in facts.owners
        for span in derived
    )


def _whole(owner: Owner, parts: Sequence[_Part]) -> Span:
    return Span(owner.inside.start, max([owner.inside.end, *(part.span.end for part in parts)]))


def _shape(owner: Owner, parts: Sequence[_Part], syntax: Syntax) -> Hole:
    """Return the hole that replaces the body's placeholder and keeps what stands before it and says something."""
    text, index = syntax.text, syntax.lines
    statement = next((number for number, part in enumerate(parts) if part.role in _STATEMENTS), len(parts))
    kept = max(
        (number + 1 for number, part in enumerate(parts[:statement]) if part.role not in ("todo", "directive")), default=0
    )
    removed = parts[kept:]
    instruction = " ".join(part.says for part in removed if part.says)
    outer = index.indent(index.at(syntax.span(owner.node).start))
    inner = next((own for part in parts if (own := _own_indent(part.span.start, index)) is not None), None)
    if inner is None or (len(inner) <= len(outer) and inner != outer):
        inner = outer + indent_unit(text, syntax.language.indent)

    start = removed[0].span.start if removed else parts[kept - 1].span.end if kept else owner.inside.start
    end = removed[-1].span.end if removed else start
    if not parts and owner.closed:
        end = owner.inside.end
    else:
        # A semicolon that the grammar counts to no statement goes with the placeholder.
        rest = re.compile(r"[ \t]*;").match(text, end, index.ends[index.at(end)]) if removed else None
        end = rest.end() if rest else end
    lead = trail = ""
    if text[index.starts[index.at(start)] : start].strip() or not removed:
        lead = "\n" + inner
        start = start - (len(text[:start]) - len(text[:start].rstrip(" \t"))) if removed else start
    if owner.closed and not text[end : owner.inside.end].strip(" \t;"):
        end, trail = owner.inside.end, "\n" + outer
    return Hole(Span(start, end), "body", indent=inner, block=True, instruction=instruction, lead=lead, trail=trail)


def _own_indent(offset: int, index: Lines) -> str | None:
    """Return the white space before the offset, or None when more than that stands before it on its line."""
    head = index.text[index.starts[index.at(offset)] : offset]
    return head if not head.strip() else None


def _inline(syntax: Syntax, facts: Facts) -> Iterator[Hole]:
    for node in facts.all("placeholder.inline"):
        yield _statement(syntax.span(node), "body", syntax)


def _stranded(syntax: Syntax, facts: Facts) -> Iterator[Hole]:
    """Yield placeholders whose function can't be parsed, where the line before opens a block."""
    index = syntax.lines
    owned = {item.id for owner in facts.owners for item in owner.items}
    for node in facts.all("placeholder"):
        parent = node.parent
        while parent is not None and not parent.is_error:
            parent = parent.parent
        span = syntax.span(node)
        if parent is None or node.id in owned or _own_indent(span.start, index) is None:
            continue
        line = index.at(span.start) - 1
        while line > 0 and index.is_blank(line):
            line -= 1
        code = index.content(line).rstrip() if line >= 0 else ""
        if code.endswith((":", "{")) or re.search(syntax.language.opens, code):
            yield _statement(span, "body", syntax)


def _statement(span: Span, kind: HoleKind, syntax: Syntax) -> Hole:
    index = syntax.lines
    rest = syntax.text[span.end : index.ends[index.at(span.end)]]
    indent = _own_indent(span.start, index)
    if indent is None or rest.strip() not in ("", ";"):
        return Hole(span, kind, indent=index.indent(index.at(span.start)))
    return Hole(Span(span.start, span.end + len(rest.rstrip())), kind, indent=indent, block=True)


# Comments and markers


def _comments(syntax: Syntax) -> Iterator[tuple[Span, str]]:
    for node in syntax.facts.all("comment"):
        span = syntax.span(node)
        yield span, _inner(syntax.text[span.start : span.end], syntax.language)


def _plain_comments(text: str) -> Iterator[tuple[Span, str]]:
    # `$` knows only \n; both kinds of line end become it, and offsets stay.
    lined = _PLAIN_LINE_ENDS.sub(lambda match: "\n" * len(match.group()), text)
    for match in _PLAIN_FILL.finditer(lined):
        yield Span(*match.span()), next(group for group in match.groups() if group).strip()


def _inner(comment: str, language: Language) -> str:
    """Return the comment's words without its delimiters."""
    if language.block_comment:
        opening, closing = language.block_comment
        if comment.startswith(opening):
            return comment[len(opening) :].removesuffix(closing).strip().lstrip("*!").strip()
    for mark in language.line_comments:
        if comment.startswith(mark):
            return comment[len(mark) :].lstrip(mark[0] + "!").strip()
    return comment.strip()


def _marker(span: Span, instruction: str, index: Lines) -> Hole:
    indent = _own_indent(span.start, index)
    alone = indent is not None and not index.text[span.end : index.ends[index.at(span.end)]].strip()
    return Hole(
        span,
        "marker",
        indent=indent if indent is not None else index.indent(index.at(span.start)),
        block=alone,
        instruction=instruction,
    )


def _joined(marker: Hole, body: _Body, text: str) -> Hole:
    """Return the marker, with the placeholder right behind it where there is one; on its opener's line it opens the body."""
    hole = body.hole
    if hole.span.start < marker.span.end or text[marker.span.end : hole.span.start].strip():
        return marker
    before = text[body.inside.start : marker.span.start]
    opens = not before.strip(" \t")
    if not marker.block and before.strip():
        return marker
    return replace(
        marker,
        span=Span(body.inside.start if opens else marker.span.start, hole.span.end),
        indent=hole.indent if opens else marker.indent,
        block=True,
        instruction=" ".join(part for part in (marker.instruction, hole.instruction) if part),
        lead="\n" + hole.indent if opens else "",
        trail=hole.trail,
    )


def _touches(one: Span, other: Span) -> bool:
    return one.start <= other.end and other.start <= one.end


# The cursor


def _opened_line(document: Document, offset: int, syntax: Syntax | None, index: Lines) -> int | None:
    """Return the line of the block opener that is the last code before the offset, or None where no block starts."""
    text = document.text
    if syntax is None:
        head = text[: index.starts[index.at(offset)]].rstrip()
        blank = not text[index.starts[index.at(offset)] : offset].strip()
        return index.at(len(head) - 1) if blank and head.endswith((":", "{")) else None
    for far in _LOOK_BACK:
        near = syntax.facts_near(Span(max(0, offset - far), offset))
        end = _last_code(near, syntax, offset)
        if end > offset - far:
            break
    comments = [syntax.span(node) for node in near.all("comment")]
    strings = [syntax.span(node) for node in near.all("string")]
    marks = syntax.language.line_comments
    if inside_any(offset, [*strings, *comments]) or any(
        span.end == offset and text.startswith(marks, span.start) for span in comments
    ):
        return None
    if end == 0:
        return None
    opens = {syntax.span(node).end for node in (*near.all("opens"), *near.all("opener"))}
    line = index.at(end - 1)
    if end in opens:
        return _first_line(near, syntax, end, line)
    broken = syntax.node_at(Span(end - 1, end))
    while not broken.is_error and broken.parent is not None:
        broken = broken.parent
    return line if broken.is_error and _opens(syntax.language, text[index.starts[line] : end]) else None


def _last_code(near: Facts, syntax: Syntax, offset: int) -> int:
    """Return where the last code before the offset ends that is no comment, docstring or white space."""
    skipped = {
        span.end: span.start for kind in ("comment", "docstring") for span in (syntax.span(node) for node in near.all(kind))
    }
    end = len(syntax.text[:offset].rstrip())
    while end in skipped:
        end = len(syntax.text[: skipped[end]].rstrip())
    return end


def _opens(language: Language, code: str) -> bool:
    """Return whether a line that can't be parsed opens a block, as far as its text tells."""
    closed = all(code.count(left) <= code.count(right) for left, right in ("()", "[]"))
    return closed and re.search(language.opens, code) is not None


def _first_line(facts: Facts, syntax: Syntax, end: int, line: int) -> int:
    """Return the line that the block's head starts on: with parameters on several, the first one's indentation counts."""
    heads = [owner.node for owner in facts.owners if owner.inside.start == end]
    return min([line, *(syntax.lines.at(syntax.span(node).start) for node in heads)])


def _has_content(index: Lines, line: int, opened: int) -> bool:
    """Return whether lines below belong to the block that the opener's line starts, by their indentation."""
    for below in range(line + 1, len(index)):
        if not index.is_blank(below):
            return len(index.indent(below)) > len(index.indent(opened))
    return False
