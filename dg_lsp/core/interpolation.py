"""Tell the code in an interpolated string from the string around it, also while its expression is half typed.

A tree shows complete interpolations (`@interpolation` in the queries). Of an unfinished one the parser makes errors, in which
only the tokens are reliable. So there the tokens up to an offset are read in order: quotes, and the brackets of code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from tree_sitter import Node

from dg_lsp.core import languages, lexing
from dg_lsp.core.syntax import Facts, Syntax

_QUOTES = frozenset({'"', "'", "`", '"""', "string_start", "interpolation_quote", "heredoc_start"})
_ENDS = _QUOTES | {"string_end", "heredoc_end"}
_CONTENT = re.compile(r"content|fragment")
_CLOSER = {"{": "}", "(": ")"}
_STRING = '"'
_VARIABLE = re.compile(r"(?<!\\)\$\w+\Z")
_PROPERTY = re.compile(r"(?<!\\)\$\w+(?:\??->\w*|\[\w*)\Z")
_MACRO = re.compile(r"\w+!\s*[(\[{]")
# How far back an interpolation may begin, unless its line does.
_NEAR_CHARS = 500


def is_string(syntax: Syntax, facts: Facts, offset: int) -> bool | None:
    """Return whether the offset lies in the literal part of a string, or in an expression in one; None outside of strings.

    `facts` are those near the offset.
    """
    at = syntax.offsets.to_byte(offset)
    literals = (node for name in ("string", "docstring") for node in facts.all(name))
    strings = [node for node in literals if node.start_byte < at < node.end_byte + _is_open(node)]
    strings = [node for node in strings if not _is_overlong(syntax, node.start_byte, at)]
    strings += [node for node in facts.all("interpolation.format") if node.start_byte < at <= node.end_byte]
    expressions = [node for node in facts.all("interpolation") if _holds(node, at)]
    innermost = min((*strings, *expressions), key=lambda node: node.end_byte - node.start_byte, default=None)
    if innermost is None:
        return None
    if innermost in expressions or _is_format(syntax, offset):
        return False
    # PHP's grammar reads the `->` of `"a $b->"` as text.
    if innermost.type in ("encapsed_string", "heredoc") and _PROPERTY.search(_line_before(syntax, offset)):
        return False
    return _after_tokens(syntax, innermost.start_byte, at, innermost) is not False


def is_string_in_errors(syntax: Syntax, start: int, offset: int) -> bool | None:
    """Return the same where the parser found errors, as far as the tokens from `start` on say it."""
    if is_content(syntax, offset):
        return not _is_format(syntax, offset)
    if "$" in syntax.language.interpolation and _VARIABLE.search(_line_before(syntax, offset)):
        return False
    return _after_tokens(syntax, syntax.offsets.to_byte(start), syntax.offsets.to_byte(offset))


def _is_format(syntax: Syntax, offset: int) -> bool:
    """Return whether the offset is in an expression of a macro's format string, which is no node of its own in Rust."""
    lexer, lines = lexing.named(syntax.language.name), syntax.lines
    if not any(each.code for each in lexer.delimiters):
        return False
    near = range(lines.at(max(0, offset - _NEAR_CHARS)), lines.at(offset) + 1)
    start = next((lines.start(line) for line in near if not _continues_literal(syntax, lines.start(line))), offset)
    before = syntax.text[start:offset]
    return _MACRO.search(before) is not None and languages.kind_at_end(before, syntax.language.name) is None


def _continues_literal(syntax: Syntax, line_start: int) -> bool:
    at = syntax.offsets.to_byte(line_start)
    node = syntax.tree.root_node.descendant_for_byte_range(max(at - 1, 0), at + 1)
    return node is not None and ("string" in node.type or node.type == "block_comment")


def _line_before(syntax: Syntax, offset: int) -> str:
    return syntax.text[max(syntax.lines.start(syntax.lines.at(offset)), offset - _NEAR_CHARS) : offset]


def is_content(syntax: Syntax, offset: int) -> bool:
    """Return whether the token before the offset, or around it, is the content of a string."""
    at = syntax.offsets.to_byte(offset)
    token = syntax.tree.root_node.descendant_for_byte_range(max(at - 1, 0), at)
    return token is not None and bool(_CONTENT.search(token.type)) and not _is_overlong(syntax, token.start_byte - 1, at)


def _is_open(string: Node) -> bool:
    return bool(string.children) and string.children[-1].is_missing


def _is_overlong(syntax: Syntax, start: int, at: int) -> bool:
    """Return whether a string's quote is of the kind that ends at the end of a line, which the parser forgets after errors."""
    source, quote = syntax.offsets.source, syntax.offsets.source[max(start, 0) : start + 1]
    is_short = quote in (b"'", b'"') and not _spans_lines(quote.decode(), syntax.language.name)
    return (
        is_short
        and source[start : start + 3] != 3 * quote
        and source[start - 2 : start + 1] != 3 * quote
        and b"\n" in source[start:at]
    )


@cache
def _spans_lines(quote: str, language: str) -> bool:
    """Return whether a string that begins with the quote may have several lines."""
    delimiters = lexing.named(language).delimiters
    return any(each.kind == "string" and each.multiline and re.fullmatch(each.open, quote) for each in delimiters)


def _holds(node: Node, at: int) -> bool:
    """Return whether a byte offset is between the brackets of an interpolation; the last one may be missing."""
    first, last = node.children[0], node.children[-1]
    is_closed = not (last.is_named or last.is_missing or last.is_error) or last.type == "interpolation_brace"
    return first.end_byte <= at <= (last.start_byte if is_closed and last != first else node.end_byte)


def _after_tokens(syntax: Syntax, start: int, at: int, string: Node | None = None) -> bool | None:
    """Return whether a string is open at a byte offset, or code in one, after these tokens; None if no expression is open.

    `string` begins at `start` and goes on at the offset.
    """
    openers = syntax.language.interpolation
    # What is open, from the outside in: strings, and closing brackets of code in them.
    stack = [_STRING] if string else []
    for token in _tokens(string or syntax.tree.root_node, start, at) if openers else ():
        text = (token.text or b"").decode("utf-8", "replace")
        if string and token.start_byte == start and token.type in _QUOTES:
            continue
        if stack[-1:] == [_STRING]:
            if token.type in openers and text[-1:] in _CLOSER:
                stack.append(_CLOSER[text[-1]])
            elif token.type in _ENDS and (len(stack) > 1 or not string):
                stack.pop()
        elif token.type in _QUOTES or _CONTENT.search(token.type):
            stack.append(_STRING)  # an error may have lost the quote before the content
        elif token.type in openers and text[-1:] in _CLOSER and token.type != "{":
            stack.append(_CLOSER[text[-1]])
        elif stack and _CLOSER.get(text) == stack[-1]:
            stack.append(stack[-1])
        elif stack and text.startswith(stack[-1]):
            stack.pop()
    return stack[-1] == _STRING if set(stack) - {_STRING} else None


def _tokens(root: Node, start: int, at: int) -> Iterator[Node]:
    """Yield the tokens below a node that lie in a range of bytes, in order."""
    todo = [root]
    while todo:
        node = todo.pop()
        if node.end_byte <= start or node.start_byte >= at:
            continue
        if node.child_count:
            todo += reversed(node.children)
        elif start <= node.start_byte and node.end_byte <= at:
            yield node
