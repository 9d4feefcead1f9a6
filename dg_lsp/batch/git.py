"""Run git in any folder, whatever repository the process that started us is working on."""

from __future__ import annotations

import subprocess
from pathlib import Path

from dg_lsp.wire import programs

_MAX_CHARS = 400


class GitError(Exception):
    """Git failed; the message is what it or a hook said, in one line. `status` is 0 if it could not be run."""

    def __init__(self, command: str, words: str, status: int = 0) -> None:
        """Store the status."""
        super().__init__(f"git {command}: {words}" if status else f"git can't be run: {words}")
        self.status = status


def read(folder: Path, command: str, *arguments: str) -> bytes:
    """Return what a command of git prints that only reads. It runs nothing that the repository's own configuration names."""
    settings = {"core.hooksPath": "/dev/null"}
    variables = {"GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none"}  # no lock for others, no missing object fetched
    if command == "diff":  # the only one that reads contents, and so may run the filters of the repository
        names = _run(folder, settings, variables, "config", "-z", "--show-scope", "--name-only", "--list").split(b"\0")
        own = (name for scope, name in zip(names[::2], names[1::2], strict=False) if scope in (b"local", b"worktree"))
        settings |= {name.decode(errors="surrogateescape"): "" for name in own if name.startswith(b"filter.")}
    return _run(folder, settings, variables, command, *arguments)


def run(folder: Path, command: str, *arguments: str) -> bytes:
    """Return what a command of git prints that is part of a commit, for which filters and hooks run as the user wants."""
    return _run(folder, {}, {}, command, *arguments)


def _run(folder: Path, settings: dict[str, str], variables: dict[str, str], command: str, *arguments: str) -> bytes:
    """Return what a command prints with these settings and variables; raise GitError if it fails."""
    variables, options = {**programs.own_variables(), **variables}, list[str]()
    for name, value in {**settings, "core.fsmonitor": "false"}.items():
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
        )
    except OSError as error:
        raise GitError(command, (error.strerror or str(error)).lower()) from error
    if done.returncode:
        words = " ".join((done.stderr + done.stdout).decode(errors="replace").split()) or f"it ended with {done.returncode}"
        if len(words) > _MAX_CHARS:  # git says what is wrong first, a hook last
            words = f"{words[: _MAX_CHARS // 2]} … {words[-_MAX_CHARS // 2 :]}"
        raise GitError(command, words, done.returncode)
    return done.stdout
