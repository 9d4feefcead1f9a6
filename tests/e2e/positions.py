"""Cursor positions in held-out files, and what is wrong with a suggestion there.

A position is a text, a cursor in it, and what really stood there. A suggestion is judged by tree-sitter's count of errors,
by Python's own compiler, and by the text on both sides; none of the server's own rules is asked.
"""

from __future__ import annotations

import ast
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from dg_lsp.core import languages, syntax
from dg_lsp.core.values import Span
from dg_lsp.evaluate import make, tasks
from dg_lsp.evaluate.make import Source

HELD_OUT = Path(__file__).parents[2] / "fixtures" / "eval" / "heldout.jsonl.gz"

# `typing`: the rest of the line is not there yet. `line`, `block`, `inside`: a line, a block, a part of a line is missing.
# `broken`: typing, with half of another line gone as well. `whole`: nothing is missing, and the cursor is somewhere in it.
KINDS = ("typing", "line", "block", "inside", "broken", "whole")
INCOMPLETE = 0x4000  # ast's PyCF_ALLOW_INCOMPLETE_INPUT


@dataclass(frozen=True, slots=True)
class Position:
    """A cursor between two texts; `truth` is what stood there, "" where nothing is missing."""

    kind: str
    path: str
    before: str
    after: str
    truth: str

    @property
    def point(self) -> tuple[int, int]:
        """The cursor as line and character, of texts whose lines end with a line feed."""
        head, _, line = self.before.rpartition("\n")
        return (head.count("\n") + bool(_), len(line.encode("utf-16-le")) // 2)


def positions(n: int, seed: int) -> list[Position]:
    """Return `n` positions, as many of each kind, spread over all held-out files that parse; a seed gives the same ones."""
    draw = random.Random(seed)
    sources = _sources()
    all_positions: list[Position] = []
    for number, kind in enumerate(KINDS):
        n_of_kind = n // len(KINDS) + (number < n % len(KINDS))
        order = list(sources)
        draw.shuffle(order)
        places = {source.path: _places(source, kind, draw) for source in order}
        of_kind: list[Position] = []
        while len(of_kind) < n_of_kind and any(places.values()):
            of_kind += [places[source.path].pop() for source in order if places[source.path]]
        all_positions += of_kind[:n_of_kind]
    draw.shuffle(all_positions)
    return all_positions


def faults(position: Position, text: str) -> list[str]:
    """Return what is wrong with a text at the position, whether or not it is what stood there."""
    all_faults = []
    if _repeats_rest(position, text):
        all_faults.append("overlap")
    if _repeats_next(position, text):
        all_faults.append("next line")
    if _breaks(position, text):
        all_faults.append("syntax")
    if unbound_names(position, text):
        all_faults.append("unbound")
    return all_faults


def unbound_names(position: Position, text: str) -> list[str]:
    """Return the names used in the text that ruff finds undefined, and did not without it; none in broken code."""
    start, end = len(position.before), len(position.before) + len(text)
    new_names = {
        name for name, at in _undefined(position.before + text + position.after) if at <= end and start <= at + len(name)
    }
    plain = ("", "0", "pass", position.truth) if new_names else ()
    return sorted(
        new_names.difference(name for each in plain for name, _ in _undefined(position.before + each + position.after))
    )


def is_right(position: Position, text: str) -> bool:
    """Return whether the text is what stood there, but for white space at its ends."""
    return text.strip() == position.truth.strip()


def is_begun(position: Position, text: str) -> bool:
    """Return whether what stood there begins with the text: an answer may end where the model is not sure any more."""
    return bool(text.strip()) and position.truth.strip().startswith(text.strip())


def _sources() -> list[Source]:
    texts: dict[str, str] = {}
    for task in tasks.read(HELD_OUT):
        text = task.prompt + task.answer + task.suffix
        if len(text) > len(texts.get(task.path, "")):
            texts[task.path] = text
    sources = (make.read(path, text) for path, text in sorted(texts.items()))
    return [source for source in sources if source is not None]


def _places(source: Source, kind: str, draw: random.Random) -> list[Position]:
    text = source.syntax.text
    if kind == "whole":
        spans = [Span(at, at) for span in make.spans(source, "whole-line", draw) for at in (span.start, span.end)]
    else:
        task_kind = {"typing": "rest-of-line", "broken": "rest-of-line", "line": "whole-line", "inside": "span"}.get(kind, kind)
        spans = make.spans(source, task_kind, draw)
    # No request is sent in front of a word.
    spans = [span for span in spans if not (text[span.end : span.end + 1].isalnum() or text[span.end : span.end + 1] == "_")]
    draw.shuffle(spans)
    all_places = [
        Position(kind, source.path, text[: span.start], text[span.end :], text[span.start : span.end]) for span in spans
    ]
    return [_broken(position, draw) for position in all_places] if kind == "broken" else all_places


def _broken(position: Position, draw: random.Random) -> Position:
    """Return the position with a line above cut in half, behind a bracket where it has one."""
    lines = position.before.split("\n")
    candidates = [idx for idx in range(max(0, len(lines) - 40), len(lines) - 1) if "(" in lines[idx]]
    if not candidates:
        return position
    idx = draw.choice(candidates)
    lines[idx] = lines[idx][: lines[idx].index("(") + 1]
    return replace(position, before="\n".join(lines))


def _repeats_rest(position: Position, text: str) -> bool:
    """Return whether the text ends with the rest of its line, and would be no worse without it."""
    rest = position.after.partition("\n")[0].strip()
    if not rest or not text.rstrip().endswith(rest) or position.truth.rstrip().endswith(rest):
        return False
    shorter = text.rstrip().removesuffix(rest)
    return len(_errors(position, shorter)) <= len(_errors(position, text))


def _repeats_next(position: Position, text: str) -> bool:
    """Return whether the text ends with the line that comes next, as deep as it; brackets alone repeat nothing.

    A line with other indentation belongs to another block: `return False` may end each of two.
    """
    following = next((line for line in position.after.partition("\n")[2].split("\n") if line.strip()), "").rstrip()
    last = _last_line(position, text)
    is_code = any(char.isalnum() for char in following)
    return is_code and last == following and _last_line(position, position.truth) != following


def _last_line(position: Position, text: str) -> str:
    rest = position.after.partition("\n")[0]
    return (position.before.rpartition("\n")[2] + text.rstrip() + rest).rpartition("\n")[2].rstrip()


def _breaks(position: Position, text: str) -> bool:
    if len(_errors(position, text)) > len(_errors(position, "")):
        return True
    rest = position.after.partition("\n")[0]
    start = _top(position.before)
    head, whole = position.before[start:], position.before[start:] + text + rest + "\n"
    if _opens_string(whole) and not _opens_string(head + rest + "\n"):
        return True
    # What can still become a program by writing on, and no longer can with the text.
    plain = ("", "x", "x:", "x):")
    return any(_goes_on(head + each + rest) for each in plain) and not _goes_on(head + text + rest)


@cache
def _undefined(source: str) -> tuple[tuple[str, int], ...]:
    """Return each undefined name that ruff finds, and where in the text."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,F822", "--output-format", "json", "-"]
    process = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    faults = [fault for fault in json.loads(process.stdout) if fault["code"] in ("F821", "F822")]
    starts = [0, *(match.end() for match in re.finditer("\n", source))]
    places = ((fault["location"]["row"], fault["location"]["column"]) for fault in faults)
    names = (fault["message"].split("`")[1] for fault in faults)
    return tuple((name, starts[row - 1] + column - 1) for name, (row, column) in zip(names, places, strict=True))


def _errors(position: Position, text: str) -> tuple[Span, ...]:
    language = languages.for_path(position.path, "")
    assert language is not None
    return syntax.parse(position.before + text + position.after, language).errors


def _top(text: str) -> int:
    """Return where the last statement of the module starts that is a function or a class, else where the text does."""
    starts = (text.rfind(f"\n{word} ") + 1 for word in ("def", "class", "async def"))
    return max(starts)


def _goes_on(source: str) -> bool:
    try:
        compile(source, "position", "exec", ast.PyCF_ONLY_AST | INCOMPLETE, dont_inherit=True)
    except SyntaxError as error:
        return "incomplete input" in str(error)
    except ValueError:
        return False
    return True


def _opens_string(source: str) -> bool:
    """Return whether the text ends within a string, read character by character."""
    return any(quote for quote in _states(source))


def _states(source: str) -> Iterator[str]:
    """Yield the quote of a string that is still open at the end of its line (one-line strings) or of the text."""
    quote, at = "", 0
    while at < len(source):
        char = source[at]
        if quote:
            if char == "\\":
                at += 2
                continue
            if char == "\n" and len(quote) == 1:
                yield quote
                quote = ""
            elif source.startswith(quote, at):
                at += len(quote)
                quote = ""
                continue
        elif char == "#":
            at = source.find("\n", at)
            if at < 0:
                return
        elif char in "\"'":
            quote = char * 3 if source.startswith(char * 3, at) else char
            at += len(quote)
            continue
        at += 1
    if quote:
        yield quote


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as columns of the same width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
