"""Find unbound names in Python by pyflakes, in the function around an answer only, and with the module's names given.

Pyflakes and not the compiler's symbol tables, because it knows the order of statements in a class, names in annotations
that are strings, `__all__`, `del`, and what is guarded by `except NameError`. All of a file would take it too long for each
key, so it sees the function or statement of the module that the answer is in. The symbol tables of the whole file have the
last word, where there are some: they are asked only when a name seems to be unbound.
"""

from __future__ import annotations

import ast
import re
import symtable
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pyflakes import checker, messages
from tree_sitter import Node

from dg_lsp.core.scope import module_names, uses
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span

# A function that is longer takes too long to look at.
MAX_CHARS = 40_000
# What parses in most places, and names nothing.
_PLAIN = ("", "0", "pass")


@dataclass(frozen=True, slots=True)
class _Region:
    """What pyflakes looks at: whole lines, and whether they are a function, of a class or in another block."""

    span: Span
    is_function: bool
    opener: str


def unbound_names(filled: Syntax, answers: Sequence[tuple[Span, str]], uri: str) -> frozenset[str]:
    """Return the names that the answers leave unbound; see `scope.unbound_names`."""
    if not _is_module(filled.text, uri):
        return frozenset()
    names = set[str]()
    for answer, old in answers:
        region = _region(filled, answer)
        source = filled.text[region.span.start : region.span.end]
        before, behind = filled.text[: region.span.start], filled.text[region.span.end :]
        bound_before = module_names.find(_unix(before))
        bound_behind = module_names.find(_unix(behind), in_block=region.opener == "if 1:")
        own_names = module_names.find(_unix(source))
        if bound_before is None or bound_behind is None or own_names is None or len(source) > MAX_CHARS:
            continue
        scope = _Scope(region, bound_before, bound_behind, _has_future(before), uri)
        inner = Span(answer.start - region.span.start, answer.end - region.span.start)
        used = scope.unbound(source, inner)
        if used is None:
            names |= uses.unbound_names(filled, [answer])
        elif used:
            earlier = _unbound_before(scope, source, inner, old)
            words = set(_WORD.findall(source[uses.word_start(source, inner.start) : uses.word_end(source, inner.end)]))
            new = {name for name in used if (name not in earlier if earlier is not None else name in words)}
            # What the module binds behind a statement that runs at once is there too late.
            early = set[str]() if region.is_function else new & bound_behind
            names |= early | (new - early - _bound_or_unbound_elsewhere(filled, region, new))
    return frozenset(names)


def _is_module(text: str, uri: str) -> bool:
    """Return whether the file is a module: in a build file, which editors take for Python too, the tool binds more names."""
    return uri.endswith((".py", ".pyw", ".pyi")) or re.match(r"#!.*python", text) is not None


def _region(filled: Syntax, answer: Span) -> _Region:
    """Return the outermost function whose body the answer is in, else the statements of the module that it is in."""
    node: Node | None = filled.node_at(answer)
    function, parents = None, list[Node]()
    while node is not None:
        body = node.child_by_field_name("body") if node.type == "function_definition" else None
        if body is not None and filled.span(body).start <= answer.start:
            function, parents = node, []
        elif node.type != "decorated_definition":
            parents.append(node)
        node = node.parent
    if function is not None and not any(parent.is_error for parent in parents):
        lines = _whole_lines(filled, filled.span(function))
        is_method = any(parent.type == "class_definition" for parent in parents)
        is_nested = len(parents) > 1
        return _Region(lines, is_function=True, opener="class _:" if is_method else "if 1:" if is_nested else "")
    children = [filled.span(child) for child in filled.tree.root_node.children]
    touched = [span for span in children if span.start <= answer.end and answer.start <= span.end]
    start = min((span.start for span in touched), default=answer.start)
    end = max((span.end for span in touched), default=answer.end)
    return _Region(_whole_lines(filled, Span(min(start, answer.start), max(end, answer.end))), is_function=False, opener="")


def _whole_lines(filled: Syntax, span: Span) -> Span:
    lines = filled.lines
    return Span(lines.starts[lines.at(span.start)], max(lines.ends[lines.at(span.end)], span.end))


@dataclass(frozen=True, slots=True)
class _Scope:
    """A region with the names that the module binds before and behind it."""

    region: _Region
    bound_before: frozenset[str]
    bound_behind: frozenset[str]
    has_future: bool
    uri: str

    def unbound(self, source: str, answer: Span) -> frozenset[str] | None:
        """Return the names that are used in the source and bound nowhere; None where it does not parse."""
        opener = "from __future__ import annotations\n" if self.has_future else ""
        opener += f"{self.region.opener}\n" if source[:1].isspace() and self.region.opener else ""
        tree = _parse(opener + source)
        if tree is None:
            return None
        words = set(_WORD.findall(source))
        available, later = self.bound_before & words, self.bound_behind & words
        if self.region.is_function:
            available |= later
        else:
            n_lines = opener.count("\n") + 1
            _cut_bodies(tree, n_lines + source.count("\n", 0, answer.start), n_lines + source.count("\n", 0, answer.end))
            # What is bound behind is there for functions that are called later, and not yet for what runs at once.
            tree.body += [_assignment(name) for name in later]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            faults = checker.Checker(tree, filename=self.uri.rpartition("/")[2] or "module.py", builtins=available).messages
        exports = self.bound_before | self.bound_behind
        return frozenset(
            message.message_args[0]
            for message in faults
            if isinstance(message, messages.UndefinedName)
            or (isinstance(message, messages.UndefinedExport) and message.message_args[0] not in exports)
        )


def _unbound_before(scope: _Scope, source: str, answer: Span, old: str) -> frozenset[str] | None:
    """Return the same with the text that the answer replaces, or a plain one; None where that does not parse."""
    head, tail = source[: answer.start], source[answer.end :]
    for text in dict.fromkeys((old, *_PLAIN)):
        names = scope.unbound(head + text + tail, Span(answer.start, answer.start + len(text)))
        if names is not None:
            return names
    return None


def _bound_or_unbound_elsewhere(filled: Syntax, region: _Region, names: set[str]) -> set[str]:
    """Return which of the names the symbol tables know as the module's, or as unbound outside the region already."""
    outside = filled.text[: region.span.start], filled.text[region.span.end :]
    doubtful = {name for name in names if any(re.search(rf"(?<!\w){name}(?!\w)", text) for text in outside)}
    if not doubtful:
        return set()
    table = _table(filled.text)
    if table is None:
        return set()
    first, last = (filled.lines.at(offset) + 1 for offset in (region.span.start, region.span.end))
    bound = {symbol.get_name() for symbol in table.get_symbols() if _binds(symbol)}
    return doubtful & bound.union(_used_globals(table, first, last))


def _used_globals(table: symtable.SymbolTable, first: int, last: int) -> Iterator[str]:
    """Yield each name that a function or class which does not start on the lines takes from the module."""
    for child in table.get_children():
        if not first <= child.get_lineno() <= last:
            yield from (symbol.get_name() for symbol in child.get_symbols() if symbol.is_global() and symbol.is_referenced())
            yield from _used_globals(child, first, last)


def _binds(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported()


@lru_cache(maxsize=4)
def _table(text: str) -> symtable.SymbolTable | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return symtable.symtable(text, "module", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _parse(source: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _cut_bodies(tree: ast.Module, first: int, last: int) -> None:
    """Empty the bodies of functions that do not touch the lines: pyflakes need not look at the rest of a long class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            end = node.end_lineno or node.lineno
            if end < first or node.lineno > last:
                node.body = [ast.Pass()]


def _assignment(name: str) -> ast.stmt:
    target = ast.Name(name, ast.Store(), lineno=1, col_offset=0)
    return ast.Assign([target], ast.Constant(None, lineno=1, col_offset=0), lineno=1, col_offset=0)


def _has_future(text: str) -> bool:
    return "from __future__ import annotations" in text


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


_WORD = re.compile(r"[^\W\d]\w*")
