"""Plan the requests of a run: the holes of each file, and which of them share a request.

A selection leaves out holes by language, file name, git revision, symbol and number. Except for a revision, for which this
module runs git, it is pure.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dg_lsp.batch import git
from dg_lsp.batch.discover import Source
from dg_lsp.batch.options import Options
from dg_lsp.core import context, gitignore, holes, languages, positions, syntax
from dg_lsp.core.values import Document, Hole, Span
from dg_lsp.core.wording import counted
from dg_lsp.wire import config

KINDS = ("bodies", "markers", "empty")
N_TREES = 32  # cached syntax trees: of the files in progress, and of their filled versions

_PLACE = re.compile(
    r"(?P<file>[^\0]+?):(?P<line>\d{1,999}):(?P<column>\d{1,999})(?:-(?P<end_line>\d{1,999}):(?P<end_column>\d{1,999}))?",
    re.DOTALL,
)
_COMMENT = re.compile(r"(?P<place>.+?:\d+:\d+(?:-\d+:\d+)?)(?:[:\s]\s*(?P<comment>.*))?")

PLACE_FORM = "a place is FILE:LINE:COL or FILE:LINE:COL-LINE:COL"


class PlanError(Exception):
    """A named option, place or file is invalid or can't be used; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Location:
    """A cursor or a selection as a user writes it: a file, and lines and columns from 1. `end` is None for a cursor.

    `comment` says what to write.
    """

    file: str
    start: tuple[int, int]
    end: tuple[int, int] | None = None
    comment: str = ""

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

    A line is a place, and after a colon or a space a comment of what to write. Blank lines, lines that begin with `#`, and
    byte order marks, also where lists were joined, are ignored.
    """
    places = []
    for number, line in enumerate(text.replace("\ufeff", "").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            match = _COMMENT.fullmatch(line)
            place, comment = (match["place"], match["comment"] or "") if match else (line, "")
            places.append(replace(parse_place(place), comment=comment.strip()))
        except PlanError as error:
            raise PlanError(f"{name}, line {number}: {error}") from None
    return places


def read_places(name: str) -> tuple[Location, ...]:
    """Return the places in a file, or in standard input for `-`; raise PlanError if it can't be read or a line is invalid."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PlanError(f"--places {name} is not UTF-8") from error
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise PlanError(f"--places {name} can't be read: {reason.lower()}") from error
    return tuple(parse_places(text, f"--places {name}"))


def for_kinds(source: Source, kinds: frozenset[str]) -> FilePlan:
    """Return the plan for all of the file's holes of these kinds."""
    return FilePlan(source, context.group(holes.in_document(source.document, _parsed(source.document), kinds)))


def for_places(source: Source, places: Sequence[Location]) -> FilePlan:
    """Return the plan for these places only; raise PlanError if one is not in the file, or two overlap."""
    parsed, lines = _parsed(source.document), positions.lines(source.document.text)
    distinct: set[Hole] = set()
    for place in places:
        start = _offset(lines, place, place.start)
        end = start if place.end is None else _offset(lines, place, place.end)
        distinct.add(holes.at_place(source.document, Span(start, end), parsed, place.comment))
    file_holes = sorted(distinct, key=lambda hole: hole.span)
    for left, right in itertools.pairwise(file_holes):
        if left.span.end > right.span.start or left.span == right.span:
            raise PlanError(f"two of the places in {source.name} overlap, at {where(source.document, right)}")
    return FilePlan(source, context.group(file_holes))


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


@functools.lru_cache(maxsize=N_TREES)
def _parsed(document: Document) -> syntax.Syntax | None:
    return syntax.of(document)


def _offset(lines: positions.Lines, place: Location, position: tuple[int, int]) -> int:
    line, column = position[0] - 1, position[1] - 1
    if line >= len(lines):
        raise PlanError(f"there is no {place}: the file has {counted(len(lines), 'line')}")
    length = len(lines.content(line))
    if column > length:
        raise PlanError(f"there is no {place}: line {line + 1} has {counted(length, 'character')}")
    return positions.to_offset(lines, line, column, "utf-32")


# --- Select some of the holes


def choose(plans: Sequence[FilePlan], options: Options) -> tuple[list[FilePlan], dict[str, int]]:
    """Return the plans with only the chosen holes, and how many holes each option left out.

    Raises PlanError for an unknown language or revision, or an invalid pattern.
    """
    names = [language.name for language in languages.TABLE]
    for name in options.lang:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(names)}"
            raise PlanError(f"--lang {name} is not a language that dg-lsp supports; {hint}")
    left_out = Counter[str]()
    try:
        gitignore.covers((*options.include, *options.exclude), "any")
    except gitignore.PatternError as error:
        raise PlanError(f"a pattern of --include or --exclude can't be read: {error}") from error
    # Without any hole, the revision may be wrong as well.
    places = [plan.source.path for plan in plans] or [Path(os.path.realpath(path)) for path in options.paths]
    changed = _changed(places, options.changed_since) if options.changed_since else None
    chosen: list[FilePlan] = []
    n_left, n_over = options.max_holes, 0
    for plan in plans:
        path, name = plan.source.path, plan.source.name.lstrip("/")
        option = ""
        if options.lang and plan.source.document.language not in options.lang:
            option = "--lang"
        elif options.include and not gitignore.covers(options.include, name):
            option = "--include"
        elif gitignore.covers(options.exclude, name):
            option = "--exclude"
        elif changed is not None and path not in changed:
            option = "--changed-since"
        if option:
            left_out[option] += len(plan.holes)
            continue
        if options.symbol:
            smaller = _only(plan, [hole for hole in plan.holes if set(symbols_of(plan, hole)) & set(options.symbol)])
            left_out["--symbol"] += len(plan.holes) - len(smaller.holes)
            plan = smaller
        if options.max_holes:
            smaller = _only(plan, plan.holes[:n_left])
            n_over += len(plan.holes) - len(smaller.holes)
            n_left -= len(smaller.holes)
            plan = smaller
        if plan.groups:
            chosen.append(plan)
    return chosen, {option: n for option, n in {**left_out, "--max-holes": n_over}.items() if n}


def symbols_of(plan: FilePlan, hole: Hole) -> tuple[str, ...]:
    """Return the names of the functions and classes around the hole, also as dotted names such as `C.f`."""
    if plan.syntax is None:
        return ()
    at = hole.span.start
    names = [owner.name for owner in plan.syntax.facts.owners if owner.name and owner.inside.start <= at <= owner.inside.end]
    return (*names, *(".".join(names[idx:]) for idx in range(len(names) - 1)))


def _only(plan: FilePlan, holes: Sequence[Hole]) -> FilePlan:
    groups = (tuple(hole for hole in group if hole in holes) for group in plan.groups)
    return replace(plan, groups=tuple(group for group in groups if group))


def _changed(places: Sequence[Path], revision: str) -> set[Path]:
    """Return the files around these places that differ from the revision, on disk or in the index, also untracked ones."""
    if re.match(r"[-^]|[^:{]*\.\.", revision):
        raise PlanError(f"--changed-since takes one git revision, not {revision!r}")
    changed, is_known = set[Path](), False
    try:
        for root in dict.fromkeys(map(config.workspace_of, places)):
            commit, is_known = revision, False
            for suffix in ("", "^{commit}"):  # apart, because `:/words^{commit}` looks for other words
                found = git.read(root, "rev-parse", "--quiet", "--verify", "--end-of-options", commit + suffix)
                commit = found.decode().strip()
            is_known = True
            # Git compares trees and hashes files, so a partial clone needs no contents.
            names = git.read(root, "diff-index", "--cached", "--name-only", "-z", "--relative", commit, "--")
            names += git.read(root, "ls-files", "-moz", "--exclude-standard")
            changed |= {root / os.fsdecode(name) for name in names.split(b"\0") if name}
    except git.GitError as error:
        why = f"git knows no such revision in {root}" if error.status == 1 else str(error)
        if advice := git.advice(root, revision, is_known=is_known):
            why += f"; {advice}"
        raise PlanError(f"--changed-since {revision}: {why}") from error
    return changed
