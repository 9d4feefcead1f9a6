"""No search takes time that grows with the square of a text of a repository, whatever the text.

The patterns are found where they are made: in the modules' variables, in each call of `re` in a function, and in the tables of
languages. Their worst texts are made from their own parts: what a repetition repeats, after what comes before it. So a new
pattern is tried without a row of its own. Texts of other kinds have rows in `WORST`.
"""

from __future__ import annotations

import ast
import gc
import importlib
import pkgutil
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _constants as parts  # type: ignore[attr-defined]  # private, and the only parser of patterns
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import dg_lsp
from dg_lsp.batch import check, discover, plan, rounds, write
from dg_lsp.core import (
    context,
    edits,
    extent,
    generated,
    importing,
    indentation,
    languages,
    lexing,
    place,
    placeholders,
    positions,
    repository,
    secrets,
    syntax,
)
from dg_lsp.core.scope import python
from dg_lsp.core.values import Document, Snippet
from dg_lsp.engine.backends import chat, http_client
from dg_lsp.infill import workspace

LENGTHS = (4_096, 8_192, 16_384, 32_768)
MOST_GROWTH = 2.6  # a time that grows with the square of the length grows 4 times each time that is doubled
LEAST_S = 0.004  # a shorter time says nothing about growth
TOO_LONG_S = 0.02  # for 512 characters: it grows faster than any power
ENDS = ("", "\0")
USUAL = (" ", "\n", "a", "_", "\t", "a\n", " \n", "\n\n", "1", "(", "=", "a.", '"', "'", "`", "-", "*", "#", "/")
REPEATS = (parts.MAX_REPEAT, parts.MIN_REPEAT, parts.POSSESSIVE_REPEAT)
# Parts of the product that read no text of a repository with patterns of their own.
ELSEWHERE = ("engine.causal", "engine.common", "engine.diffusion", "engine.model", "evaluate", "models")

Search = Callable[[str], object]


def all_of(pattern: re.Pattern[str]) -> Search:
    return lambda text: sum(1 for _ in pattern.finditer(text))


WORST: list[tuple[Search, tuple[str, ...]]] = [
    *((all_of(shape), (hint, f"{hint}a", f"{hint}a-")) for hint, shape in secrets._SHAPES),
    *((all_of(pattern), (f"{word} [a] ",)) for word, pattern in python._COMPUTES),
    (all_of(python._BLOCK_TARGET), ("for a ", "a")),
    (lambda text: python._run("".join(" " * n + "if not False:\n" for n in range(300)) + text), ("\n",)),
    (all_of(http_client._MARKUP), ("<!a", "<script a")),
    (all_of(chat._FENCE), ("~",)),
    (all_of(repository._TOKEN), ("\t", "\n")),
    (
        lambda text: languages.for_path("a.h", text),
        (" ", "a", "a ", "\n ", "::a", "//a::b\n", "namespace ", "class a", "const a ", "operator", "#!/", "#!env -a "),
    ),
    (write._TOKEN.findall, ("a", "a ", "(")),
    (lambda text: workspace._COMMENT.sub("", text), (" ", "#", " #", "\n", " ;")),
    (discover._conflict_line, ("<" * 7 + "\n", "<<<<<<< a\n=======\n", "<", "<<<<<<< \r", "=======\n")),
    (check._STOPPED.search, ("!", "! ", "! stopping after 1 ", "! stopping after 1\n", "1")),
    (lambda text: rounds._VOLATILE.sub("", text), ("0x", "1", "1.", "1.1 msec", "1.1s ")),
    (plan._PLACE.match, ("a:1", ":1:1-", "a", "a:1:")),
    (plan._COMMENT.match, ("a:1:1", ":1:1-1:1", "a:1:1 ")),
    (workspace._SECTION.split, ("[", "[]", "[] ", " ", "[]]  x\n", "[] \t\r", "] x")),
    (workspace._pairs, ("=", "a=", ":\n", " ")),
    (
        lambda text: [workspace._matches(text, f"/{'a' * 200}/{'1b' * 100}") for _ in range(workspace.MAX_SECTIONS)],
        ("{a,b}", "{1..9}", "{", "{a,", "{,", "*a", "**a", "{1..99}{a,b}", "]\n", "[a-z]", "[", "{a}", "[\\", "{\\"),
    ),
]
N_CHARS = 1 << 16
MOST_CPU_S = 0.25
N_COUNTED = 9_000_000  # Python counts so far in a quarter of a second

BOUNDED = {
    "batch.plan._changed": "matched at the start of a revision that the user names",
    "batch.plan._PLACE": "matched once with a line of the user's own list",
    "batch.plan._COMMENT": "matched once with a line of the user's own list",
    "batch.scratch._INSTALLED": "matched with a path",
    "batch.scratch._OTHERS": "matched with a file's name",
    "batch.scratch._SETTINGS": "matched with a file's name",
    "core.generated._STATEMENT": "searched in the first comments of a file, which are bounded",
    "core.holes.body.DELIBERATE": "matched at the start of a comment",
    "core.holes.body.DIRECTIVE": "matched at the start of a comment",
    "core.holes.body.SAYS_NOTHING": "matched at the start of a comment",
    "core.holes.body.hole_of": "matched at the end of a part",
    "core.holes.body.TODO": "matched at the start of a comment",
    "core.indentation._HAS_INDENTED": "matched at the start of a line",
    "core.indentation._NO_RECIPE": "matched at the start of a line",
    "core.indentation._RECIPE_ABOVE": "matched at the start of a line",
    "core.lexing._indented": "matched at the end of the line where a literal begins",
    "core.placeholders._LINE": "matched with a line of an answer",
    "core.polish.filters._REMARK": "matched at the start of a line",
    "core.repository._LAST_WORD": "searched in the last characters before the cursor",
    "core.scope._LEAVES": "matched at the start of a statement",
    "core.scope.python._ANNOTATED": "matched at the start of a line",
    "core.scope.python._HEAD": "matched at the start of a line",
    "core.scope.python._IMPORT": "matched at the start of a statement",
    "core.scope.python.is_module": "matched at the start of a text",
    "core.scope.python._SUBSCRIPT": "replaced in the target of one assignment",
    "core.scope.python._TYPE_ALIAS": "matched at the start of a statement",
    "core.secrets._PLACEHOLDER": "searched in one value, whose length is bounded",
    "engine.backends.chat._THOUGHT": "matched at the start of an answer",
    "engine.backends.vllm._version": "matched at the start of a version",
    "engine.serve.compat._COMMENT": "matched with a line of a request's first lines",
    "engine.serve.compat._PATH": "matched with a comment in a request's first lines",
    "infill.workspace._CHARS": "matched in a pattern of EditorConfig, which is cut to 400 characters",
    "infill.workspace._SINGLE": "matched in a pattern of EditorConfig, which is cut to 400 characters",
    "wire.config._KEY": "matched with one key of a configuration file",
    "wire.programs._is_secret": "searched in one value of the user's environment",
    "wire.network._WITH_PORT": "matched with one address",
}
"""The patterns that are never searched in a whole text, with the reason."""


FROM_TABLES = {
    *("batch.scratch._mounts", "batch.scratch.text_in_copy"),
    "core.languages._has_sign",
    *("core.holes._opened_line", "core.holes.body._stranded", "core.lexing._inside", "core.lexing.code"),
    *("core.lexing.for_file", "core.lexing.kind_at", "core.polish.filters.cut_at_dedent", "core.polish.frames._width"),
    *("core.scope.declared._around", "core.scope.declared._key", "core.scope.python._run", "core.syntax._seen"),
    *("core.extent.runs", "core.gitignore._component", "core.scope.declared.declares_again"),
    "core.templates.for_model",
}
"""The functions with a pattern that is not in the code: it is in a table of languages, or made from a text of the user's."""

FIELDS = ("misread", "ranges", "sign")
"""What is searched in a whole text; the other fields of a language are matched with one line, or with the names of nodes."""

LEXER_FIELDS = ("sign", "variable", "format")
CALLS = frozenset({"compile", "match", "search", "fullmatch", "sub", "split", "findall", "finditer"})


def modules() -> Iterator[tuple[str, Any]]:
    """Yield each module that may read a repository's text with patterns of its own, with its name."""
    for info in pkgutil.walk_packages(dg_lsp.__path__, "dg_lsp."):
        name = info.name.removeprefix("dg_lsp.")
        if not name.startswith(ELSEWHERE) and name != "__main__":
            yield name, importlib.import_module(info.name)


def in_variables(module: Any) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield the patterns of text that a module's variables hold, with the variable's name."""
    for key, value in vars(module).items():
        values: list[Any] = [value]
        while values:
            each = values.pop()
            if isinstance(each, re.Pattern) and isinstance(each.pattern, str):
                yield key, each
            elif isinstance(each, (tuple, list)) and len(each) < 2000:
                values += each
            elif isinstance(each, dict) and len(each) < 2000:
                values += each.values()


def text_of(node: ast.expr, module: Any) -> str | None:
    """Return the text of an expression in a function, with `ab` for what it puts in; None if it is a name of the function's."""
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
        return "".join(text_of(part, module) or "ab" for part in parts)
    try:
        value = eval(ast.unparse(node), dict(vars(module)))
    except NameError:
        return None
    return value if isinstance(value, str) else None


def in_functions(module: Any) -> Iterator[tuple[str, re.Pattern[str] | None]]:
    """Yield the pattern of each call of `re` in a module's functions, with the function's name; None if it is no text there."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for name, node in ((function.name, node) for function in functions for node in ast.walk(function)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"re.{call}" for call in CALLS}:
            flags = [eval(ast.unparse(each), {"re": re}) for each in node.args[1:] if ast.unparse(each).startswith("re.")]
            text = text_of(node.args[0], module)
            yield name, None if text is None else re.compile(text, flags[0] if flags else 0)


def in_tables() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield the patterns of the tables of languages."""
    for row in languages.TABLE:
        for field in FIELDS:
            yield f"languages.toml {row.name} {field}", re.compile(getattr(row, field), re.MULTILINE)
    lexers, _ = lexing._table()
    for name, lexer in lexers.items():
        yield f"lexing.toml {name}", lexer.code
        for field in LEXER_FIELDS:
            yield f"lexing.toml {name} {field}", re.compile(getattr(lexer, field), re.MULTILINE)
        for each in lexer.delimiters:
            if not each.is_regular and not each.indented:
                yield f"lexing.toml {name} {each.open}", lexing._inside(each, "ab")


def patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield each pattern of text of dg_lsp once, with its name."""
    seen = set[re.Pattern[str]]()
    named = [(f"{name}.{key}", each) for name, module in modules() for key, each in in_variables(module)]
    named += [(f"{name}.{key}", each) for name, module in modules() for key, each in in_functions(module) if each is not None]
    for name, pattern in (*named, *in_tables()):
        if pattern not in seen:
            seen.add(pattern)
            yield name, pattern


def _char(choices: Any) -> str:
    """Return a character of a set."""
    kinds = {parts.CATEGORY_DIGIT: "1", parts.CATEGORY_SPACE: " ", parts.CATEGORY_WORD: "a"}
    chars = [
        chr(a) if op is parts.LITERAL else chr(a[0]) if op is parts.RANGE else kinds.get(a, "!")
        for op, a in choices
        if op is not parts.NEGATE
    ]
    if any(op is parts.NEGATE for op, _ in choices):
        return next((char for char in 'a \t1,.x("\n-_Z{' if char not in chars), "~")
    return chars[0] if chars else "a"


def _sample(items: Any) -> str:
    """Return a short text that some of the pattern matches."""
    text = ""
    for op, a in items:
        if op is parts.LITERAL:
            text += chr(a)
        elif op is parts.NOT_LITERAL:
            text += "a" if a != ord("a") else "b"
        elif op is parts.ANY:
            text += "a"
        elif op is parts.IN:
            text += _char(a)
        elif op in REPEATS:
            text += _sample(a[2]) * max(a[0], 1) if a[0] < 50 else ""
        elif op is parts.SUBPATTERN:
            text += _sample(a[3])
        elif op is parts.BRANCH:
            text += _sample(a[1][0])
        elif op is parts.ATOMIC_GROUP:
            text += _sample(a)
        elif op is parts.ASSERT and a[0] > 0:
            text += _sample(a[1])
    return text


def worst_texts(items: Any, before: str = "") -> set[tuple[str, str]]:
    """Return texts that may take long: each a beginning, and what is repeated after it."""
    found, near = set[tuple[str, str]](), before
    for op, a in items:
        if op in REPEATS:
            if (unit := _sample(a[2])) and a[1] > 20:
                found |= {(near, unit), ("", unit), ("", near + unit)}
            found |= worst_texts(a[2]) | worst_texts(a[2], near)
        elif op is parts.SUBPATTERN:
            found |= worst_texts(a[3], near)
        elif op is parts.ATOMIC_GROUP:
            found |= worst_texts(a, near)
        elif op is parts.BRANCH:
            found = found.union(*(worst_texts(branch, near) for branch in a[1]))
        elif op in (parts.ASSERT, parts.ASSERT_NOT):
            found |= worst_texts(a[1], near)
        near = (near + _sample([(op, a)]))[-40:]
        found |= {("", near)} if near else set()
    return found


def seconds(pattern: re.Pattern[str], before: str, unit: str, n_chars: int, end: str) -> float:
    """Return the processor time of a search for all matches in a text of about so many characters, of whole units."""
    text = before + unit * (n_chars // len(unit)) + end
    start = time.process_time()
    sum(1 for _ in pattern.finditer(text))
    return time.process_time() - start


def doubled(pattern: re.Pattern[str], before: str, unit: str, n_chars: int, end: str) -> float:
    """Return how much longer a search takes in a text of twice as many characters, each time the least of three."""
    short, long = (min(seconds(pattern, before, unit, n, end) for _ in range(3)) for n in (n_chars, 2 * n_chars))
    return long / max(short, 1e-6)


def grows(pattern: re.Pattern[str]) -> tuple[str, str] | None:
    """Return a text in which a search takes time that grows faster than the text; None if none was found.

    It grows at each doubling: at a single one, a search may jump because more of the text fits what the pattern looks for.
    """
    tree = list(parser.parse(pattern.pattern, pattern.flags))
    for before, unit in sorted(worst_texts(tree) | {("", unit) for unit in USUAL}):
        for end in ENDS:
            if seconds(pattern, before, unit, 512, end) > TOO_LONG_S and seconds(pattern, before, unit, 512, end) > TOO_LONG_S:
                return before, unit
            if seconds(pattern, before, unit, LENGTHS[1], end) > LEAST_S and all(
                doubled(pattern, before, unit, n_chars, end) > MOST_GROWTH for n_chars in LENGTHS[:-1]
            ):
                return before, unit
    return None


@pytest.mark.slow
def test_no_search_takes_time_that_grows_with_the_square_of_a_text() -> None:
    found = {name: text for name, pattern in patterns() if name not in BOUNDED and (text := grows(pattern))}
    assert found == {}


def test_the_patterns_that_are_never_searched_in_a_whole_text_exist() -> None:
    assert BOUNDED.keys() - {name for name, _ in patterns()} == set()


def test_each_pattern_is_in_the_code_or_in_a_table() -> None:
    made = {f"{name}.{key}" for name, module in modules() for key, each in in_functions(module) if each is None}
    assert made == FROM_TABLES


def test_a_pattern_whose_time_grows_is_found() -> None:
    assert grows(re.compile(r"a+b")) is not None
    assert grows(re.compile(r"(?<!a)a+b")) is None


@pytest.mark.parametrize(("search", "units"), WORST)
def test_no_search_takes_long_in_its_worst_text(search: Search, units: tuple[str, ...]) -> None:
    for unit in units:
        whole = unit * (N_CHARS // len(unit))
        for text in (whole, f"{whole}x", f"[{whole}"):
            start = time.process_time()
            search(text)
            assert time.process_time() - start < MOST_CPU_S, unit


UNITS = (
    *(
        "\n",
        " ",
        " \n",
        "\t",
        "\r",
        "a",
        "a ",
        "a\n",
        "a.",
        "1",
        "_",
        "é",
        "(",
        "[",
        "{",
        ")",
        "}",
        "<",
        "/",
        "//",
        "//\n",
        "#",
    ),
    *("#\n", "\\", "\\\n", '"', "'", "`", '"a"\n', '"""', "/*", "/* a */", "--", "--[[", "=", "a = (\n", ":", ";", ",\n", "$"),
    *("${", "`${", 'f"{', "<<A\n", "use a::{", "use a;\n", "import a,", "import a\n", "import (\n", "from a import (\n"),
    *("from a import b\n", "require ", "include '", "#define a \\\n", "using a = ", "source a\n", "def f():\n", "class A {\n"),
    *(
        "if (a) {\n",
        "case 1:\n",
        "else\n",
        "    a\n",
        "for a in b:\n",
        "TODO",
        "# TODO\n",
        "// FILL\n",
        "FILL",
        "pass\n",
        "...\n",
    ),
    *("Code generated by a. DO NOT EDIT.\n", "password = ", "://a:", "-----BEGIN PRIVATE KEY-----", "---\n", "- a\n", "a:\n"),
    *("-----END PRIVATE KEY-----\n", "\tb\n", "@a\n", "<div>", "<a b={", "end\n", "function "),
)


def readers(text: str, language: languages.Language) -> dict[str, Callable[[], object]]:
    """Return what reads a whole text without a tree, by name; what does not depend on the language only for the first one."""
    lexer, name, half = lexing.named(language.name), language.name, len(text) // 2
    document, line = Document(f"file:///a{language.extensions[0]}", name, text), text.replace("\n", " ")
    of_language = {
        "imports": lambda: list(language.imports(text)),
        "seen": lambda: syntax._seen(text, language),
        "split": lambda: languages.split_lines(text, name),
        "unclosed": lambda: languages.n_unclosed(text, name),
        "missing opener": lambda: languages.missing_opener(text, half, name),
        "comments": lambda: list(lexing.sure_comments(text, lexer)),
        "kind": lambda: lexing.kind_at(text, half, lexer),
        "generated": lambda: generated.line_of(document),
        "line": lambda: (
            re.search(language.opens, line) or [re.match(each, line) for each in (language.closes, language.outdents)]
        ),
        "imported": lambda: list(importing.imported(text, language.importing)),
    }
    edit = edits.Edit("a", 0, "a\n", text[:half], "", "")
    of_text = {
        "secrets": lambda: secrets.spans(text),
        "index": lambda: repository.index("a", name, text),
        "paragraphs": lambda: context.paragraphs(text, text, [Snippet("a", text)], 4_000),
        "indentation": lambda: indentation.unit(document, text),
        "answer's indentation": lambda: indentation.as_around(text, document, place.between(text, text), "", text),
        "recipes": lambda: indentation.with_recipes(text, text),
        "placeholders": lambda: placeholders.says_nothing(text),
        "shrinks": lambda: placeholders.shrinks(text, text[half:], ""),
        "bound": lambda: python.bound_names(text),
        "computed": lambda: python.computes_names(text),
        "edit": lambda: edits.edit_between("a", text, text[:half] + text),
        "question": lambda: edits.question(text, text, half, [edit]),
        "undone": lambda: edit.undone_in_file(text),
        "lines": lambda: positions.lines(text),
        "repeated": lambda: extent.before_suffix(text, text[half:]),
    }
    return of_language | (of_text if language is languages.TABLE[0] else {})


def untraced_s(read: Callable[[], object], n: int = 3) -> float:
    """Return the processor time of a call, the least of `n`, without coverage and the collection of garbage."""
    trace, times = sys.gettrace(), list[float]()
    sys.settrace(None)
    gc.disable()
    try:
        for _ in range(n):
            start = time.process_time()
            read()
            times.append(time.process_time() - start)
    finally:
        gc.enable()
        sys.settrace(trace)
    return min(times)


def counting_s() -> float:
    """Return what MOST_CPU_S is here and now: other programs and a slower processor prolong a count as they do a function."""
    return untraced_s(lambda: sum(1 for _ in range(N_COUNTED)))


@pytest.mark.slow
@pytest.mark.parametrize("language", languages.TABLE, ids=lambda language: language.name)
def test_no_function_takes_long_in_a_worst_text(language: languages.Language) -> None:
    slow = {}
    for unit in UNITS:
        for name, read in readers(unit * (N_CHARS // len(unit)), language).items():
            if untraced_s(read, 1) > MOST_CPU_S and (took := untraced_s(read)) > (most := counting_s()):
                slow[name, unit] = took, most
    assert slow == {}


@pytest.mark.parametrize(
    "text",
    [
        lambda n: "@a\n" * n + "def f():\n    pass\n",
        lambda n: (
            f"class A({', '.join(f'b{i}' for i in range(n // 8))}):\n" + "".join(f" def f{i}(): 0\n" for i in range(n // 8))
        ),
    ],
)
def test_a_query_takes_no_time_that_grows_with_the_square_of_a_text(text: Callable[[int], str]) -> None:
    language = languages.by_id("python")
    assert language is not None

    def least_s(n: int) -> float:
        tree = syntax.parse(text(n), language)
        return untraced_s(lambda: syntax.find_facts(tree.tree, language, tree.offsets).overrides("b1", "f"))

    assert least_s(16_000) < 8 * least_s(4_000)
