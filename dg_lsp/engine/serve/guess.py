"""Guess the language of a text that has no file name, from what it declares or else from how it looks.

Clients of completion endpoints send only the text on both sides of the cursor. The guess selects a grammar, and a wrong
grammar would reject correct answers. So weak evidence gives no guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dg_lsp.core import languages, syntax
from dg_lsp.core.languages import GrammarError, Language

# How many characters on each side are examined. Parsing is slowest for text in another language than the grammar's.
BEFORE_CHARS, AFTER_CHARS = 2_200, 800
# A language is considered if its marks occur at least this often, at least this often per line, and at least half as
# often as those of the best language. At most `MOST_PARSED` languages are parsed.
MIN_MARKS, MIN_DENSITY, MIN_SHARE, MOST_PARSED = 2, 0.05, 0.5, 3
# The largest fraction of errors in the guessed language, and by how much the fraction in every other language must exceed it.
MAX_ERRORS, MIN_LEAD = 0.04, 0.05

# A one-line comment, as clients write it above the text.
_COMMENT = r"^[ \t]*(?:#|//|--|/\*|<!--|;|%|\")+[ \t]*"
_COMMENT_END = r"[ \t]*(?:\*/|-->)?[ \t]*$"
_DECLARED_LANGUAGE = re.compile(rf"{_COMMENT}language[ \t]*:[ \t]*([\w+#.-]+){_COMMENT_END}", re.IGNORECASE | re.MULTILINE)
_COMMENT_PATH = re.compile(
    rf"{_COMMENT}(?:file[ _]?)?(?:path|name|file)[ \t]*:[ \t]*([^\s*]*\.\w+){_COMMENT_END}", re.IGNORECASE | re.MULTILINE
)
_BARE_PATH = re.compile(rf"{_COMMENT}([\w.-]+(?:[/\\][\w.-]+)*\.\w+){_COMMENT_END}", re.MULTILINE)
# The markers that begin a file in prompts for models trained on whole repositories.
_FILE = re.compile(r"<(?:\|file_sep\||file_sep|filename)>[ \t]*([^\s<]+)")
_MODELINE = re.compile(
    r"-\*-[ \t]*(?:[^\n]*?\bmode[ \t]*:[ \t]*)?([\w+#-]+)[ \t]*(?:;[^\n]*)?-\*-"
    r"|\b(?:vim?|ex):[^\n]*?\b(?:ft|filetype|syntax)=([\w+#.]+)"
)
_IS_COMMENT = re.compile(_COMMENT)
_TOP = re.compile(r"\n[ \t]*\n(?=\S)")
# A declared name or path is searched in these first lines. A modeline is also searched in as many lines at the end.
_HEAD_LINES, _HEAD_CHARS = 5, 1_000
# Clients may put other files above the text as comments, with their paths.
_LEAD_CHARS = 20_000


def language(before: str, after: str = "", paths: Iterable[str] = ()) -> str:
    """Return the name of the language around a cursor, or "" if the text does not declare it and the evidence is unclear.

    `paths` are names of other files that come with the text. They only lower the number of marks that a language needs.
    """
    before, after = (part.replace("\r\n", "\n") for part in (before, after))
    # Other files may come before the one with the cursor.
    before = before[max((match.start() for match in _FILE.finditer(before)), default=0) :]
    name = declared_language(before, after)
    return name if name is not None else evident(before, after, paths)


def declared_language(before: str, after: str = "") -> str | None:
    """Return the language that the text declares, "" if it is not in the table, or None if the text declares none."""
    head = "\n".join(before[:_HEAD_CHARS].split("\n")[:_HEAD_LINES])
    first = head.partition("\n")[0]
    if match := _DECLARED_LANGUAGE.search(head):
        return _by_word(match[1])
    # Checked before paths, because a path in a comment below the shebang may belong to any file.
    if first.lstrip("\ufeff").startswith("#!"):
        return _name(languages.for_path("", first))
    if path := _FILE.match(head) or _own_path(before):
        return _name(languages.for_path(path[1]))
    tail = "\n".join(after[-_HEAD_CHARS:].split("\n")[-_HEAD_LINES:])
    modes = (match[1] or match[2] for part in (head, tail) for match in _MODELINE.finditer(part))
    return next((_by_word(mode) for mode in modes), None)


def _own_path(before: str) -> re.Match[str] | None:
    """Return the last path in the comments above the text. Continue puts other files there first, then this file's path."""
    path = None
    for line in before[:_LEAD_CHARS].split("\n")[:-1]:
        if line.strip() and not _IS_COMMENT.match(line):
            break
        path = _COMMENT_PATH.match(line) or _BARE_PATH.match(line) or path
    return path


def evident(before: str, after: str = "", paths: Iterable[str] = ()) -> str:
    """Return the language whose marks occur in the text and whose grammar parses it with clearly the fewest errors, or ""."""
    text = _sample(before, after)
    # Blank lines are removed. Many patterns begin with white space and would be tried at every blank line.
    lines = [line for line in text.split("\n") if line.strip()]
    likely = {language for path in paths if (language := languages.for_path(path))}
    counts = {language: len(re.findall(language.marks, "\n".join(lines), re.MULTILINE)) for language in languages.TABLE}
    enough = max(max(counts.values()) * MIN_SHARE, len(lines) * MIN_DENSITY)
    plausible = [language for language, count in counts.items() if count >= max(enough, 1 if language in likely else MIN_MARKS)]
    plausible = sorted(plausible, key=lambda language: -counts[language])[:MOST_PARSED]
    errors = {language: _errors(text, language) for language in plausible}
    best = min(plausible, key=lambda language: (errors[language], -counts[language]), default=None)
    if best is None or errors[best] > MAX_ERRORS:
        return ""
    others = (errors[language] for language in plausible if language.queries[0] != best.queries[0])
    return best.name if all(share >= errors[best] + MIN_LEAD for share in others) else ""


def _sample(before: str, after: str) -> str:
    """Return the lines around the cursor, without the unfinished line that the cursor is on."""
    above, below = before.rpartition("\n")[0], after.partition("\n")[2]
    if len(above) > BEFORE_CHARS:
        # An unindented line after a blank one rarely lies inside another construct.
        least = len(above) - BEFORE_CHARS
        start = _TOP.search(above, least)
        above = above[start.end() if start else above.find("\n", least) + 1 or least :]
    if len(below) > AFTER_CHARS:
        below = below[:AFTER_CHARS].rpartition("\n")[0]
    return f"{above}\n{below}"


def _errors(text: str, language: Language) -> float:
    """Return the fraction of the text's characters that the language's grammar cannot place."""
    if language.tag and language.tag not in text:
        # Without the tag, the grammar reads the whole text as not being code.
        text = f"{language.tag}\n{text}"
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


def _by_word(word: str) -> str:
    return _name(languages.by_id(word) or languages.for_path(f".{word.lower()}"))


def _name(language: Language | None) -> str:
    return language.name if language else ""
