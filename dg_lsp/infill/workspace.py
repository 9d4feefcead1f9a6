"""Read what may be read of a workspace: which files are ignored or may hold secrets, and related files as context.

It fails closed: where an ignore file can't be understood, nothing below it is read. Knows nothing of models; which
related text is worth sending is `core.context`'s to say.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath

from dg_lsp.core import context, gitignore, languages, secrets
from dg_lsp.core.values import Document, Snippet
from dg_lsp.wire import files

# Context is worth a few milliseconds: so many files are read at most, of so many bytes each, after so many guesses
# where an import may lie and so many entries of the file's own folder.
MAX_FILES = 24
MAX_FILE_BYTES = 64_000
MAX_GUESSES = 1_500
MAX_ENTRIES = 500

# A repository's ignore files may be made to cost time: one file's rules get this much of a thread's own processor time for
# each path, and all related files of a document together the other. Honest ones take a hundredth of it.
MAX_IGNORE_BYTES = 256 << 10
MATCH_BUDGET_S = 1.0
RELATED_BUDGET_S = 3.0

# What git ignores may be wanted all the same; what our own file names never is, so that is the reason to tell.
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


def _places(path: str | Path) -> tuple[Path, Path] | None:
    """Return where a file is and where it really is, which differ for a link; None where it leads nowhere."""
    # The last part is not followed, so that a link is judged by its own name as well as by what it leads to.
    named = Path(path).absolute()
    try:
        named = named.parent.resolve() / named.name if named.name not in ("", "..") else named.resolve()
        return named, named.resolve()
    # A link to itself is a RuntimeError before Python 3.13, and a name with a NUL a ValueError.
    except (OSError, RuntimeError, ValueError):
        return None


def name_of(path: PurePath) -> str:
    """Return the path as text that any model can read: what is no UTF-8 in it is replaced."""
    return path.as_posix().encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class Ignore:
    """Which files below a folder may be read; ignore files that change are read again.

    Where the folder is part of a git repository, the ignore files of the folders above it count as well; where it is not,
    those of ours do, up to the highest.
    """

    def __init__(self, root: Path, top: Path, git_top: Path | None = None) -> None:
        """Make the rules for `root`; ignore files count from `top` on, git's from `git_top` on, both at or above it."""
        self.root = root
        self._top = top
        self._n_above_git = len((git_top or top).relative_to(top).parts)
        self._rules: dict[Path, _Rules] = {}

    @classmethod
    def for_root(cls, root: str | Path, *, is_named: bool = False) -> Ignore:
        """Return the rules for the folder, which need not exist.

        With `is_named` the user has named the folder for what is in it, so what git ignores is asked only within it.
        """
        folder = Path(root).resolve()
        above = (folder, *folder.parents)
        repository = next((place for place in above if (place / ".git").exists()), None)
        own = [place for place in above if any((place / name).exists() for name in _OWN_FILES)]
        top = repository or (own[-1] if own else folder)
        return cls(folder, top, folder if is_named or repository is None else repository)

    @classmethod
    def reason_alone(cls, path: str | Path) -> str:
        """Return why a file that belongs to no known folder may not be read, like `reason`; a link may lead anywhere.

        It is judged as in a workspace that is its own folder, so the rules of a repository around it count.
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
        """Return why the file or folder may not be read, as the end of a sentence that begins "it"; "" where it may."""
        places = _places(path)
        if places is None:
            return _NOWHERE
        return next(filter(None, map(self._reason, dict.fromkeys(places))), "")

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
            # A folder that the caller names as its root is wanted, whatever its name.
            if is_folder and part in _SKIPPED_FOLDERS and not self.root.is_relative_to(place):
                return _SKIPPED_FOLDERS[part]
            if reason := self._ruled(parts[: depth + 1], is_folder=is_folder):
                return reason
        return ""

    def _ruled(self, parts: tuple[str, ...], *, is_folder: bool) -> str:
        """Return why the ignore files above rule this one place out; the nearest one that names it decides."""
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
                    found = gitignore.verdict(rules.rules, parts[depth:], is_folder=is_folder, tick=_budget())
                except _TooSlowError:
                    rules = self._rules[file] = _Rules(stamp=rules.stamp, problem="takes too long to read")
                if rules.problem:
                    return f"is below a {file.name} that {rules.problem}"
                verdict = verdict if found is None else found
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
        known = self._rules.get(file)
        if known is None or known.stamp != stamp:
            known = self._rules[file] = _parse(file, stamp)
        return known


@dataclass(frozen=True, slots=True)
class _Rules:
    """What one ignore file says, or why that can't be told: the end of a sentence about the file."""

    rules: tuple[gitignore.Rule, ...] = ()
    stamp: tuple[int, int, int] | None = None
    problem: str = ""


_NO_RULES = _Rules()
_UNREADABLE = "can't be read"


class _TooSlowError(Exception):
    """An ignore file has used up its time."""


def _budget() -> Callable[[], None]:
    """Return a function that raises _TooSlowError once this thread has worked for longer than one ignore file may cost."""
    end = time.thread_time() + MATCH_BUDGET_S

    def tick() -> None:
        if time.thread_time() >= end:
            raise _TooSlowError

    return tick


def _parse(file: Path, stamp: tuple[int, int, int]) -> _Rules:
    try:
        data = files.read_regular(file, MAX_IGNORE_BYTES)
        # File names need not be UTF-8, and neither need the patterns that match them.
        return _Rules(gitignore.parse(data.decode("utf-8", "surrogateescape"), _budget()), stamp)
    except _TooSlowError:
        return _Rules(stamp=stamp, problem="takes too long to read")
    except (files.NotRegularError, files.TooLargeError, gitignore.PatternError) as error:
        return _Rules(stamp=stamp, problem=str(error))
    except OSError:
        return _Rules(stamp=stamp, problem=_UNREADABLE)


def related(
    root: str | Path, path: str | Path, document: Document, limit_chars: int, *, ignore: Ignore | None = None
) -> tuple[Snippet, ...]:
    """Return text of files below `root` that bear on the file at `path`, best first, together at most `limit_chars`.

    These are the files that it imports, then others of its language in the same folder. Files that are ignored, may
    hold secrets, or are no UTF-8 text are never opened or never used; a workspace that can't be read gives nothing. What
    looks like a secret in a file that may be read is masked.
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
    found: dict[Path, None] = {}
    end = time.thread_time() + RELATED_BUDGET_S
    for place in (*_imported(ignore.root, here, document), *_siblings(here, document)):
        if place not in found and place != here and ignore.allows(place):
            found[place] = None
        if len(found) >= MAX_FILES or time.thread_time() >= end:
            break
    texts = ((place, _text(place)) for place in found)
    # Before anything is cut, so that a key is seen whole.
    snippets = [Snippet(name_of(place.relative_to(ignore.root)), secrets.mask(text)) for place, text in texts if text]
    return context.rank_related(document, snippets, limit_chars)


def _imported(root: Path, here: Path, document: Document) -> Iterator[Path]:
    """Yield the files that the document's imports may mean, seen from its own folder and from each above it."""
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
    seen = set()
    for guess in islice(guesses, MAX_GUESSES):
        if guess not in seen and _is_file(guess):
            yield guess.resolve()
        seen.add(guess)


def _guesses(base: Path, name: str, endings: tuple[str, ...]) -> Iterator[Path]:
    parts = context.name_parts(name)
    if set(endings) & set(context.FOLDER_ENDINGS):
        # What comes before the folder may be the repository's address.
        for size in range(min(len(parts), 3), 0, -1):
            folder = base.joinpath(*parts[-size:])
            yield from (folder / entry for entry in _entries(folder) if entry.endswith(endings))
        return
    # `./util.js` and `vector.h` are names of files; `package.module`, `crate::module` and `Name\Space` are not yet.
    if re.search(r"/|\.\w+$", name):
        yield Path(os.path.normpath(base / name))
    # The last part may be a class or a function rather than a module.
    for wanted in (parts, parts[:-1]):
        if wanted:
            place = base.joinpath(*wanted)
            for ending in endings:
                yield place.with_name(place.name + ending)
                yield from (place / f"{index}{ending}" for index in ("__init__", "index", "mod", place.name))


def _siblings(here: Path, document: Document) -> list[Path]:
    """Return the files of the same language and folder, those with the most similar names first."""
    names = _entries(here.parent)
    language = languages.get(document.language)
    same = [name for name in names if _kind(name) == (language.name if language else here.suffix)]
    return [here.parent / name for name in sorted(same, key=lambda name: (-_similar(name, here.name), name))]


def _entries(folder: Path) -> list[str]:
    """Return the names of the folder's files, or nothing where it can't be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, MAX_ENTRIES) if entry.is_file(follow_symlinks=False))
    # A name from an import may hold what no path may.
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
    # A name from an import may hold what no path may.
    except (OSError, ValueError):
        return False


def _text(path: Path) -> str:
    """Return the start of the file, or "" where it can't be read or is no text."""
    try:
        data = files.read_start(path, MAX_FILE_BYTES + 1)
        whole = len(data) <= MAX_FILE_BYTES
        text = data.decode("utf-8") if whole else data[: data.rfind(b"\n") + 1].decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return "" if "\0" in text else text
