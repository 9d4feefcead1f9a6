"""Run git in any folder, whatever repository the process that started us is working on."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from dg_lsp.wire import programs

_MAX_CHARS = 400
_MAX_DIGITS = 5  # of the number of settings in the environment
_SECONDS = 120  # for a command that reads: settings may name a pipe to which nothing is written


class GitError(Exception):
    """Git failed; the message is what it or a hook said, in one line. `status` is 0 if it can't be run, -1 if it was ended."""

    def __init__(self, command: str, words: str, status: int = 0) -> None:
        """Store the status."""
        super().__init__(f"git {command}: {words}" if status else f"git can't be run: {words}")
        self.status = status


def root_of(folder: Path) -> Path | None:
    """Return the root of the repository that owns a folder: that with the nearest `.git`, also a submodule or a worktree."""
    return next(filter(is_root, (folder, *folder.parents)), None)


def is_root(folder: Path) -> bool:
    """Return whether the folder is the root of a repository, a submodule or a worktree."""
    return os.path.lexists(folder / ".git")


def read(folder: Path, command: str, *arguments: str) -> bytes:
    """Return what a command of git prints that only reads.

    It runs no program, in particular no filter, so it compares a file as it is on disk. Nor does it connect to a server: only
    git itself, with the repository's settings, fetches what a partial clone lacks.
    """
    return _run(folder, {name: "" for name in _names(folder) if name.startswith("filter.")}, command, *arguments)


def advice(folder: Path, revision: str, *, is_known: bool) -> str:
    """Return the way out if the clone lacks some of the history, or of the files of a revision that it knows; else ""."""
    try:
        is_shallow = read(folder, "rev-parse", "--is-shallow-repository").strip() == b"true"
        is_partial = is_known and any(name.startswith("remote.") and name.endswith(".promisor") for name in _names(folder))
    except GitError:
        return ""
    if is_shallow:
        return "this is a shallow clone: `git fetch --unshallow` in it fetches the other commits"
    return f"this is a partial clone: `git diff --quiet {revision}` in it fetches what it lacks" if is_partial else ""


def _names(folder: Path) -> list[str]:
    """Return the names of all settings."""
    return _run(folder, {}, "config", "-z", "--name-only", "--list").decode(errors="surrogateescape").split("\0")


def run(folder: Path, command: str, *arguments: str) -> bytes:
    """Return what a command of git prints that is part of a commit, for which filters and hooks run as the user wants."""
    return _run(folder, None, command, *arguments)


def _run(folder: Path, settings: dict[str, str] | None, command: str, *arguments: str) -> bytes:
    """Return what a command prints; raise GitError if it fails. With settings, the command only reads, and ends in time."""
    variables, options, reads = programs.own_variables(), _safe_directories(), settings is not None
    if reads:
        # Git before 2.45 knows no GIT_NO_LAZY_FETCH, and refuses protocols only after it has fetched the bundle.
        settings = {**(settings or {}), "core.hooksPath": os.devnull, "fetch.bundleURI": ""}
        variables |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
    if is_root(folder):  # otherwise the repository around one whose `.git` is empty or damaged would answer
        variables["GIT_CEILING_DIRECTORIES"] = os.path.dirname(os.path.realpath(folder))  # noqa: PTH120
        variables |= {"GIT_WORK_TREE": os.path.realpath(folder)} if reads else {}  # whatever other folder its settings name
    for name, value in {**(settings or {}), "core.fsmonitor": "false"}.items():
        if "=" not in name:
            options += ["-c", f"{name}={value}"]
            continue
        no = int(variables.get("GIT_CONFIG_COUNT", 0))  # git before 2.31 reads none of these
        variables |= {"GIT_CONFIG_COUNT": str(no + 1), f"GIT_CONFIG_KEY_{no}": name, f"GIT_CONFIG_VALUE_{no}": value}
    try:
        done = subprocess.run(  # noqa: S603 -- git's own
            [programs.find("git"), *options, command, *arguments],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_SECONDS if reads else None,
            start_new_session=command != "commit",  # Ctrl-C ends only the hooks, not what tells us what they left
        )
    except subprocess.TimeoutExpired as error:
        raise GitError(command, f"it took longer than {_SECONDS} s", -1) from error
    except OSError as error:
        raise GitError(command, (error.strerror or str(error)).lower()) from error
    if done.returncode:
        words = " ".join((done.stderr + done.stdout).decode(errors="replace").split()) or f"it ended with {done.returncode}"
        if len(words) > _MAX_CHARS:  # git says what is wrong first, a hook last
            words = f"{words[: _MAX_CHARS // 2]} … {words[-_MAX_CHARS // 2 :]}"
        raise GitError(command, words, done.returncode)
    return done.stdout


def _safe_directories() -> list[str]:
    """Return git's options for the repositories of other users that the environment says to trust, as containers do."""
    count = os.environ.get("GIT_CONFIG_COUNT", "")
    numbers = range(int(count) if count.isdecimal() and len(count) < _MAX_DIGITS else 0)
    pairs = ((os.environ.get(f"GIT_CONFIG_KEY_{no}", ""), os.environ.get(f"GIT_CONFIG_VALUE_{no}", "")) for no in numbers)
    values = [value for key, value in pairs if key.lower() == "safe.directory"]
    # Of `git -c`, whose alias or hook runs us: '…=…', since git 2.31 '…'='…'.
    values += re.findall(r"'safe\.directory'?='?([^']*)'", os.environ.get("GIT_CONFIG_PARAMETERS", ""), re.IGNORECASE)
    return [part for value in values for part in ("-c", f"safe.directory={value}")]
