"""Run git in any folder, whatever repository the process that started us is working on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from dg_lsp.wire import programs

_MAX_CHARS = 400
_MAX_DIGITS = 5  # of the number of settings in the environment
# A partial clone fetches what it lacks. Not from a `file:` URL: the repository there would run programs that its settings name.
_PROTOCOLS = "git:http:https:ssh"
# The settings that name programs for a fetch, with what takes their place. The other programs of git run for other commands.
_FOR_FETCHING = {"core.sshcommand": "ssh", "core.askpass": "", "core.alternaterefscommand": "true"}
# How settings of `http` end that name files of cookies and keys to send, or that say which servers get the user's password.
_TRUSTING = ("cookiefile", "savecookies", "sslcert", "sslkey", "sslverify", "sslcainfo", "sslcapath")


class GitError(Exception):
    """Git failed; the message is what it or a hook said, in one line. `status` is 0 if it could not be run."""

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
    """Return what a command of git prints that only reads. It uses no program or file that the repository's settings name."""
    settings, variables = {"core.hooksPath": os.devnull}, {"GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none"}
    if is_root(folder):  # whatever other folder its settings name
        variables["GIT_WORK_TREE"] = os.path.realpath(folder)
    if command == "diff":  # the only one that reads contents, so it may run filters, and fetch what a partial clone lacks
        own, users = _settings(folder)
        for name in own:
            if name.startswith(("filter.", "credential.")):
                settings[name] = ""
            elif name in _FOR_FETCHING or (name.startswith("http.") and name.endswith(_TRUSTING)):
                settings[name] = users.get(name, "true" if name.endswith("sslverify") else _FOR_FETCHING.get(name, ""))
            elif name.startswith("remote.") and name.endswith(".uploadpack"):
                settings[name] = "git-upload-pack"
        settings["maintenance.auto"] = "false"
        # Of `core.gitProxy` git takes the first value, so the repository's would win over any of ours.
        variables |= {"GIT_PROXY_COMMAND": ""} if "core.gitproxy" in own else {}
        # A proxy may need a password, without which no child gets its variable.
        variables |= {**programs.keys(*programs.PROXIES), "GIT_ALLOW_PROTOCOL": _PROTOCOLS, "GIT_TERMINAL_PROMPT": "0"}
    return _run(folder, settings, variables, command, *arguments)


def advice(folder: Path, revision: str, *, is_known: bool) -> str:
    """Return the way out if a revision can't be compared because the clone has only a part of the history; else "".

    A partial clone knows all commits.
    """
    try:
        is_shallow = _run(folder, {}, {}, "rev-parse", "--is-shallow-repository").strip() == b"true"
        is_partial = any(name.startswith("remote.") and name.endswith(".promisor") for name in _settings(folder)[0])
    except GitError:
        return ""
    if is_shallow:
        return "this is a shallow clone: `git fetch --unshallow` in it fetches the other commits"
    is_cause = is_partial and is_known
    return f"this is a partial clone: `git diff --quiet {revision}` in it fetches what it lacks" if is_cause else ""


def _settings(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of the repository's own files, and those of the user's and the system's."""
    parts = _run(folder, {}, {}, "config", "-z", "--show-scope", "--list").decode(errors="surrogateescape").split("\0")
    own, users = dict[str, str](), dict[str, str]()
    for scope, entry in zip(parts[::2], parts[1::2], strict=False):
        name, _, value = entry.partition("\n")
        (own if scope in ("local", "worktree") else users)[name] = value
    return own, users


def run(folder: Path, command: str, *arguments: str) -> bytes:
    """Return what a command of git prints that is part of a commit, for which filters and hooks run as the user wants."""
    return _run(folder, {}, {}, command, *arguments)


def _run(folder: Path, settings: dict[str, str], variables: dict[str, str], command: str, *arguments: str) -> bytes:
    """Return what a command prints with these settings and variables; raise GitError if it fails."""
    variables, options = {**programs.own_variables(), **variables}, _safe_directories()
    if is_root(folder):  # otherwise the repository around one whose `.git` is empty or damaged would answer
        variables["GIT_CEILING_DIRECTORIES"] = os.path.dirname(os.path.realpath(folder))  # noqa: PTH120
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


def _safe_directories() -> list[str]:
    """Return git's options for the repositories of other users that the environment says to trust, as containers do."""
    count = os.environ.get("GIT_CONFIG_COUNT", "")
    numbers = range(int(count) if count.isdecimal() and len(count) < _MAX_DIGITS else 0)
    pairs = ((os.environ.get(f"GIT_CONFIG_KEY_{no}", ""), os.environ.get(f"GIT_CONFIG_VALUE_{no}", "")) for no in numbers)
    return [part for key, value in pairs if key.lower() == "safe.directory" for part in ("-c", f"safe.directory={value}")]
