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
from functools import lru_cache, partial
from itertools import pairwise

from pyflakes import checker, messages
from tree_sitter import Node

from dg_lsp.core import memo
from dg_lsp.core.place import first_line
from dg_lsp.core.scope import uses
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
    unbound = frozenset[str]()
    for answer, old in answers:
        run, types = (filled.text, frozenset[str]()) if uri.endswith(".pyi") else _run(filled.text)
        if run[answer.start : answer.end] != filled.text[answer.start : answer.end]:  # it is for type checkers itself
            run, types = filled.text, frozenset()
        seen = replace(filled, text=run)
        # A tree with errors may lose a function, or the outer one of two, but not the indentation of its lines.
        finders = (_indented_function, _region) if filled.errors else (_region,)
        regions = (region for find in finders if (region := find(seen, answer)) is not None)
        results = (_unbound_in(region, seen, answer, old, uri, types) for region in regions)
        names = next((names for names in results if names is not None), None)
        if names is None and not computes_names(filled.text):
            names = uses.unbound_names(filled, [answer])
        unbound |= names or frozenset()
    return unbound


def _unbound_in(
    region: _Region, filled: Syntax, answer: Span, old: str, uri: str, types: frozenset[str]
) -> frozenset[str] | None:
    """Return the names that the answer leaves unbound; None if the region with the answer does not parse.

    `filled` lacks what only type checkers read, which binds `types`.
    """
    before, after = filled.text[: region.span.start], filled.text[region.span.end :]
    own = region.own_class
    # Decorators are read before the class, and its name is bound after it.
    statement = own.parent if own and own.parent and own.parent.type == "decorated_definition" else own
    bound_before = bound_names(_unix(filled.text[: filled.span(statement).start] if statement else before))
    bound_after = bound_names(_unix(after), in_block=region.opener == _BLOCK)
    if own and bound_after is not None:
        bound_after |= {_name_of(own, filled)}
    text = filled.text[answer.start : answer.end]
    source = f"{region.head}{text}{region.tail}"
    if bound_before is None or bound_after is None or binds_anything(source) or len(source) > MAX_CHARS:
        return frozenset()
    sees_later = region.is_function or uri.endswith(".pyi")
    lazy = _LAZY.search(filled.text) is not None or types.isdisjoint(_quoted(filled.text) if types else ())
    imports, filename = _type_imports(before), uri.rpartition("/")[2]
    module = _Module(region.opener, bound_before, bound_after, sees_later, imports, filename, types, lazy)
    unbound = partial(_unbound, region.head, region.tail, module)
    names = unbound(text)
    if names and any(computes_names(part) for part in (before, source, after)):
        # Names that the module computes are bound, if code anywhere else mentions them.
        names -= {*_words(before), *_words(after), *_WORD.findall(region.head), *_WORD.findall(region.tail)}
    if not names:
        return names
    plain = next((plain for plain in dict.fromkeys((old, *_PLAIN)) if unbound(plain) is not None), None)
    if plain is None:
        start, end = uses.word_start(filled.text, answer.start), uses.word_end(filled.text, answer.end)
        new = names.intersection(_WORD.findall(filled.text, start, end))
    else:
        new = names.difference(unbound(plain) or ())
    late = frozenset[str]()
    if not sees_later:
        # A statement that runs at once can't use yet what it binds itself, or what is bound after it.
        bound_here = bound_names(_unix(f"{region.head}{region.tail}"), in_block=bool(region.opener)) or frozenset()
        late = new & (bound_after | (bound_here - _words(before)))
    return late | (new - late - _bound_or_unbound_elsewhere(filled, region, new - types))


def is_module(text: str, uri: str) -> bool:
    """Return whether the file is a Python module.

    In a build file, which editors take for Python too, the build tool binds more names.
    """
    return uri.endswith((".py", ".pyw", ".pyi")) or re.match(r"#!.*python", text) is not None


def _region(filled: Syntax, answer: Span) -> _Region:
    """Return the outermost function whose body contains the answer, else its class, else its statements of the module."""
    function: Node | None = None
    block: Node | None = None
    outermost: Node | None = None
    parents = list[Node]()
    for node in filled.ancestors(filled.node_at(answer)):
        body = node.child_by_field_name("body")
        is_inside = body is not None and filled.span(body).start <= answer.start
        if node.type == "function_definition" and is_inside:
            function, block, parents = node, None, []
        elif node.type == "class_definition" and is_inside:
            outermost = node
            block = body if function is None and block is None else block
        if node is not function and node.type != "decorated_definition":
            parents.append(node)
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
        name = _name_of(child.child_by_field_name("definition") or child, filled)
        short = f"{name} = None" if name else "pass"
        if place.end < answer.start:
            head, head_end = f"{head}{filled.text[head_end : place.start]}{short}", place.end
        elif answer.end < place.start:
            tail, tail_end = f"{tail}{filled.text[tail_end : place.start]}{short}", place.end
    return _Region(span, head + filled.text[head_end : answer.start], tail + filled.text[tail_end : span.end], _CLASS)


def _name_of(definition: Node, filled: Syntax) -> str:
    name = definition.child_by_field_name("name")
    span = Span(0, 0) if name is None else filled.span(name)
    return filled.text[span.start : span.end]


def _whole_lines(filled: Syntax, span: Span) -> Span:
    lines = filled.lines
    return Span(lines.start(lines.at(span.start)), max(lines.end(lines.at(span.end)), span.end))


@dataclass(frozen=True, slots=True)
class _Module:
    """What is around a region: the line above it, and the names that the module binds before and after it.

    `sees_later`: the region runs after the module, so that all names count. `imports` are the module's imports that change how
    pyflakes reads types: it takes the strings in `cast("T", x)` for types, and those in `Literal["a"]` not, where it sees that
    these names are from `typing`. `types` are names that exist for type checkers only. With `lazy`, annotations may use them.
    """

    opener: str
    before: frozenset[str]
    after: frozenset[str]
    sees_later: bool
    imports: str
    filename: str
    types: frozenset[str] = frozenset()
    lazy: bool = True


# The last few: candidates of one request are compared with the same plain answer.
@lru_cache(maxsize=4)
def _unbound(head: str, tail: str, module: _Module, answer: str) -> frozenset[str] | None:
    """Return the names that a region with the answer uses and nothing binds; None if it does not parse."""
    source = f"{head}{answer}{tail}"
    opener = module.imports + (f"{module.opener}\n" if source[:1].isspace() and module.opener else "")
    tree = parse(opener + source)
    if tree is None:
        return None
    words = set(_WORD.findall(source))
    # Pyflakes needs to see the statement that binds `__all__`.
    available, later = ((names & words) - {"__all__"} for names in (module.before, module.after))
    if module.sees_later:
        available |= later
    else:
        # Later names exist for functions that are called later, but not for code that runs at once.
        for name in later:
            target = ast.Name(name, ast.Store(), lineno=1, col_offset=0)
            tree.body.append(ast.Assign([target], ast.Constant(None, lineno=1, col_offset=0), lineno=1, col_offset=0))
    faults = check(tree, module.filename, available)
    used = _used_at_run_time(tree, lazy=module.lazy) if module.types else frozenset()
    bound = module.before | module.after
    # A module with a `__getattr__` may export anything.
    exports = bound if "__getattr__" not in bound else None
    return frozenset(
        message.message_args[0]
        for message in faults
        if (
            isinstance(message, messages.UndefinedName)
            and (message.message_args[0] not in module.types or (message.lineno, message.col) in used)
        )
        or (exports is not None and isinstance(message, messages.UndefinedExport) and message.message_args[0] not in exports)
    )


def _used_at_run_time(tree: ast.Module, *, lazy: bool) -> frozenset[tuple[int, int]]:
    """Return the lines and columns of the names that the code looks up when it runs; with `lazy`, none in annotations.

    No annotation of a function's variable is ever evaluated.
    """
    places, todo = set[tuple[int, int]](), list[tuple[ast.AST, bool]]([(tree, False)])
    while todo:
        node, is_local = todo.pop()
        if isinstance(node, ast.Name):
            places.add((node.lineno, node.col_offset))
        is_local = (is_local or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)) and not isinstance(node, ast.ClassDef)
        skipped = {"annotation", "returns"} if lazy or (is_local and isinstance(node, ast.AnnAssign)) else set[str]()
        if type(node).__name__ == "TypeAlias":  # since Python 3.12
            skipped = {"value", "type_params"}
        for field, value in ast.iter_fields(node):
            parts = value if isinstance(value, list) else [value]
            todo += ((part, is_local) for part in parts if isinstance(part, ast.AST) and field not in skipped)
    return frozenset(places)


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


def _bound_or_unbound_elsewhere(filled: Syntax, region: _Region, names: frozenset[str]) -> frozenset[str]:
    """Return the names that the rest of the module binds according to its symbol tables, or uses as global names already."""
    before, after = filled.text[: region.span.start], filled.text[region.span.end :]
    doubtful = names & (_words(before) | _words(after))
    # A decorator may be above, and a class needs a body.
    indent = region.head[: len(region.head) - len(region.head.lstrip())]
    return doubtful and doubtful & _globals(f"{before}{indent}def _(): pass{after}")


@memo.of_texts
def _globals(text: str) -> frozenset[str]:
    """Return the names that a module binds, and the global names that its functions use; none if it does not compile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            table = symtable.symtable(text, "module", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return frozenset()
    names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    scopes = table.get_children()
    for scope in scopes:
        scopes += scope.get_children()
        names.update(symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global() and symbol.is_referenced())
    return frozenset(names)


def parse(source: str) -> ast.Module | None:
    """Return the source's syntax tree, without warnings; None if Python can't parse it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


@memo.of_texts
def _type_imports(text: str) -> str:
    return "".join(f"{match[0]}\n" for match in _TYPE_IMPORT.finditer(_unix(text)))


def _run(text: str) -> tuple[str, frozenset[str]]:
    """Return the text with `pass` for all that only type checkers read, at the same offsets, and the names that this binds."""
    flags = "|".join({"TYPE_CHECKING", "MYPY", "False", *re.findall(r"TYPE_CHECKING[ \t]+as[ \t]+(\w+)", text)})
    names = set[str]()

    def passed(match: re.Match[str]) -> str:
        block = match["block"]
        at = len(block) - len(_BEFORE_CODE.sub("", block))
        if binds_anything(block) or re.match(r"[^\n]{4}", block[at:]) is None:
            return match[0]
        names.update(_bound_in_block(_unix(block)))
        blank = re.sub(r"\S", " ", block)
        return f"{match['head']}{blank[:at]}pass{blank[at + 4 :]}"

    return re.sub(_TYPES.replace("FLAG", rf"\(?(?:\w+\.)?(?:{flags})\b\)?"), passed, text), frozenset(names)


@memo.of_texts
def _quoted(text: str) -> frozenset[str]:
    """Return the words behind a quote, in its line."""
    return frozenset(word for match in _BEHIND_QUOTE.finditer(text) for word in _WORD.findall(match[0]))


@memo.of_texts
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text))


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


_WORD = re.compile(r"[^\W\d]\w*")
_BEHIND_QUOTE = re.compile(r"""["'][^"'\n]{0,120}""")
_LAZY = re.compile(r"^from[ \t]+__future__[ \t]+import[ \t]*+(?:\([^()]*?|[^\n#]*?)\bannotations\b", re.MULTILINE)
# A block for type checkers: its indented lines, comments and blank lines. No block is read twice, also without an `else`.
_LINES = r"[^\n]*+(?:\n(?:(?P=indent)[ \t][^\n]*+|[ \t]*+(?:#[^\n]*+)?\r?)(?=\n|\Z))*+"
_TYPES = (
    r"(?m)^(?P<head>(?P<indent>[ \t]*+)(?:(?:el)?if[ \t]+FLAG(?:[ \t]+and\b[^\n:]*+)?[ \t]*:"
    rf"|if[ \t]+not[ \t]+FLAG[ \t]*:{_LINES}(?:\n(?P=indent)else[ \t]*:)?))(?P<block>{_LINES})"
)
_BEFORE_CODE = re.compile(r"\A(?:[ \t\r]*(?:#[^\n]*)?\n)*+[ \t]*")
_TYPE_IMPORT = re.compile(
    r"^(?:from __future__ import annotations|import typing(?:_extensions)?(?:[ \t]+as[ \t]+\w+)?"
    r"|from typing(?:_extensions)? import (?:\([^()]*\)|[^\n()\\#]+))",
    re.MULTILINE,
)


# --- Lines and indentation


def _indented_function(filled: Syntax, answer: Span) -> _Region | None:
    """Return the outermost function whose body contains the answer by the indentation of its lines, or None.

    The result is a guess if the code around the answer has strings of several lines. Whether it parses shows whether the
    guess was right.
    """
    lines = filled.lines
    own = lines.at(answer.start)
    line = lines.content(own)
    width = len(line) - len(line.lstrip())
    # A body may begin on its opener's line. That line is then the first one around the answer.
    if (opener := _HEAD.match(line)) and lines.start(own) + opener.end() <= answer.start:
        own, width = own + 1, width + 1
    first, first_width, outer_words = -1, 0, list[str]()
    for idx in range(own - 1, -1, -1):
        if width == 0:
            break
        line = lines.content(idx)
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
    for idx in range(end + 1, len(lines)):
        line_width = _width(lines.content(idx))
        if line_width is not None and line_width <= first_width:
            break
        last = idx
    span = Span(lines.start(first), lines.end(last))
    before, after = filled.text[span.start : answer.start], filled.text[answer.end : span.end]
    return _Region(span, before, after, _CLASS if "class" in outer_words else _BLOCK if outer_words else "", is_function=True)


def _width(line: str) -> int | None:
    """Return the number of white-space characters that the line begins with.

    Return None for a line whose indentation means nothing: a blank one, a comment, and one that may end a bracket or a string.
    """
    code = line.lstrip()
    return None if not code or code[0] in "#)]}\"'" else len(line) - len(code)


_HEAD = re.compile(r"\s*(?:async[ \t]+)?(def|class|if|elif|else|for|while|with|try|except|finally|match|case)\b")


# --- The names that a module binds at its top level, line by line, so that broken code hides none of them. In doubt a name
# counts as bound. No tree is used, because a tree of broken code may miss statements.


@memo.of_texts
def bound_names(text: str, *, in_block: bool = False) -> frozenset[str] | None:
    """Return the names that the lines bind at module level, or None if they may bind any name, as `import *` does.

    Names that the module computes are not among them; see `computes_names`.

    Lines before the first unindented one belong to a construct that starts above, and are skipped. With `in_block`,
    they belong to a block of the module, such as the rest of an `if`, and count. The result is cached, because the text
    before and after the edited code rarely changes.
    """
    if binds_anything(text):
        return None
    starts = [match.start() for match in _TOP_LINE.finditer(text)]
    names = {name for match in _GLOBAL.finditer(text) for name in _WORD.findall(match[1])}
    if "builtins." in text:
        names.update(match[1] for match in _BUILTIN.finditer(text))
    if in_block:
        names.update(_bound_in_block(text[: starts[0] if starts else len(text)]))
    for start, end in pairwise([*starts, len(text)]):
        if definition := _DEFINITION.match(text, start):
            names.add(definition[1])
        elif _BLOCK_HEAD.match(text, start):
            names.update(_bound_in_block(text[start:end]))
        else:
            names.update(_bound_by_statement(text[start:end]))
    return frozenset(names)


def binds_anything(text: str) -> bool:
    """Return whether the lines may bind names that the file need not spell out, as `import *` does."""
    return "import" in text and _STAR_IMPORT.search(text) is not None


def computes_names(text: str) -> bool:
    """Return whether the lines bind names that they compute, as `globals()[name] = value` does."""
    return any(word in text and pattern.search(text) for word, pattern in _COMPUTES)


def _bound_in_block(text: str) -> Iterator[str]:
    """Yield the names that any line of a block binds, at any depth."""
    for match in _CODE_LINE.finditer(text):
        line = match[0]
        if definition := _DEFINITION.match(line):
            yield definition[1]
        elif line.startswith("case "):
            yield from _WORD.findall(line)
        elif _BLOCK_HEAD.match(line):
            for target in _BLOCK_TARGET.finditer(line):
                yield from _WORD.findall(target[0])
            # A statement may follow the head of the block on the same line.
            yield from _bound_by_statement(line.rpartition(":")[2].lstrip())
        else:
            # The head of a `with` may span several lines.
            yield from (alias[1] for alias in _ALIAS.finditer(line))
            yield from _bound_by_statement(text[match.start() :])


def _bound_by_statement(text: str) -> Iterator[str]:
    """Yield the names that the statement at the start of the text binds. The statement must not be the head of a block."""
    if statement := _IMPORT.match(text):
        yield from _imported(statement)
        return
    # The targets of an assignment that starts with a bracket may span several lines.
    line = first_line(text)
    yield from (match[1] for match in _WALRUS.finditer(line))
    if annotated := _ANNOTATED.match(line):
        yield annotated[1]
    for simple in (text if text[:1] in "([" else line).split(";"):
        if statement := _IMPORT.match(simple.lstrip()):
            yield from _imported(statement)
        if alias := _TYPE_ALIAS.match(simple):
            yield alias[1]
        for target in _EQUALS.split(simple)[:-1]:
            # Inside brackets that are still open, a name is an argument, not a target.
            if any(target.count(left) != target.count(right) for left, right in ("()", "[]", "{}")):
                break
            yield from _FREE_NAME.findall(target.partition(":")[0] if ":" in _SUBSCRIPT.sub("", target) else target)


def _imported(statement: re.Match[str]) -> Iterator[str]:
    for item in _COMMENT.sub("", statement[statement.lastindex or 0]).replace("\\\n", " ").split(","):
        name, _, alias = " ".join(item.split()).partition(" as ")
        # `import a.b` binds `a`.
        yield alias or name.partition(".")[0]


_FREE_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")
_CODE_LINE = re.compile(r"[^\s#][^\n]*")
_TOP_LINE = re.compile(r"^[^\s#)\]}\"'][^\n]*", re.MULTILINE)
_DEFINITION = re.compile(r"(?:async[ \t]+def|def|class)[ \t]+(\w+)")
_BLOCK_HEAD = re.compile(r"(?:if|elif|else|try|except|finally|async|with|for|while|match|case)\b(?![ \t]*[=.,)\]])")
_BLOCK_TARGET = re.compile(r"\bfor\b.{1,400}?\bin\b|\bas\b[^:]+|(?<!\w)\w+[ \t]*:=")
_IMPORT = re.compile(r"(?:from[^\n]+?)?\bimport\b[ \t]*(?:\(([^)]*)\)?|((?:[^\\\n]|\\\n?)*))")
_TYPE_ALIAS = re.compile(r"type[ \t]+(\w+)[^=\n]*=")
_ALIAS = re.compile(r"\bas[ \t]+(\w+)")
# An annotation that ends on a later line.
_ANNOTATED = re.compile(r"(\w+)[ \t]*:[^\n]*[\[(][ \t]*(?:#[^\n]*)?$")
# Without the first condition, a long word takes time quadratic in its length.
_WALRUS = re.compile(r"(?<!\w)(\w+)[ \t]*:=")
_EQUALS = re.compile(r"(?:[-+*/%&|^@]|//|\*\*|<<|>>)?(?<![=!<>:])=(?!=)")
_SUBSCRIPT = re.compile(r"\[[^\]]*\]")
_COMMENT = re.compile(r"#[^\n]*")
_GLOBAL = re.compile(r"^[ \t]+global[ \t]+([^\n]+)", re.MULTILINE)
_BUILTIN = re.compile(r"\bbuiltins\.(\w+)[ \t]*=(?!=)")
_STAR_IMPORT = re.compile(r"^[ \t]*from\b[^\n#]*\bimport[ \t]*\(?[ \t]*\*", re.MULTILINE)
# Code that computes names: a text that must occur, which is fast to find, and a pattern that must match.
_COMPUTES = (
    ("globals()", re.compile(r"\bglobals\(\)[ \t]*(?:\[[^\n=]{0,400}\][ \t]*=(?!=)|\.update|\.setdefault)")),
    ("locals()", re.compile(r"\blocals\(\)[ \t]*(?:\[[^\n=]{0,400}\][ \t]*=(?!=)|\.update)")),
    ("vars()", re.compile(r"\bvars\(\)[ \t]*(?:\[[^\n=]{0,400}\][ \t]*=(?!=)|\.update)")),
    ("exec(", re.compile(r"^exec\(", re.MULTILINE)),
    ("setattr(", re.compile(r"\bsetattr\([ \t]*(?:builtins|sys\.modules)")),
)
