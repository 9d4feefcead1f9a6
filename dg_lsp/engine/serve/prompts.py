"""Read what clients of other APIs send: both sides of the cursor, the file's path, other files, and the language.

Most do not say which language they send. The guess selects a grammar, and a wrong one would reject correct answers, so weak
evidence gives no guess. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dg_lsp.core import fim, languages, place, syntax
from dg_lsp.core.languages import GrammarError, Language
from dg_lsp.core.place import first_line
from dg_lsp.core.values import Snippet

BEFORE_CHARS, AFTER_CHARS = 2_200, 800  # examined for a guess
# A language is considered if its marks occur at least this often, at least this often per line, and at least half as
# often as those of the best language. At most `MOST_PARSED` languages are parsed.
MIN_MARKS, MIN_DENSITY, MIN_SHARE, MOST_PARSED = 2, 0.05, 0.5, 3
# The largest fraction of errors in the guessed language, and by how much the fraction in every other language must exceed it.
MAX_ERRORS, MIN_LEAD = 0.04, 0.05
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


def language(before: str, after: str = "", paths: Iterable[str] = ()) -> str:
    """Return the name of the language around a cursor, or "" if the text does not declare it and the evidence is unclear.

    `paths` are names of other files that come with the text. They only lower the number of marks that a language needs.
    """
    before, after = (part.replace("\r\n", "\n") for part in (before, after))
    # Other files may come before the one with the cursor.
    before = before[max((match.start() for match in _FILE.finditer(before)), default=0) :]
    name = declared_language(before)
    return name if name is not None else _evident(before, after, paths)


def declared_language(before: str) -> str | None:
    """Return the language that the text declares, "" if it is not in the table, or None if the text declares none."""
    first = first_line(before)
    path = match[1] if (match := _FILE.match(before)) else ""
    if first.lstrip("\ufeff").startswith("#!"):
        return _name(languages.for_path("", first))
    for line in before[:LEAD_CHARS].split("\n")[:-1] if not path else ():
        comment = _COMMENT.fullmatch(line)
        if line.strip() and not comment:
            break
        said = comment[1] if comment else ""
        if match := _LANGUAGE.fullmatch(said):
            return _name(languages.by_id(match[1]) or languages.for_path(f".{match[1].lower()}"))
        if match := _PATH.fullmatch(said):
            path = match[1] or match[2]
    return _name(languages.for_path(path)) if path else None


def _evident(before: str, after: str, paths: Iterable[str]) -> str:
    """Return the language whose marks occur in the text and whose grammar parses it with clearly the fewest errors, or ""."""
    # The lines around the cursor, without its own.
    here = place.between(before[-BEFORE_CHARS:], after[:AFTER_CHARS])
    above = here.above if len(before) <= BEFORE_CHARS else place.between("", here.above).below
    below = here.below if len(after) <= AFTER_CHARS else place.between(here.below, "").above
    text = f"{above}\n{below}"
    # Blank lines are removed. Many patterns begin with white space and would be tried at every blank line.
    lines = [line for line in text.split("\n") if line.strip()]
    likely = {language for path in paths if (language := languages.for_path(path))}
    counts = {language: len(re.findall(language.marks, "\n".join(lines), re.MULTILINE)) for language in languages.TABLE}
    enough = max(max(counts.values()) * MIN_SHARE, len(lines) * MIN_DENSITY)
    plausible = [language for language, count in counts.items() if count >= max(enough, 1 if language in likely else MIN_MARKS)]
    plausible = sorted(plausible, key=lambda language: -counts[language])[:MOST_PARSED]
    errors = {language: _errors(text, language) for language in plausible}
    best = min(plausible, key=lambda language: (errors[language], -counts[language]), default=None)
    others = [errors[language] for language in plausible if best and language.queries[0] != best.queries[0]]
    is_clear = best is not None and errors[best] <= min(MAX_ERRORS, min(others, default=1.0) - MIN_LEAD)
    return _name(best) if is_clear else ""


def _errors(text: str, language: Language) -> float:
    """Return the fraction of the text's characters that the language's grammar cannot place."""
    if language.tag and language.tag not in text:
        text = f"{language.tag}\n{text}"  # without it, the grammar reads the whole text as not being code
    try:
        tree = syntax.parse(text, language)
    except GrammarError:
        return 1.0
    n_bytes, todo = 0, [tree.tree.root_node]
    while todo:
        node = todo.pop()
        if node.is_error:
            # In broken code, one error may span everything. The parts that could still be read are nodes of their own.
            alone = [child for child in node.children if not child.child_count and not child.is_extra]
            n_bytes += sum(child.end_byte - child.start_byte for child in (alone if node.child_count else [node]))
        todo += (child for child in node.children if child.has_error)
    return n_bytes / max(len("".join(text.split())), 1)


def _name(language: Language | None) -> str:
    return language.name if language else ""
