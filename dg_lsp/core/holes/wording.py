"""Recognise what comments, docstrings and messages say about code: missing, empty on purpose, or written elsewhere."""

from __future__ import annotations

import re

from dg_lsp.core.languages import Language

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
