"""Find unbound names in Python with pyflakes, which checks only the function around an answer and is given the module's names.

Pyflakes is used instead of the compiler's symbol tables because it knows the order of statements in a class, names in
string annotations, `__all__`, `del`, and code guarded by `except NameError`. Checking a whole file after each key would
take too long, so pyflakes sees only the function or module statement that contains the answer.

A name that pyflakes reports is checked against the symbol tables of the whole file, if the file compiles.
"""

from __future__ import annotations

import ast
import re
import symtable
import warnings
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache

from pyflakes import checker, messages
from tree_sitter import Node

from dg_lsp.core.scope import module_names, uses
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span

# Checking a longer region takes too long.
MAX_CHARS = 40_000
# Answers that parse in most places and use no name.
_PLAIN = ("", "0", "pass")
# The line that an indented region is put below.
_CLASS, _BLOCK = "class _:", "if 1:"


@dataclass(frozen=True, slots=True)
class _Region:
    """The code that pyflakes checks: the whole lines around an answer, and a line above that makes them parse.

    `head` is the code before the answer, `tail` the code after it. In a class, other functions and classes are reduced
    to their names. `span` is the position of the lines in the file. `own_class` is the outermost class around them, whose
    name is not bound before its end.
    """

    span: Span
    head: str
    tail: str
    opener: str = ""
    is_function: bool = False
    own_class: Node | None = None


def unbound_names(filled: Syntax, answers: Sequence[tuple[Span, str]], uri: str) -> frozenset[str]:
    """Return the names that the answers leave unbound; see `scope.unbound_names`."""
    if not is_module(filled.text, uri):
        return frozenset()
    return frozenset(name for answer, old in answers for name in _unbound_names(filled, answer, old, uri))


def _unbound_names(filled: Syntax, answer: Span, old: str, uri: str) -> frozenset[str]:
    for region in _regions(filled, answer):
        names = _unbound_in(region, filled, answer, old, uri)
        if names is not None:
            return names
    if module_names.computes_names(filled.text):
        return frozenset()
    return uses.unbound_names(filled, [answer])


def _unbound_in(region: _Region, filled: Syntax, answer: Span, old: str, uri: str) -> frozenset[str] | None:
    """Return the names that the answer leaves unbound; None if the region with the answer does not parse."""
    before, after = filled.text[: region.span.start], filled.text[region.span.end :]
    bound_before = module_names.find(_unix(_before_class(filled, region.own_class) if region.own_class else before))
    bound_after = module_names.find(_unix(after), in_block=region.opener == _BLOCK)
    if region.own_class and bound_after is not None:
        bound_after |= {_name_of(region.own_class)}
    text = filled.text[answer.start : answer.end]
    source = f"{region.head}{text}{region.tail}"
    if bound_before is None or bound_after is None or module_names.binds_anything(source) or len(source) > MAX_CHARS:
        return frozenset()
    scope = _Scope(region, bound_before, bound_after, _type_imports(before), uri)
    names = scope.unbound(text)
    if names and any(module_names.computes_names(part) for part in (before, source, after)):
        # Names that the module computes are bound, if code anywhere else mentions them.
        names -= {*_words(before), *_words(after), *_WORD.findall(region.head), *_WORD.findall(region.tail)}
    if not names:
        return names
    plain = next((plain for plain in dict.fromkeys((old, *_PLAIN)) if scope.unbound(plain) is not None), None)
    if plain is None:
        start, end = uses.word_start(filled.text, answer.start), uses.word_end(filled.text, answer.end)
        new = names.intersection(_WORD.findall(filled.text, start, end))
        whole = filled.text
    else:
        new = names.difference(scope.unbound(plain) or ())
        whole = filled.text[: answer.start] + plain + filled.text[answer.end :]
    late = frozenset[str]() if region.is_function or _is_stub(uri) else new & _bound_later(region, before, bound_after)
    return late | (new - late - _bound_or_unbound_elsewhere(filled, region, new, whole))


def _bound_later(region: _Region, before: str, bound_after: frozenset[str]) -> frozenset[str]:
    """Return the names that a statement which runs at once can't use yet: what it binds itself, and what is bound after it."""
    own = module_names.find(_unix(f"{region.head}{region.tail}"), in_block=bool(region.opener)) or frozenset()
    return bound_after | (own - _words(before))


def is_module(text: str, uri: str) -> bool:
    """Return whether the file is a Python module.

    In a build file, which editors take for Python too, the build tool binds more names.
    """
    return uri.endswith((".py", ".pyw", ".pyi")) or re.match(r"#!.*python", text) is not None


def _is_stub(uri: str) -> bool:
    """Return whether the file only declares types, so that it may use a name before the name is bound."""
    return uri.endswith(".pyi")


def _regions(filled: Syntax, answer: Span) -> Iterator[_Region]:
    """Yield the region to check, and first, if the tree has errors, the function that the indentation shows.

    A tree with errors may lose a function, or the outer one of two.
    """
    if filled.errors and (function := outermost_function(filled, answer)) is not None:
        span = function.span
        head, tail = filled.text[span.start : answer.start], filled.text[answer.end : span.end]
        opener = _CLASS if function.is_method else _BLOCK if function.is_in_block else ""
        yield _Region(span, head, tail, opener, is_function=True)
    yield _region(filled, answer)


def _region(filled: Syntax, answer: Span) -> _Region:
    """Return the outermost function whose body contains the answer, else its class, else its statements of the module."""
    node: Node | None = filled.node_at(answer)
    function: Node | None = None
    block: Node | None = None
    outermost: Node | None = None
    parents = list[Node]()
    while node is not None:
        body = node.child_by_field_name("body")
        is_inside = body is not None and filled.span(body).start <= answer.start
        if node.type == "function_definition" and is_inside:
            function, block, parents = node, None, []
        elif node.type == "class_definition" and is_inside:
            outermost = node
            block = body if function is None and block is None else block
        if node is not function and node.type != "decorated_definition":
            parents.append(node)
        node = node.parent
    is_broken = any(parent.is_error for parent in parents)
    if function is not None and not is_broken:
        is_method = any(parent.type == "class_definition" for parent in parents)
        opener = _CLASS if is_method else _BLOCK if len(parents) > 1 else ""
        span = _whole_lines(filled, filled.span(function))
        head, tail = filled.text[span.start : answer.start], filled.text[answer.end : span.end]
        return _Region(span, head, tail, opener, is_function=True)
    if block is not None and not is_broken:
        return replace(_in_class(filled, block, answer), own_class=outermost)
    children = [filled.span(child) for child in filled.tree.root_node.children]
    touched = [answer, *(span for span in children if span.start <= answer.end and answer.start <= span.end)]
    span = _whole_lines(filled, Span(min(span.start for span in touched), max(span.end for span in touched)))
    return _Region(span, filled.text[span.start : answer.start], filled.text[answer.end : span.end])


def _in_class(filled: Syntax, block: Node, answer: Span) -> _Region:
    """Return the statements of the class, with its functions and classes reduced to their names."""
    span = _whole_lines(filled, filled.span(block))
    span = Span(min(span.start, answer.start), max(span.end, answer.end))
    head, tail, head_end, tail_end = "", "", span.start, answer.end
    for child in block.children:
        if child.type not in ("function_definition", "class_definition", "decorated_definition"):
            continue
        place = filled.span(child)
        name = _name_of(child.child_by_field_name("definition") or child)
        short = f"{name} = None" if name else "pass"
        if place.end < answer.start:
            head, head_end = f"{head}{filled.text[head_end : place.start]}{short}", place.end
        elif answer.end < place.start:
            tail, tail_end = f"{tail}{filled.text[tail_end : place.start]}{short}", place.end
    return _Region(span, head + filled.text[head_end : answer.start], tail + filled.text[tail_end : span.end], _CLASS)


def _name_of(definition: Node) -> str:
    name = definition.child_by_field_name("name")
    return name.text.decode() if name is not None and name.text else ""


def _before_class(filled: Syntax, definition: Node) -> str:
    """Return the text before a class and its decorators."""
    parent = definition.parent
    statement = parent if parent is not None and parent.type == "decorated_definition" else definition
    return filled.text[: filled.span(statement).start]


def _whole_lines(filled: Syntax, span: Span) -> Span:
    lines = filled.lines
    return Span(lines.starts[lines.at(span.start)], max(lines.ends[lines.at(span.end)], span.end))


@dataclass(frozen=True, slots=True)
class _Scope:
    """A region, and the names that the module binds before and after it.

    `imports` are the module's imports that change how pyflakes reads types: it takes the strings in `cast("T", x)` for
    types, and those in `Literal["a"]` not, where it sees that these names are from `typing`.
    """

    region: _Region
    bound_before: frozenset[str]
    bound_after: frozenset[str]
    imports: str
    uri: str

    def unbound(self, answer: str) -> frozenset[str] | None:
        """Return the names that the region with the answer uses and nothing binds; None if it does not parse."""
        source = f"{self.region.head}{answer}{self.region.tail}"
        opener = self.imports
        opener += f"{self.region.opener}\n" if source[:1].isspace() and self.region.opener else ""
        tree = parse(opener + source)
        if tree is None:
            return None
        words = set(_WORD.findall(source))
        # Pyflakes needs to see the statement that binds `__all__`.
        available, later = ((names & words) - {"__all__"} for names in (self.bound_before, self.bound_after))
        if self.region.is_function or _is_stub(self.uri):
            available |= later
        else:
            # Later names exist for functions that are called later, but not for code that runs at once.
            tree.body += [_assignment(name) for name in later]
        faults = check(tree, self.uri.rpartition("/")[2], available)
        bound = self.bound_before | self.bound_after
        # A module with a `__getattr__` may export anything.
        exports = bound if "__getattr__" not in bound else None
        return frozenset(
            message.message_args[0]
            for message in faults
            if isinstance(message, messages.UndefinedName)
            or (
                exports is not None and isinstance(message, messages.UndefinedExport) and message.message_args[0] not in exports
            )
        )


def check(tree: ast.Module, filename: str, available: Set[str]) -> list[messages.Message]:
    """Return what pyflakes finds in the code, with these names available to all of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            faults: list[messages.Message] = checker.Checker(tree, filename=filename, builtins=available).messages
        # Pyflakes is made for whole modules. An exception on a piece of one says nothing about the answer.
        except Exception:
            return []
    return faults


def _bound_or_unbound_elsewhere(filled: Syntax, region: _Region, names: frozenset[str], whole: str) -> frozenset[str]:
    """Return the names that the module binds according to its symbol tables, or that were unbound outside the region already.

    `whole` is the file with a plain answer, if that parses, so that all candidates share its cached tables.
    """
    outside = filled.text[: region.span.start], filled.text[region.span.end :]
    doubtful = frozenset(name for name in names if any(re.search(rf"(?<!\w){name}(?!\w)", text) for text in outside))
    if not doubtful:
        return frozenset()
    table = _table(whole)
    if table is None:
        return frozenset()
    first, last = outside[0].count("\n") + 1, whole.count("\n") - outside[1].count("\n") + 1
    bound = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    return doubtful & bound.union(_used_globals(table, first, last))


def _used_globals(table: symtable.SymbolTable, first: int, last: int) -> Iterator[str]:
    """Yield the global names used by functions and classes that do not start between the two lines."""
    for child in table.get_children():
        if not first <= child.get_lineno() <= last:
            yield from (symbol.get_name() for symbol in child.get_symbols() if symbol.is_global() and symbol.is_referenced())
            yield from _used_globals(child, first, last)


@lru_cache(maxsize=4)
def _table(text: str) -> symtable.SymbolTable | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return symtable.symtable(text, "module", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def parse(source: str) -> ast.Module | None:
    """Return the source's syntax tree, without warnings; None if Python can't parse it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _assignment(name: str) -> ast.stmt:
    target = ast.Name(name, ast.Store(), lineno=1, col_offset=0)
    return ast.Assign([target], ast.Constant(None, lineno=1, col_offset=0), lineno=1, col_offset=0)


@lru_cache(maxsize=4)
def _type_imports(text: str) -> str:
    return "".join(f"{match[0]}\n" for match in _TYPE_IMPORT.finditer(_unix(text)))


@lru_cache(maxsize=4)
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text))


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


_WORD = re.compile(r"[^\W\d]\w*")
_TYPE_IMPORT = re.compile(
    r"^(?:from __future__ import annotations|import typing(?:_extensions)?(?:[ \t]+as[ \t]+\w+)?"
    r"|from typing(?:_extensions)? import (?:\([^()]*\)|[^\n()\\#]+))",
    re.MULTILINE,
)


# --- Lines and indentation


@dataclass(frozen=True, slots=True)
class Function:
    """The whole lines of a function, and whether it is in a class or in another block."""

    span: Span
    is_method: bool = False
    is_in_block: bool = False


def outermost_function(filled: Syntax, answer: Span) -> Function | None:
    """Return the outermost function whose body contains the answer, or None.

    The result is a guess if the code around the answer has strings of several lines. Whether it parses shows whether the
    guess was right.
    """
    lines = filled.lines
    own = lines.at(answer.start)
    line = _line(filled, own)
    width = len(line) - len(line.lstrip())
    # A body may begin on its opener's line. That line is then the first one around the answer.
    if (opener := _HEAD.match(line)) and lines.starts[own] + opener.end() <= answer.start:
        own, width = own + 1, width + 1
    first, first_width, outer_words = -1, 0, list[str]()
    for idx in range(own - 1, -1, -1):
        if width == 0:
            break
        line = _line(filled, idx)
        line_width, head = _width(line), _HEAD.match(line)
        # A line that begins no block may be part of a string or a bracket.
        if line_width is None or line_width >= width or head is None:
            continue
        width = line_width
        if head[1] == "def":
            first, first_width, outer_words = idx, width, []
        else:
            outer_words.append(head[1])
    if first < 0:
        return None
    last = end = lines.at(answer.end)
    for idx in range(end + 1, len(lines.starts)):
        line_width = _width(_line(filled, idx))
        if line_width is not None and line_width <= first_width:
            break
        last = idx
    span = Span(lines.starts[first], lines.ends[last])
    return Function(span, is_method="class" in outer_words, is_in_block=bool(outer_words))


def _line(filled: Syntax, idx: int) -> str:
    return filled.text[filled.lines.starts[idx] : filled.lines.ends[idx]]


def _width(line: str) -> int | None:
    """Return the number of white-space characters that the line begins with.

    Return None for a line whose indentation means nothing: a blank one, a comment, and one that may end a bracket or a string.
    """
    code = line.lstrip()
    return None if not code or code[0] in "#)]}\"'" else len(line) - len(code)


_HEAD = re.compile(r"\s*(?:async[ \t]+)?(def|class|if|elif|else|for|while|with|try|except|finally|match|case)\b")
