"""Import the names that an answer uses and its file does not bind: find where they come from, and write the imports.

A name is found if it is offered at exactly one place: by one definition in the repository, by the one way in which the
other files import it, or by one module of Python's standard library. Otherwise it is not found, because a wrong import is
worse than none. All parts of an import are checked names or paths, so that no text of a repository gets into a file.

Imports are written where the file's other imports are and in their style. That works on text, not on a tree, because a file
with a hole often does not parse. Only the first run of imports counts: those after the module's docstring, up to the first
other statement.

Python, and the TypeScript family in files that import that way. Pure.
"""

from __future__ import annotations

import keyword
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from dg_lsp.core import context, languages, values
from dg_lsp.core.imports import PYTHON_IMPORT, SCRIPT_IMPORT, Style, imported, is_type_only
from dg_lsp.core.repository import EMPTY, IndexedFile, Repository
from dg_lsp.core.values import Edit, Import, Span, n_common

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
    style = languages.row(language).importing
    is_older = style == "script" and re.search(r"\brequire\s*\(", text) is not None
    if len(wanted) > MAX_NAMES or not style or is_older:
        return ()
    found = [_find(_use(name, answer), text, style, sources) for name in wanted]
    return tuple(each for each in found if each is not None) if all(found) else ()


def _find(use: _Use, text: str, style: Style, sources: Sources) -> Import | None:
    own = sources.own
    is_python = style == "python"
    definitions, ways = list[Import](), set[Import]()
    for path in sources.files.importers.get(use.name, ()):
        file = sources.files.files[path]
        if path == own or languages.row(file.language).importing != style:
            continue
        ways.update(_ways(use.name, path, file, is_python, sources))
        if not _TEST.search(path) and (found := _definition(use, path, file, own, is_python, sources)):
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


# Tests, scripts and declaration files, whose names are not for other files.
_TEST = re.compile(r"(?:^|/)(?:(?:test_[^/]*|[^/]*_test|conftest|setup|__main__)\.pyi?|[^/]*\.(?:test|spec|d)\.[cm]?[jt]sx?)$")


# --- Definitions


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
    while f"{top}/__init__.py" in keys:
        top, _, name = top.rpartition("/")
        parts.insert(0, name)
    if top == folder:
        indexed = keys.get(path)
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
    # The path as seen from the folder of the own file, beginning with `./` or `../`.
    target, here = path.split("/"), own.split("/")[:-1]
    n_same = n_common(here, target[:-1])
    spec = "/".join([*([".."] * (len(here) - n_same) or ["."]), *target[n_same:]])
    if not re.fullmatch(r"[\w@./+-]+", spec) or _imports_back(file, own):
        return None
    return Import(spec, "default", name, is_local=True) if is_default else Import(spec, name, is_local=True)


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


# --- Imports of what the repository lacks

_SCRIPT_ENDINGS = (".ts", ".tsx", ".mts", ".cts", ".d.ts", ".js", ".jsx", ".mjs", ".cjs")
_SCRIPT_ENDING = re.compile(r"\.(?:d\.ts|[cm]?[jt]sx?)$")
# A module with one of these may have any name.
_ANY_NAME = re.compile(r"\b__getattr__\b|\bimport\s*\*|\bexport\s*\*")


def invented(before: str, after: str, language: str, sources: Sources) -> str:
    """Return the first import that `after` adds to `before` and that the repository lacks, as a path; "" if there is none.

    Only modules of the repository are judged: relative ones, and in Python those of a package that it has. A module that the
    file imports already may be one that the index lacks, such as a generated one. An index that is not whole judges nothing.
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
    tops = [path.removesuffix("/__init__.py") for path in sources.files.importers.get(parts[0], ())]
    tops = [top for top in tops if top.endswith(f"/{parts[0]}") and f"{top.rpartition('/')[0]}/__init__.py" not in keys]
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


# --- The ways in which other files import a name


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
    return any(path.endswith((f"/{top}.py", f"/{top}/__init__.py")) for path in sources.files.importers.get(top, ()))


# --- The standard library


def _standard(use: _Use) -> Iterator[Import]:
    table = standard_names()
    parts = [f"{use.name}.{each}" for each in use.attributes if f"{use.name}.{each}" in table]
    known = {*table.get(use.name, ()), *(part.rpartition(".")[2] for part in parts)}
    if use.name in table and use.may_be_module and all(each in known or each.isupper() for each in use.attributes):
        # What the module of this name has can't be meant as a name's attribute, as in `datetime.timedelta`.
        yield from (Import(part) for part in parts or [use.name])
    elif use.is_called or use.attributes or not use.name[:1].islower():
        yield from (Import(module, use.name) for module, names in table.items() if use.name in names)


# --- The edit that imports names

# A longer import is not changed, because its list takes long to read.
MAX_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class Statement:
    """An import in a text: its lines, its module, what it binds, and the span of its list of names, if that can grow.

    `kind` orders the imports of one section: in Python, `import a` comes before `from a import b`. It is -1 for one that
    binds nothing, before which no other is written, because it may change what others import.
    """

    span: Span
    module: str
    kind: int
    names: Span | None = None


def edit(text: str, language: str, imports: Sequence[Import]) -> Edit | None:
    """Return the edit that adds these imports to a file; None if the file has them all.

    Raises ValueError for a language that is not supported.
    """
    if not languages.row(language).importing:
        raise ValueError(f"imports in {language} are not supported")
    new = text
    for each in sorted(imports):
        new = _with(new, language, each)
    if new == text:
        return None
    head, found = statements(text, language)
    end = max([head, *(one.span.end for one in found)])
    old_head, new_head = text[:end], new[: end + len(new) - len(text)]
    start = n_common(old_head, new_head)
    n_after = n_common(old_head[start:][::-1], new_head[start:][::-1])
    return Edit(Span(start, end - n_after), new_head[start : len(new_head) - n_after])


def is_valid(each: Import) -> bool:
    """Return whether an import consists of names and a path, so that its statement can contain nothing else."""
    names = [part for part in (each.name, each.alias) if part not in ("", "default", "*")]
    return bool(_SAFE_MODULE.fullmatch(each.module)) and all(map(_SAFE_NAME.fullmatch, names))


def statement(each: Import, language: str, style: str = "") -> str:
    """Return an import as one line of code, without a line end. `style` is the quote and the end of a line in TypeScript."""
    if language == "python":
        alias = f" as {each.alias}" if each.alias else ""
        return f"from {each.module} import {each.name}{alias}" if each.name else f"import {each.module}{alias}"
    quote, end = style[:1] or '"', style[1:] if style else ";"
    if each.name == "default":
        clause = each.bound
    elif each.name == "*":
        clause = f"* as {each.bound}"
    else:
        clause = f"{{ {_item(each)} }}"
    return f"import {clause} from {quote}{each.module}{quote}{end}"


@cache
def standard_names() -> dict[str, frozenset[str]]:
    """Return the names of each module of Python's standard library."""
    table = (resources.files("dg_lsp.core") / "python_names.txt").read_text(encoding="utf-8")
    rows = (line.partition(":") for line in table.splitlines())
    return {module: frozenset(names.split()) for module, _, names in rows}


def statements(text: str, language: str) -> tuple[int, tuple[Statement, ...]]:
    """Return where imports may begin, and those of the first run, in order."""
    if language != "python":
        head, at = _end(_DIRECTIVES, text, at=0), _end(_SCRIPT_COMMENTS, text, at=0)
    else:
        # After the comments and the docstring.
        at = _end(_COMMENTS, text, len(text) - len(text.removeprefix("\ufeff")))
        if docstring := _DOCSTRING.match(text, at):
            head = at = docstring.end()
        else:
            head = _end(_FIRST_COMMENTS, text, at=0)
    pattern, found = _PYTHON if language == "python" else _SCRIPT, list[Statement]()
    while True:
        if match := pattern.match(text, at):
            found.append(_python_statement(match) if language == "python" else _script_statement(match))
        elif not (match := _SKIPPED[language == "python"].match(text, at)) or match.end() == at:
            return head, tuple(found)
        at = match.end()


def _with(text: str, language: str, each: Import) -> str:
    """Return the text with one more import."""
    head, found = statements(text, language)
    kind = int(language == "python" and bool(each.name))
    for one in found:
        if one.module != each.module or one.kind != kind:
            continue
        # A whole module has no list of names.
        if each.name in ("", "default", "*"):
            if re.search(rf"(?<![\w$]){re.escape(each.bound)}(?![\w$])", text[one.span.start : one.span.end]):
                return text
        elif one.names is not None:
            return values.apply(text, (_joined(text, one.names, _item(each)),))
    line_end = "\r\n" if "\r\n" in text else "\n"
    line = statement(each, language, "" if language == "python" else _style(text, found)) + line_end
    section, key = _section(each.module, each, language), (kind, each.module.lower())
    sections = [_section(one.module, each, language) for one in found]
    same = [one for one, its in zip(found, sections, strict=True) if its == section]
    if same:
        keys = [(one.kind, one.module.lower()) for one in same]
        is_sorted = keys == sorted(keys) and min(keys)[0] >= 0
        later = next((one for one in same if (one.kind, one.module.lower()) > key), None) if is_sorted else None
        at = later.span.start if later else same[-1].span.end
    elif before := [one for one, its in zip(found, sections, strict=True) if its < section]:
        at, line = before[-1].span.end, line if language != "python" else line_end + line
    elif found:
        at, line = found[0].span.start, line if language != "python" else line + line_end
    else:
        at, blank = head, line_end * (2 if language == "python" else 1)
        above = line_end if text[:at].strip() and not text[:at].endswith(line_end * 2) else ""
        line = above + line + ("" if text[at : at + 1] in ("\r", "\n", "") else blank)
    if at and text[at - 1] not in "\r\n":
        line = line_end + line
    return text[:at] + line + text[at:]


def _joined(text: str, names: Span, item: str) -> Edit:
    """Return the edit that adds a name to a list of names, at its place in the order if the list has one."""
    items = list(_ITEM.finditer(text, names.start, names.end))
    if item in (match[0] for match in items):
        return Edit(Span(names.start, names.start), "")
    leading = text[names.start : items[0].start()] if items else ""
    between = f",{leading}" if "\n" in leading else ", "
    keys = [_item_key(match[0]) for match in items]
    for match in items if keys == sorted(keys) else ():
        if _item_key(match[0]) > _item_key(item):
            return Edit(Span(match.start(), match.start()), item + between)
    at = items[-1].end() if items else names.start
    return Edit(Span(at, at), between + item if items else f" {item} ")


def _item(each: Import) -> str:
    return f"{each.name} as {each.alias}" if each.alias and each.alias != each.name else each.name


def _item_key(item: str) -> tuple[int, str]:
    """Return the order that isort and ruff use: constants, classes, functions."""
    return (0 if item.isupper() and len(item) > 1 else 1 if item[:1].isupper() else 2), item


def _section(module: str, new: Import, language: str) -> int:
    """Return the group of imports to which a module belongs, given that the new import may be of the same repository."""
    top = module.partition(".")[0]
    if language != "python":
        return int(module.startswith((".", "@/", "~", "#")))
    if not top:
        return 4
    if top == "__future__":
        return 0
    if top in standard_names():
        return 1
    return 3 if new.is_local and top == new.module.partition(".")[0] else 2


def _style(text: str, found: Sequence[Statement]) -> str:
    """Return the quote of the file's strings, and ";" if its lines end so; of its last import, if there is one."""
    sample = text[found[-1].span.start : found[-1].span.end] if found else text
    quote = "'" if sample.count("'") > sample.count('"') else '"'
    n_lines, n_ended = len(re.findall(r"[\w)\]'\"];?[ \t]*\r?$", sample, re.M)), len(re.findall(r";[ \t]*\r?$", sample, re.M))
    return quote + (";" if not n_lines or n_ended * 3 >= n_lines else "")


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return where a run of matches ends."""
    while (match := pattern.match(text, at)) and match.end() > at:
        at = match.end()
    return at


def _python_statement(match: re.Match[str]) -> Statement:
    names = _PYTHON_NAMES.match(match[0]) if len(match[0]) <= MAX_CHARS else None
    at = match.start()
    group = 1 if names and names[1] is not None else 2
    span = Span(at + names.start(group), at + names.end(group)) if names else None
    return Statement(Span(at, match.end()), match["module"] or match["plain"], int(match["module"] is not None), span)


def _script_statement(match: re.Match[str]) -> Statement:
    names = re.search(r"\{([\w$\s,]*)\}", match["clause"]) if not is_type_only(match["clause"]) else None
    at = match.start("clause")
    span = Span(at + names.start(1), at + names.start(1) + len(names[1].rstrip())) if names else None
    return Statement(Span(match.start(), match.end()), match["module"], 0 if match["clause"].strip() else -1, span)


_SAFE_MODULE, _SAFE_NAME = re.compile(r"[\w@~#./+:-]+"), re.compile(r"[^\W\d][\w$]*")
_ITEM = re.compile(r"[\w$]+(?:\s+as\s+[\w$]+)?")
_PYTHON, _SCRIPT = re.compile(PYTHON_IMPORT), re.compile(SCRIPT_IMPORT)
_PYTHON_NAMES = re.compile(
    r"from[ \t]+[.\w]+[ \t]+import[ \t]+(?:\((\s*\w[\w\s,]*?),?\s*\)|(\w[\w, \t]*?))[ \t]*(?:#[^\r\n]*)?(?:\r?\n|\Z)"
)
_DOCSTRING = re.compile(
    r'[rRuU]?(?:"""(?:[^\\]|\\.)*?"""|\'\'\'(?:[^\\]|\\.)*?\'\'\'|"[^"\\\r\n]+"|\'[^\'\\\r\n]+\')[ \t]*(?:\r?\n|\Z)', re.DOTALL
)
_COMMENTS = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?:\r?\n|\Z)")
# Comments up to a blank line are those of the file; a comment right before code is the code's.
_FIRST_COMMENTS = re.compile(r"\ufeff?(?:#![^\r\n]*\r?\n|#[^\r\n]*coding[^\r\n]*\r?\n|(?:#[^\r\n]*\r?\n)+\r?\n|\r?\n)")
_SCRIPT_COMMENTS = re.compile(
    r"\ufeff?[ \t]*(?:#![^\r\n]*|//[^\r\n]*|/\*.*?\*/[ \t]*|(?P<quote>['\"])use [\w ]+(?P=quote);?)?(?:\r?\n|\Z)", re.DOTALL
)
_DIRECTIVES = re.compile(
    r"\ufeff?(?:#![^\r\n]*\r?\n|(?P<quote>['\"])use [\w ]+(?P=quote);?[ \t]*\r?\n"
    r"|(?://[^\r\n]*\r?\n)+\r?\n|/\*.*?\*/[ \t]*\r?\n\r?\n|\r?\n)",
    re.DOTALL,
)
_SKIPPED = (_SCRIPT_COMMENTS, _COMMENTS)
