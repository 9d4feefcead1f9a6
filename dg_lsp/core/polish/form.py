"""Format an answer like the file: its indentation, and no trailing white space."""

from __future__ import annotations

import re

from dg_lsp.core import literals, syntax
from dg_lsp.core.polish.around import Around


def restore_start(text: str, around: Around) -> str:
    """Remove leading blank lines, and indentation that the document already has before the hole."""
    head = around.before.rpartition("\n")[2]
    if head.strip():
        return text
    body = re.sub(r"\A(?:[ \t\f]*\n)+", "", text) if around.hole.block else text
    start = len(body) - len(body.lstrip(" \t"))
    missing = around.hole.indent.removeprefix(head) if around.hole.indent.startswith(head) else ""
    # At the very start of a line, the answer's own indentation counts.
    return missing + body[start:] if head and start > len(missing) else body


def restore_indent(text: str, around: Around) -> str:
    """Indent new lines with tabs or spaces as the file does. White space in strings and alignment stays."""
    unit = _unit(around)
    lines = literals.split_lines(text, around.document.language)
    if unit.startswith(" "):
        indents = [line.indent.replace("\t", unit) for line in lines]
    elif unit:
        indents = _tabbed(lines, around.hole.indent)
    else:
        return text
    new = (indent if line.is_code else line.indent for line, indent in zip(lines[1:], indents[1:], strict=True))
    return "\n".join(indent + line.text for indent, line in zip((lines[0].indent, *new), lines, strict=True))


def trim_end(text: str, around: Around) -> str:
    """Trim trailing white space of each line, except in strings."""
    code = literals.mask(text, around.document.language)
    lines, at = [], 0
    for line in text.split("\n"):
        end = at + len(line)
        ends_in_code = end == len(text) or code[end] == "\n"
        lines.append(line.rstrip(" \t") if ends_in_code and end < len(text) else line)
        at = end + 1
    trimmed = "\n".join(lines)
    return trimmed if around.rest.strip() else trimmed.rstrip()


def _unit(around: Around) -> str:
    """Return one indentation level as the text near the hole uses it, or "" if it has none or mixes tabs and spaces."""
    nearby = around.before + "\n" + around.after
    indents = re.findall(r"^(?: *\t|  )", f"{nearby}\n{around.hole.indent}", re.MULTILINE)
    n_tabs = sum("\t" in indent for indent in indents)
    if "\t" in around.hole.indent or (n_tabs and not around.hole.indent):
        # Spaces next to tabs are alignment. A few such lines do not make the file mixed.
        return "\t" if (len(indents) - n_tabs) * 10 <= len(indents) else ""
    if n_tabs or not indents:
        return ""
    unit = syntax.indent_unit(nearby, "    ")
    return unit if unit.startswith(" ") else "    "


def _tabbed(lines: list[literals.Line], base: str) -> list[str]:
    """Return the lines' indentation with tabs for spaces. If the answer uses tabs, its spaces are alignment and stay."""
    inner = [line.indent.removeprefix(base) for line in lines]
    own_indents = [indent for indent, line in zip(inner[1:], lines[1:], strict=True) if line.is_code and indent]
    if any("\t" in indent for indent in own_indents):
        return [line.indent for line in lines]
    # If no line begins with the block's own tabs, the answer writes the block's level in spaces too.
    levels = 0 if any(line.indent.startswith(base) for line in lines[1:] if line.is_code and line.text) else base.count("\t")
    width = _width([len(indent) for indent in own_indents], levels)
    return [
        line.indent.removesuffix(indent) + "\t" * (len(indent) // width) + " " * (len(indent) % width)
        for line, indent in zip(lines, inner, strict=True)
    ]


def _width(widths: list[int], levels: int) -> int:
    """Return how many spaces the answer uses per level, given the widths of its lines and the level of its block."""
    least = min(widths, default=4)
    for width in (least // levels, least) if levels and least % levels == 0 else (least,):
        if width in (2, 3, 4, 8) and all(other % width == 0 for other in widths):
            return width
    return 4
