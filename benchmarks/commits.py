"""Positions in lines that real commits added, and the repositories in which they stand.

A position is a commit, a path and offsets, so the repository holds no code of others. The code comes from a folder of mirrors:
the git folder of `owner/name` is `owner+name/repo` or `owner+name` in it.
This program chose them at commit 3e6b8367. Qwen's adapter was not trained on these repositories, and none is in two sets.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

FILE = Path(__file__).with_name("replay_positions.jsonl.gz")
REPOSITORIES = {
    "dev": (
        "pydantic/pydantic-ai", "modelcontextprotocol/typescript-sdk", "charmbracelet/crush", "uutils/coreutils",
        "langchain4j/langchain4j", "tmux/tmux",
    ),
    "end": (
        "UKGovernmentBEIS/inspect_ai", "colinhacks/zod", "jesseduffield/lazygit", "jj-vcs/jj", "spring-projects/spring-ai",
        "nginx/nginx",
    ),
    "fit": (
        "helix-editor/helix", "jellyfin/jellyfin", "jlowin/fastmcp", "modelcontextprotocol/python-sdk", "vercel/ai",
        "libgit2/libgit2",
    ),
}  # fmt: skip
SIZES = {"dev": 400, "end": 400, "fit": 360}
"""Positions in each set. What is fitted is fitted on "dev" and "fit", and measured on "end"."""
SINCE = "2025-06-01"
"""The date of the oldest commit. Commits of 2026 come first, and older ones only where these are too few."""

REST_OF_LINE, WHOLE_LINE, SEVERAL_LINES = KINDS = "rest-of-line", "whole-line", "several-lines"
LEFT_CHARS = 3
"""Characters that are at least left of the line behind the cursor."""


@dataclass(frozen=True, slots=True)
class Position:
    """A hole in a file of a commit. `line`, `cursor` and `end` are offsets: of its first line, of the cursor, of its end."""

    id: str
    repository: str
    commit: str
    date: str
    path: str
    kind: str
    is_test: bool
    n_lines: int
    line: int
    cursor: int
    end: int
    sha256: str
    """The start of the hash of the file's text, which says whether a mirror has the same file."""

    @property
    def language(self) -> str:
        """The language's id in the Language Server Protocol."""
        suffix = PurePosixPath(self.path).suffix
        return {".tsx": "typescriptreact", ".py": "python", ".ts": "typescript", ".rs": "rust"}.get(suffix, suffix[1:])


@dataclass(frozen=True, slots=True)
class Hole:
    """A position with its file's text."""

    position: Position
    text: str

    @property
    def truth(self) -> str:
        """What the commit has at the cursor."""
        return self.text[self.position.cursor : self.position.end]

    @property
    def before(self) -> str:
        return self.text[: self.position.cursor]

    @property
    def after(self) -> str:
        return self.text[self.position.end :]

    @property
    def opened(self) -> str:
        """The file as it was before its author began to write the line: without the hole's lines."""
        return self.text[: self.position.line - 1] + self.after

    @property
    def typed(self) -> str:
        """What the author wrote at the end of the line above, up to the cursor: a line break, indentation, the line's start."""
        return self.text[self.position.line - 1 : self.position.cursor]


class MirrorError(Exception):
    """A sentence about what the mirrors lack."""


class Mirrors:
    """The git folders of repositories."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hole(self, position: Position) -> Hole:
        """Return the position with its text. Raises MirrorError if the mirror has no such text."""
        text = self.file(position.repository, position.commit, position.path)
        if text is None or fingerprint(text) != position.sha256:
            raise MirrorError(f"{position.repository} has another {position.path} at {position.commit[:10]} than was measured")
        return Hole(position, text)

    def file(self, repository: str, commit: str, path: str) -> str | None:
        """Return a file's text at a commit; None if it has none or is no UTF-8."""
        try:
            return self.git(repository, "show", f"{commit}:{path}").decode("utf-8")
        except (MirrorError, UnicodeDecodeError):
            return None

    def checkout(self, repository: str, commit: str, folder: Path) -> None:
        """Write the files of a commit into an empty folder, but not large ones that the mirror lacks."""
        listing = self.git(repository, "ls-tree", "-r", "-z", commit).decode("utf-8", "surrogateescape")
        rows = [line.split("\t", 1) for line in listing.split("\0") if line]
        blobs = [(mode, name, path) for facts, path in rows for mode, kind, name in [facts.split()] if kind == "blob"]
        names = "".join(f"{name}\n" for _, name, _ in blobs).encode()
        output, at = self.git(repository, "cat-file", "--batch", input=names), 0
        for mode, _, path in blobs:
            header = output[at : output.index(b"\n", at)]
            at += len(header) + 1
            if header.endswith(b" missing"):
                continue
            n_bytes = int(header.rpartition(b" ")[2])
            content, at = output[at : at + n_bytes], at + n_bytes + 1
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if mode == "120000":
                file.symlink_to(content.decode("utf-8", "surrogateescape"))
            else:
                file.write_bytes(content)

    def git(self, repository: str, *arguments: str, input: bytes | None = None) -> bytes:  # noqa: A002  # as in subprocess
        """Return what a git command prints. Raises MirrorError if it fails."""
        name = self.folder / repository.replace("/", "+")
        folder = name / "repo" if (name / "repo").exists() else name
        if not folder.exists():
            raise MirrorError(f"{folder} does not exist; fetch a git folder of {repository} there")
        # A mirror may lack large files, which git would look for elsewhere.
        environment = {**os.environ, "GIT_NO_LAZY_FETCH": "1"}
        command = ["git", "-C", str(folder), *arguments]
        process = subprocess.run(command, input=input, env=environment, capture_output=True, check=False)
        if process.returncode:
            raise MirrorError(
                f"git {arguments[0]} failed in {folder}: {process.stderr.decode('utf-8', 'replace')[:200].strip()}"
            )
        return process.stdout


def read(name: str) -> list[Position]:
    """Return the positions of a set, ordered by repository and kind."""
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        positions = [Position(**json.loads(line)) for line in lines]
    return [each for each in positions if each.id.startswith(f"{name}-")]


def spread(positions: Sequence[Position], n: int) -> list[Position]:
    """Return `n` of the positions at equal distances in their order, so that each repository and kind keeps its share."""
    n = min(n, len(positions)) or len(positions)
    return [positions[(2 * number + 1) * len(positions) // (2 * n)] for number in range(n)]


def fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
