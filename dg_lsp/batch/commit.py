"""Commit written fills to git: one commit for each file, or for each hole.

No other change is committed: a file that differs from HEAD before the run is not touched.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from dg_lsp.batch import write
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.plan import PlanError, where
from dg_lsp.batch.write import WriteError
from dg_lsp.core.wording import counted

UNITS = ("file", "hole")


class CommitError(Exception):
    """A file was not committed. The message says why; `is_written` says whether the file contains the fills anyway."""

    def __init__(self, message: str, *, is_written: bool = False) -> None:
        super().__init__(message)
        self.is_written = is_written


def parse_unit(text: str) -> str:
    """Return the unit of a commit: `file`, `hole`, or "" for no commits; raise PlanError for another text."""
    if text not in ("", *UNITS):
        raise PlanError(f"--commit takes file or hole, not {text!r}")
    return text


def commit(result: FileResult, unit: str) -> Iterator[str]:
    """Write and commit a file's fills, and yield the subject of each commit.

    Raises CommitError before anything is written if git can't commit the file alone, and after the file is written if git or
    a hook refuses. Raises WriteError if the file can't be written.
    """
    source = result.plan.source
    root = _repository(source.path)
    if root is None:
        raise CommitError("the file is not in a git repository")
    name = str(source.path.relative_to(root))
    if _git(root, "status", "--porcelain", "--", name):
        raise CommitError("the file has uncommitted changes")
    holes = sorted(result.fills, key=lambda hole: hole.span)
    before = source.data
    for n in range(1, len(holes) + 1) if unit == "hole" else [len(holes)]:
        part = replace(result, fills={hole: result.fills[hole] for hole in holes[:n]})
        data = part.text.encode()
        write.replace(source.path, data, expected=before)
        before = data
        place = where(source.document, holes[n - 1]).partition(":")[0]
        subject = f"{name}: fill the hole at line {place}" if unit == "hole" else f"{name}: fill {counted(n, 'hole')}"
        try:
            _git(root, "commit", "-q", "--only", "-m", subject, "--", name)
        except CommitError as error:
            # The other fills are still written into the file.
            write.replace(source.path, result.text.encode(), expected=before)
            raise CommitError(str(error), is_written=True) from error
        yield subject


def apply_fills(result: FileResult, unit: str, on_message: Callable[[str], None]) -> tuple[FileResult, bool]:
    """Commit a file's fills; return the result, and whether all commits succeeded. Reports each commit and problem."""
    name = result.plan.source.name
    if not result.fills:
        return result, True
    try:
        for subject in commit(result, unit):
            on_message(f"committed {subject}")
    except WriteError as error:
        return result.without(result.fills, str(error)), False
    except CommitError as error:
        if not error.is_written:
            return result.without(result.fills, str(error)), False
        on_message(f"{name} is written, but not committed: {error}")
        return result, False
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
