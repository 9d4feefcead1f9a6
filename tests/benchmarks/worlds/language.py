"""Generate documents of a small language, and holes in them whose filling both sides determine together.

A document declares runs (`#A abc$d;`) and nested blocks (`#B{ … }`), then writes them out: `3=A(abc3d);` names the
declaration before the text, `(abc3d)A>3;` only behind it, and the digit stands for `$`. So what belongs into a hole
follows from a declaration, from where the left side stops in it, and from where the right side goes on. Declarations
share beginnings and repeat parts of themselves: a suffix's head may recur inside the answer, and an answer with one
repetition fewer may read well on both sides, though only one length is right. A token is a character.

Knows text and chance. Knows nothing of models.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["line", "block"]

ITEMS, NAMES, DIGITS = string.ascii_lowercase, string.ascii_uppercase, string.digits
ALPHABET = "\n " + string.punctuation + DIGITS + NAMES + ITEMS
MAX_ANSWER = {"line": 40, "block": 64}
MAX_SUFFIX = 80  # the right side must show the name that stands behind a written-out text
MAX_DOCUMENT = 240
SEAM = 3  # how many characters at a seam must stand elsewhere for an answer to be recurring, or ambiguous


@dataclass(frozen=True, slots=True)
class Body:
    """A written-out text within a document, and whether its declaration is named before it."""

    start: int
    end: int
    kind: Kind
    named_first: bool


@dataclass(frozen=True, slots=True)
class Hole:
    """Text around a hole, and the answer.

    `n_declared` is how many characters of the prefix declare. `recurring` says that the suffix's head also stands inside the
    answer, `ambiguous` that the written-out text has other parts, of other lengths, that would read the same at both
    seams: only the whole tells which is right.
    """

    prefix: str
    answer: str
    suffix: str
    kind: Kind
    n_declared: int
    recurring: bool
    ambiguous: bool


def holes(seed: int, kind: Kind | None = None, most: int = MAX_DOCUMENT) -> Iterator[Hole]:
    """Yield holes without end, those of one kind if asked, in documents of `most` characters at most.

    Two with one seed yield the same.
    """
    chance = random.Random(seed)
    while True:
        text, n_declared, bodies = document(chance)
        if len(text) > most:
            continue
        hole = cut(chance, text, n_declared, chance.choice(bodies))
        if hole is not None and kind in (None, hole.kind):
            yield hole


def document(chance: random.Random) -> tuple[str, int, list[Body]]:
    """Return a document, how many of its characters declare, and where texts are written out in it."""
    names = chance.sample(NAMES, chance.choice((2, 2, 3)))
    declared: dict[str, tuple[Kind, str]] = {}
    for name in names:
        kind: Kind = "line" if chance.random() < 0.45 else "block"
        first = next((run for known, run in declared.values() if known == kind), "")
        declared[name] = (kind, _run(chance, first) if kind == "line" else _block(chance, first))
    text = "".join(
        f"#{name} {body};\n" if kind == "line" else f"#{name}{{{body}}}\n" for name, (kind, body) in declared.items()
    )
    n_declared, bodies = len(text), []
    for _ in range(chance.choice((2, 3, 3, 4))):
        name, digit = chance.choice(names), chance.choice(DIGITS)
        kind, body = declared[name]
        opened, closed = ("(", ")") if kind == "line" else ("{", "}")
        named_first = chance.random() < 0.5
        text += f"{digit}={name}{opened}" if named_first else opened
        written = body.replace("$", digit)
        bodies.append(Body(len(text), len(text) + len(written), kind, named_first))
        text += written + closed + (";\n" if named_first else f"{name}>{digit};\n")
    return text, n_declared, bodies


def cut(chance: random.Random, text: str, n_declared: int, body: Body) -> Hole | None:
    """Return a hole in a written-out text; None where chance picked none that will do."""
    length = body.end - body.start
    n_answer = chance.randint(1, min(MAX_ANSWER[body.kind], length))
    start = body.start + chance.randint(0, length - n_answer)
    end = start + n_answer
    if chance.random() < 0.4 and (moved := _to_recurring(text, body, start)):
        end = moved
    elif body.kind == "line" and body.named_first and chance.random() < 0.2 and body.end + 2 - start <= MAX_ANSWER["line"]:
        end = body.end + 2  # to the end of the line
    answer, suffix = text[start:end], text[end : end + MAX_SUFFIX]
    if ("\n" in answer) != (body.kind == "block") or len(answer) > MAX_ANSWER[body.kind]:
        return None
    recurring = suffix[:SEAM] in answer + suffix[: SEAM - 1]
    return Hole(text[:start], answer, suffix, body.kind, n_declared, recurring, _is_ambiguous(text, body, start, end))


def _run(chance: random.Random, first: str) -> str:
    """Return a run of items with a place for the digit, now and then with another run's beginning or repeated parts."""
    run = _repeated(chance, _items(chance, chance.randint(4, 34)))
    if first and chance.random() < 0.3:
        run = first[: chance.randint(2, 8)] + run
    return _placed(chance, run[:44])


def _block(chance: random.Random, first: str) -> str:
    """Return nested lines: each a few items, then `;`, or `{` where lines follow that are indented further."""
    lines, depth = [""], 1
    for _ in range(chance.randint(2, 9)):
        items = _items(chance, chance.randint(1, 8))
        if depth < 3 and chance.random() < 0.25:
            lines.append(" " * depth + items + "{")
            depth += 1
        else:
            lines.append(" " * depth + items + ";")
        if depth > 1 and chance.random() < 0.35:
            depth -= 1
            lines.append(" " * depth + "}")
    while depth > 1:
        depth -= 1
        lines.append(" " * depth + "}")
    if chance.random() < 0.3:  # a statement again, further down
        simple = [line for line in lines if line.endswith(";")]
        if simple:
            lines.insert(chance.choice([i + 1 for i, line in enumerate(lines) if line in simple]), chance.choice(simple))
    if first and chance.random() < 0.3:
        lines = [*first.split("\n")[:2], *lines[2:]] if first.split("\n")[1].endswith(";") else lines
    return _placed(chance, "\n".join(lines) + "\n")


def _items(chance: random.Random, n: int) -> str:
    return "".join(chance.choices(ITEMS, k=n))


def _repeated(chance: random.Random, run: str) -> str:
    """Return a run of which, often, a part stands twice: side by side, or further on."""
    if chance.random() < 0.5 and len(run) > 5:
        n = chance.randint(2, min(8, len(run) // 2))
        at = chance.randint(0, len(run) - n)
        to = at + n if chance.random() < 0.4 else chance.randint(at + n, len(run))
        run = run[:to] + run[at : at + n] + run[to:]
    return run


def _placed(chance: random.Random, text: str) -> str:
    """Return a text with the digit's place instead of one item, or two."""
    at = [index for index, character in enumerate(text) if character in ITEMS]
    for index in chance.sample(at, min(len(at), chance.choice((0, 1, 1, 2)))):
        text = text[:index] + "$" + text[index + 1 :]
    return text


def _to_recurring(text: str, body: Body, start: int) -> int | None:
    """Return an end for a hole so that what follows it also stands within it, or None."""
    ends = [
        end
        for end in range(start + SEAM, min(body.end - SEAM, start + MAX_ANSWER[body.kind]) + 1)
        if text[end : end + SEAM] in text[start:end]
    ]
    return ends[-1] if ends else None


def _is_ambiguous(text: str, body: Body, start: int, end: int) -> bool:
    """Return whether parts of another length read the same at both seams."""
    places = range(body.start, body.end + 1)
    starts = [place for place in places if text[place - SEAM : place] == text[start - SEAM : start]]
    ends = [place for place in places if text[place : place + SEAM] == text[end : end + SEAM]]
    return len({right - left for left in starts for right in ends if left < right}) > 1
