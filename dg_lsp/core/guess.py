"""Say which language a text is in that comes without a file name: what it says of itself, or else what it looks like.

Clients of completion endpoints send the text on both sides of the cursor and no more. A guess chooses a grammar, and a wrong
one would refuse answers that are right; so where the evidence is weak there is none. Knows nothing of requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tree_sitter import Node

from dg_lsp.core import languages, syntax
from dg_lsp.core.languages import GrammarError, Language

# How much of the text on each side is looked at; a parser takes most time for what is not its language.
BEFORE_CHARS, AFTER_CHARS = 2_200, 800
# A language is thought of where its marks are found so often, so often for each line, and half as often as any other's.
MIN_MARKS, MIN_DENSITY, MIN_SHARE, MOST_PARSED = 2, 0.05, 0.5, 3
# How much of the text may be errors in its own language, and how much more must be in any other.
MAX_ERRORS, MIN_LEAD = 0.04, 0.05

# A comment of one line, as clients write them above the text.
_COMMENT = r"^[ \t]*(?:#|//|--|/\*|<!--|;|%|\")+[ \t]*"
_COMMENT_END = r"[ \t]*(?:\*/|-->)?[ \t]*$"
_DECLARED_LANGUAGE = re.compile(rf"{_COMMENT}language[ \t]*:[ \t]*([\w+#.-]+){_COMMENT_END}", re.IGNORECASE | re.MULTILINE)
_COMMENT_PATH = re.compile(
    rf"{_COMMENT}(?:file[ _]?)?(?:path|name|file)[ \t]*:[ \t]*([^\s*]*\.\w+){_COMMENT_END}", re.IGNORECASE | re.MULTILINE
)
_BARE_PATH = re.compile(rf"{_COMMENT}([\w.-]+(?:[/\\][\w.-]+)*\.\w+){_COMMENT_END}", re.MULTILINE)
# How models that know repositories are told where a file begins.
_FILE = re.compile(r"<(?:\|file_sep\||file_sep|filename)>[ \t]*([^\s<]+)")
_MODELINE = re.compile(
    r"-\*-[ \t]*(?:[^\n]*?\bmode[ \t]*:[ \t]*)?([\w+#-]+)[ \t]*(?:;[^\n]*)?-\*-"
    r"|\b(?:vim?|ex):[^\n]*?\b(?:ft|filetype|syntax)=([\w+#.]+)"
)
_IS_COMMENT = re.compile(_COMMENT)
_TOP = re.compile(r"\n[ \t]*\n(?=\S)")
# What is named stands in these lines; a modeline may be in as many at the end.
_HEAD_LINES, _HEAD_CHARS = 5, 1_000
# Other files may stand as comments above the text, with their paths.
_LEAD_CHARS = 20_000


def language(before: str, after: str = "", paths: Iterable[str] = ()) -> str:
    """Return the name of the language around a cursor, "" where neither the text says it nor the evidence is clear.

    `paths` are names of other files that come with the text: they say what to think of, and decide nothing.
    """
    before, after = (part.replace("\r\n", "\n") for part in (before, after))
    # Other files may stand before the one with the cursor.
    before = before[max((match.start() for match in _FILE.finditer(before)), default=0) :]
    name = declared_language(before, after)
    return name if name is not None else evident(before, after, paths)


def declared_language(before: str, after: str = "") -> str | None:
    """Return the language that the text itself names; "" for one that is not in the table, None where it names none."""
    head = "\n".join(before[:_HEAD_CHARS].split("\n")[:_HEAD_LINES])
    first = head.partition("\n")[0]
    if match := _DECLARED_LANGUAGE.search(head):
        return _by_word(match[1])
    # Before paths: those in the comments below it may be of anything.
    if first.lstrip("\ufeff").startswith("#!"):
        return _name(languages.for_path("", first))
    if path := _FILE.match(head) or _own_path(before):
        return _name(languages.for_path(path[1]))
    tail = "\n".join(after[-_HEAD_CHARS:].split("\n")[-_HEAD_LINES:])
    modes = (match[1] or match[2] for part in (head, tail) for match in _MODELINE.finditer(part))
    return next((_by_word(mode) for mode in modes), None)


def _own_path(before: str) -> re.Match[str] | None:
    """Return the last path in the comments above the text: Continue puts other files there, then the path of this one."""
    path = None
    for line in before[:_LEAD_CHARS].split("\n")[:-1]:
        if line.strip() and not _IS_COMMENT.match(line):
            break
        path = _COMMENT_PATH.match(line) or _BARE_PATH.match(line) or path
    return path


def evident(before: str, after: str = "", paths: Iterable[str] = ()) -> str:
    """Return the language whose marks stand in the text and whose grammar parses it with clearly the fewest errors."""
    text = _sample(before, after)
    # Without blank ones, as the marks begin with white space, which would be looked for from each of them on.
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
    """Return the lines around the cursor without its own, which is yet to be written."""
    above, below = before.rpartition("\n")[0], after.partition("\n")[2]
    if len(above) > BEFORE_CHARS:
        # A line without indentation behind a blank one is hardly in the middle of anything.
        least = len(above) - BEFORE_CHARS
        start = _TOP.search(above, least)
        above = above[start.end() if start else above.find("\n", least) + 1 or least :]
    if len(below) > AFTER_CHARS:
        below = below[:AFTER_CHARS].rpartition("\n")[0]
    return f"{above}\n{below}"


def _errors(text: str, language: Language) -> float:
    """Return the share of the text's characters that the language's grammar has no place for."""
    if language.tag and language.tag not in text:
        # All of a text without the tag is no code to the grammar.
        text = f"{language.tag}\n{text}"
    try:
        tree = syntax.parse(text, language)
    except GrammarError:
        return 1.0
    # In code that is broken one error may reach over all of it; what could be read all the same is in nodes of its own.
    return sum(end - start for start, end in _unread(tree.tree.root_node)) / max(len("".join(text.split())), 1)


def _unread(root: Node) -> Iterator[tuple[int, int]]:
    """Yield the bytes of each token that stands in an error and in nothing else."""
    todo = [root]
    while todo:
        node = todo.pop()
        if node.is_error:
            alone = [child for child in node.children if not child.child_count and not child.is_extra]
            yield from ((child.start_byte, child.end_byte) for child in (alone if node.child_count else [node]))
        todo += (child for child in node.children if child.has_error)


def _by_word(word: str) -> str:
    return _name(languages.by_id(word) or languages.for_path(f".{word.lower()}"))


def _name(language: Language | None) -> str:
    return language.name if language else ""
