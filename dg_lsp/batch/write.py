"""Replace a file's content atomically, and commit written fills to git: one commit for each file, or for each hole.

After a crash or on a full disk, a file has its old or its new content (`wire.files`). No other change is committed: a file that
differs from HEAD before the run is not touched.
"""

from __future__ import annotations

import dataclasses
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.plan import where
from dg_lsp.core.wording import counted
from dg_lsp.wire import files

_STARTED = time.time()  # older temporary files were left by a killed process


class WriteError(Exception):
    """The file was not changed; the message says why."""


def replace(path: Path, data: bytes, *, expected: bytes) -> None:
    """Replace the file's content, and preserve its mode and, if permitted, its owner.

    Raises WriteError if the file no longer contains `expected`, or can't be written.
    """
    try:
        if files.read_regular(path, len(expected)) != expected:
            raise WriteError("the file changed in the meantime")
        before = path.stat()
        # A rename needs no permission to write the file itself, but a read-only file must not be changed.
        if not before.st_mode & 0o222:
            raise WriteError("the file is read-only")
        if before.st_nlink > 1:
            raise WriteError(f"the file has {before.st_nlink} names (hard links), and only this one would change")
        files.replace(path, data, finish=files.like(path), is_durable=True)
        files.remove_leftovers(path, before=_STARTED)
    except files.TooLargeError as error:
        raise WriteError("the file changed in the meantime") from error
    except files.NotRegularError as error:
        raise WriteError(f"the file {error}") from error
    except OSError as error:
        raise WriteError(f"the file can't be written: {(error.strerror or str(error)).lower()}") from error


# --- Commits

UNITS = ("file", "hole")


class CommitError(Exception):
    """Git can't commit a file. The message says why."""


def apply_fills(result: FileResult, unit: str, on_message: Callable[[str], None]) -> tuple[FileResult, bool]:
    """Write a file's fills and, with a `unit`, commit them; return the result, and whether all commits succeeded.

    If the file can't be written, its holes fail with the reason. Reports each commit, and a file that was written but that git
    or a hook refused. Nothing is written if git can't commit the file alone.
    """
    if not result.fills:
        return result, True
    source, before = result.plan.source, result.plan.source.data
    holes = sorted(result.fills, key=lambda hole: hole.span)
    try:
        if not unit:
            replace(source.path, result.text.encode(), expected=before)
            return result, True
        root = _repository(source.path)
        if root is None:
            raise CommitError("the file is not in a git repository")
        name = str(source.path.relative_to(root))
        if _git(root, "status", "--porcelain", "--", name):
            raise CommitError("the file has uncommitted changes")
        for n in range(1, len(holes) + 1) if unit == "hole" else [len(holes)]:
            part = dataclasses.replace(result, fills={hole: result.fills[hole] for hole in holes[:n]})
            data = part.text.encode()
            replace(source.path, data, expected=before)
            before = data
            place = where(source.document, holes[n - 1]).partition(":")[0]
            subject = f"{name}: fill the hole at line {place}" if unit == "hole" else f"{name}: fill {counted(n, 'hole')}"
            try:
                _git(root, "commit", "-q", "--only", "-m", subject, "--", name)
            except CommitError as error:
                # The other fills are still written into the file.
                replace(source.path, result.text.encode(), expected=before)
                on_message(f"{source.name} is written, but not committed: {error}")
                return result, False
            on_message(f"committed {subject}")
    except (WriteError, CommitError) as error:
        return result.without(result.fills, str(error)), not unit
    return result, True


def detached_head_warning(result: FileResult) -> str:
    """Return a warning if HEAD is detached in the file's repository, else ""."""
    root = _repository(result.plan.source.path)
    if root is None:
        return ""
    try:
        is_detached = _git(root, "rev-parse", "--symbolic-full-name", "HEAD").strip() == "HEAD"
    except CommitError:
        # There is no commit yet; `commit` says so if it matters.
        return ""
    if not is_detached:
        return ""
    return f"HEAD is detached in {root}: run git branch to name the commits, or they are lost when you switch branches"


def _repository(path: Path) -> Path | None:
    """Return the root of a file's git repository; it may be above the workspace, whose root may be a `.dg-lsp.toml`."""
    return next((folder for folder in path.parents if (folder / ".git").exists()), None)


def _git(root: Path, *arguments: str) -> str:
    try:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)  # noqa: S603 -- git's own
    except OSError as error:
        raise CommitError(f"git can't be run: {error.strerror}") from error
    if done.returncode:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise CommitError(f"git {arguments[0]}: {lines[-1] if lines else f'exited with status {done.returncode}'}")
    return done.stdout
