"""The table of languages whose syntax dg-lsp knows, which is `languages.toml`.

To add a language, add a table to that file and a file `queries/<name>.scm`. Holes in it are then found and filled without a
change elsewhere. The captures that a query file may use are described in `syntax`. Code for one language only, such as
a check by its own compiler or notebooks, is in the module that uses it.

A grammar is imported when it is first needed. The end of this module finds strings, comments and brackets in code without a
syntax tree, by the delimiters in `lexing.toml`, where a language has the same name.
"""

from __future__ import annotations

import builtins
import importlib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import Literal

import tree_sitter

from dg_lsp.core import lexing
from dg_lsp.core.lexing import Lexer
from dg_lsp.core.values import Document

# A brace that opens a block. After `=`, `(`, `,`, `:` or `return`, a brace opens a value instead.
BRACE_OPENS = r"^(?!.*\breturn\s*\{$)(?:.*[^\s=(,:\[?&|])?\s*\{$"
BRACE_CLOSES = r"[)\]}]|(?:else|catch|finally)\b|while\b[^{]*$|(?:case\b.*|default\s*):$"
# The ends of lines above code that is indented more, where brackets enclose it.
BRACE_OPENERS = (
    *(" {", "() {", "(x) {", "if (x) {", ", () => {", " => {", "({", " = {", ", {", ": {"),
    *("(", ", (", " = (", "[", "([", " = [", ", ["),
)

Find = Callable[[str], Iterable[str]]
Style = Literal["", "python", "script"]
"""How a language imports names one at a time, "script" for the TypeScript family; "" where that is not read."""


class GrammarError(Exception):
    """A grammar can't be loaded. The message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Language:
    """One language: everything but its grammar and its query, so that a new one needs no code elsewhere.

    `grammar` is a module and its function that returns the grammar. `queries` names the query files, whose texts are joined.
    `doc_comment` begins a line of documentation, where that is the custom. `opens` matches a line that opens a block, for code
    that is broken or not written yet, and `closes` what ends a block or a part of it, at the indentation of that line.
    `openers` are the ends of lines above code that is indented more. `misread` matches lines in which the grammar may take a
    string for a block comment, `ranges` what is before a `...` that it does not know. `indent` is one indentation level for a
    file that shows none. In a file whose name ends with one of `stub_suffixes`, bodies are meant to be empty. A file that ends
    with one of `shared` is of another language by its name, but of this one if `sign` matches its code.

    `imports` returns the names that a text imports. With `imports_folders`, such a name is a folder, and all of its
    files are imported. `importing` is the style of its imports, if those of an answer are judged.

    `repeats` matches declarations that a scope may have twice, in the names of their nodes from the scope on and what is
    before the name in each; without it, none are judged. `apart` matches what sets apart declarations of one name. Functions
    with `overloads` differ by their parameters. If given, `shadows` matches what may declare the locals around it again.

    The rest describes how code is read without a tree. `brackets` are the opening and the closing ones. `outdents` matches
    lines that are indented less than their block. `tag` begins the code in a file that holds other text before it.
    """

    name: str
    grammar: tuple[str, str]
    queries: tuple[str, ...]
    extensions: tuple[str, ...]
    lsp_ids: tuple[str, ...]
    line_comments: tuple[str, ...]
    block_comment: tuple[str, str] | None = None
    doc_comment: str = ""
    opens: str = BRACE_OPENS
    closes: str = BRACE_CLOSES
    openers: tuple[str, ...] = BRACE_OPENERS
    misread: str = ""
    ranges: str = ""
    indent: str = "    "
    by_indentation: bool = False
    filenames: tuple[str, ...] = ()
    shebangs: tuple[str, ...] = ()
    stub_suffixes: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    sign: str = ""
    imports: Find = lambda _text: ()
    imports_folders: bool = False
    importing: Style = ""
    repeats: str = ""
    apart: str = ""
    shadows: str = ""
    overloads: bool = False
    brackets: tuple[str, str] = ("([{", ")]}")
    outdents: str = ""
    tag: str = ""


# --- Imported modules, by one pattern for each import syntax, because code may not parse. None reads a part of the text again
# for each of its matches: what repeats is possessive, or ends where the next import begins

_IMPORTS = {
    name: re.compile(pattern, re.MULTILINE)
    for name, pattern in {
        "python": (
            r"^[ \t]*+(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\((?:[^()#]++|#[^\n]*)*+\)|[^\r\n#;]*)|import[ \t]+([^\r\n#;]*))"
        ),
        "java": r"^[ \t]*+import\s+(static\s+)?([\w.]+?)(\.\*)?\s*+;",
        "rust": r"\b(?:use\s+([\w:]+?)(?:::\{((?:[^;u]++|\Bu|u(?!se\s))*+)|(?:::\*)?(?:\s+as\s+\w+)?\s*+);|mod\s+(\w+)\s*+;)",
        "go": r'^import\s*+(\((?:[^()/]++|//[^\n]*|/)*+\)|(?:[\w.]+\s+)?"[^"]+")',
        "javascript": r"""\b(?:from|import)\s*["']([^"'\n]+)["']|\b(?:require|import)\s*\(\s*["']([^"'\n]+)["']\s*\)""",
        "c": r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\r\n]+)"|<([^>\r\n]+)>)',
        "csharp": r"^[ \t]*+(?:global\s+)?using\s+(?:static\s+)?(?:\w+\s*=\s*)?([\w.]+)\s*+;",
        "ruby": r"""^[ \t]*+(?:require|require_relative|load|autoload\s+:\w+,)\s*+\(?\s*+["']([^"'\r\n]+)["']""",
        "php": (
            r"""^[ \t]*+use\s+(?:function\s+|const\s+)?([\w\\]+)"""
            r"""|\b(?:require|include)(?:_once)?\b[^;"']{0,200}+["']([^"'\r\n]+)["']"""
        ),
        "bash": r"""^[ \t]*+(?:source|\.)[ \t]+["']?(?:[^"'\s;]*/)?([^"'\s;/]+)""",
        "lua": r"""\brequire\s*+\(?\s*+["']([^"'\r\n]+)["']""",
    }.items()
}
"""By the names in the table, what a text imports."""


def _python(match: re.Match[str]) -> Iterator[str]:
    """Yield the imported modules, and the names imported from them, which may be modules too."""
    module, symbols, modules = match.groups()
    listed = [re.split(r"\s", name.strip())[0] for name in re.sub(r"[()\\]|#.*", " ", symbols or modules or "").split(",")]
    if module is None:
        yield from filter(None, listed)
    else:
        if module.strip("."):
            yield module
        # `from package import module` looks the same as importing a function, so both readings are returned.
        yield from (f"{module.rstrip('.')}.{name}" for name in listed if name and name != "*")


def _java(match: re.Match[str]) -> Iterator[str]:
    """Yield the imported class or package."""
    yield match[2].rpartition(".")[0] if match[1] and not match[3] else match[2]


def _rust(match: re.Match[str]) -> Iterator[str]:
    """Yield the path of a module, or those of the items used from it."""
    path, listed, module = match.groups()
    yield module or path
    if path and "::" in path and not listed:
        # The last part is as often a type as a module.
        yield path.rpartition("::")[0]
    names = (name.strip() for name in (listed or "").rstrip().removesuffix("}").split(","))
    yield from (f"{path}::{name}" for name in names if re.fullmatch(r"[\w:]+", name))


def _go(match: re.Match[str]) -> Iterable[str]:
    """Return the paths of the imported packages."""
    return re.findall(r'"([^"]+)"', match[1])


_READERS: dict[str, Callable[[re.Match[str]], Iterable[str]]] = {"python": _python, "java": _java, "rust": _rust, "go": _go}
"""What reads the names of a match, where that is not its only group."""


def _names(text: str, name: str) -> Iterator[str]:
    read = _READERS.get(name)
    for match in _IMPORTS[name].finditer(text):
        yield from read(match) if read else (match[match.lastindex or 0],)


def _table() -> tuple[Language, ...]:
    text = (resources.files("dg_lsp.core") / "languages.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)
    for name, row in rows.items():
        row["name"] = name
        if "imports" in row:
            row["imports"] = partial(_names, name=row["imports"])
        row |= {field: tuple(value) for field, value in row.items() if isinstance(value, list)}
    return tuple(Language(**row) for row in rows.values())


TABLE = _table()
_UNKNOWN = Language("", ("", ""), (), (), (), ())
_BY_NAME = {language.name: language for language in TABLE}
_BY_ID = {lsp_id: language for language in TABLE for lsp_id in language.lsp_ids}
_BY_EXTENSION = {extension: language for language in TABLE for extension in language.extensions}
_BY_FILENAME = {name: language for language in TABLE for name in language.filenames}
_BY_SIGN = {extension: language for language in TABLE for extension in language.shared}
_BY_SHEBANG = {name: language for language in TABLE for name in language.shebangs}

# Templates that end like a file of a language that they are not.
_TEMPLATES = (".blade.php",)

# Finds python in `#!/usr/bin/env -S python3.12 -u`: the program, or env's first argument that is not an option or assignment.
_SHEBANG = re.compile(r"^\ufeff?#![ \t]*(?:\S*/)?(?:env[ \t]+(?:-\S+[ \t]+|\w+=\S*[ \t]+)*(?:\S*/)?)?([\w+-]*[a-z])", re.ASCII)


def get(name: str) -> Language | None:
    """Return the language with this name, as in `Document.language`, or None."""
    return _BY_NAME.get(name)


def row(name: str) -> Language:
    """Return the language with this name, or one without a grammar that has what most languages have."""
    return _BY_NAME.get(name, _UNKNOWN)


def by_id(lsp_id: str) -> Language | None:
    """Return the language with this id in the Language Server Protocol, or None."""
    return _BY_ID.get(lsp_id) or _BY_ID.get(lsp_id.lower())


def for_path(name: str, text: str = "", lsp_id: str = "") -> Language | None:
    """Return the language of a file by its editor's id, else by its name, else by the interpreter in its first line, else None.

    `name` may be a whole path, with either kind of slash. An extension is compared without case if it is unknown as
    written. If languages share it, as C and C++ do `.h`, the text can say which.
    """
    base = re.split(r"[/\\]", name)[-1]
    language = by_id(lsp_id) or _BY_FILENAME.get(base)
    _, dot, ending = base.rpartition(".")
    endings = (f".{ending}", f".{ending.lower()}") if dot and not base.endswith(_TEMPLATES) else ()
    by_name = next((_BY_EXTENSION[each] for each in endings if each in _BY_EXTENSION), None)
    signed = next((_BY_SIGN[each] for each in endings if each in _BY_SIGN), None)
    if signed and language in (None, by_name) and _has_sign(text, signed):
        return signed
    return language or by_name or _BY_SHEBANG.get(_interpreter(text))


def _interpreter(text: str) -> str:
    shebang = _SHEBANG.match(text)
    return shebang[1] if shebang else ""


def _has_sign(text: str, language: Language) -> bool:
    sign = re.compile(language.sign, re.MULTILINE)
    # Most files without a sign have none in comments either, and looking there first is faster.
    return bool(sign.search(text) and sign.search(mask(text, language.name)))


def lexer(document: Document) -> Lexer | None:
    """Return the lexer for the document, or None if its language is unknown."""
    language_id = document.language or document.language_id
    interpreter = _interpreter(document.text)
    return lexing.for_file(document.uri.partition("#")[0], document.text, language_id, interpreter)


@cache
def grammar(language: Language) -> tree_sitter.Language:
    """Return the language's grammar; raise GrammarError if its package is missing or incompatible."""
    module, function = language.grammar
    try:
        return tree_sitter.Language(getattr(importlib.import_module(module), function)())
    except (ImportError, AttributeError, ValueError) as error:
        raise GrammarError(f"the grammar for {language.name} ({module}) can't be loaded: {error}") from error


@cache
def words(language: Language) -> frozenset[str]:
    """Return the words among the kinds of the grammar's nodes, and for Python also its builtins; nothing without a grammar.

    The kinds have all keywords of the language, those that may also be names, and kinds such as `module` and `identifier`.
    """
    try:
        parser = grammar(language)
    except GrammarError:
        return frozenset()
    kinds = (parser.node_kind_for_id(number) or "" for number in range(parser.node_kind_count))
    known = {kind for kind in kinds if kind.isidentifier()}
    return frozenset(known | set(dir(builtins)) if language.name == "python" else known)


@cache
def query(language: Language) -> tree_sitter.Query:
    """Return the language's query, compiled from all of its files."""
    folder = resources.files("dg_lsp.core") / "queries"
    source = "\n".join((folder / f"{name}.scm").read_text(encoding="utf-8") for name in language.queries)
    compiled: tree_sitter.Query = tree_sitter.Query(grammar(language), source)
    return compiled


# --- Strings, comments and brackets, without a syntax tree

QUOTES = ('"', "'", "`")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a text.

    `start` is its offset. `is_code` is true if it starts outside a string or comment. `nested` is true if it starts
    inside brackets that an earlier line opened.
    """

    start: int
    indent: str
    text: str
    is_code: bool
    nested: bool


def mask(text: str, language: str) -> str:
    r"""Return the text with each character of a string or comment replaced by `\0`, so that offsets stay the same."""
    return masked(text, lexing.tokens(text, lexing.named(language)))


def masked(text: str, tokens: Iterable[lexing.Token]) -> str:
    """Return what `mask` does, for these tokens of the text."""
    pieces, at = [], 0
    for token in (token for token in tokens if token.kind != "code"):
        pieces += [text[at : token.span.start], "\0" * (token.span.end - token.span.start)]
        at = token.span.end
    return "".join([*pieces, text[at:]])


def kind_at_end(text: str, language: str) -> Literal["comment", "string"] | None:
    """Return "comment" or "string" if one is open at the end of the text, or None for code."""
    kind = lexing.kind_at(text, len(text), lexing.named(language))
    return kind if kind in ("comment", "string") else None


def split_lines(text: str, language: str) -> list[Line]:
    """Return the lines of the text, each with the facts that indenting and cutting need."""
    code = mask(text, language)
    lines, at, depth = [], 0, 0
    for line in text.split("\n"):
        size = len(line) - len(line.lstrip(" \t"))
        is_code = at == 0 or code[at - 1] == "\n"
        lines.append(Line(at, line[:size], line[size:], is_code, depth > 0))
        for char in code[at : at + len(line)]:
            depth = max(0, depth + (char in "([{") - (char in ")]}"))
        at += len(line) + 1
    return lines


def first_closer(text: str, language: str, before: str = "") -> int | None:
    """Return the offset of the first closing bracket that the text did not open, whatever its kind, or None.

    `before` is the preceding text, needed to tell strings from code.
    """
    opening, closing = row(language).brackets
    depth = 0
    for idx, char in enumerate(mask(before + text, language)[len(before) :]):
        depth += (char in opening) - (char in closing)
        if depth < 0:
            return idx
    return None


def n_open(before: str, text: str, language: str) -> int:
    """Return how many brackets the text leaves open; `before` is the preceding text, needed to tell strings from code."""
    return len(_unpaired(mask(before + text, language)[len(before) :], _partners(language))[0])


def closers(text: str, language: str) -> tuple[str, str]:
    """Return the quote and the brackets that close what the text leaves open."""
    is_string = kind_at_end(text, language) == "string"
    quote = next((quote for quote in QUOTES if is_string and kind_at_end(text + quote, language) is None), "")
    opened, _ = _unpaired(mask(text, language), _partners(language))
    return quote, "".join(reversed(opened)).translate(str.maketrans(*row(language).brackets))


def missing_opener(text: str, at: int, language: str) -> str:
    """Return the opening bracket that the code after the offset lacks; "" if there are enough of that kind in the text."""
    code = mask(text, language)
    closer = "".join(code[at + idx] for idx in _unpaired(code[at:], _partners(language))[1][:1])
    opener = _partners(language).get(closer, "")
    return opener if code.count(opener) < code.count(closer) else ""


def n_loose(text: str, language: str) -> int:
    """Return how many brackets, tags and quotes of the text lack their partner."""
    # Tags count in strings too: an apostrophe in the text of a page opens none.
    tags = [match[1] for match in _TAG.finditer(text)]
    partners = {f"/{name}": name for name in (tag.removeprefix("/") for tag in tags)}
    both = _unpaired(mask(text, language), _partners(language)), _unpaired(tags, partners)
    return (kind_at_end(text, language) == "string") + sum(len(opened) + len(unopened) for opened, unopened in both)


def n_unclosed(text: str, language: str) -> int:
    """Return how many brackets, strings and comments the text opens and does not close."""
    strings = list(lexing.tokens(text, lexing.named(language)))
    n_literals = sum(
        token.kind in ("string", "comment") and (token.ends == "text" or (token.kind == "string" and token.ends == "line"))
        for token in strings
    )
    return n_literals + len(_unpaired(masked(text, strings), _partners(language))[0])


def _partners(language: str) -> dict[str, str]:
    """Return the opening bracket of each closing one."""
    opening, closing = row(language).brackets
    return dict(zip(closing, opening, strict=True))


def _unpaired(marks: Sequence[str], partners: Mapping[str, str]) -> tuple[list[str], list[int]]:
    """Return the marks that open what none closes, and the indices of those that close what none opened.

    `partners` has the opening mark of each closing one.
    """
    opened, unopened, openers = list[str](), list[int](), set(partners.values())
    for idx, mark in enumerate(marks):
        if mark in openers:
            opened.append(mark)
        elif mark in partners and opened and opened[-1] == partners[mark]:
            opened.pop()
        elif mark in partners:
            unopened.append(idx)
    return opened, unopened


_TAG = re.compile(r"<(/?[a-zA-Z][\w:.-]*+)(?:[^<>]*+(?<!/))?>")
