"""Documents of repositories on a server, which the editor shows without a file, and the folders that are copies of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from dg_lsp.wire import files

# Files of a repository on a server: `vscode-vfs://github/owner/name/a.py`, `octo://owner/name/pull/1/file/RIGHT/a.py`.
_SCHEMES = re.compile(r"(?:vscode-vfs|octo|github|gitlab|azurerepos|githubpr)://", re.IGNORECASE)
_MAX_CONFIG_BYTES = 1 << 20


def is_elsewhere(uri: str, folders: Iterable[Path]) -> bool:
    """Return whether a document is of a repository on a server, and no workspace folder is a copy of that repository.

    A copy has a git remote with the repository's owner and name, or both are the last two parts of its path.
    """
    if _SCHEMES.match(uri) is None:
        return False
    names = _names_on_server(uri)
    repository = tuple(name.casefold() for name in names[uri.lower().startswith("vscode-vfs:") :][:2])
    return len(repository) < 2 or not any(repository in _repositories(folder) for folder in folders)


def _names_on_server(uri: str) -> tuple[str, ...]:
    """Return the host of such a URI and the parts of its path; none for a malformed URI."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return ()
    return PurePosixPath(unquote(f"{parts.netloc}/{parts.path}", errors="surrogateescape").replace("\0", "")).parts


def in_copies(uri: str, folders: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the paths that a file of such a repository may have in the folders, by their names or their files."""
    names = _names_on_server(uri) if _SCHEMES.match(uri) else ()
    for folder in folders:
        for number in range(1, len(names)):
            place = folder.joinpath(*names[number:][names[number] == "pull" and 4 :])
            if folder.name == names[number - 1] or os.path.lexists(place):
                yield place


def _repositories(folder: Path) -> set[tuple[str, ...]]:
    """Return the owners and names of the repositories that a folder may be a copy of: by its path, and by its remotes."""
    found = {tuple(part.casefold() for part in folder.parts[-2:])}
    is_remote = False
    for line in _git_config(folder).splitlines():
        key, _, value = line.partition("=")
        if line.lstrip().startswith("["):
            is_remote = re.match(r"\s*\[remote\s", line, re.IGNORECASE) is not None
        elif is_remote and key.strip().lower() == "url":
            url = value.strip().strip('"').rstrip("/").casefold().removesuffix(".git")
            found.add(tuple(re.split(r"[/:]", url)[-2:]))
    return found


def _git_config(folder: Path) -> str:
    """Return the text of the git configuration of a folder, also of a worktree or submodule; "" if it can't be read."""

    def read(path: Path) -> str:
        return files.read_regular(path, _MAX_CONFIG_BYTES).decode("utf-8", "surrogateescape")

    git = folder / ".git"
    try:
        if not git.is_dir():
            git = folder / read(git).removeprefix("gitdir:").strip()
            if (git / "commondir").is_file():
                git /= read(git / "commondir").strip()
        return read(git / "config")
    except (OSError, ValueError):
        return ""
