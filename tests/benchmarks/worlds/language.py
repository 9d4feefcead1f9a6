"""Generate documents of a small language, and holes in them whose filling both sides determine together.

A document declares counters (`#7 cK;`) and counts with them, in a call's line, `3=7(cdKabcdLab.M);`, or in nested blocks.
Four letters follow each other, with a capital that counts the rounds behind them; a declaration tells the first letter and
the first capital, its name stands before the text or only behind it, and how far it counts stands nowhere: the text's
last capital shows, behind at least one letter. So what belongs into a hole follows from where the left side stops and
where the right side goes on. What a suffix begins with recurs in each round, and an answer that is a round shorter or
longer reads well at both seams: only the capitals tell that its length is wrong. A token is a character.

Knows text and chance. Knows nothing of models.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["line", "block"]

CYCLES = ("abcd", "ijkl", "qrst")
COUNTS = string.ascii_uppercase[:16]  # more than any text has rounds
LETTERS = {"line": 4, "block": 2}  # of a round: with what else it has, rounds of both kinds are equally long
DIGITS = string.digits
ALPHABET = "\n #=(){};.>" + DIGITS + COUNTS + "".join(CYCLES)
MAX_ANSWER = {"line": 40, "block": 64}
MAX_SUFFIX = 80  # the right side must show the name and the number that stand behind a text
SEAM = 3  # how many characters at a seam must stand elsewhere for an answer to be recurring, or ambiguous


@dataclass(frozen=True, slots=True)
class Body:
    """A text that counts within a document."""

    start: int
    end: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Hole:
    """Text around a hole, and the answer.

    `n_declared` is how many characters of the prefix declare, `n_counted` how many count. `recurring` says that the
    suffix's head also stands inside the answer, `ambiguous` that the text has other parts, of other lengths, that read the
    same at both seams.
    """

    prefix: str
    answer: str
    suffix: str
    kind: Kind
    n_declared: int
    n_counted: int
    recurring: bool
    ambiguous: bool


def holes(seed: int, kind: Kind | None = None) -> Iterator[Hole]:
    """Yield holes without end, those of one kind if asked.

    Two with one seed yield the same.
    """
    chance = random.Random(seed)
    while True:
        text, n_declared, bodies = document(chance)
        hole = cut(chance, text, n_declared, chance.choice(bodies))
        if hole is not None and kind in (None, hole.kind):
            yield hole


def document(chance: random.Random) -> tuple[str, int, list[Body]]:
    """Return a document, how many of its characters declare, and where texts count in it."""
    names = chance.sample(DIGITS, chance.choice((1, 2)))
    declarations = {name: (chance.randrange(3), chance.randrange(2), chance.randrange(16)) for name in names}
    text = "".join(f"#{name}{CYCLES[cycle][first]}{COUNTS[count]}\n" for name, (cycle, first, count) in declarations.items())
    n_declared, name = len(text), chance.choice(names)
    kind: Kind = "line" if chance.random() < 0.5 else "block"
    opening, closing = ("(", ")") if kind == "line" else ("{", "}")
    is_named_first = chance.random() < 0.5
    text += f"={name}{opening}" if is_named_first else opening
    n_letters = chance.randint(4, 44) if kind == "line" else chance.randint(3, 28)
    body, count = counted(*declarations[name], n_letters, kind)
    bodies = [Body(len(text), len(text) + len(body), kind)]
    text += f"{body}.{count}{closing}" + (";\n" if is_named_first else f">{name};\n")
    return text, n_declared, bodies


def counted(cycle: int, first: int, count: int, n_letters: int, kind: Kind) -> tuple[str, str]:
    """Return the text that counts so many letters, and the capital of its last round.

    In a block each round has a line; every other one opens a block for the next.
    """
    letters = CYCLES[cycle][: LETTERS[kind]]
    text, is_open = "", False
    for at in range(first, first + n_letters):
        text += letters[at % len(letters)]
        if at % len(letters) < len(letters) - 1:
            continue
        text += COUNTS[count % len(COUNTS)]
        if kind == "block":
            text += "{\n" if count % 2 else "}\n" if is_open else ";\n"
            is_open = bool(count % 2)
        count += 1
    return text, COUNTS[count % len(COUNTS)]


def cut(chance: random.Random, text: str, n_declared: int, body: Body) -> Hole | None:
    """Return a hole in a text that counts; None where chance picked none that will do."""
    length = body.end - body.start
    n_answer = chance.randint(1, min(MAX_ANSWER[body.kind], length))
    start = body.start + chance.randint(0, length - n_answer)
    end = start + n_answer
    answer, suffix = text[start:end], text[end : end + MAX_SUFFIX]
    goes_on = any(letter in string.ascii_lowercase for letter in text[end : body.end])  # else nothing shows where to stop
    if not goes_on or ("\n" in answer) != (body.kind == "block"):
        return None
    recurring = suffix[:SEAM] in answer + suffix[: SEAM - 1]
    is_ambiguous = _is_ambiguous(text, body, start, end)
    return Hole(text[:start], answer, suffix, body.kind, n_declared, start - body.start, recurring, is_ambiguous)


def _is_ambiguous(text: str, body: Body, start: int, end: int) -> bool:
    """Return whether parts of another length read the same at both seams."""
    places = range(body.start, body.end + 1)
    starts = [place for place in places if text[place - SEAM : place] == text[start - SEAM : start]]
    ends = [place for place in places if text[place : place + SEAM] == text[end : end + SEAM]]
    return len({end - start for start in starts for end in ends if start < end}) > 1
