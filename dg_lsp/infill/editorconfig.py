"""Read how a project indents its files: from `.editorconfig` files, else from the files next to a new one.

Only the width of an indentation level is used. A library for this format (`editorconfig`) opens whatever has the name, also
a pipe, and its regular expressions take time that grows exponentially with a pattern, so a repository could block us.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath

from dg_lsp.core import gitignore, languages, lexing
from dg_lsp.core.syntax import indent_unit
from dg_lsp.core.values import Document
from dg_lsp.infill import workspace
from dg_lsp.infill.ignoring import Ignore
from dg_lsp.wire import files

NAME = ".editorconfig"
MAX_BYTES = 64 << 10
# A section's braces stand for several patterns. Real files have some ten sections, with a few patterns each.
MAX_PATTERNS, MAX_PATTERN_CHARS, MAX_SECTIONS = 64, 400, 128
MAX_NEIGHBOURS = 4

Properties = dict[str, str]


def with_indent(document: Document, path: Path) -> Document:
    """Return the document of the file at this absolute path with its project's indentation level, if its text shows none."""
    return document if indent_unit(document.text, "") else replace(document, indent=indent_of(path))


def indent_of(path: Path) -> str:
    """Return one indentation level in the project of the file at this absolute path; "" if nothing says it. Never raises.

    It is that of `.editorconfig`, else the most frequent one of a few files of the same kind in its folder, as far as they
    may be read.
    """
    level = _level(properties(path))
    # YAML forbids tabs, also where a section for all files asks for them.
    is_allowed = level != "\t" or lexing.for_file(path.name) is not lexing.named("yaml")
    return level if level and is_allowed else _of_neighbours(path)


def properties(path: Path) -> Properties:
    """Return the properties of a file by the `.editorconfig` files above it; the nearest file with a property counts."""
    merged: Properties = {}
    for folder in path.parents:
        try:
            text = files.read_regular(folder / NAME, MAX_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError):
            continue
        is_root, own = _parsed(text, path.relative_to(folder))
        merged = own | merged
        if is_root:
            break
    return merged


def _level(values: Properties) -> str:
    """Return the indentation level that these properties mean; "" if they mean none."""
    if values.get("indent_style") == "tab" or (values.get("indent_size") == "tab" and "indent_style" not in values):
        return "\t"
    size = values.get("indent_size", "")
    size = values.get("tab_width", "") if size in ("", "tab") and "indent_style" in values else size
    return " " * int(size) if re.fullmatch("[1-8]", size) else ""


def _of_neighbours(path: Path) -> str:
    language = languages.for_path(path.name)
    try:
        ignore = Ignore.for_root(path.parent).renewed()
    except (OSError, RuntimeError, ValueError):
        return ""
    near = workspace.siblings(path, language.name if language else "")[: 2 * MAX_NEIGHBOURS]
    allowed = itertools.islice((place for place in near if place != path and ignore.allows(place)), MAX_NEIGHBOURS)
    levels = [level for place in allowed if (level := indent_unit(workspace.masked_text(place), ""))]
    return max(levels, key=levels.count, default="")


# --- The format: sections of `name = value`, each for the files that a pattern matches


def _parsed(text: str, path: PurePath) -> tuple[bool, Properties]:
    """Return whether the file is the topmost one, and the properties of the path, which is relative to its folder."""
    is_root, values, fits, n_sections = False, dict[str, str](), True, 0
    for line in map(str.strip, text.removeprefix("\ufeff").splitlines()):
        if line.startswith("[") and line.endswith("]"):
            n_sections += 1
            fits = n_sections <= MAX_SECTIONS and any(_fits(pattern, path) for pattern in _patterns(line[1:-1]))
        elif fits and not line.startswith(("#", ";")):
            name, _, value = (part.strip().lower() for part in line.partition("="))
            if n_sections:
                values[name] = value
            is_root = is_root or (not n_sections and name == "root" and value == "true")
    return is_root, {name: value for name, value in values.items() if value != "unset"}


def _patterns(section: str) -> Iterator[str]:
    """Yield the patterns of an ignore file that a section's pattern stands for, at most `MAX_PATTERNS`."""
    # Within a name, `**` means any text, also with slashes.
    deep = re.sub(r"(?<=[^/*])\*\*(?=[^/*])", "{*,*/**/*}", section[:MAX_PATTERN_CHARS])
    return itertools.islice(_expanded(re.sub(r"\*\*(?=[^/*])", "**/*", deep)), MAX_PATTERNS)


# The innermost braces with a comma, and those with a range of numbers.
_CHOICE = re.compile(r"\{([^{}]*,[^{}]*)\}")
_RANGE = re.compile(r"\{(-?\d{1,6})\.\.(-?\d{1,6})\}")


def _expanded(pattern: str) -> Iterator[str]:
    """Yield the patterns without braces that a pattern with braces stands for."""
    if choice := _CHOICE.search(pattern):
        for part in choice[1].split(","):
            yield from _expanded(f"{pattern[: choice.start()]}{part}{pattern[choice.end() :]}")
    elif numbers := _RANGE.search(pattern):
        low, high = sorted((int(numbers[1]), int(numbers[2])))
        for number in range(low, high + 1):
            yield from _expanded(f"{pattern[: numbers.start()]}{number}{pattern[numbers.end() :]}")
    else:
        yield pattern


def _fits(pattern: str, path: PurePath) -> bool:
    """Return whether a pattern matches a path, as it does in an ignore file."""
    try:
        rules = gitignore.parse(pattern if pattern[:1] not in ("#", "!") else f"\\{pattern}")
    except gitignore.PatternError:
        return False
    return gitignore.verdict(rules, path.parts, is_folder=False) is True
