"""List the names that a text imports one at a time, and those that it offers for others to import.

These functions use patterns, because they must work in code that does not parse. They read no files. `languages` says
which languages import in the style "python", or "script" for the TypeScript family, and lists imported modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from dg_lsp.core.values import Import

Style = Literal["", "python", "script"]


class Offered(NamedTuple):
    """A name that a file defines for others: a function, another value, or what a module of TypeScript exports as default."""

    name: str
    kind: Literal["function", "value", "default"]


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
            if is_type_only(clause):
                continue
            if default := re.match(r"([\w$]+)", clause):
                yield Import(module, "default", default[1])
            if everything := re.search(r"\*\s*as\s+([\w$]+)", clause):
                yield Import(module, "*", everything[1])
            clause = clause.partition("{")[2].partition("}")[0]
        yield from (Import(module, name, alias if alias != name else "") for name, alias in _ITEM_PARTS.findall(clause))


def offered(text: str, style: Style) -> Iterator[Offered]:
    """Yield the names that a file defines at its top level; in TypeScript those that it exports and that are no types."""
    if style == "python":
        for match in _DEFINED.finditer(text):
            yield Offered(match["function"] or match["class"] or match["value"], "function" if match["function"] else "value")
    elif style == "script" and "export" in text:
        for match in _EXPORTED.finditer(text):
            if match["default"]:
                yield Offered(match["default"], "default")
            elif match["list"] is not None:
                names = (re.fullmatch(r"\s*(?:[\w$]+\s+as\s+)?([\w$]+)\s*", item) for item in match["list"].split(","))
                yield from (Offered(name[1], "value") for name in names if name and name[1] not in ("default", "type"))
            else:
                yield Offered(match["name"], "function" if match["kind"].startswith("function") else "value")


def is_type_only(clause: str) -> bool:
    """Return whether an import of TypeScript imports only types, given the text between `import` and the path."""
    return re.match(r"type\b(?!\s*,)", clause) is not None


# Long lists are read up to a limit, and no further than to what can't be in a list, so that no text makes these slow.
PYTHON_IMPORT = (
    r"(?:from[ \t]+(?P<module>[.\w]+)[ \t]+import\b|import[ \t]+(?P<plain>[.\w]+))"
    r"[^\r\n(]*(?:\([^()]{0,4000}\))?(?:[^\r\n]*\\\r?\n)*[^\r\n]*(?:\r?\n|\Z)"
)
SCRIPT_IMPORT = (
    r"import\b\s{0,99}(?P<clause>(?:(?!\bimport\b)[\w$\s{},*]){0,4000}?)(?:\bfrom\s{0,99})?"
    r"(?P<quote>['\"])(?P<module>[^'\"\r\n]+)(?P=quote);?[^\r\n]*(?:\r?\n|\Z)"
)
_ANY_PYTHON = re.compile(rf"^[ \t]*{PYTHON_IMPORT}", re.MULTILINE)
_ANY_SCRIPT = re.compile(rf"^{SCRIPT_IMPORT}", re.MULTILINE)
_ITEM_PARTS = re.compile(r"(?<![\w$])(?!type\s)([\w$]+)(?:[^\S\n]+as[^\S\n]+([\w$]+))?")
_PLAIN_ITEM = re.compile(r"([\w.]+)(?:[ \t]+as[ \t]+(\w+))?[^\w\n]*")
_DEFINED = re.compile(
    r"^(?:(?:async[ \t]+)?def[ \t]+(?P<function>\w+)|class[ \t]+(?P<class>\w+)|(?P<value>\w+)[ \t]*(?::[^=\r\n]+)?=(?!=))",
    re.MULTILINE,
)
_EXPORTED = re.compile(
    r"^export\s+(?:default\s+(?:async\s+|abstract\s+)?(?:function\*?\s+|class\s+)?(?P<default>[\w$]+)"
    r"|(?:declare\s+|async\s+|abstract\s+)*(?P<kind>function\*?|class|const\s+enum|const|let|var|enum)\s+(?P<name>[\w$]+))"
    r"|^export\s*\{(?P<list>[^{}]{0,4000})\}(?!\s*from\b)",
    re.MULTILINE,
)
