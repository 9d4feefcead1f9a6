"""Find placeholder bodies and placeholder expressions, and the comments that describe a function or belong to its body.

The patterns recognise what comments, docstrings and messages say about code: missing, empty on purpose, or written elsewhere.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from dg_lsp.core import indentation
from dg_lsp.core.languages import Language
from dg_lsp.core.syntax import PLACEHOLDERS, Facts, Owner, Syntax
from dg_lsp.core.values import Document, Hole, Span

FILL = re.compile(r"FILL(?::\s*(.*))?", re.DOTALL)
TODO = re.compile(r"(?:TODO|FIXME|XXX)\b(?:\([^)]*\))?", re.IGNORECASE)
# What remains of a TODO that does not say what to do, and comments that mean TODO without the word.
SAYS_NOTHING = re.compile(
    r"""\W*(?:(?:
        auto-?generated\ (?:method|constructor|function)\ stub
      | (?:please\ )?(?:implement|write|fill(?:\ in)?|complete|finish)
        (?:\ (?:this|me|it|here|later|properly|code|body|implementation|the|method|function|class|logic))*
      | tbd | replace\ (?:this\ )?with\ (?:the\ |your\ |an?\ )?(?:actual|real|own)\ (?:code|implementation|logic)
      | not\ (?:yet\ )?implemented(?:\ yet)? | unimplemented | to\ be\ (?:implemented|written|done)(?:\ later)?
      | (?:(?:add|write|put|insert)\ )?(?:your\ |the\ )?(?:code|implementation|solution|logic|body)(?:\ goes)?\ here
      | (?:existing|remaining|previous|other|rest\ of(?:\ the)?)\ (?:code|implementation|logic|function|method)
        (?:\ (?:goes\ )?here|\ (?:is\ |stays\ )?unchanged|\ (?:remains|stays)\ the\ same)?
      | (?:an?\ )?(?:placeholder|stub)(?:\ (?:implementation|value))?(?:\ for\ now)? | implementation | later | \.\.\. | …
    )\W*)?""",
    re.IGNORECASE | re.VERBOSE,
)
# A comment that means: this is empty on purpose.
DELIBERATE = re.compile(
    r"""\W*(?:
        (?:no-?op|nothing|do(?:es)?\ nothing|ignored?|unused|empty|not\ (?:needed|used|required|applicable))\b
        (?:\ (?:to\ do|to\ be\ done|here|by\ default|by\ design|on\ purpose|needed|yet
              |body|block|method|function|constructor|implementation))*\W*$
      | .*\b(?:intentional|intentionally|deliberate|deliberately|on\ purpose)\b
    )""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
# A docstring that means: this does nothing until a derived class overrides it.
HOOK = re.compile(
    r"""^\W*(?:hook\b|called\ (?:when|whenever|by|once|before|after|at|on|if|for|just)\b)
      | \bsub-?class(?:es)?\ (?:may|can|should|must|needs?\ to|have\ to)\b
      | \b(?:do|does)\ nothing\b
      | \boverrid\w+\ (?:by|in|this\ in)\ (?:the\ |a\ )?(?:sub|derived|child)
    """,
    re.IGNORECASE | re.VERBOSE,
)
# A comment for a tool, which says nothing about the code.
DIRECTIVE = re.compile(
    r"""\W*(?:
        noqa | type: | pragma | pylint | mypy: | ruff: | flake8 | fmt: | isort:
      | eslint | tslint | ts- | prettier | jshint | istanbul | c8\  | v8\  | nolint | go:
      | clippy | rustfmt | nosonar | checkstyle | noinspection | rubocop | shellcheck
      | luacheck | phpcs | phpstan | psalm | resharper | clang-format | -\*- | !/
    )""",
    re.IGNORECASE | re.VERBOSE,
)
# A message that means: this code is written in a derived class, or is not supported. Such a placeholder is not a hole.
ELSEWHERE = re.compile(
    r"""\b(?:
        sub-?class(?:es)? | (?:derived|child|concrete|inherit\w*)\ (?:class|type)
      | (?:must|should|to|needs\ to)\ (?:be\ )?(?:overrid|implement)\w*
      | (?:must|should)\ (?:define|provide) | abstract
      | not\ (?:be\ )?(?:supported|allowed|available|applicable|needed|required)(?!\ yet) | unsupported
      | (?:does\ ?n[o']t | can\ ?not | can't)(?!\ yet) | (?:must|should)\ not | meaningless
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
# The quotes of a docstring.
DOC_QUOTES = re.compile(r"""^[a-zA-Z]*(?:\"{3}|'{3}|"|')|(?:\"{3}|'{3}|"|')$""")


def says_todo(comment: str, language: Language, *, after_code: bool = False) -> bool:
    """Return whether the comment, or the text of a string, says that code is missing here.

    A TODO that says what to do is a note on what is below, but after code on its line it says that this is not yet the code.
    """
    inner = words(comment, language)
    todo = TODO.match(inner)
    if todo and after_code and todo[0][:3].isupper():
        return True
    # A line of dashes says nothing either, but is no placeholder.
    is_said = todo or _SAID.search(inner)
    return is_said is not None and SAYS_NOTHING.fullmatch(inner[todo.end() :] if todo else inner) is not None


def words(comment: str, language: Language) -> str:
    """Return the comment's text without its delimiters."""
    if language.block_comment:
        opening, closing = language.block_comment
        if comment.startswith(opening):
            return comment[len(opening) :].removesuffix(closing).strip().lstrip("*!").strip()
    for mark in language.line_comments:
        if comment.startswith(mark):
            return comment[len(mark) :].lstrip(mark[0] + "!").strip()
    return comment.strip()


class Comments:
    """The comments of a text, indexed by the line that they end on."""

    def __init__(self, syntax: Syntax) -> None:
        self.syntax = syntax
        index = syntax.lines
        self.spans = [syntax.span(node) for node in syntax.facts.all("comment")]
        self.alone = {
            index.at(span.end): span
            for span in self.spans
            if not syntax.text[index.start(index.at(span.start)) : span.start].strip()
        }
        self.decorations = {
            index.at(span.end): index.at(span.start) for span in (syntax.span(node) for node in syntax.facts.all("decoration"))
        }

    def says(self, span: Span) -> str:
        """Return the comment's words, or "" for a directive to a tool."""
        inner = words(self.syntax.text[span.start : span.end], self.syntax.language)
        return "" if DIRECTIVE.match(inner) else inner

    def describes(self, owner: Owner) -> bool:
        """Return whether a meaningful comment is directly above the owner or above its decorators."""
        index = self.syntax.lines
        start = self.syntax.span(owner.node).start
        line = index.at(start)
        # A comment does not describe an owner that follows other code on its line, as in minified files.
        if not _WORDS.fullmatch(self.syntax.text, index.start(line), start):
            return False
        indent = index.indent(line)
        while line > 0:
            line -= 1
            if line in self.decorations:
                line = self.decorations[line]
            elif line in self.alone and index.indent(index.at(self.alone[line].start)) == indent:
                says = self.says(self.alone[line])
                if says:
                    return not (DELIBERATE.match(says) or HOOK.search(says))
                line = index.at(self.alone[line].start)
            else:
                break
        return False

    def after(self, owner: Owner) -> list[Span]:
        """Return the comments after the body's last node that belong to the body by their indentation."""
        index, text = self.syntax.lines, self.syntax.text
        end, outer = owner.inside.end, index.indent(index.at(self.syntax.span(owner.node).start))
        trailing_spans = []
        for number in range(bisect_left(self.spans, end, key=lambda span: span.start), len(self.spans)):
            span = self.spans[number]
            indent = index.indent(index.at(span.start))
            same_line = index.at(span.start) == index.at(end)
            if text[end : span.start].strip() or not (
                same_line or (len(indent) > len(outer) and span == self.alone.get(index.at(span.end)))
            ):
                break
            trailing_spans.append(span)
            end = span.end
        return trailing_spans


_WORDS = re.compile(r"[\w\s]*")
_SAID = re.compile(r"\w|\.\.\.|…")


# --- Bodies


@dataclass(frozen=True, slots=True)
class Part:
    """A statement, docstring or comment in a body, and its role.

    A `todo` is a comment that only says that code is missing. A `task` is one that says what to do; `says` holds its
    words.
    """

    role: str
    span: Span
    says: str = ""


STATEMENTS = ("strong", "weak", "companion")
TODO_ROLES = ("todo", "task")


def parts_of(owner: Owner, syntax: Syntax, comments: Comments) -> list[Part] | None:
    """Return the parts of the body, or None if one of its statements is more than a placeholder."""
    facts, parts = syntax.facts, list[Part]()
    for node in owner.items:
        span = syntax.span(node)
        if facts.has("comment", node):
            parts.append(_comment(span, comments))
        elif facts.has("docstring", node):
            parts.append(Part("docstring", span))
        elif is_overgrown(node):
            return None
        elif facts.has("placeholder", node):
            parts.append(Part("strong", span))
        elif facts.has("placeholder.weak", node):
            parts.append(Part("weak", span))
        elif facts.has("placeholder.with", node):
            parts.append(Part("companion", span))
        else:
            return None
    if not owner.closed:
        parts += [_comment(span, comments) for span in comments.after(owner)]
    return parts


def is_overgrown(node: Node) -> bool:
    """Return whether a node has a syntax error and several lines: then it may have swallowed the code after a placeholder."""
    return node.has_error and node.start_point.row != node.end_point.row


def _comment(span: Span, comments: Comments) -> Part:
    says = comments.says(span)
    if FILL.fullmatch(says):
        return Part("said", span)
    todo = TODO.match(says)
    rest = says[todo.end() :] if todo else says
    if todo or rest:
        if SAYS_NOTHING.fullmatch(rest):
            return Part("todo", span)
        if todo:
            return Part("task", span, rest.lstrip(" :-").strip())
    if says and not DELIBERATE.match(says):
        return Part("said", span, says)
    return Part("deliberate" if says else "directive", span)


def hole_of(owner: Owner, parts: Sequence[Part], syntax: Syntax, document: Document) -> Hole:
    """Return the hole that replaces the body's placeholder, and keeps the docstrings and meaningful comments before it."""
    text, index = syntax.text, syntax.lines
    statement = next((number for number, part in enumerate(parts) if part.role in STATEMENTS), len(parts))
    n_kept = max(
        (number + 1 for number, part in enumerate(parts[:statement]) if part.role not in ("todo", "directive")), default=0
    )
    replaced_parts = parts[n_kept:]
    instruction = " ".join(part.says for part in replaced_parts if part.says)
    outer = index.indent(index.at(syntax.span(owner.node).start))
    inner = next((own for part in parts if (own := index.indent_before(part.span.start)) is not None), None)
    if inner is None or (len(inner) <= len(outer) and inner != outer):
        inner = outer + indentation.unit(document, text)

    start = replaced_parts[0].span.start if replaced_parts else parts[n_kept - 1].span.end if n_kept else owner.inside.start
    end = replaced_parts[-1].span.end if replaced_parts else start
    if not parts and owner.closed:
        end = owner.inside.end
    else:
        # A semicolon that is part of no statement is replaced with the placeholder.
        rest = re.compile(r"[ \t]*;").match(text, end, index.end(index.at(end))) if replaced_parts else None
        end = rest.end() if rest else end
    lead = trail = ""
    if text[index.start(index.at(start)) : start].strip() or not replaced_parts:
        lead = "\n" + inner
        start = start - (len(text[:start]) - len(text[:start].rstrip(" \t"))) if replaced_parts else start
    if owner.closed and not text[end : owner.inside.end].strip(" \t;"):
        end, trail = owner.inside.end, "\n" + outer
    return Hole(Span(start, end), "body", indent=inner, extent="block", instruction=instruction, lead=lead, trail=trail)


@dataclass(frozen=True, slots=True)
class Body:
    """The hole of a body, and the span of that body's inside.

    A `bare` body does nothing and may be complete: nothing describes what is missing, or its words say that it is empty
    on purpose.
    """

    hole: Hole
    inside: Span
    bare: bool


def find_bodies(document: Document, syntax: Syntax | None, *, empty: bool) -> tuple[Body, ...]:
    """Return each placeholder body and each placeholder expression, in order.

    Docstrings and meaningful comments before the placeholder stay outside the hole. A comment that says what to do
    becomes the hole's instruction. With `empty`, bare bodies count too (see `Body`).
    """
    if syntax is None or document.uri.endswith(syntax.language.stub_suffixes or "\0"):
        return ()
    facts = syntax.facts
    comments = Comments(syntax)
    placeholders: list[Body] = []
    for body in (_body(owner, syntax, comments, document, empty=empty) for owner in facts.owners):
        # An outer body comes before the bodies inside it. In broken code, even a placeholder may contain another body.
        if body and not any(body.hole.span.overlaps(other.hole.span) for other in _around(placeholders, body.hole.span)):
            insort(placeholders, body, key=lambda body: body.hole.span)
    inline = (node for node in facts.all("placeholder.inline") if not is_overgrown(node))
    spans = (*map(syntax.span, inline), *_stranded(syntax, facts))
    missing = (span for span in spans if not ELSEWHERE.search(syntax.text, span.start, span.end))
    strays = {hole.span: hole for hole in (_statement(span, syntax) for span in missing)}
    for span in sorted(strays):
        if not any(span.touches(body.hole.span) for body in _around(placeholders, span)):
            insort(placeholders, Body(strays[span], span, bare=False), key=lambda body: body.hole.span)
    return tuple(placeholders)


def at_placeholder(document: Document, span: Span, syntax: Syntax | None) -> Hole | None:
    """Return the hole for the placeholder at the cursor or selection: its whole body, or the statement alone.

    Returns None if there is no placeholder, or more than one. A body that is empty on purpose counts here, because the
    user points at it. A body without any text does not, because the cursor itself is a hole there.
    """
    if syntax is None:
        return None
    comments, facts = Comments(syntax), syntax.facts_near(span)
    holes = [
        hole_of(owner, parts, syntax, document)
        for owner in facts.owners
        if (parts := parts_of(owner, syntax, comments)) is not None
        # A companion alone, such as `return 0`, is code.
        and any(part.role in ("strong", "weak", *TODO_ROLES) for part in parts)
    ]
    nodes = [node for capture in PLACEHOLDERS for node in facts.all(capture) if not is_overgrown(node)]
    holes += [_statement(syntax.span(node), syntax) for node in nodes]
    code = trimmed(document.text, span)
    around = [hole for hole in holes if hole.span.holds(code)]
    # The widest one: a placeholder statement lies inside the body that it stands for.
    return max(around, key=lambda hole: hole.span.end - hole.span.start, default=None)


def trimmed(text: str, span: Span) -> Span:
    """Return the span of the selected code, without surrounding white space."""
    selected = text[span.start : span.end]
    if not selected.strip():
        return Span(span.start, span.start)
    return Span(span.start + len(selected) - len(selected.lstrip()), span.end - len(selected) + len(selected.rstrip()))


def _around(placeholders: Sequence[Body], span: Span) -> Iterator[Body]:
    """Yield the bodies that touch the span. `placeholders` must be in order and must not overlap."""
    for at in range(bisect_right(placeholders, span.end, key=lambda body: body.hole.span.start) - 1, -1, -1):
        if placeholders[at].hole.span.end < span.start:
            return
        yield placeholders[at]


def _body(owner: Owner, syntax: Syntax, comments: Comments, document: Document, *, empty: bool) -> Body | None:
    """Return the hole that fills the owner's body, or None if the body has real code or should stay empty."""
    facts, text = syntax.facts, syntax.text
    parts = parts_of(owner, syntax, comments)
    if parts is None:
        return None
    statements = [part for part in parts if part.role in STATEMENTS]
    is_todo = any(part.role in TODO_ROLES for part in parts)
    if any(part.role == "companion" for part in statements) and not any(part.role in ("strong", "todo") for part in parts):
        return None
    strong = any(part.role == "strong" for part in statements) and owner.kind != "class"
    has_words = any(part.role in ("said", "docstring", "task") for part in parts)
    is_described = has_words or (owner.kind != "closure" and comments.describes(owner))
    bare = False
    if not is_todo:
        if _meant_to_be_elsewhere(owner, syntax, is_described=is_described) or any(
            ELSEWHERE.search(text[p.span.start : p.span.end]) for p in statements
        ):
            return None
        if not strong:
            if facts.has("empty", owner.node):
                return None
            docstrings = [
                DOC_QUOTES.sub("", text[part.span.start : part.span.end]) for part in parts if part.role == "docstring"
            ]
            complete = owner.kind == "class" and not statements and bool(docstrings)
            hook = any(HOOK.search(words) or DELIBERATE.match(words) for words in docstrings)
            bare = not is_described or complete or hook or any(part.role == "deliberate" for part in parts)
            if bare and not empty:
                return None
    # Comments after the body's last node may belong to it.
    inside = Span(owner.inside.start, max([owner.inside.end, *(part.span.end for part in parts)]))
    return Body(hole_of(owner, parts, syntax, document), inside, bare)


def _meant_to_be_elsewhere(owner: Owner, syntax: Syntax, *, is_described: bool) -> bool:
    """Return whether the body is written elsewhere: in a class that implements or derives from this one."""
    facts = syntax.facts
    if facts.has("abstract", owner.node):
        return True
    owners = facts.named
    for node in syntax.ancestors(owner.node)[1:]:
        if facts.has("abstract.members", node):
            return owner.kind != "class"
        if node.id in owners:
            # A function with its own docstring may be missing here too.
            base = owners[node.id]
            name = re.split(r"\W", base.name)[-1]
            return not is_described and base.kind == "class" and facts.overrides(name, owner.name)
    return False


def _stranded(syntax: Syntax, facts: Facts) -> Iterator[Span]:
    """Yield placeholders in functions that can't be parsed, if the line before opens a block."""
    index = syntax.lines
    item_ids = {item.id for owner in facts.owners for item in owner.items}
    for node in facts.all("placeholder"):
        is_broken = any(parent.is_error for parent in syntax.ancestors(node)[1:])
        span = syntax.span(node)
        if not is_broken or node.id in item_ids or is_overgrown(node) or index.indent_before(span.start) is None:
            continue
        line = index.at(span.start) - 1
        while line > 0 and index.is_blank(line):
            line -= 1
        code = index.content(line).rstrip() if line >= 0 else ""
        if code.endswith((":", "{")) or re.search(syntax.language.opens, code):
            yield span


def _statement(span: Span, syntax: Syntax) -> Hole:
    index = syntax.lines
    rest = syntax.text[span.end : index.end(index.at(span.end))]
    indent = index.indent_before(span.start)
    if indent is None or rest.strip() not in ("", ";"):
        return Hole(span, "body", indent=index.indent(index.at(span.start)))
    return Hole(Span(span.start, span.end + len(rest.rstrip())), "body", indent=indent, extent="block")
