"""Find imports of what the repository lacks in an answer. Python and the TypeScript family.

This uses patterns, because it must work in code that does not parse. It reads no files.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dg_lsp.core import languages
from dg_lsp.core.languages import Style
from dg_lsp.core.repository import EMPTY, IndexedFile, Repository


@dataclass(frozen=True, slots=True)
class Sources:
    """What a file may import from: the index of its repository, and the file's key in it, "" if that is unknown."""

    files: Repository = EMPTY
    own: str = ""


_SCRIPT_ENDINGS = (".ts", ".tsx", ".mts", ".cts", ".d.ts", ".js", ".jsx", ".mjs", ".cjs")
_SCRIPT_ENDING = re.compile(r"\.(?:d\.ts|[cm]?[jt]sx?)$")
# A module with one of these may have any name.
_ANY_NAME = re.compile(r"\b__getattr__\b|\bimport\s*\*|\bexport\s*\*")


def invented(before: str, after: str, language: str, sources: Sources) -> str:
    """Return the first import that `after` adds to `before` and that the repository lacks, as a path; "" if there is none.

    Only modules of the repository are judged: relative ones, and in Python those of a package that it has. A module that the
    file imports already may be one that is generated later. An index that is not whole judges nothing.
    """
    style, own = languages.row(language).importing, sources.own
    if not style or own.rpartition("/")[0] not in sources.files.folders or not sources.files.is_whole:
        return ""
    old = set(imported(before, style))
    known = {each.module for each in old}
    for each in imported(after, style):
        if each in old:
            continue
        bases = _python_bases(each.module, sources) if style == "python" else _script_bases(each.module, own)
        # Skip the import if its module, package or name may be a file that was not read.
        if any(sources.files.may_have(f"{base}/{inner}") for base in bases for inner in (each.name, "__init__", "index")):
            continue
        modules = [base for base in bases if _files(base, style, sources) or base in sources.files.folders]
        if bases and not modules and each.module not in known:
            return each.module
        if modules and each.name not in ("", "*") and not any(_has(base, each.name, style, sources) for base in modules):
            return f"{each.module}.{each.name}"
    return ""


def _python_bases(module: str, sources: Sources) -> list[str]:
    """Return the absolute paths, without an ending, that a module of the repository may have; empty if it is no such module."""
    keys, parts = sources.files.files, [part for part in module.split(".") if part]
    if level := len(module) - len(module.lstrip(".")):
        return ["/".join([sources.own.rsplit("/", level)[0], *parts])]
    # Other distributions can add modules only to a package without `__init__.py`.
    tops = [top for top in sources.files.packages.get(parts[0], ()) if f"{top.rpartition('/')[0]}/__init__.py" not in keys]
    return ["/".join([top, *parts[1:]]) for top in tops]


def _script_bases(module: str, own: str) -> list[str]:
    """Return the absolute path of a relative module without its ending; empty for another module, or for no code."""
    base = _SCRIPT_ENDING.sub("", posixpath.normpath(posixpath.join(posixpath.dirname(own), module)))
    return [base] if module.startswith(".") and "." not in base.rpartition("/")[2] else []


def _files(base: str, style: Style, sources: Sources) -> list[IndexedFile]:
    """Return the files of the module at this path."""
    ends = (
        (".py", ".pyi", "/__init__.py")
        if style == "python"
        else (*_SCRIPT_ENDINGS, *(f"/index{end}" for end in _SCRIPT_ENDINGS))
    )
    return [file for end in ends if (file := sources.files.files.get(base + end)) is not None]


def _has(base: str, name: str, style: Style, sources: Sources) -> bool:
    """Return whether a module may have this name. Any use of the name there counts, because patterns miss definitions."""
    word = re.compile(rf"(?<![\w$]){re.escape(name)}(?![\w$])")
    if any(word.search(file.text) or _ANY_NAME.search(file.text) for file in _files(base, style, sources)):
        return True
    return style == "python" and (bool(_files(f"{base}/{name}", style, sources)) or f"{base}/{name}" in sources.files.folders)


# --- The names that a text imports one at a time


class Import(NamedTuple):
    """A name that a file imports: a whole module, or one of its names, under another name with `alias`.

    In TypeScript, `name` is "default" for what a module exports as default, and "*" for all that it exports.
    """

    module: str
    name: str = ""
    alias: str = ""


def imported(text: str, style: Style) -> Iterator[Import]:
    """Yield what a text imports anywhere, with the modules as written."""
    if "import" not in text or not style:
        return
    for match in (_ANY_PYTHON if style == "python" else _ANY_SCRIPT).finditer(text):
        module = match["module"]
        if style == "python":
            clause = re.sub(r"#[^\n]*", "", match[0].partition("import")[2])
            if module is None:
                yield from (Import(name, "", alias) for name, alias in _PLAIN_ITEM.findall(clause))
                continue
        else:
            clause = match["clause"]
            if re.match(r"type\b(?!\s*,)", clause):
                continue  # it imports only types
            if default := re.match(r"([\w$]+)", clause):
                yield Import(module, "default", default[1])
            if everything := re.search(r"\*\s*as\s+([\w$]+)", clause):
                yield Import(module, "*", everything[1])
            clause = clause.partition("{")[2].partition("}")[0]
        yield from (Import(module, name, alias if alias != name else "") for name, alias in _ITEM_PARTS.findall(clause))


# Long lists are read up to a limit, and no further than to what can't be in a list, so that no text makes these slow.
_ANY_PYTHON = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<module>[.\w]+)[ \t]+import\b|import[ \t]+(?P<plain>[.\w]+))"
    r"[^\r\n(]*(?:\([^()]{0,4000}\))?(?:[^\r\n]*\\\r?\n)*[^\r\n]*(?:\r?\n|\Z)",
    re.MULTILINE,
)
_ANY_SCRIPT = re.compile(
    r"^import\b\s{0,99}(?P<clause>(?:(?!\bimport\b)[\w$\s{},*]){0,4000}?)(?:\bfrom\s{0,99})?"
    r"(?P<quote>['\"])(?P<module>[^'\"\r\n]+)(?P=quote);?[^\r\n]*(?:\r?\n|\Z)",
    re.MULTILINE,
)
_ITEM_PARTS = re.compile(r"(?<![\w$])(?!type\s)([\w$]+)(?:[^\S\n]+as[^\S\n]+([\w$]+))?")
_PLAIN_ITEM = re.compile(r"([\w.]+)(?:[ \t]+as[ \t]+(\w+))?[^\w\n]*")
