"""Find the names that a Python module binds at its top level, line by line, so that broken code hides none of them.

In doubt a name counts as bound. No tree is used, because a tree of broken code may miss statements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise


@lru_cache(maxsize=32)
def find(text: str, *, in_block: bool = False) -> frozenset[str] | None:
    """Return the names that the lines bind at module level, or None if they may bind any name, as `import *` does.

    Names that the module computes are not among them; see `computes_names`.

    Lines before the first unindented one belong to a construct that starts above, and are skipped. With `in_block`,
    they belong to a block of the module, such as the rest of an `if`, and count. The result is cached, because the text
    before and after the edited code rarely changes.
    """
    if binds_anything(text):
        return None
    starts = [match.start() for match in _TOP_LINE.finditer(text)]
    names = {name for match in _GLOBAL.finditer(text) for name in _NAME.findall(match[1])}
    if "builtins." in text:
        names.update(match[1] for match in _BUILTIN.finditer(text))
    if in_block:
        names.update(_bound_in_block(text[: starts[0] if starts else len(text)]))
    for start, end in pairwise([*starts, len(text)]):
        if definition := _DEFINITION.match(text, start):
            names.add(definition[1])
        elif _BLOCK.match(text, start):
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
    for match in _LINE.finditer(text):
        line = match[0]
        if definition := _DEFINITION.match(line):
            yield definition[1]
        elif line.startswith("case "):
            yield from _NAME.findall(line)
        elif _BLOCK.match(line):
            for target in _BLOCK_TARGET.finditer(line):
                yield from _NAME.findall(target[0])
            # A statement may follow the head of the block on the same line.
            yield from _bound_by_statement(line.rpartition(":")[2].lstrip())
        else:
            # The head of a `with` may span several lines.
            yield from (alias[1] for alias in _ALIAS.finditer(line))
            yield from _bound_by_statement(text[match.start() :])


def _bound_by_statement(text: str) -> Iterator[str]:
    """Yield the names that the statement at the start of the text binds. The statement must not be the head of a block."""
    if statement := _IMPORT.match(text):
        yield from _imported(statement[1] or statement[2])
        return
    # The targets of an assignment that starts with a bracket may span several lines.
    line = text.partition("\n")[0]
    yield from (match[1] for match in _WALRUS.finditer(line))
    if annotated := _ANNOTATED.match(line):
        yield annotated[1]
    for simple in (text if text[:1] in "([" else line).split(";"):
        if statement := _IMPORT.match(simple.lstrip()):
            yield from _imported(statement[1] or statement[2])
        if alias := _TYPE_ALIAS.match(simple):
            yield alias[1]
        for target in _EQUALS.split(simple)[:-1]:
            # Inside brackets that are still open, a name is an argument, not a target.
            if any(target.count(left) != target.count(right) for left, right in ("()", "[]", "{}")):
                break
            yield from _FREE_NAME.findall(target.partition(":")[0] if ":" in _SUBSCRIPT.sub("", target) else target)


def _imported(items: str) -> Iterator[str]:
    for item in _COMMENT.sub("", items).replace("\\\n", " ").split(","):
        name, _, alias = " ".join(item.split()).partition(" as ")
        # `import a.b` binds `a`.
        yield alias or name.partition(".")[0]


_NAME = re.compile(r"[^\W\d]\w*")
_FREE_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")
_LINE = re.compile(r"[^\s#][^\n]*")
_TOP_LINE = re.compile(r"^[^\s#)\]}\"'][^\n]*", re.MULTILINE)
_DEFINITION = re.compile(r"(?:async[ \t]+def|def|class)[ \t]+(\w+)")
_BLOCK = re.compile(r"(?:if|elif|else|try|except|finally|async|with|for|while|match|case)\b(?![ \t]*[=.,)\]])")
_BLOCK_TARGET = re.compile(r"\bfor\b.+?\bin\b|\bas\b[^:]+|\w+[ \t]*:=")
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
    ("globals()", re.compile(r"\bglobals\(\)[ \t]*(?:\[[^\n=]*\][ \t]*=(?!=)|\.update|\.setdefault)")),
    ("locals()", re.compile(r"\blocals\(\)[ \t]*(?:\[[^\n=]*\][ \t]*=(?!=)|\.update)")),
    ("vars()", re.compile(r"\bvars\(\)[ \t]*(?:\[[^\n=]*\][ \t]*=(?!=)|\.update)")),
    ("exec(", re.compile(r"^exec\(", re.MULTILINE)),
    ("setattr(", re.compile(r"\bsetattr\([ \t]*(?:builtins|sys\.modules)")),
)
