"""List the names that a text imports one at a time.

This uses patterns, because it must work in code that does not parse. It reads no files. `languages` says
which languages import in the style "python", or "script" for the TypeScript family, and lists imported modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

Style = Literal["", "python", "script"]


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
