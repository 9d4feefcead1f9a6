"""Sessions of edits made from commits, and places in them where the next edit is known.

The hunks of a commit are applied one after another, in an order in which a person could make them. Between two of them, a
place is a cursor in a file, with what the window around it becomes. Left out are hunks that nothing before them tells:
comments, version numbers, large ones; white space is in the text from the start, as a formatter's.
"""

from __future__ import annotations

import difflib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from benchmarks.commits import Mirrors
from dg_lsp.core import edits
from dg_lsp.core.edits import Edit, Window

SUFFIXES = frozenset({".py", ".ts", ".tsx", ".js", ".mjs", ".jsx", ".go", ".rs", ".java"})
REPOSITORIES = (
    "nitrojs/nitro", "prettier/prettier", "casey/just", "starship/starship", "apache/commons-csv", "FasterXML/jackson-core",
    "simonw/llm", "reflex-dev/reflex", "charmbracelet/gum", "go-task/task", "h3js/h3", "toss/es-toolkit", "mybatis/mybatis-3",
    "chartjs/Chart.js",
)  # fmt: skip
"""No adapter was trained on these, and nothing was chosen on them."""
SINCE = "2025-01-01"

_NOT_WRITTEN = re.compile(
    r"(^|/)(vendor|node_modules|dist|build|third_party|testdata|generated|__snapshots__|locales?|fixtures?)/"
    r"|\.d\.ts$|\.min\.|\.pb\.go$|_pb2|\.gen\.|generated|version\.|_version|package-info",
    re.IGNORECASE,
)
_NOT_EDITED = re.compile(
    r"\b(release|bump|format|formatting|fmt|rustfmt|gofmt|lint|linting|prettier|vendor|revert|merge|autogenerate|version"
    r"|reformat|codegen|dependabot|typos?|copyright|license)\b|\bgenerated?\b|javadoc|whitespace",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"\s*(#|//|/?\*|--|\"\"\"|<!--|$)")
_WORD = re.compile(r"[A-Za-z_$][\w$]*|\d+")
_MOST_LINES, _MOST_CHANGED = 3500, 400


@dataclass(frozen=True, slots=True)
class Change:
    """A hunk of a commit: at `line` of the first text, the lines `old` become `new`."""

    path: str
    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def fair(self) -> bool:
        """Return whether a model could be asked for it: small, and neither prose nor a version number."""
        small = len(self.old) <= 6 and len(self.new) <= (6 if self.old else 4)
        return small and not all(_COMMENT.match(line) for line in self.old + self.new) and not self._is_version()

    def _is_version(self) -> bool:
        old, new = "".join(self.old), "".join(self.new)
        return bool(re.search(r"\d+\.\d+\.\d+|[vV]ersion", new)) and re.sub(r"[\d.]", "", old) == re.sub(r"[\d.]", "", new)


@dataclass
class Session:
    """The files of a commit as they were, its hunks in an order, and how many of them are made."""

    files: dict[str, list[str]]
    order: list[Change]
    done: int = 0
    edits: tuple[Edit, ...] = ()

    def lines(self, path: str) -> list[str]:
        """Return the file's lines now."""
        lines = list(self.files[path])
        for change in sorted((each for each in self.order[: self.done] if each.path == path), key=lambda each: -each.line):
            lines[change.line : change.line + len(change.old)] = change.new
        return lines

    def line_of(self, change: Change) -> int:
        """Return the line now at which a hunk stands that is still to come."""
        made = [each for each in self.order[: self.done] if each.path == change.path]
        above = [each for each in made if each.line < change.line or (each.line == change.line and not each.old)]
        return change.line + sum(len(each.new) - len(each.old) for each in above)

    def to_come(self, path: str) -> list[tuple[int, Change]]:
        """Return the file's hunks that are not made, each with its line now."""
        return [(self.line_of(each), each) for each in self.order[self.done :] if each.path == path]

    def make_next(self) -> None:
        """Apply the next hunk, and remember it as one of the last edits."""
        path = self.order[self.done].path
        before = "".join(self.lines(path))
        self.done += 1
        edit = edits.edit_between(path, before, "".join(self.lines(path)))
        if edit is not None and len(edit.old) + len(edit.new) <= 1500:
            self.edits = (*self.edits, edit)[-edits.MOST_EDITS :]


@dataclass(frozen=True, slots=True)
class Place:
    """A cursor between two edits. `wants` are the windows that count as right: with one hunk, or several beside each other.

    `kind`: "there" at the next hunk, "near" it, "last" at the last edit, "name" in a line with a changed word, or "any".
    """

    kind: str
    window: Window
    goal: str
    wants: tuple[str, ...]
    known: bool
    """Whether all words that come in stand in what the model reads."""
    echo: bool
    """Whether a hunk changes a word that the last edits changed."""

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing changes in the window."""
        return not self.wants


def sessions(mirrors: Mirrors, repository: str, since: str, draw: random.Random) -> Iterator[tuple[str, Session]]:
    """Yield the commits of a repository in a random order, each with its session."""
    log = mirrors.git(repository, "log", "--no-merges", f"--since={since}", "--no-renames", "--numstat", "--format=%x01%H %s")
    commits = log.decode("utf-8", "replace").split("\x01")[1:]
    draw.shuffle(commits)
    for commit in commits:
        head, *rows = commit.split("\n")
        sha, _, subject = head.partition(" ")
        counts = [row.split("\t") for row in rows if row.count("\t") == 2 and row[0].isdigit()]
        paths = [path for _, _, path in counts if PurePosixPath(path).suffix in SUFFIXES and not _NOT_WRITTEN.search(path)]
        n_changed = sum(int(added) + int(removed) for added, removed, _ in counts)
        if _NOT_EDITED.search(subject) or not 1 <= len(paths) <= 6 or not 3 <= n_changed <= _MOST_CHANGED:
            continue
        session = _session(mirrors, repository, sha, paths, draw)
        if 2 <= len(session.order) <= 24:
            yield sha, session


def _session(mirrors: Mirrors, repository: str, sha: str, paths: list[str], draw: random.Random) -> Session:
    files: dict[str, list[str]] = {}
    order: list[Change] = []
    for path in draw.sample(paths, len(paths)) if draw.random() < 0.4 else paths:
        before, after = (mirrors.file(repository, commit, path) for commit in (f"{sha}^", sha))
        if not before or not after or re.search(r"[\r\f]", before):
            continue
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
        if len(old) <= _MOST_LINES and max(map(len, old)) <= 400:
            files[path], changes = _formatted(old, _changes(path, old, new))
            order += [part for change in changes for part in _typed(change, draw)]
    return Session(files, _as_made(order, draw))


def _changes(path: str, old: list[str], new: list[str]) -> list[Change]:
    """Return the hunks between two texts. The equal lines at both ends are left out first, because difflib is slow."""
    most = min(len(old), len(new))
    head = next((i for i in range(most) if old[i] != new[i]), most)
    tail = next((i for i in range(most - head) if old[-1 - i] != new[-1 - i]), most - head)
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    codes = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [Change(path, head + i, tuple(a[i:j]), tuple(b[k:m])) for tag, i, j, k, m in codes if tag != "equal"]


def _formatted(lines: list[str], changes: list[Change]) -> tuple[list[str], list[Change]]:
    """Return the lines with the hunks that only change white space, and the other hunks at their lines there."""
    lines, others, moved = list(lines), [], 0
    for change in changes:
        here = replace(change, line=change.line + moved)
        if "".join("".join(change.old).split()) == "".join("".join(change.new).split()):
            lines[here.line : here.line + len(change.old)] = change.new
            moved += len(change.new) - len(change.old)
        else:
            others.append(here)
    return lines, others


def _typed(change: Change, draw: random.Random) -> list[Change]:
    """Return a hunk as a person may make it: sometimes line by line, where each line is like the one that it replaces."""
    pairs = list(zip(change.old, change.new, strict=False))
    alike = all(difflib.SequenceMatcher(None, old, new).ratio() > 0.5 for old, new in pairs)
    if not 2 <= len(change.old) == len(change.new) or not alike or draw.random() < 0.5:
        return [change]
    parts = enumerate(pairs)
    return [replace(change, line=change.line + i, old=(old,), new=(new,)) for i, (old, new) in parts if old != new]


def _as_made(order: list[Change], draw: random.Random) -> list[Change]:
    """Return hunks in file order, sometimes with any one or a definition first, sometimes in any order."""
    kind = draw.random()
    first = range(len(order))
    if 0.2 <= kind < 0.4:
        definition = re.compile(r"\b(def|class|func|fn|function|struct|interface|type|enum|const|public|private|protected)\b")
        first = [i for i in first if any(definition.search(line) for line in order[i].new)]  # type: ignore[assignment]
    if kind < 0.4 and first:
        order.insert(0, order.pop(draw.choice(first)))
    elif 0.4 <= kind < 0.5:
        draw.shuffle(order)
    return order


def places(session: Session, target: Change, draw: random.Random) -> tuple[str, list[Place]]:
    """Return the part of the target's file that is shown, and places in it: at most four of them quiet."""
    lines = session.lines(target.path)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    original = "".join(session.files[target.path])
    at = min(max(0, session.line_of(target) - (not target.old)), len(lines) - 1)
    shown = edits.SHORT.around(original, edits._line_at(original, starts[at]))
    changed = {word for edit in session.edits for word in words_changed(edit.old, edit.new)}
    found: list[Place] = []
    seen: set[int] = set()
    for kind, line in _candidates(session, target, lines, at, changed, draw):
        end = len(lines[line].rstrip("\n"))
        column = draw.choice((end, len(lines[line]) - len(lines[line].lstrip()) if lines[line].strip() else 0))
        window = edits.window_around("".join(lines), starts[line] + column)
        if line in seen or window is None or edits.SHORT.around(original, edits._line_at(original, starts[line])) != shown:
            continue
        seen.add(line)
        place = _place(session, target.path, kind, window, lines, shown, changed)
        n_quiet = sum(each.is_quiet for each in found)
        # Another place at the same hunk would count it twice.
        if place is not None and (n_quiet < 4 if place.is_quiet else kind in ("there", "near", "last")):
            found.append(place)
    return shown, found


def words_changed(old: str, new: str) -> set[str]:
    """Return the words that one text has more often than the other."""
    a, b = Counter(_WORD.findall(old)), Counter(_WORD.findall(new))
    return {word for word in (a - b) + (b - a) if len(word) > 1}


def _candidates(
    session: Session, target: Change, lines: list[str], at: int, changed: set[str], draw: random.Random
) -> Iterator[tuple[str, int]]:
    near = [at + distance for distance in (-9, -7, -5, -4, -3, -2, -1, 1, 2, 3, 5, 8) if 0 <= at + distance < len(lines)]
    yield "there", at
    yield from [("near", draw.choice(near))] if near else []
    last = session.edits[-1]
    if last.path == target.path:
        line = last.first + bool(last.above) + max(0, len(last.new.splitlines()) - 1)
        yield "last", min(len(lines) - 1, line)
    around = range(max(0, at - 30), min(len(lines), at + 30))
    named = [line for line in around if changed & set(_WORD.findall(lines[line]))]
    yield from (("name", line) for line in draw.sample(named, min(3, len(named))))
    yield from (("any", draw.choice(around)) for _ in range(8))


def _place(
    session: Session, path: str, kind: str, window: Window, lines: list[str], shown: str, changed: set[str]
) -> Place | None:
    """Return the place, or None where the window's edge cuts a hunk, or a hunk in it is not fair."""
    text = "".join(lines)
    first = text.count("\n", 0, window.start)
    end = first + len(window.text.splitlines())
    inside: list[tuple[int, Change]] = []
    for line, change in session.to_come(path):
        after = line + len(change.old)
        if line > end or after < first or (change.old and (line == end or after == first)):
            continue
        cut = (line < first or after > end) if change.old else (line == first or (line == end and end < len(lines)))
        if cut or not change.fair:
            return None
        inside.append((line - first, change))
    runs = [inside[i : j + 1] for i in range(len(inside)) for j in range(i, len(inside))]
    goal = _applied(window.text, inside)
    if not goal.strip():
        return None
    read = shown + text[max(0, window.start - 2500) : window.start + 2500] + "".join(e.old + e.new for e in session.edits)
    known = set(_WORD.findall(read))
    new = {word for _, change in inside for word in _WORD.findall("".join(change.new))}
    echo = any(words_changed("".join(change.old), "".join(change.new)) & changed for _, change in inside)
    return Place(kind, window, goal, tuple(_applied(window.text, run) for run in runs), new <= known, echo)


def _applied(text: str, changes: list[tuple[int, Change]]) -> str:
    lines = text.splitlines(keepends=True)
    for line, change in sorted(changes, key=lambda each: -each[0]):
        lines[line : line + len(change.old)] = change.new
    return "".join(lines)


@dataclass(frozen=True, slots=True)
class Row:
    """Places between two edits of one commit, with the part of the file that is shown at each of them, as it was before."""

    repository: str
    commit: str
    path: str
    shown: str
    edits: tuple[Edit, ...]
    places: list[Place]


def rows(folder: Path, n_each: int, seed: int, note: Callable[[str], None]) -> Iterator[Row]:
    """Yield at most `n_each` rows of each repository, one of a commit."""
    mirrors = Mirrors(folder)
    for repository in REPOSITORIES:
        draw = random.Random(f"{seed}/{repository}")
        n_made = n_hunks = n_fair = 0
        for commit, session in sessions(mirrors, repository, SINCE, draw):
            n_hunks, n_fair = n_hunks + len(session.order), n_fair + sum(each.fair for each in session.order)
            for _ in range(draw.randrange(1, len(session.order))):
                session.make_next()
            target = session.order[session.done]
            if not target.fair or not session.edits or not session.lines(target.path):
                continue
            shown, found = places(session, target, draw)
            if any(not place.is_quiet for place in found):
                yield Row(repository, commit, target.path, shown, session.edits, found)
                n_made += 1
            if n_made == n_each:
                break
        note(f"{repository}: {n_made} places, {n_fair} of {n_hunks} hunks fair")
