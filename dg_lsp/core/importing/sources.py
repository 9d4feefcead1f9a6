"""Find where the names that an answer uses, and its file does not bind, can be imported from.

A name is found if it is offered at exactly one place: by one definition in the repository, by the one way in which the
other files import it, or by one module of Python's standard library. Otherwise it is not found, because a wrong import is
worse than none. All parts of an import are checked names or paths, so that no text of a repository gets into a file.

Python, and the TypeScript family in files that import that way. Pure.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dg_lsp.core import context
from dg_lsp.core.importing.edits import standard_names, style_of
from dg_lsp.core.offers import Style, imported
from dg_lsp.core.repository import EMPTY, IndexedFile, Repository
from dg_lsp.core.values import Import, n_common

# An answer with more unknown names is wrong, and needs no imports.
MAX_NAMES = 3


@dataclass(frozen=True, slots=True)
class Sources:
    """What a file may import from: the index of its repository, and the file's key in it, "" if that is unknown."""

    files: Repository = EMPTY
    own: str = ""


@dataclass(frozen=True, slots=True)
class _Use:
    """How an answer uses a name: the attributes that it reads, whether it calls it, and whether it uses it otherwise."""

    name: str
    attributes: frozenset[str]
    is_called: bool
    is_value: bool

    @property
    def may_be_module(self) -> bool:
        """Whether only attributes are read from it."""
        return bool(self.attributes) and not self.is_called and not self.is_value


def find(names: Iterable[str], answer: str, text: str, language: str, sources: Sources) -> tuple[Import, ...]:
    """Return one import for each of the names; empty unless all of them are found.

    `answer` is the text that uses the names, and `text` that of its file.
    """
    wanted = sorted(names)
    style = style_of(language)
    is_older = style == "script" and re.search(r"\brequire\s*\(", text) is not None
    if len(wanted) > MAX_NAMES or not style or is_older:
        return ()
    found = [_find(_use(name, answer), text, style, sources) for name in wanted]
    return tuple(each for each in found if each is not None) if all(found) else ()


def _find(use: _Use, text: str, style: Style, sources: Sources) -> Import | None:
    own = _path(sources.own)
    is_python = style == "python"
    definitions, ways = list[Import](), set[Import]()
    for path, file in _files_with(use.name, style, sources):
        ways.update(_ways(use.name, path, file, is_python, sources))
        if not _is_test(path) and (found := _definition(use, path, file, own, is_python, sources)):
            definitions.append(found)
    standard = list(_standard(use)) if is_python else []
    if len(ways) > 1 and all(way.is_local for way in ways):
        ways = set()  # the same definition, through different modules of the repository
    # Python would import a file of the repository in place of a standard module with its name.
    is_shadowed = any(_has_top(each.module.partition(".")[0], sources) for each in standard)
    if len(ways) > 1 or len(definitions) > 1 or is_shadowed:
        return None
    places = [*definitions, *standard]
    if ways:
        (way,) = ways
        if way.is_local != bool(definitions) or (standard and way not in standard):
            return None
        # A relative path is that of the other file, and a package can't be imported by a module that it imports itself.
        is_usable = not way.module.startswith(".") and not f"{_module(own, own, sources)}.".startswith(f"{way.module}.")
        places = [way] if is_usable else definitions
    # A private name is only for those that import it already.
    if len(places) != 1 or (use.name.startswith("_") and not ways):
        return None
    return _like_others(places[0], text, own, sources) if is_python else _with_ending(places[0], text)


def _use(name: str, answer: str) -> _Use:
    """Return how the answer uses the name: a name that is only read from, or called, must be something that allows it."""
    pattern = rf"(?<![\w$.])(@?){re.escape(name)}(?![\w$])\s*(?:\??\.\s*([\w$]+)|(\())?"
    uses = re.findall(pattern, answer)
    attributes = frozenset(attribute for _, attribute, _ in uses if attribute)
    is_called = any(mark or bracket for mark, _, bracket in uses)
    is_value = any(not (mark or attribute or bracket) for mark, attribute, bracket in uses) or not uses
    return _Use(name, attributes, is_called, is_value)


def _files_with(name: str, style: Style, sources: Sources) -> Iterator[tuple[str, IndexedFile]]:
    """Yield the other files of the style that offer or import the name, or have it, with their paths."""
    for key in sources.files.importers.get(name, ()):
        file = sources.files.files[key]
        if key != sources.own and style_of(file.language) == style:
            yield _path(key), file


def _path(key: str) -> str:
    """Return a file's path with slashes. On systems with slashes, a name may contain backslashes."""
    return key if "/" in key else key.replace("\\", "/")


def _is_test(path: str) -> bool:
    """Return whether a file is a test, a script or a declaration file, whose names are not for other files."""
    return _TEST.search(path) is not None


_TEST = re.compile(r"(?:^|/)(?:(?:test_[^/]*|[^/]*_test|conftest|setup|__main__)\.pyi?|[^/]*\.(?:test|spec|d)\.[cm]?[jt]sx?)$")


# Definitions


def _definition(use: _Use, path: str, file: IndexedFile, own: str, is_python: bool, sources: Sources) -> Import | None:
    """Return the import of a name that the file defines, or of the file itself if it is a module with this name."""
    kinds = {each.kind for each in file.offers if each.name == use.name}
    # Most unknown names that are not called are variables.
    is_defined = bool(kinds) and (kinds != {"function"} or use.is_called)
    if not is_python:
        return _exported(use.name, path, file, own) if is_defined else None
    module = _module(path, own, sources)
    if module is None or _imports_back(file, own):
        return None
    package, _, last = module.rpartition(".")
    if (
        last == use.name
        and use.may_be_module
        and all(re.search(rf"(?<!\w){re.escape(each)}(?!\w)", file.text) for each in use.attributes)
    ):
        return Import(package, last, is_local=True) if package else Import(last, is_local=True)
    return Import(module, use.name, is_local=True) if is_defined else None


def _module(path: str, own: str, sources: Sources) -> str | None:
    """Return the name under which a Python file is imported; None if that is not known, or is no valid name.

    A file outside of packages is found from its own folder, and from the root of the repository or its `src`.
    """
    folder, _, file = path.rpartition("/")
    parts = [] if file == "__init__.py" else [file.removesuffix(".py")]
    keys = sources.files.files
    top = folder
    while f"{top}/__init__.py" in keys or f"{top}/__init__.py".replace("/", "\\") in keys:
        top, _, name = top.rpartition("/")
        parts.insert(0, name)
    if top == folder:
        indexed = keys.get(path) or keys.get(path.replace("/", "\\"))
        is_at_root = indexed is not None and indexed.path.rpartition("/")[0] in ("", "src")
        if folder != own.rpartition("/")[0] and not is_at_root:
            return None
    is_valid = file.endswith(".py") and all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
    return ".".join(parts) if parts and is_valid else None


def _exported(name: str, path: str, file: IndexedFile, own: str) -> Import | None:
    """Return the import of a name that a file of the TypeScript family exports."""
    if not own:
        return None
    is_default = any(each.name == name and each.kind == "default" for each in file.offers)
    spec = _relative(path, own)
    if not re.fullmatch(r"[\w@./+-]+", spec) or _imports_back(file, own):
        return None
    return Import(spec, "default", name, is_local=True) if is_default else Import(spec, name, is_local=True)


def _relative(path: str, own: str) -> str:
    """Return a path as seen from the folder of the own file, beginning with `./` or `../`."""
    target, here = path.split("/"), own.split("/")[:-1]
    n_same = n_common(here, target[:-1])
    return "/".join([*([".."] * (len(here) - n_same) or ["."]), *target[n_same:]])


def _with_ending(each: Import, text: str) -> Import:
    """Return a relative import without its extension, or with the one that the file's other relative imports have."""
    if not each.module.startswith("."):
        return each
    endings = re.findall(r"""\bfrom\s*["']\.[^"'\n]*?(\.[cm]?[jt]sx?)?["']""", text)
    base = re.sub(r"\.[cm]?[jt]sx?$", "", each.module)
    if endings and endings[-1]:
        module = each.module if endings[-1] in (".ts", ".tsx") else f"{base}.js"
    else:
        module = re.sub(r"/index$", "", base)
    return Import(module, each.name, each.alias, each.is_local)


def _imports_back(file: IndexedFile, own: str) -> bool:
    """Return whether a file imports the one with the answer, which must then not import it."""
    return bool(own) and context.is_imported(own.lstrip("/"), context.imports(file.text, file.language))


def _like_others(each: Import, text: str, own: str, sources: Sources) -> Import:
    """Return an import of the own package as a relative one, if all imports of it in the file are relative."""
    written = list(imported(text, "python"))
    module = _module(own, own, sources) if own else None
    top = each.module.partition(".")[0]
    if not each.is_local or not module or module.partition(".")[0] != top or not each.name:
        return each
    if not any(one.module.startswith(".") for one in written) or any(one.module.partition(".")[0] == top for one in written):
        return each
    package = module.split(".") if own.endswith("/__init__.py") else module.split(".")[:-1]
    target, level = each.module.split("."), 1
    while package != target[: len(package)]:
        package, level = package[:-1], level + 1
    return Import("." * level + ".".join(target[len(package) :]), each.name, each.alias, is_local=True)


# The ways in which other files import a name


def _ways(name: str, path: str, file: IndexedFile, is_python: bool, sources: Sources) -> Iterator[Import]:
    for each in file.imports:
        if each.bound != name:
            continue
        if is_python:
            module = _absolute(each.module, path, sources) if each.module.startswith(".") else each.module
            if module is not None and all(part.isidentifier() for part in module.split(".")):
                top = module.partition(".")[0]
                is_local = each.module.startswith(".") or _has_top(top, sources)
                yield Import(module, each.name, each.alias if each.alias != each.name else "", is_local)
        elif re.fullmatch(r"[\w@~#./+:-]+", each.module):
            is_local = each.module.startswith((".", "@/", "~", "#", "/"))
            # A relative path depends on the file, so all of them count as one way.
            yield Import("." if each.module.startswith(".") else each.module, each.name, each.alias, is_local)


def _absolute(module: str, path: str, sources: Sources) -> str | None:
    """Return a relative module's full name, as seen from the file at this path."""
    own = _module(path, path, sources)
    if own is None:
        return None
    level = len(module) - len(module.lstrip("."))
    package = own.split(".") if path.endswith("/__init__.py") else own.split(".")[:-1]
    kept = package[: len(package) - level + 1]
    return ".".join([*kept, *filter(None, module.lstrip(".").split("."))]) if kept else None


def _has_top(top: str, sources: Sources) -> bool:
    """Return whether the repository has a Python module or package with this name."""
    keys = sources.files.importers.get(top, ())
    return any(_path(key).endswith((f"/{top}.py", f"/{top}/__init__.py")) for key in keys)


# The standard library


def _standard(use: _Use) -> Iterator[Import]:
    table = standard_names()
    parts = [f"{use.name}.{each}" for each in use.attributes if f"{use.name}.{each}" in table]
    known = {*table.get(use.name, ()), *(part.rpartition(".")[2] for part in parts)}
    if use.name in table and use.may_be_module and all(each in known or each.isupper() for each in use.attributes):
        # What the module of this name has can't be meant as a name's attribute, as in `datetime.timedelta`.
        yield from (Import(part) for part in parts or [use.name])
    elif use.is_called or use.attributes or not use.name[:1].islower():
        yield from (Import(module, use.name) for module, names in table.items() if use.name in names)
