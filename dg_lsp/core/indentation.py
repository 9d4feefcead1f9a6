"""Say how a document is indented: as its text shows, else as its project says, else as is usual for its kind of file.

Files without a grammar are known by their names. A makefile needs a tab before each recipe, and prose has no blocks.
"""

from __future__ import annotations

import re

from dg_lsp.core import languages
from dg_lsp.core.syntax import indent_unit
from dg_lsp.core.values import Document


def unit(document: Document, shown: str) -> str:
    """Return one indentation level of the document; `shown` is its text, or the part of it that is read."""
    if is_makefile(document):
        return "\t"
    usual = "  " if _TWO_SPACES.search(document.uri) else languages.row(document.language).indent
    return indent_unit(shown, document.indent or usual)


def opens(document: Document, line: str) -> bool:
    """Return whether a line opens a block, in a document without a grammar; the line ends with its last code."""
    if _PROSE.search(document.uri):
        return document.uri.endswith(".rst") and line.endswith("::")
    return line.endswith((":", "{")) and not (is_makefile(document) and _SPECIAL_TARGET.match(line))


def is_makefile(document: Document) -> bool:
    """Return whether the document is a makefile."""
    return not document.language and _MAKEFILE.search(document.uri) is not None


def with_recipes(text: str, above: str) -> str:
    """Return text of a makefile with a tab before each line of a recipe; `above` is the text before it."""
    lines = f"{above}{text}".split("\n")
    # White space before the text is not part of it.
    first = above.count("\n") + (not above.endswith("\n") and above != "")
    last = next((line for line in reversed(lines[:first]) if line.strip()), "")
    for number, line in enumerate(lines[first:], first):
        # White space before the continuation of a line is not that of a recipe.
        is_recipe = line.startswith(" ") or not _NO_RECIPE.match(line)
        if is_recipe and _RECIPE_ABOVE.match(last) and not last.endswith("\\"):
            lines[number] = "\t" + line.lstrip(" ")
        last = lines[number] if line.strip() else last
    return "\n".join(lines)[len(above) :]


_MAKEFILE = re.compile(r"(?:^|/)(?:GNU|BSD)?[Mm]akefile(?:\.\w+)?$|\.(?:mk|mak|make)$")
_SPECIAL_TARGET = re.compile(r"\.[A-Z_]+\s*:")
# The line above a line of a recipe: another one, or a rule.
_RECIPE_ABOVE = re.compile(r"\t|(?!\.[A-Z_]+\s*:)[^\s#=:][^#=:]*::?(?!=)[^=]*$")
# A line that may begin at the start of a line: a rule, a variable, a directive, a call, a comment; or it is indented or blank.
_NO_RECIPE = re.compile(
    r"\s|$|[#.$]|[^#=:]+[:=]|(?:-|s)?include\b|define\b|endef\b|ifn?(?:def|eq)\b|else\b|endif\b|(?:un)?export\b|override\b"
    r"|private\b|undefine\b|vpath\b|load\b"
)
_PROSE = re.compile(
    r"\.(?:adoc|asciidoc|log|markdown|md|mdx|org|rst|tex|textile|txt)$"
    r"|/(?:AUTHORS|CHANGELOG|CHANGES|COMMIT_EDITMSG|COPYING|LICEN[CS]E|MERGE_MSG|NEWS|NOTICE|README|TODO)$"
)
_TWO_SPACES = re.compile(
    r"\.(?:astro|clj[cs]?|cr|css|dart|erb|exs?|gql|graphql|haml|hbs|hcl|hs|html?|json[c5]?|less|liquid|mli?|nims?|nix|proto"
    r"|pug|R|s[ac]ss|sbt|scala|slim|svelte|svg|tf|toml|vue|xml|ya?ml)$"
)
