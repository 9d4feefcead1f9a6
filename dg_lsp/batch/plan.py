"""Plan the requests of a file: its holes, which of them share a request, and the seed of each request.

Pure. The order depends only on the files, so two runs with the same seed send the same requests.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dg_lsp.core import context, holes, positions, syntax
from dg_lsp.core.values import Document, Hole, Span
from dg_lsp.core.wording import counted

if TYPE_CHECKING:
    from dg_lsp.batch.discover import Source

KINDS = ("bodies", "markers", "empty")
N_TREES = 32  # cached syntax trees: of the files in progress, and of their filled versions
DEFAULT_KINDS = ("bodies", "markers")

_PLACE = re.compile(
    r"(?P<file>.+?):(?P<line>\d{1,999}):(?P<column>\d{1,999})(?:-(?P<end_line>\d{1,999}):(?P<end_column>\d{1,999}))?", re.DOTALL
)
_COMMENT = re.compile(r"(?P<place>.+?:\d+:\d+(?:-\d+:\d+)?)(?:[:\s]\s*(?P<comment>.*))?")

PLACE_FORM = "a place is FILE:LINE:COL or FILE:LINE:COL-LINE:COL"


class PlanError(Exception):
    """A named option, place or file is invalid; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Location:
    """A cursor or a selection as a user writes it: a file, and lines and columns from 1. `end` is None for a cursor.

    `comment` says what to write.
    """

    file: str
    start: tuple[int, int]
    end: tuple[int, int] | None = None
    comment: str = ""

    @property
    def is_ambiguous(self) -> bool:
        """Whether the file's name ends with a number that may be a line or a column, as in `app.py:3`."""
        return re.search(r":\d+$", self.file) is not None

    def __str__(self) -> str:
        end = f"-{self.end[0]}:{self.end[1]}" if self.end else ""
        return f"{self.file}:{self.start[0]}:{self.start[1]}{end}"


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One file to fill: its content before, and its holes in groups that share a request."""

    source: Source
    groups: tuple[tuple[Hole, ...], ...]

    @property
    def syntax(self) -> syntax.Syntax | None:
        """The file's syntax tree, parsed again if no longer cached: all trees of a large run would need too much memory."""
        return _parsed(self.source.document)

    @property
    def holes(self) -> tuple[Hole, ...]:
        """All holes, in the order of the text."""
        return tuple(hole for group in self.groups for hole in group)


def parse_kinds(text: str) -> frozenset[str]:
    """Return the kinds of holes in a list such as `bodies,markers`; raise PlanError for an unknown one."""
    kinds = [kind.strip() for kind in text.split(",") if kind.strip()]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise PlanError(f"--holes takes {', '.join(KINDS[:-1])} and {KINDS[-1]}, separated by commas, not {text!r}")
    return frozenset(kinds)


def parse_place(text: str) -> Location:
    """Parse `FILE:LINE:COL` or `FILE:LINE:COL-LINE:COL`; raise PlanError for anything else."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise PlanError(f"{PLACE_FORM}, not {text!r}")
    start = int(match["line"]), int(match["column"])
    end = (int(match["end_line"]), int(match["end_column"])) if match["end_line"] else None
    if 0 in start or (end and 0 in end):
        raise PlanError(f"lines and columns are counted from 1: {text!r}")
    if end and end < start:
        raise PlanError(f"the selection ends before it starts: {text!r}")
    return Location(match["file"], start, end)


def parse_places(text: str, name: str) -> list[Location]:
    """Return the places that another tool lists, one on each line; raise PlanError naming the line of an invalid one.

    A line is a place, and after a colon or a space a comment of what to write. It may also be a match that ast-grep prints with
    `--json=stream`; its rule's message is the comment. Blank lines and lines that begin with `#` are ignored.
    """
    places = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            if line.startswith("{"):
                places.append(_match(line))
            elif match := _COMMENT.fullmatch(line):
                places.append(replace(parse_place(match["place"]), comment=(match["comment"] or "").strip()))
            else:
                raise PlanError(f"{PLACE_FORM}, not {line!r}")
        except PlanError as error:
            raise PlanError(f"{name}, line {number}: {error}") from None
    return places


def _match(line: str) -> Location:
    """Return the place of a match of ast-grep, whose lines and columns count from 0; raise PlanError if it is none."""
    try:
        match = json.loads(line)
        start, end = (match["range"][edge] for edge in ("start", "end"))
        first, last = ((int(edge["line"]) + 1, int(edge["column"]) + 1) for edge in (start, end))
        return Location(str(match["file"]), first, last, str(match.get("message") or "").strip())
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise PlanError("this object has no file and range as ast-grep prints them with --json=stream") from None


def for_kinds(source: Source, kinds: frozenset[str]) -> FilePlan:
    """Return the plan for all of the file's holes of these kinds."""
    return _plan(source, holes.in_document(source.document, _parsed(source.document), kinds))


def for_places(source: Source, places: Sequence[Location]) -> FilePlan:
    """Return the plan for these places only; raise PlanError if one is not in the file, or two overlap."""
    parsed = _parsed(source.document)
    file_holes = sorted({_hole_at(source.document, parsed, place) for place in places}, key=lambda hole: hole.span)
    for left, right in itertools.pairwise(file_holes):
        if left.span.end > right.span.start or left.span == right.span:
            raise PlanError(f"two of the places in {source.name} overlap, at {where(source.document, right)}")
    return _plan(source, file_holes)


def where(document: Document, hole: Hole) -> str:
    """Return the hole's line and column as a user counts them."""
    line, column = line_column(positions.lines(document.text), hole)
    return f"{line}:{column}"


def line_column(lines: positions.Lines, hole: Hole) -> tuple[int, int]:
    """Return the hole's line and column, from 1."""
    line, column = positions.to_position(lines, hole.span.start, "utf-32")
    return line + 1, column + 1


def seed_for(seed: int, document: Document, group: Sequence[Hole]) -> int:
    """Return the seed of a request: it differs between places, but not between runs or locations of the project."""
    name = document.uri.rpartition("/")[2]
    places = [[hole.span.start, hole.span.end] for hole in group]
    return int.from_bytes(hashlib.sha256(f"{seed} {name} {places}".encode()).digest()[:4], "big") >> 1


def _plan(source: Source, file_holes: Sequence[Hole]) -> FilePlan:
    return FilePlan(source, context.group(file_holes))


@functools.lru_cache(maxsize=N_TREES)
def _parsed(document: Document) -> syntax.Syntax | None:
    return syntax.of(document)


def _hole_at(document: Document, parsed: syntax.Syntax | None, place: Location) -> Hole:
    lines = positions.lines(document.text)
    start = _offset(lines, place, place.start)
    end = start if place.end is None else _offset(lines, place, place.end)
    return holes.at_place(document, Span(start, end), parsed, place.comment)


def _offset(lines: positions.Lines, place: Location, position: tuple[int, int]) -> int:
    line, column = position[0] - 1, position[1] - 1
    if line >= len(lines):
        raise PlanError(f"there is no {place}: the file has {counted(len(lines), 'line')}")
    length = len(lines.content(line))
    if column > length:
        raise PlanError(f"there is no {place}: line {line + 1} has {counted(length, 'character')}")
    return positions.to_offset(lines, line, column, "utf-32")
