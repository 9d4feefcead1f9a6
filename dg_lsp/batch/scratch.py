"""Copy a project, so that a check does not run in the user's own files.

Files are copied, because a check could write to the original through hard links. Whole directories that git ignores are left
out (build output, environments), except `node_modules` and directories that the check's command names. The copies of a run
are in one private directory. If the run is killed, the next run removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dg_lsp.batch import git
from dg_lsp.wire import files

PREFIX = "dg-lsp-check-"
MAX_BYTES = 4 << 30  # a larger project could fill the disk unnoticed
LEFT_OUT = frozenset({".git", ".hg", ".svn", "__pycache__"})
ENVIRONMENTS = frozenset({".venv", "venv", ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache", "target"})


class ScratchError(Exception):
    """A copy can't be created; the message is a sentence for the user."""


@dataclass(slots=True)
class Copy:
    """One copy of a project: the original's folder, the copy's folder, and the state of its files."""

    original: Path
    root: Path
    _stamps: dict[Path, tuple[int, int]] = field(default_factory=dict)
    _clock: int = 0

    def path_of(self, path: Path) -> Path:
        """Return the path in the copy for a path in the original."""
        return self.root / path.relative_to(self.original)

    def record(self, path: Path) -> None:
        """Record the copied file's time and size for `restore`."""
        place = self.path_of(path)
        if not place.is_symlink():
            self._stamps[path] = _stamp(place)

    def put(self, path: Path, data: bytes) -> None:
        """Write this content to the copy of an original file."""
        place = self.path_of(path)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
        place.parent.mkdir(parents=True, exist_ok=True)
        files.replace(place, data, finish=lambda new: new.chmod(mode | stat.S_IWUSR))
        # Python finds compiled files by time in whole seconds and size, so each version of a file gets another time.
        self._clock = max(self._clock + 1, int(time.time()))
        os.utime(place, (self._clock, self._clock))
        self._stamps[path] = _stamp(place)

    def restore(self) -> None:
        """Undo a check's changes to the copied files. Files that it added stay, because caches make the next check faster."""
        for path, stamp in list(self._stamps.items()):
            place = self.path_of(path)
            with contextlib.suppress(OSError):
                if place.exists() and _stamp(place) == stamp:
                    continue
                self.put(path, path.read_bytes())


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """Yield a private directory that is removed afterwards, or by the next run if this process is killed."""
    for folder in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid != os.getuid():
                continue
            handle = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW)
            try:
                _lock(handle)
                _remove(folder)
            finally:
                os.close(handle)
    temporary = Path(tempfile.mkdtemp(prefix=".dg-lsp-new-"))
    handle = os.open(temporary / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(handle)
        # Renamed after it is locked, so that another run never treats it as left over.
        folder = temporary.with_name(PREFIX + temporary.name.removeprefix(".dg-lsp-new-"))
        temporary = temporary.rename(folder)
        yield folder
    finally:
        _remove(temporary)
        os.close(handle)


def copy(original: Path, into: Path, command: str = "") -> tuple[Copy, list[str]]:
    """Copy the project into a directory; return the copy, and a line for each file that could not be copied."""
    root = into / (original.name or "project")
    root.mkdir(parents=True)
    made, problems, n_bytes = Copy(original, root), [], 0
    for path in contents(original, command):
        place = root / path.relative_to(original)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            n_bytes += _copy_one(path, place, made)
            made.record(path)
        except (FileNotFoundError, shutil.SpecialFileError):
            continue  # deleted, but still in git's index; or a pipe, a socket or a device
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ScratchError(f"no space left for a copy of {original} in {into}; free some, or set TMPDIR") from error
            problems.append(f"{path}: {(error.strerror or str(error)).lower()}")
        if n_bytes > MAX_BYTES:
            raise ScratchError(
                f"{original} has more than {MAX_BYTES >> 30} GiB to copy for --check; "
                "add its data to .gitignore, or run without --check"
            )
    return made, problems


def contents(root: Path, command: str = "") -> Iterator[Path]:
    """Yield the files and links to copy."""
    tracked = _listed(root, "--cached", "--others", "--exclude-standard")
    if tracked is None:
        yield from _walked(root, command)
        return
    ignored = _listed(root, "--others", "--ignored", "--exclude-standard", "--directory") or []
    for path in dict.fromkeys([*tracked, *ignored]):
        if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114 -- those of Path raise in a closed folder
            if path not in ignored:
                yield from contents(path, command)  # a submodule, or a repository that git does not look into
            elif path.name == "node_modules" or path.name in command:
                yield from _walked(path, command)
        else:
            yield path


def _listed(root: Path, *options: str) -> list[Path] | None:
    """Return what git lists below the folder; None if git can't list it."""
    if not (root / ".git").exists():
        return None
    try:
        listed = git.read(root, "ls-files", "-z", *options)
    except git.GitError:
        return None
    return [root / os.fsdecode(name).rstrip("/") for name in listed.split(b"\0") if name]


def _walked(root: Path, command: str) -> Iterator[Path]:
    problems: list[OSError] = []
    for here, folders, names in os.walk(root, onerror=problems.append):
        links = [name for name in folders if Path(here, name).is_symlink()]
        left_out = {name for name in ENVIRONMENTS if name not in command} | LEFT_OUT
        folders[:] = [name for name in folders if name not in links and name not in left_out]
        yield from (Path(here, name) for name in [*links, *names])
    yield from (Path(problem.filename) for problem in problems)


def _copy_one(path: Path, place: Path, made: Copy) -> int:
    if path.is_symlink():
        target = Path(os.path.normpath(path.parent / path.readlink()))
        inside = target.is_relative_to(made.original)
        # A link into the project must point into the copy, or a check could write to the original through it.
        place.symlink_to(made.path_of(target) if inside else target)
        return 0
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        list(path.iterdir())  # a folder that can't be read raises the reason
    if not stat.S_ISREG(mode):
        raise shutil.SpecialFileError(path)
    shutil.copy2(path, place)
    return place.stat().st_size


def _stamp(place: Path) -> tuple[int, int]:
    info = place.lstat()
    return info.st_mtime_ns, info.st_size


def _lock(handle: int) -> None:
    """Lock the file until it is closed; raise OSError if another process has locked it."""
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove(folder: Path) -> None:
    for here, folders, _ in os.walk(folder):
        for name in folders:  # a check may have made a directory without permission to enter
            with contextlib.suppress(OSError):
                if not (path := Path(here, name)).is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
