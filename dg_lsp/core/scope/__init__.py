"""Find names that an answer uses and that nothing binds, and names that only an answer can bind.

A name that an answer uses counts only if the answer introduced the problem: a name that was unbound in the file before does
not. Only in Python is the result certain, because a Python file shows every name that it binds. In other languages a name may
come from another file or from the environment. If the code is too broken, or may bind any name (as `import *` does), no name
is reported.

An answer that binds none of the names that the code after it needs leaves that code broken, so it is not yet complete. In
doubt nothing is needed. In Python, pyflakes checks the function around the hole. In JavaScript and TypeScript, `uses` tells
what the file only uses.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence

from pyflakes import messages

from dg_lsp.core import languages, place, syntax
from dg_lsp.core.place import last_line
from dg_lsp.core.scope import python, uses
from dg_lsp.core.syntax import ParseLimitError, Syntax
from dg_lsp.core.values import Document, Span

DECLARED = frozenset({"javascript", "typescript", "tsx"})
"""The other languages whose names are found; a word declares each name, `let` if the code after it assigns to it again."""
MAX_TEXT = 100_000
MAX_USED = 30_000  # where each name after a hole is looked up in the whole file
MAX_TAIL = 800  # the most characters after a hole in these languages
MOST_NAMES = 6  # if more are unbound, the file's imports are probably missing
MAX_CHARS = 20_000  # of the function or module around the hole; checking more takes too long


def is_certain(language: str) -> bool:
    """Return whether a name reported by `unbound_names` is certainly unbound in this language."""
    return language == "python"


def is_whole_file(document: Document) -> bool:
    """Return whether the document is a source file, which shows the names that it binds, and not a cell or a build file."""
    language = languages.get(document.language)
    if language is None or language.name == "python":
        return language is not None and python.is_module(document.text, document.uri)
    return document.uri.endswith(language.extensions)


def unbound_names(filled: Syntax, answers: Sequence[tuple[Span, str]], uri: str = "") -> frozenset[str]:
    """Return the names that the answers leave unbound in the filled file.

    Each answer is the span of its text in the filled file, and the text that it replaced.
    """
    if filled.language.name == "python":
        return python.unbound_names(filled, answers, uri)
    return uses.unbound_names(filled, [span for span, _ in answers])


# --- Names that the code after a hole needs


def needed_names(parsed: Syntax, hole: Span) -> tuple[str, ...]:
    """Return the names that the code after an empty hole uses, in this order, and that only an answer can bind.

    The hole takes the place of whole lines. `parsed` is the whole file, as it is.
    """
    try:
        return _needed_names(parsed, hole)
    except ParseLimitError:
        return ()


def _needed_names(parsed: Syntax, hole: Span) -> tuple[str, ...]:
    find, most = _FINDERS.get(parsed.language.name, (None, 0))
    before, after = parsed.text[: hole.start], parsed.text[hole.end :]
    here = place.between(before, after)
    is_whole = here.starts_line and here.ends_line
    if find is None or not is_whole or not after.strip() or len(parsed.text) > most or _LONG_LINE.search(parsed.text):
        return ()
    found, tail = find(parsed, hole)
    if not found or len(found) > MOST_NAMES or languages.kind_at_end(before, parsed.language.name) is not None:
        return ()
    in_order = [name for name in dict.fromkeys(_NAME.findall(tail)) if name in found]
    # Within brackets, no statement may stand in the hole.
    statement = "pass" if parsed.language.name == "python" else ";"
    indent = "" if here.head else _indent(before, after)
    tried = (f"{before}{indent}{one}{after}" for one in (statement, "if 1:"))
    takes_one = any(not syntax.adds_errors(syntax.parse(text, parsed.language, parsed), parsed) for text in tried)
    return tuple(in_order) if takes_one else ()


def missing(needed: Sequence[str], answer: str) -> list[str]:
    """Return which of the needed names an answer does not mention, so that it can't bind them."""
    mentioned = set(_NAME.findall(answer)) if needed else set()
    return [name for name in needed if name not in mentioned]


def next_start(prefix: str, answer: str, suffix: str, name: str, language: str) -> str:
    """Return how a line begins that binds a needed name after an answer: a line end if one is needed, indentation and name."""
    typed, start = last_line(prefix), name
    if language in DECLARED:
        is_assigned = re.search(rf"(?<![\w.]){re.escape(name)}{_ASSIGNS}", suffix)
        start = f"let {name}" if is_assigned else f"const {name}"
    if not answer.strip():
        return start if typed else _indent(prefix, suffix) + start
    return f"\n{_indent(prefix + answer, suffix)}{start}"


def _indent(before: str, after: str) -> str:
    """Return the indentation of a line between both texts: as the line above leaves it, but no deeper than the line below."""
    above = next((line for line in reversed(before.split("\n")) if line.strip()), "")
    below = next((line for line in after.split("\n") if line.strip()), "")
    indent, unit = above[: len(above) - len(above.lstrip())], syntax.indent_unit(before, "    ")
    if above.rstrip().endswith((":", "{")):
        indent += unit
    elif _LEAVES.match(above):
        indent = indent.removesuffix(unit)
    return min(indent, below[: len(below) - len(below.lstrip())], key=len)


_LONG_LINE = re.compile(r"[^\n]{1000}")
_ASSIGNS = r"[ \t]*(?:\+\+|--|(?:[-+*/%&|^]|\*\*|<<|>>>?|&&|\|\||\?\?)?=(?![=>]))"
_LEAVES = re.compile(r"\s*(?:return|raise|break|continue)\b")
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")


def _unbound_in_python(parsed: Syntax, hole: Span) -> tuple[frozenset[str], str]:
    """Return the names that are unbound after the hole in its function, or in its module, and the code that uses them."""
    around = _around(parsed, hole)
    head, tail = parsed.text[around.start : hole.start], parsed.text[hole.end : around.end]
    if len(head) + len(tail) > MAX_CHARS:
        return frozenset(), ""
    outside = python.bound_names(parsed.text[: around.start]), python.bound_names(parsed.text[around.end :])
    if None in outside or python.binds_anything(head + tail) or python.computes_names(parsed.text):
        return frozenset(), ""
    found = _unbound_after(head, tail, frozenset().union(*(names or () for names in outside)))
    if around.start > 0 or around.end < len(parsed.text):
        # In a function, other names are probably those of the module, bound in a way that was not understood, or those of
        # modules that are not imported.
        found = frozenset(
            name
            for name in found
            if name.islower()
            and not name.startswith("__")
            and name not in sys.stdlib_module_names
            and not _is_called(name, tail)
        )
    return found, tail


def _used_only_after(parsed: Syntax, hole: Span) -> tuple[frozenset[str], str]:
    """Return the names that the whole file only uses, after the hole in the innermost function around it, and that code."""
    functions = (one.inside for one in parsed.facts_near(hole).owners if one.kind != "class")
    inside = [one for one in functions if one.start <= hole.start and hole.end <= one.end]
    if not inside:
        return frozenset(), ""
    tail = Span(hole.end, min(inside[-1].end, hole.end + MAX_TAIL))
    text = parsed.text[tail.start : tail.end]
    found = uses.unbound_names(parsed, [tail])
    return frozenset(name for name in found if name[0].islower() and not _is_called(name, text)), text


_FINDERS: dict[str, tuple[Callable[[Syntax, Span], tuple[frozenset[str], str]], int]] = {
    "python": (_unbound_in_python, MAX_TEXT),
    **dict.fromkeys(DECLARED, (_used_only_after, MAX_USED)),
}
"""For each language, what finds the names, and the most characters of a file, because each request waits for it."""


def _is_called(name: str, text: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}[ \t]*\(", text) is not None


def _around(parsed: Syntax, hole: Span) -> Span:
    """Return the whole lines of the outermost function around a hole, or those of the whole text."""
    function = _outermost(parsed, hole)
    if function is None and last_line(parsed.text[: hole.start]):
        # The body of a block may be empty, so that the tree lacks the block.
        text = f"{parsed.text[: hole.start]}pass{parsed.text[hole.end :]}"
        filled = syntax.parse(text, parsed.language, parsed)
        function = _outermost(filled, Span(hole.start, hole.start + len("pass")))
        n_more = len("pass") - (hole.end - hole.start)
        function = function and Span(function.start, function.end - n_more)
    if function is None:
        return Span(0, len(parsed.text))
    lines = parsed.lines
    return Span(lines.start(lines.at(function.start)), max(lines.end(lines.at(function.end)), hole.end))


def _outermost(parsed: Syntax, hole: Span) -> Span | None:
    function = None
    for node in parsed.ancestors(parsed.node_at(hole)):
        name = node.child_by_field_name("name")
        if node.type == "function_definition" and name is not None and parsed.span(name).end < hole.start:
            function = parsed.span(node)
    return function


def _unbound_after(head: str, tail: str, available: frozenset[str]) -> frozenset[str]:
    """Return the names that are unbound in the code after an empty hole, and not before it."""
    typed = last_line(head)
    for plain in ("", "pass", f"{'' if typed else _indent(head, tail)}if 1:"):
        source = f"{head}{plain}{tail}"
        opener = "if 1:\n" if source[:1].isspace() and source.strip() else ""
        tree = python.parse(opener + source)
        if tree is None:
            continue
        n_before = (opener + head).count("\n") + 1
        found: dict[str, bool] = {}
        for message in python.check(tree, "", available):
            if isinstance(message, (messages.UndefinedName, messages.UndefinedLocal)):
                name = message.message_args[0]
                found[name] = found.get(name, True) and message.lineno > n_before
        return frozenset(name for name, is_after in found.items() if is_after)
    return frozenset()
