"""Decide which files of a workspace may be read: not those that ignore files exclude, nor those that may hold secrets.

It fails closed: when an ignore file can't be parsed, nothing below its folder is read.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath

from dg_lsp.core import gitignore, secrets
from dg_lsp.wire import files

# A malicious ignore file could take very long to match. MATCH_BUDGET_S is the CPU time for one ignore file and one path.
# REQUEST_BUDGET_S is that for all ignore files in one request, such as all related files of a document. All files below a
# folder have WALK_START_S, and PATH_S more for each path, up to WALK_BUDGET_S. So a repository can't take long with few
# files, and one with 100,000 files is not cut short: three ignore files of 150 rules each take 0.4 milliseconds for a path.
MAX_IGNORE_BYTES = 256 << 10
MATCH_BUDGET_S = 1.0
REQUEST_BUDGET_S = 3.0
WALK_START_S = 10.0
PATH_S = 0.005
WALK_BUDGET_S = 60.0

# Our own file comes first, because its reason is the more definite one to report.
IGNORE_FILES = (".dgignore", ".gitignore")
_OWN_FILES = (".dgignore", ".dg-lsp.toml")

NOWHERE = "leads nowhere"
_ALL_TOO_SLOW = "is below ignore files that together take too long to read"
_COPIES = "holds copies for --check"
_SKIPPED_FOLDERS = {
    **dict.fromkeys((".git", ".hg", ".jj", ".svn"), "belongs to version control"),
    **dict.fromkeys(
        ("__pycache__", "node_modules", ".venv", ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache"),
        "is in a folder that tools fill",
    ),
}


def is_secret(path: str | PurePath) -> bool:
    """Return whether the path's name, or a folder in it, is one that commonly holds keys or passwords.

    Only names count, so pass the path relative to the workspace where there is one.
    """
    return secrets.in_name(PurePath(path).parts)


def is_secret_outside(name: str) -> bool:
    """Return whether a full path or a URI outside all workspaces has a name that commonly holds keys or passwords."""
    parts = [part for part in re.split(r"[/\\:]", name) if part]
    # Check only hidden folders: `~/.kube` holds keys, but a visible folder named `secrets` may be a project.
    hidden = [part for part in parts[:-1] if part.startswith(".")]
    return bool(parts) and (is_secret(PurePath(*hidden, parts[-1])) or secrets.in_place(parts))


def places(path: str | Path) -> tuple[Path, Path] | None:
    """Return the path of a file and that of its target, which differ for a symbolic link; None for a broken path."""
    # The last part is not resolved, so that a link is judged by its own name as well as by its target.
    place = Path(path).absolute()
    try:
        place = place.parent.resolve() / place.name if place.name not in ("", "..") else place.resolve()
        return place, place.resolve()
    # A link to itself is a RuntimeError before Python 3.13, and a name with a NUL a ValueError.
    except (OSError, RuntimeError, ValueError):
        return None


class Ignore:
    """Decides which files below a folder may be read.

    One object serves one walk or one request: when its CPU time is used up, it refuses every further path. `renewed` returns
    the object for the next request or walk, which reads changed ignore files again.

    In a git repository, the ignore files of the parent folders count too, up to the repository's root. Outside of one, the
    parent folders count up to the highest one with a `.dgignore` or `.dg-lsp.toml`.
    """

    def __init__(self, root: Path, top: Path, git_top: Path | None = None) -> None:
        """Create the rules for `root`; ignore files count from the folder `top` down, `.gitignore` from `git_top` down."""
        self.root = root
        self._top = top
        self._n_above_git = len((git_top or top).relative_to(top).parts)
        self._rules: dict[Path, _Rules] = {}
        self._left_s, self._to_earn_s = WALK_START_S, WALK_BUDGET_S - WALK_START_S
        # Why each folder in the path of a file may not be read, or "". A walk meets them again with each file.
        self._folders: dict[tuple[str, ...], str] = {}

    def renewed(self, *, is_walk: bool = False) -> Ignore:
        """Return the same rules with the whole CPU time of a new request, or with `is_walk` of a new walk."""
        ignore = copy.copy(self)
        ignore._left_s, ignore._to_earn_s, ignore._folders = REQUEST_BUDGET_S, 0.0, {}
        if is_walk:
            ignore._left_s, ignore._to_earn_s = WALK_START_S, WALK_BUDGET_S - WALK_START_S
        return ignore

    @classmethod
    def for_root(cls, root: str | Path, *, is_named: bool = False) -> Ignore:
        """Return the rules for a folder, which need not exist.

        With `is_named` the user has named this folder explicitly, so `.gitignore` files above it do not count.
        """
        folder = Path(root).resolve()
        above = (folder, *folder.parents)
        repository = next((place for place in above if (place / ".git").exists()), None)
        own = [place for place in above if any((place / name).exists() for name in _OWN_FILES)]
        top = repository or (own[-1] if own else folder)
        return cls(folder, top, folder if is_named or repository is None else repository)

    @classmethod
    def reason_alone(cls, path: str | Path) -> str:
        """Return why a file outside all workspace folders may not be read, like `reason`; "" when it may.

        Its own folder counts as its workspace, so the rules of a surrounding repository apply. A link's target may be
        outside that folder, and is judged in the same way.
        """
        names = places(path)
        if names is None:
            return NOWHERE
        reasons = (cls.for_root(place.parent).renewed().reason_of_name(place) for place in dict.fromkeys(names))
        return next(filter(None, reasons), "")

    def allows(self, path: str | Path) -> bool:
        """Return whether the file or folder may be read."""
        return not self.reason(path)

    def reason(self, path: str | Path) -> str:
        """Return why the file or folder may not be read; "" when it may.

        The reason is the end of a sentence that begins with "it".
        """
        names = places(path)
        if names is None:
            return NOWHERE
        return next(filter(None, map(self.reason_of_name, dict.fromkeys(names))), "")

    def problems(self) -> tuple[tuple[Path, str], ...]:
        """Return each ignore file read so far that can't be used, with the end of a sentence about it.

        The folder itself is among them if its ignore files together took too long.
        """
        closed = [(file, rules.problem) for file, rules in self._rules.items() if rules.problem]
        problems = [(file, f"{problem}, so nothing in its folder is read") for file, problem in closed]
        if self._left_s <= 0:
            problems.append((self.root, "has ignore files that together take too long to read, so the rest of it is left out"))
        return tuple(problems)

    def reason_of_name(self, path: Path) -> str:
        """Return what `reason` returns, only for this name of a file; `path` has no link before its last part."""
        try:
            path.relative_to(self.root)
        except ValueError:
            return f"is outside {self.root.name or self.root}"
        if is_secret(path.relative_to(self.root)):
            return "may hold secrets"
        return self._in_time(lambda end_s: self._excluded_by(path.relative_to(self._top).parts, end_s))

    def reason_of_link(self, name: PurePath) -> str:
        """Return why a `.dgignore` excludes a name below the root, links in it included; "" when none does.

        Git does not look behind a link, so its rules say nothing of what a link leads to. But a `.dgignore` names what the user
        wants to keep from models.
        """
        parts = (self.root / name).relative_to(self._top).parts
        own = IGNORE_FILES[:1]

        def excluded(end_s: float) -> str:
            ends = range(1, len(parts) + 1)
            reasons = (self._ignored_by(parts[:end], end_s, own, is_folder=end < len(parts)) for end in ends)
            return next(filter(None, reasons), "")

        return self._in_time(excluded)

    def _in_time(self, judge: Callable[[float], str]) -> str:
        """Return the reason that `judge` finds with the CPU time that is left, whose end it is called with."""
        if self._left_s <= 0:
            return _ALL_TOO_SLOW
        earned_s = min(PATH_S, self._to_earn_s)
        self._left_s, self._to_earn_s = self._left_s + earned_s, self._to_earn_s - earned_s
        start = time.thread_time()
        try:
            return judge(start + self._left_s)
        except _AllTooSlowError:
            return _ALL_TOO_SLOW
        finally:
            self._left_s -= time.thread_time() - start

    def _excluded_by(self, parts: tuple[str, ...], end_s: float) -> str:
        """Return why the path or a folder in it may not be read, or "". Raises _AllTooSlowError."""
        for end in range(1, len(parts) + 1):
            above = parts[:end]
            if (reason := self._folders.get(above)) is None:
                place = self._top.joinpath(*above)
                is_folder = end < len(parts) or place.is_dir()
                # The root itself is never skipped, whatever its name.
                skipped = _COPIES if files.is_of_copies(above[-1]) else _SKIPPED_FOLDERS.get(above[-1], "")
                if is_folder and skipped and not self.root.is_relative_to(place):
                    reason = skipped
                else:
                    reason = self._ignored_by(above, end_s, is_folder=is_folder)
                if is_folder:
                    self._folders[above] = reason
            if reason:
                return reason
        return ""

    def _ignored_by(
        self, parts: tuple[str, ...], end_s: float, names: tuple[str, ...] = IGNORE_FILES, *, is_folder: bool
    ) -> str:
        """Return why the ignore files exclude this path, or ""; the nearest file with a matching rule decides."""
        for name in names:
            verdict: bool | None = None
            is_git = name == ".gitignore"
            depths = range(self._n_above_git if is_git else 0, len(parts))
            sources = [(self._top.joinpath(*parts[:depth]) / name, depth) for depth in depths]
            if is_git and not self._n_above_git:
                sources.insert(0, (self._top / ".git" / "info" / "exclude", 0))
            for file, depth in sources:
                rules = self._read(file, end_s)
                try:
                    result = gitignore.verdict(rules.rules, parts[depth:], is_folder=is_folder, tick=_ticker(end_s))
                except _TooSlowError:
                    rules = self._rules[file] = _Rules(stamp=rules.stamp, problem="takes too long to read")
                if rules.problem:
                    return f"is below a {file.name} that {rules.problem}"
                verdict = verdict if result is None else result
            if verdict:
                return f"is ignored by {name}"
        return ""

    def _read(self, file: Path, end_s: float) -> _Rules:
        try:
            info = file.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return _NO_RULES
        except OSError:
            return _Rules(problem=_UNREADABLE)
        stamp = files.stamp(info)
        entry = self._rules.get(file)
        if entry is None or entry.stamp != stamp:
            try:
                data = files.read_regular(file, MAX_IGNORE_BYTES)
                # File names may contain bytes that are not UTF-8, and so may the patterns.
                entry = _Rules(gitignore.parse(data.decode("utf-8", "surrogateescape"), _ticker(end_s)), stamp)
            except _TooSlowError:
                entry = _Rules(stamp=stamp, problem="takes too long to read")
            except (files.NotRegularError, files.TooLargeError, gitignore.PatternError) as error:
                entry = _Rules(stamp=stamp, problem=str(error))
            except OSError:
                entry = _Rules(stamp=stamp, problem=_UNREADABLE)
            self._rules[file] = entry
        return entry


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of one ignore file, or the reason why it can't be used, as the end of a sentence about the file."""

    rules: tuple[gitignore.Rule, ...] = ()
    stamp: files.Stamp | None = None
    problem: str = ""


_NO_RULES = _Rules()
_UNREADABLE = "can't be read"


class _TooSlowError(Exception):
    """An ignore file has used up its CPU time."""


class _AllTooSlowError(Exception):
    """All ignore files together have used up the CPU time of a request or a walk."""


def _ticker(end_s: float) -> Callable[[], None]:
    """Return a function that raises _TooSlowError once one file has used its CPU time, and _AllTooSlowError after `end_s`."""
    end_of_file = time.thread_time() + MATCH_BUDGET_S

    def tick() -> None:
        now = time.thread_time()
        if now >= end_of_file:
            raise _TooSlowError
        if now >= end_s:
            raise _AllTooSlowError

    return tick
