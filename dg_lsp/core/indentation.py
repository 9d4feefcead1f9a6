"""Say how a document is indented: as its text shows, else as its project says, else as is usual for its kind of file.

Files without a grammar are known by their names. A makefile needs a tab before each recipe, prose has no blocks, and in YAML no
tab indents.
"""

from __future__ import annotations

import re
from dataclasses import replace

from dg_lsp.core import languages, lexing
from dg_lsp.core.place import Place
from dg_lsp.core.syntax import indent_unit
from dg_lsp.core.values import Document


def unit(document: Document, shown: str) -> str:
    """Return one indentation level of the document; `shown` is its text, or the part of it that is read."""
    if is_makefile(document):
        return "\t"
    has_two = _TWO_SPACES.search(document.uri) or document.language_id == "yaml"
    return indent_unit(shown, document.indent or ("  " if has_two else languages.row(document.language).indent))


def part(document: Document, above: str) -> Document:
    """Return the document as a file of YAML where the text above a place leaves its front matter open, else as it is."""
    return replace(document, language_id="yaml") if is_prose(document) and _is_front_matter(above) else document


def _is_front_matter(above: str) -> bool:
    return above.startswith("---") and not re.search(r"^---[ \t]*$", above[3:].replace("\r", "\n"), re.MULTILINE)


def opens(document: Document, line: str, *, is_indented: bool) -> bool:
    """Return whether a line opens a block, in a document without a grammar; the line ends with its last code.

    In an unknown kind of file, a colon does so only if the line below already `is_indented`.
    """
    if is_prose(document) or _TEXT.search(document.uri):
        return document.uri.endswith(".rst") and line.endswith("::")
    lexer = languages.lexer(document)
    may_open = is_indented if lexer is None else not (lexer.is_data or (is_makefile(document) and _SPECIAL_TARGET.match(line)))
    return line.endswith("{") or (may_open and line.endswith(":"))


def is_prose(document: Document) -> bool:
    """Return whether the document is a text for people, such as Markdown or TeX, in which no line opens a block of code."""
    lexer = languages.lexer(document) if not document.language else None
    return lexer is not None and any(lexer is lexing.named(name) for name in _PROSE)


def without_invented(text: str, document: Document, above: str) -> str:
    """Return text of prose without white space before its first line, where that would make the line an example.

    The white space stays in TeX, inside a block of code, and below a line that others may be indented under: an indented line,
    an item of a list, a tag, or a directive.
    """
    lexer = languages.lexer(document)
    if lexer is None or lexer is lexing.named("tex") or not is_prose(document) or _is_front_matter(above):
        return text
    last = next((line for line in reversed(above.split("\n")) if line.strip()), "")
    may_indent = _HAS_INDENTED.match(last) or last.endswith("::") or lexing.kind_at(above, len(above), lexer) != "code"
    return text if may_indent else text.lstrip(" \t")


def as_around(text: str, document: Document, place: Place, indent: str, above: str) -> str:
    """Return text whose new lines have tabs or spaces as those around its place. White space in strings and alignment stays.

    `above` is all of the document before the place, and `indent` the white space before each of its lines.
    """
    text = text if place.head else without_invented(text, document, above)
    if is_makefile(document):
        return with_recipes(text, place.before)
    unit, is_new = _unit_around(document, place, indent)
    if not unit:
        return text
    lines = languages.split_lines(text, document.language)
    # Where the place starts a line, the white space before the text is its own.
    code = [number for number, line in enumerate(lines) if line.is_code and (number or not place.head)]
    indents = [lines[number].indent for number in code]
    if unit != "\t":
        indents = [each.replace("\t", unit) for each in indents]
    if unit == "\t" or is_new:
        indents = _in_levels(indents, [lines[number].text for number in code], indent, unit)
    for number, each in zip(code, indents, strict=True):
        lines[number] = replace(lines[number], indent=each)
    return "\n".join(line.indent + line.text for line in lines)


def _unit_around(document: Document, place: Place, indent: str) -> tuple[str, bool]:
    """Return one indentation level as the text near the hole uses it, or "" if it mixes tabs and spaces.

    Where the text shows none, it is that of the document's project, or "" if that is unknown. The second value says so.
    """
    nearby = place.before + "\n" + place.after
    indents = re.findall(r"^(?: *\t|  )", f"{nearby}\n{indent}", re.MULTILINE)
    n_tabs = sum("\t" in each for each in indents)
    if "\t" in indent or (n_tabs and not indent):
        # Spaces next to tabs are alignment. A few such lines do not make the file mixed.
        return "\t" if (len(indents) - n_tabs) * 10 <= len(indents) else "", False
    if n_tabs:
        return "", False
    shown = indent_unit(nearby, "")
    if not shown and (document.indent or not indents):
        return document.indent, True
    return shown if shown.startswith(" ") else "    ", False


def _in_levels(indents: list[str], texts: list[str], base: str, unit: str) -> list[str]:
    """Return the indentation of lines with these texts in the file's levels, below that of the block.

    If the file has tabs and the answer uses them, its spaces are alignment and stay.
    """
    inner = [indent.removeprefix(base) for indent in indents]
    steps = [len(indent) for indent in inner if indent]
    if unit == "\t" and any("\t" in indent for indent in inner):
        return indents
    # If no line begins with the block's own tabs, the answer writes the block's level in spaces too.
    levels = (
        0 if any(indent.startswith(base) for indent, text in zip(indents, texts, strict=True) if text) else base.count("\t")
    )
    least = min(steps, default=4)
    widths = (least // levels, least) if levels and least % levels == 0 else (least,)
    fitting = (width for width in widths if width in (2, 3, 4, 8) and all(step % width == 0 for step in steps))
    width = next(fitting, 4 if unit == "\t" else len(unit))
    return [
        indent.removesuffix(own) + unit * (len(own) // width) + " " * (len(own) % width)
        for indent, own in zip(indents, inner, strict=True)
    ]


def is_makefile(document: Document) -> bool:
    """Return whether the document is a makefile."""
    return not document.language and _MAKEFILE.search(document.uri) is not None


def with_recipes(text: str, above: str) -> str:
    """Return text of a makefile with a tab before each line of a recipe; `above` is the text before it."""
    lines = f"{above}{text}".split("\n")
    # White space before the text is not part of it.
    first = above.count("\n") + (not above.endswith("\n") and above != "")
    number = next((number for number in reversed(range(first)) if lines[number].strip()), 0)
    while number and lines[number - 1].endswith("\\"):
        number -= 1
    last = _joined(lines[number:first]) if first else ""
    for number, line in enumerate(lines[first:], first):
        # White space before the continuation of a line is not that of a recipe.
        is_recipe = line.startswith(" ") or not _NO_RECIPE.match(line)
        if is_recipe and _RECIPE_ABOVE.match(last) and not last.endswith("\\"):
            lines[number] = "\t" + line.lstrip(" ")
        last = _joined([last, lines[number]]) if last.endswith("\\") else lines[number] if line.strip() else last
    return "\n".join(lines)[len(above) :]


def _joined(lines: list[str]) -> str:
    """Return the line that lines with a backslash at their end make."""
    return "".join(line.removesuffix("\\") if number < len(lines) - 1 else line for number, line in enumerate(lines) if line)


_MAKEFILE = re.compile(r"(?:^|/)(?:GNU|BSD)?[Mm]akefile(?:\.\w+)?$|\.(?:mk|mak|make)$")
_SPECIAL_TARGET = re.compile(r"\.[A-Z_]+\s*:")
# The line above a line of a recipe: another one, or a rule.
_RECIPE_ABOVE = re.compile(r"\t|(?!\.[A-Z_]+\s*:)[^\s#=:][^#=:]*::?(?!=)[^=]*$")
# A line that may begin at the start of a line: a rule, a variable, a directive, a call, a comment; or it is indented or blank.
_NO_RECIPE = re.compile(
    r"\s|$|[#.$]|[^#=:]+[:=]|(?:-|s)?include\b|define\b|endef\b|ifn?(?:def|eq)\b|else\b|endif\b|(?:un)?export\b|override\b"
    r"|private\b|undefine\b|vpath\b|load\b"
)
_PROSE = ("markdown", "mdx", "restructuredtext", "asciidoc", "org", "tex")
_TEXT = re.compile(r"\.(?:log|txt)$")
_HAS_INDENTED = re.compile(r"[ \t]|[-*+] |\d+[.)] |</?[A-Za-z]|\.\. ")
_TWO_SPACES = re.compile(
    r"\.(?:astro|clj[cs]?|cr|css|dart|erb|exs?|gql|graphql|haml|hbs|hcl|hs|html?|json[c5]?|less|liquid|mli?|nims?|nix|proto"
    r"|pug|R|s[ac]ss|sbt|scala|slim|svelte|svg|tf|toml|vue|xml|ya?ml)$"
)
