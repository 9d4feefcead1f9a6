"""Read a workspace: which files are ignored or may hold secrets, and related files as context.

It fails closed: when an ignore file can't be parsed, nothing below its folder is read. This module does not know models.
`core.context` decides which related text is worth sending.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath

from dg_lsp.core import context, gitignore, languages, secrets
from dg_lsp.core.values import Document, Snippet
from dg_lsp.wire import files

# Limits that keep the collection of context within a few milliseconds: files to read, bytes of each file, paths to try for
# imports, and entries to list of a folder.
MAX_FILES = 24
MAX_FILE_BYTES = 64_000
MAX_GUESSES = 1_500
MAX_ENTRIES = 500

# A malicious ignore file could take very long to match. MATCH_BUDGET_S is the CPU time for one ignore file and one path,
# RELATED_BUDGET_S that for all related files of a document. Normal ignore files take a hundredth of it.
MAX_IGNORE_BYTES = 256 << 10
MATCH_BUDGET_S = 1.0
RELATED_BUDGET_S = 3.0

# Our own file comes first, because its reason is the more definite one to report.
IGNORE_FILES = (".dgignore", ".gitignore")
_OWN_FILES = (".dgignore", ".dg-lsp.toml")

_NOWHERE = "leads nowhere"
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


def _places(path: str | Path) -> tuple[Path, Path] | None:
    """Return the path of a file and that of its target, which differ for a symbolic link; None for a broken path."""
    # The last part is not resolved, so that a link is judged by its own name as well as by its target.
    place = Path(path).absolute()
    try:
        place = place.parent.resolve() / place.name if place.name not in ("", "..") else place.resolve()
        return place, place.resolve()
    # A link to itself is a RuntimeError before Python 3.13, and a name with a NUL a ValueError.
    except (OSError, RuntimeError, ValueError):
        return None


def name_of(path: PurePath) -> str:
    """Return the path as valid Unicode text; bytes that are not UTF-8 are replaced."""
    return path.as_posix().encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class Ignore:
    """Decides which files below a folder may be read; changed ignore files are read again.

    In a git repository, the ignore files of the parent folders count too, up to the repository's root. Outside of one, the
    parent folders count up to the highest one with a `.dgignore` or `.dg-lsp.toml`.
    """

    def __init__(self, root: Path, top: Path, git_top: Path | None = None) -> None:
        """Create the rules for `root`; ignore files count from the folder `top` down, `.gitignore` from `git_top` down."""
        self.root = root
        self._top = top
        self._n_above_git = len((git_top or top).relative_to(top).parts)
        self._rules: dict[Path, _Rules] = {}

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
        places = _places(path)
        if places is None:
            return _NOWHERE
        reasons = (cls.for_root(place.parent)._reason(place) for place in dict.fromkeys(places))
        return next(filter(None, reasons), "")

    def allows(self, path: str | Path) -> bool:
        """Return whether the file or folder may be read."""
        return not self.reason(path)

    def reason(self, path: str | Path) -> str:
        """Return why the file or folder may not be read; "" when it may.

        The reason is the end of a sentence that begins with "it".
        """
        places = _places(path)
        if places is None:
            return _NOWHERE
        return next(filter(None, map(self._reason, dict.fromkeys(places))), "")

    def problems(self) -> tuple[tuple[Path, str], ...]:
        """Return each ignore file read so far that can't be used, with the reason as the end of a sentence about it."""
        return tuple((file, rules.problem) for file, rules in self._rules.items() if rules.problem)

    def _reason(self, path: Path) -> str:
        try:
            path.relative_to(self.root)
        except ValueError:
            return f"is outside {self.root.name or self.root}"
        if is_secret(path.relative_to(self.root)):
            return "may hold secrets"
        parts = path.relative_to(self._top).parts
        for depth, part in enumerate(parts):
            place = self._top.joinpath(*parts[: depth + 1])
            is_folder = depth < len(parts) - 1 or place.is_dir()
            # The root itself is never skipped, whatever its name.
            if is_folder and part in _SKIPPED_FOLDERS and not self.root.is_relative_to(place):
                return _SKIPPED_FOLDERS[part]
            if reason := self._ignored_by(parts[: depth + 1], is_folder=is_folder):
                return reason
        return ""

    def _ignored_by(self, parts: tuple[str, ...], *, is_folder: bool) -> str:
        """Return why the ignore files exclude this path, or ""; the nearest file with a matching rule decides."""
        for name in IGNORE_FILES:
            verdict: bool | None = None
            is_git = name == ".gitignore"
            depths = range(self._n_above_git if is_git else 0, len(parts))
            sources = [(self._top.joinpath(*parts[:depth]) / name, depth) for depth in depths]
            if is_git and not self._n_above_git:
                sources.insert(0, (self._top / ".git" / "info" / "exclude", 0))
            for file, depth in sources:
                rules = self._read(file)
                try:
                    result = gitignore.verdict(rules.rules, parts[depth:], is_folder=is_folder, tick=_budget())
                except _TooSlowError:
                    rules = self._rules[file] = _Rules(stamp=rules.stamp, problem="takes too long to read")
                if rules.problem:
                    return f"is below a {file.name} that {rules.problem}"
                verdict = verdict if result is None else result
            if verdict:
                return f"is ignored by {name}"
        return ""

    def _read(self, file: Path) -> _Rules:
        try:
            info = file.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return _NO_RULES
        except OSError:
            return _Rules(problem=_UNREADABLE)
        stamp = (info.st_mtime_ns, info.st_size, info.st_ino)
        entry = self._rules.get(file)
        if entry is None or entry.stamp != stamp:
            entry = self._rules[file] = _parse(file, stamp)
        return entry


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of one ignore file, or the reason why it can't be used, as the end of a sentence about the file."""

    rules: tuple[gitignore.Rule, ...] = ()
    stamp: tuple[int, int, int] | None = None
    problem: str = ""


_NO_RULES = _Rules()
_UNREADABLE = "can't be read"


class _TooSlowError(Exception):
    """An ignore file has used up its CPU time."""


def _budget() -> Callable[[], None]:
    """Return a function that raises _TooSlowError once this thread has used the CPU time for one ignore file."""
    end = time.thread_time() + MATCH_BUDGET_S

    def tick() -> None:
        if time.thread_time() >= end:
            raise _TooSlowError

    return tick


def _parse(file: Path, stamp: tuple[int, int, int]) -> _Rules:
    try:
        data = files.read_regular(file, MAX_IGNORE_BYTES)
        # File names may contain bytes that are not UTF-8, and so may the patterns.
        return _Rules(gitignore.parse(data.decode("utf-8", "surrogateescape"), _budget()), stamp)
    except _TooSlowError:
        return _Rules(stamp=stamp, problem="takes too long to read")
    except (files.NotRegularError, files.TooLargeError, gitignore.PatternError) as error:
        return _Rules(stamp=stamp, problem=str(error))
    except OSError:
        return _Rules(stamp=stamp, problem=_UNREADABLE)


def related(
    root: str | Path,
    path: str | Path,
    document: Document,
    limit_chars: int,
    *,
    ignore: Ignore | None = None,
    texts: Mapping[Path, str] | None = None,
) -> tuple[Snippet, ...]:
    """Return text from files below `root` that are related to the file at `path`, best first, at most `limit_chars` in all.

    Related files are those that it imports, then files of the same language in its folder. Ignored files, files that may
    hold secrets, and files that are not UTF-8 text are left out; a workspace that can't be read yields nothing. Text that
    looks like a secret is masked. `texts` holds the new texts of files that are about to be changed.
    """
    if limit_chars <= 0:
        return ()
    try:
        ignore = ignore or Ignore.for_root(root)
        here = Path(path).resolve()
    except (OSError, RuntimeError, ValueError):
        return ()
    if not here.is_relative_to(ignore.root):
        return ()
    files: dict[Path, None] = {}
    end = time.thread_time() + RELATED_BUDGET_S
    for place in (*_imported(ignore.root, here, document), *_siblings(here, document)):
        if place not in files and place != here and ignore.allows(place):
            files[place] = None
        if len(files) >= MAX_FILES or time.thread_time() >= end:
            break
    changed = texts or {}
    read = ((place, changed[place] if place in changed else _text(place)) for place in files)
    # Mask before the text is cut, so that a key is recognized as a whole.
    snippets = [Snippet(name_of(place.relative_to(ignore.root)), secrets.mask(text)) for place, text in read if text]
    return context.rank_related(document, snippets, limit_chars)


def _imported(root: Path, here: Path, document: Document) -> Iterator[Path]:
    """Yield the files that the document's imports may refer to, relative to its folder and to each parent folder."""
    language = languages.get(document.language)
    if language is None:
        return
    bases = [base for base in here.parents if base.is_relative_to(root)]
    bases += [root / name for name in ("src", "lib", "include")]
    guesses = (
        guess
        for name in context.imports(document.text, document.language)
        for base in bases
        for guess in _guesses(base, name, language.extensions)
    )
    module_files = set()
    for guess in islice(guesses, MAX_GUESSES):
        if guess not in module_files and _is_file(guess):
            yield guess.resolve()
        module_files.add(guess)


def _guesses(base: Path, name: str, endings: tuple[str, ...]) -> Iterator[Path]:
    parts = context.name_parts(name)
    if set(endings) & set(context.FOLDER_ENDINGS):
        # The parts before the folder's name may be the repository's address, so try only the last parts.
        for size in range(min(len(parts), 3), 0, -1):
            folder = base.joinpath(*parts[-size:])
            yield from (folder / entry for entry in _entries(folder) if entry.endswith(endings))
        return
    # `./util.js` and `vector.h` are file names; `package.module`, `crate::module` and `Name\Space` need an extension.
    if re.search(r"/|\.\w+$", name):
        yield Path(os.path.normpath(base / name))
    # The last part may be a class or a function rather than a module.
    for name_parts in (parts, parts[:-1]):
        if name_parts:
            place = base.joinpath(*name_parts)
            for ending in endings:
                yield place.with_name(place.name + ending)
                yield from (place / f"{index}{ending}" for index in ("__init__", "index", "mod", place.name))


def _siblings(here: Path, document: Document) -> list[Path]:
    """Return the files of the same language in the same folder, those with the most similar names first."""
    names = _entries(here.parent)
    language = languages.get(document.language)
    same = [name for name in names if _kind(name) == (language.name if language else here.suffix)]
    return [here.parent / name for name in sorted(same, key=lambda name: (-_similar(name, here.name), name))]


def _entries(folder: Path) -> list[str]:
    """Return the names of the folder's files, or nothing when it can't be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, MAX_ENTRIES) if entry.is_file(follow_symlinks=False))
    # A name from an import may contain characters that are invalid in a path.
    except (OSError, ValueError):
        return []


def _kind(name: str) -> str:
    language = languages.for_path(name)
    return language.name if language else PurePath(name).suffix


def _similar(one: str, other: str) -> int:
    words, others = (set(re.findall(r"[a-z]+|\d+", name.casefold())) for name in (one, other))
    return len(words & others)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    # A name from an import may contain characters that are invalid in a path.
    except (OSError, ValueError):
        return False


def _text(path: Path) -> str:
    """Return the start of the file, or "" when it can't be read or is not UTF-8 text."""
    try:
        data = files.read_start(path, MAX_FILE_BYTES + 1)
        whole = len(data) <= MAX_FILE_BYTES
        text = data.decode("utf-8") if whole else data[: data.rfind(b"\n") + 1].decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return "" if "\0" in text else text
