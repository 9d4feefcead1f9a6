"""Drop useless answers, whatever their syntax, and those that break the code next to them on the same line."""

from __future__ import annotations

import re
from dataclasses import replace

from dg_lsp.core import holes, indentation, languages, placeholders
from dg_lsp.core.context import with_newlines
from dg_lsp.core.holes.body import says_todo
from dg_lsp.core.place import depth, last_line
from dg_lsp.core.polish.changes import Around, answer_span, filled_lines, says_something
from dg_lsp.core.syntax import PLACEHOLDERS, Facts, ancestors

TIMES = 3  # how often the same lines in a row make a loop: pairs occur in real code
MAX_LOOP = 8  # lines; a model that loops repeats fewer


def drop_unreadable(text: str, around: Around) -> str | None:
    """Drop an answer with characters that no source file has: control characters, or half of a surrogate pair."""
    bad = set(_UNREADABLE.findall(text))
    return None if bad.difference(around.place.before, around.place.after) else text


def drop_blank(text: str, around: Around) -> str | None:
    """Drop an empty answer, or documentation without a word.

    An empty answer is kept if it deletes selected code and that is allowed.
    """
    if around.allow_shrink and around.hole.kind == "selection" and around.old.strip():
        return text
    is_documentation = around.hole.kind == "cursor" and around.hole.lead.strip()
    return text if re.search(r"\w" if is_documentation else r"\S", text) else None


def drop_unchanged(text: str, around: Around) -> str | None:
    """Drop an answer that changes nothing."""
    new = around.hole.lead + text + around.hole.trail
    return None if new.strip() == with_newlines(around.old).strip() else text


def drop_shrunk(text: str, around: Around) -> str | None:
    """Drop an answer that replaces working code by a placeholder, by comments or by nothing, unless that is allowed."""
    return text if around.allow_shrink or not placeholders.shrinks(around.old, text, around.document.language) else None


def drop_continued(text: str, around: Around) -> str | None:
    """Drop an answer whose last line goes on in the next line, if the statement there is another one.

    Lines that are indented more than the answer's may be what it goes on with. So may others, where a bracket is open in its
    line, or the line above goes on too. In prose, a backslash breaks a line.
    """
    if indentation.is_prose(around.document):
        return text
    *above, head = around.place.before.split("\n")
    last = next((line for line in reversed(above) if line.strip()), "")
    if _GOES_ON.search(last) or languages.n_open("", head + text, around.document.language):
        return text
    below = next(iter(filled_lines(around.place.below)), "")
    is_other = bool(below) and depth(below) <= depth(around.hole.indent)
    ends = _PIPES if around.document.language == "bash" else _CONTINUED
    return None if is_other and around.place.ends_line and ends.search(text.rstrip(" \t")) else text


# What makes the next line a part of this one.
_CONTINUED = re.compile(r"(?<!\\)\\\Z|(?:&&|\|\|)\s*\Z")
_GOES_ON = re.compile(rf"{_CONTINUED.pattern}|[|(\[{{,]\s*\Z")
_PIPES = re.compile(rf"{_CONTINUED.pattern}|\|\s*\Z")


def drop_repetition(text: str, around: Around) -> str | None:
    """Drop an answer that makes lines like those just before or just after the hole, once or several times.

    A part of a line is compared with the next lines only, and without brackets and commas at their ends. So is a short line:
    `end` and `}` often repeat where they close blocks. What closes none, an item, a call or a selector do not, unless those
    above do.
    """
    place, ends = around.place, "" if around.place.starts_line and around.place.ends_line else _ENDS
    texts = (place.head + text + place.tail, place.above, place.below)
    lines, above, below = ([line.strip() for line in filled_lines(each)] for each in texts)
    if ends or not says_something(text):
        if not re.search(r"\w", text) or (ends and around.hole.extent == "block"):
            return text
        is_item = _ITEM.search("".join(below[:1])) or languages.row(around.document.language).by_indentation
        if above[-1:] == below[:1] or not (is_item or says_something(lines[0])):
            return text
        lines, above, below = ([line.rstrip(ends) for line in each] for each in (lines, [], below))
    for size in range(1, len(lines) + 1):
        again = all(line == lines[idx % size] for idx, line in enumerate(lines))
        if again and lines[:size] in (above[-size:], below[:size]):
            return None
    return text


# An item of a list or an object, a call, a selector.
_ITEM = re.compile(r"\A- |,\Z|\A[\w\"'-]+\s*:|\w\(\);?\Z|\A(?!do\b|try\b)[\w.#]+ \{\Z")


def drop_loop(text: str, around: Around) -> str | None:
    """Drop an answer that has the same lines three times in a row: the model repeats itself and has lost the thread.

    Lines of brackets alone may repeat, and so may lines that the replaced text already repeats.
    """
    lines = [line.strip() for line in filled_lines(text)]
    old = "\n".join(line.strip() for line in filled_lines(around.old))
    for size in range(1, min(len(lines) // TIMES, MAX_LOOP) + 1):
        for start in range(len(lines) - size * TIMES + 1):
            run = lines[start : start + size * TIMES]
            if run == run[:size] * TIMES and says_something("\n".join(run[:size])) and "\n".join(run) not in old:
                return None
    return text


def drop_holes(text: str, around: Around) -> str | None:
    """Drop an answer that adds a FILL comment."""
    # The marker of the hole itself is what the answer replaces; a selection may hold markers that stay.
    old = "" if around.hole.kind == "marker" else around.old
    # The text around it on its line may begin and end the comment.
    head, tail = around.place.head, around.place.tail
    parts = (replace(around.document, text=head + part + tail) for part in (old, text))
    n_old, n_new = (len(holes.markers(part, None)) for part in parts)
    return None if n_new > n_old else text


def drop_nothing(text: str, around: Around) -> str | None:
    """Drop an answer without code: placeholders, comments, words alone, or in a function's body unused definitions alone.

    So is one with a comment of its own which says that the code is missing, unless the text that it replaces has that comment.
    Where a block belongs at a cursor, comments are no code. A placeholder is dropped there only if it is the whole body of a
    function that is not abstract: an `except` may well contain `pass`.
    """
    hole, kind = around.hole, around.hole.kind
    filled = around.filled(text)
    if filled is None or not text.strip() or (kind in ("selection", "error") and around.allow_shrink):
        return text
    # Another language's placeholder may parse, and models mix them up. At a cursor, it may be the beginning of something.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if kind != "cursor" and all(map(placeholders.is_line, lines)):
        return None
    answer = answer_span(text, around)
    facts = filled.facts_near(answer)
    old = "" if kind in ("body", "marker") else around.old
    for span in map(filled.span, facts.all("comment")):
        comment, line = filled.text[span.start : span.end], filled.lines.start(filled.lines.at(span.start))
        is_own = answer.start <= span.start < answer.end and comment not in old
        if is_own and says_todo(comment, filled.language, after_code=bool(filled.text[line : span.start].strip())):
            return None
    nodes = [node for capture in PLACEHOLDERS for node in facts.all(capture)]
    if kind == "cursor":
        nodes = [node for node in nodes if node.id in _whole_bodies(facts) and filled.span(node) == answer]
        nodes += facts.all("comment") if hole.extent == "block" else ()
    elif kind in ("body", "marker") and not (kind == "marker" and _ASKS_WORDS.search(hole.instruction)):
        nodes = placeholders.nothing(facts)
        strings = ((node, filled.span(node)) for node in facts.all("string") if kind == "body")
        said = [node for node, span in strings if says_todo(filled.text[span.start : span.end].strip(_QUOTES), filled.language)]
        nodes += [node.parent for node in said if node.parent is not None and node.parent.type.startswith("return")]
        holders = [owner for owner in facts.owners if owner.inside.holds(answer)]
        inmost = max(holders, key=lambda owner: owner.inside.start, default=None)
        if kind == "body" and inmost is not None and inmost.kind == "function":
            nodes += [owner.node for owner in facts.owners if owner.kind != "closure" and answer.holds(filled.span(owner.node))]
    rest = list(filled.text[answer.start : answer.end])
    for span in map(filled.span, nodes):
        start, end = (min(max(at - answer.start, 0), len(rest)) for at in (span.start, span.end))
        rest[start:end] = " " * (end - start)
    return text if "".join(rest).strip(" \t\r\n;") else None


def _whole_bodies(facts: Facts) -> set[int]:
    """Return the ids of the nodes that are all of the body of a function which is not abstract."""
    return {
        owner.items[0].id
        for owner in facts.owners
        if owner.kind == "function"
        and len(owner.items) == 1
        and not any(facts.has(name, node) for node in ancestors(owner.node) for name in ("abstract", "abstract.members"))
    }


_ENDS = ")]},;"
_QUOTES = "\"'`"
# The words of an instruction that asks for text, not code.
_ASKS_WORDS = re.compile(r"\b(?:doc|comment|descri)", re.IGNORECASE)
# Source files have no control characters but tab, newline and form feed. U+FFFD replaces bytes that are not valid UTF-8.
_UNREADABLE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd\ud800-\udfff]")


# --- Answers that break the code next to them on the same line


def drop_comment_before_code(text: str, around: Around) -> str | None:
    """Drop an answer that starts a comment and thereby comments out the rest of its line."""
    language = languages.row(around.document.language)
    if not around.place.tail.strip(" \t)]};,") or around.place.tail.lstrip().startswith(language.line_comments):
        return text
    line = last_line(text)
    if not any(mark in line for mark in language.line_comments):
        return text
    is_comment = languages.kind_at_end(around.place.before + text, language.name) == "comment"
    return None if is_comment and languages.kind_at_end(around.place.before, language.name) != "comment" else text


def drop_merged(text: str, around: Around) -> str | None:
    """Drop an answer whose last name runs into the one behind it, with a word that neither the language nor the file has.

    Between words, an answer may repeat the rest of the line, which is cut; within one, what is left must still be known.
    """
    before, tail, language = around.place.before, around.place.tail, languages.get(around.document.language)
    is_within, behind = re.match(r"\w", before[-1:]) is not None, re.match(r"\w+", tail)
    if language is None or behind is None or (not is_within and text.rstrip().endswith(tail.rstrip())):
        return text
    written = text.removesuffix(tail)
    name = re.search(r"(?<!\w)[^\W\d]\w*\Z", around.place.head + written)
    if not written or (name is None and not is_within) or languages.kind_at_end(before, language.name):
        return text
    # Of a word that the answer splits, the end alone is no word that the file has.
    after = around.place.after[len(behind[0]) * is_within :]
    words = _WORD.findall(f"{before} {after}"), languages.words(language)
    known = {word.lower() for each in words for word in each}
    return text if all(word.lower() in known for word in _WORD.findall((name[0] if name else "") + behind[0])) else None


_WORD = re.compile(r"[^\W\d_][^\W\d_A-Z]*|\d+")
"""A word of a name such as `max_size2` or `maxSize`."""
