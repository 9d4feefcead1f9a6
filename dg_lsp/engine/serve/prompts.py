"""Read what clients of other APIs send: both sides of the cursor, the file's path, other files, and the language.

Most do not say which language they send. A wrong one would reject correct answers, so nothing is guessed. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dg_lsp.core import fim, languages
from dg_lsp.core.languages import Language
from dg_lsp.core.place import first_line
from dg_lsp.core.values import Snippet

LEAD_CHARS = 20_000  # of comments above the text: clients put other files there, then the path of this one

# Before the first marker, only the beginning of the text and the name of the repository may stand.
_BEGINNING = re.compile(
    r"(?:<s>|<\|begin_of_text\|>|<｜begin▁of▁sentence｜>)?(?:(?:<\|repo_name\|>|<reponame>|<repo_name>)[^\n<]*\n?)?"
)
_FILE = re.compile(r"<(?:\|file_sep\||file_sep|filename)>[ \t]*([^\s<]+)")
_COMMENT = re.compile(r"[ \t]*(?:#|//|--|/\*|<!--|;|%|\")+[ \t]*(.*?)[ \t]*(?:\*/|-->)?[ \t]*")
_LANGUAGE = re.compile(r"language[ \t]*:[ \t]*([\w+#.-]+)", re.IGNORECASE)
_PATH = re.compile(r"(?i:(?:file[ _]?)?(?:path|name|file)[ \t]*:[ \t]*)([^\s*]*\.\w+)|([\w.-]+(?:[/\\][\w.-]+)*\.\w+)")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a prompt contains: both sides of the cursor, the path of their file ("" if unknown), and other files."""

    prefix: str
    suffix: str
    path: str = ""
    related: tuple[Snippet, ...] = ()


def read(prompt: str) -> Parts | None:
    """Return the parts of a prompt in one of the templates of models; None for text that merely contains their markers."""
    for template in fim.TEMPLATES:
        first, second, last = re.split(r"\{(?:prefix|suffix)\}", template.format)
        head, is_there, rest = prompt.partition(first)
        one, is_two, other = rest.removesuffix(last).partition(second)
        if not (is_there and is_two and rest.endswith(last)):
            continue
        sides = (one, other) if template.format.find("{prefix}") < template.format.find("{suffix}") else (other, one)
        if not (head := _BEGINNING.sub("", head, count=1)):
            return Parts(*sides)
        if template.path_mark and head.startswith(template.path_mark):
            *others, (path, _, left) = [part.partition("\n") for part in head.split(template.path_mark)[1:]]
            if not left:
                return Parts(*sides, path, tuple(Snippet(name, text) for name, _, text in others))
    return None


def language(before: str) -> str:
    """Return the name of the language that the text before a cursor declares, "" if it declares none or an unknown one."""
    before = before.replace("\r\n", "\n")
    # Other files may come before the one with the cursor.
    before = before[max((match.start() for match in _FILE.finditer(before)), default=0) :]
    found = _declared(before)
    return found.name if found else ""


def _declared(before: str) -> Language | None:
    first, path = first_line(before), match[1] if (match := _FILE.match(before)) else ""
    if first.lstrip("\ufeff").startswith("#!"):
        return languages.for_path("", first)
    for line in before[:LEAD_CHARS].split("\n")[:-1] if not path else ():
        comment = _COMMENT.fullmatch(line)
        if line.strip() and not comment:
            break
        said = comment[1] if comment else ""
        if match := _LANGUAGE.fullmatch(said):
            return languages.by_id(match[1]) or languages.for_path(f".{match[1].lower()}")
        if match := _PATH.fullmatch(said):
            path = match[1] or match[2]
    return languages.for_path(path) if path else None
