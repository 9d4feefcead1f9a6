"""Commit written fills to git: one commit for each file, or for each hole.

Commits no other change: a file that differs from HEAD before the run is left alone.
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
from dg_lsp.infill import config

UNITS = ("file", "hole")


class CommitError(Exception):
    """A file was not committed; the message says why, `is_written` whether the file holds the fills all the same."""

    def __init__(self, message: str, *, is_written: bool = False) -> None:
        super().__init__(message)
        self.is_written = is_written


def parse_unit(text: str) -> str:
    """Return what each commit holds; raise PlanError for anything but a file or a hole."""
    if text not in ("", *UNITS):
        raise PlanError(f"--commit takes file or hole, not {text!r}")
    return text


def commit(result: FileResult, unit: str) -> Iterator[str]:
    """Write and commit a file's fills, and yield the subject of each commit.

    Raises CommitError before anything is written where git can't commit the file alone, and with the file written where a
    hook or git refuses. WriteError is raised where the file can't be written.
    """
    source = result.plan.source
    root = config.workspace_of(source.path)
    name = str(source.path.relative_to(root))
    if not (root / ".git").exists():
        raise CommitError("the file is in no git repository")
    if _git(root, "status", "--porcelain", "--", name):
        raise CommitError("the file has changes of its own that are not committed")
    holes = sorted(result.fills, key=lambda hole: hole.span)
    before = source.data
    for n in range(1, len(holes) + 1) if unit == "hole" else [len(holes)]:
        part = replace(result, fills={hole: result.fills[hole] for hole in holes[:n]})
        data = part.text.encode()
        write.replace(source.path, data, expected=before)
        before = data
        place = where(source.document, holes[n - 1]).partition(":")[0]
        subject = (
            f"{name}: fill the hole at line {place}" if unit == "hole" else f"{name}: fill {n} hole{'' if n == 1 else 's'}"
        )
        try:
            _git(root, "commit", "-q", "--only", "-m", subject, "--", name)
        except CommitError as error:
            # The rest of the fills still belongs into the file.
            write.replace(source.path, result.text.encode(), expected=before)
            raise CommitError(str(error), is_written=True) from error
        yield subject


def applied(result: FileResult, unit: str, say: Callable[[str], None]) -> tuple[FileResult, bool]:
    """Commit a file's fills; return what became of it, and whether all is in git. Says each commit, and each problem."""
    name = result.plan.source.name
    if not result.fills:
        return result, True
    try:
        for subject in commit(result, unit):
            say(f"committed {subject}")
    except WriteError as error:
        return result.without(result.fills, str(error)), False
    except CommitError as error:
        if not error.is_written:
            return result.without(result.fills, str(error)), False
        say(f"{name} is written, but not committed: {error}")
        return result, False
    return result, True


def detached(result: FileResult) -> str:
    """Return a warning where the file's repository is on no branch, else ""."""
    root = config.workspace_of(result.plan.source.path)
    try:
        _git(root, "symbolic-ref", "-q", "HEAD")
    except CommitError:
        return f"HEAD is detached in {root}: name the commits with git branch, or they are lost when you switch"
    return ""


def _git(root: Path, *arguments: str) -> str:
    try:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)  # noqa: S603 -- git's own
    except OSError as error:
        raise CommitError(f"git can't be run: {error.strerror}") from error
    if done.returncode:
        said = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise CommitError(f"git {arguments[0]}: {said[-1] if said else f'ended with {done.returncode}'}")
    return done.stdout
