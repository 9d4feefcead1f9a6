r"""Write imports into the text of a file, where its other imports are and in their style.

Python and the TypeScript family. Works on text, not on a tree, because a file with a hole often does not parse. Only the
first run of imports counts: those after the module's docstring, up to the first other statement. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from dg_lsp.core import languages, values
from dg_lsp.core.offers import PYTHON_IMPORT, SCRIPT_IMPORT, Style, is_type_only
from dg_lsp.core.values import Edit, Import, Span, n_common

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
    if not style_of(language):
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


def style_of(language: str) -> Style:
    """Return the style in which a language imports; "" if it is not supported."""
    row = languages.get(language) if language else None
    return row.importing if row else ""


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
        clause = f"{{ {_item(each, language)} }}"
    return f"import {clause} from {quote}{each.module}{quote}{end}"


@cache
def standard_names() -> dict[str, frozenset[str]]:
    """Return the names of each module of Python's standard library."""
    table = (resources.files("dg_lsp.core.importing") / "python_names.txt").read_text(encoding="utf-8")
    rows = (line.partition(":") for line in table.splitlines())
    return {module: frozenset(names.split()) for module, _, names in rows}


def statements(text: str, language: str) -> tuple[int, tuple[Statement, ...]]:
    """Return where imports may begin, and those of the first run, in order."""
    head, at = (_python_head if language == "python" else _script_head)(text)
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
            return values.apply(text, (_joined(text, one.names, _item(each, language)),))
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


def _item(each: Import, language: str) -> str:
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


def _python_head(text: str) -> tuple[int, int]:
    """Return where imports may be written, and where they are searched for: after the comments and the docstring."""
    at = _end(_COMMENTS, text, len(text) - len(text.removeprefix("\ufeff")))
    if match := _DOCSTRING.match(text, at):
        return match.end(), match.end()
    return _end(_FIRST_COMMENTS, text, at=0), at


def _script_head(text: str) -> tuple[int, int]:
    return _end(_DIRECTIVES, text, at=0), _end(_SCRIPT_COMMENTS, text, at=0)


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
