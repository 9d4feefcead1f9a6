"""Run git in any folder, whatever repository the process that started us is working on.

A hook of git gets variables such as `GIT_DIR` and `GIT_INDEX_FILE`. With them, git would read and change the hook's
repository in every folder. A user may have set what a path means to git.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from dg_lsp.wire import programs

# Those that `git rev-parse --local-env-vars` names, and those that say how git reads paths.
LOCAL = frozenset(
    f"GIT_{name}"
    for name in (
        *("ALTERNATE_OBJECT_DIRECTORIES", "COMMON_DIR", "CONFIG", "CONFIG_COUNT", "CONFIG_PARAMETERS", "DIR", "GRAFT_FILE"),
        *("IMPLICIT_WORK_TREE", "INDEX_FILE", "INTERNAL_SUPER_PREFIX", "NO_REPLACE_OBJECTS", "OBJECT_DIRECTORY", "PREFIX"),
        "QUARANTINE_PATH",  # of a hook that receives commits, which may write nowhere else
        *("REPLACE_REF_BASE", "SHALLOW_FILE", "WORK_TREE"),
        *("GLOB_PATHSPECS", "ICASE_PATHSPECS", "LITERAL_PATHSPECS", "NOGLOB_PATHSPECS"),
    )
)
_MAX_CHARS = 400


class GitError(Exception):
    """Git failed; the message is what it or a hook said, in one line. `status` is 0 if it could not be run."""

    def __init__(self, command: str, words: str, status: int = 0) -> None:
        """Store the status."""
        super().__init__(f"git {command}: {words}" if status else f"git can't be run: {words}")
        self.status = status


def environment() -> dict[str, str]:
    """Return this process's environment without what ties git to one repository or changes what paths mean."""
    return {name: value for name, value in os.environ.items() if name not in LOCAL}


def run(folder: Path, command: str, *arguments: str) -> bytes:
    """Return what a command of git prints in this folder; raise GitError if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 -- git's own
            [programs.find("git"), "-c", "core.fsmonitor=false", command, *arguments],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise GitError(command, (error.strerror or str(error)).lower()) from error
    if done.returncode:
        words = " ".join((done.stderr + done.stdout).decode(errors="replace").split()) or f"it ended with {done.returncode}"
        if len(words) > _MAX_CHARS:  # git says what is wrong first, a hook last
            words = f"{words[: _MAX_CHARS // 2]} … {words[-_MAX_CHARS // 2 :]}"
        raise GitError(command, words, done.returncode)
    return done.stdout
