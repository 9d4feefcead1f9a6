"""Find the comments of a text: `FILL` comments, and those that describe a function or belong to its body.

The patterns recognise what comments, docstrings and messages say about code: missing, empty on purpose, or written elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dg_lsp.core import positions
from dg_lsp.core.languages import Language
from dg_lsp.core.positions import Lines
from dg_lsp.core.syntax import Owner, Syntax
from dg_lsp.core.values import Document, Hole, Span

FILL = re.compile(r"FILL(?::\s*(.*))?", re.DOTALL)
TODO = re.compile(r"(?:TODO|FIXME|XXX)\b(?:\([^)]*\))?", re.IGNORECASE)
# What remains of a TODO that does not say what to do, and comments that mean TODO without the word.
SAYS_NOTHING = re.compile(
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
      | does\ ?n[o']t | can\ ?not | can't | (?:must|should)\ not | meaningless | unlikely
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
# The quotes of a docstring.
DOC_QUOTES = re.compile(r"""^[a-zA-Z]*(?:\"{3}|'{3}|"|')|(?:\"{3}|'{3}|"|')$""")


def says_todo(comment: str, language: Language) -> bool:
    """Return whether the comment says only that code is missing here."""
    inner = words(comment, language)
    todo = TODO.match(inner)
    rest = inner[todo.end() :] if todo else inner
    return bool(todo or rest.strip()) and SAYS_NOTHING.fullmatch(rest) is not None


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
            if not syntax.text[index.starts[index.at(span.start)] : span.start].strip()
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
        for span in self.spans:
            if span.start < end:
                continue
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


# FILL comments


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
