"""Positions in lines that real commits added, and the repositories in which they stand.

A position is a commit, a path and offsets, so the repository holds no code of others. The code comes from a folder of mirrors:
the git folder of `owner/name` is `owner+name/repo` or `owner+name` in it.

    python tests/benchmarks/commits.py --mirror DIR

chooses the positions again. Qwen's adapter was not trained on these repositories, and no repository is in both sets.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from dg_lsp.core import languages, syntax
from dg_lsp.core.syntax import Syntax

FILE = Path(__file__).with_name("replay_positions.jsonl.gz")
REPOSITORIES = {
    "dev": {
        "pydantic/pydantic-ai": (".py",),
        "modelcontextprotocol/typescript-sdk": (".ts", ".tsx"),
        "charmbracelet/crush": (".go",),
        "uutils/coreutils": (".rs",),
        "langchain4j/langchain4j": (".java",),
        "tmux/tmux": (".c",),
    },
    "end": {
        "UKGovernmentBEIS/inspect_ai": (".py",),
        "colinhacks/zod": (".ts", ".tsx"),
        "jesseduffield/lazygit": (".go",),
        "jj-vcs/jj": (".rs",),
        "spring-projects/spring-ai": (".java",),
        "nginx/nginx": (".c",),
    },
    "fit": {
        "helix-editor/helix": (".rs",),
        "jellyfin/jellyfin": (".cs",),
        "jlowin/fastmcp": (".py",),
        "modelcontextprotocol/python-sdk": (".py",),
        "vercel/ai": (".ts", ".tsx"),
        "libgit2/libgit2": (".c",),
    },
}
SIZES = {"dev": 400, "end": 400, "fit": 360}
"""Positions in each set. What is fitted is fitted on "dev" and "fit", and measured on "end"."""
SINCE = "2026-01-01", "2025-06-01"
"""Commits since the first date come first; older ones only where these are too few."""

REST_OF_LINE, WHOLE_LINE, SEVERAL_LINES = KINDS = "rest-of-line", "whole-line", "several-lines"
# In this order, so that each repository has two fifths within a line and three tenths of each of the others.
QUOTA = (0, 1, 2, 0, 1, 0, 2, 0, 1, 2)
N_LINES = 2, 6
MAX_PER_COMMIT = 3
MAX_TESTS = 1 / 3
LINE_CHARS = {REST_OF_LINE: 8, WHOLE_LINE: 6, SEVERAL_LINES: 3}
CUT_AT = 0.03, 0.6
"""Where in its line the cursor of a rest of a line stands."""
LEFT_CHARS = 3
_WORD = re.compile(r"\w\w")
ADDED_LINES, MAX_FILES, MAX_CHARS = range(3, 1_501), 40, 200_000

NOT_WRITTEN = re.compile(
    r"(^|/)(vendor|node_modules|dist|build|third_party|testdata|generated|compat|__snapshots__|fixtures?|cassettes)/"
    r"|\.d\.ts$|\.min\.|\.pb\.go$|_pb2|\.gen\.|generated",
    re.IGNORECASE,
)
TEST = re.compile(
    r"(^|/)(tests?|__tests__|e2e|integration)/|(^|/)test_|_test\.|\.(test|spec)\.|(Tests?|IT)\.java$", re.IGNORECASE
)
NOT_NEW = re.compile(
    r"\b(release|bump|format|fmt|lint|rename|vendor|revert|merge|move|generate|version|reformat|reindent|cherry)\b",
    re.IGNORECASE,
)


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


# --- Choosing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirror", type=Path, required=True, metavar="DIR", help="the folder of the git folders")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    mirrors, chosen = Mirrors(arguments.mirror), list[Position]()
    for name, repositories in REPOSITORIES.items():
        number = 0
        for rank, (repository, suffixes) in enumerate(repositories.items()):
            n = SIZES[name] // len(repositories) + (rank < SIZES[name] % len(repositories))
            own = list(_choose(mirrors, repository, suffixes, n, random.Random(f"{arguments.seed}/{repository}")))
            own.sort(key=lambda each: (KINDS.index(each["kind"]), each["commit"], each["path"]))
            n_commits, n_tests = len({each["commit"] for each in own}), sum(each["is_test"] for each in own)
            dates = f"{min(each['date'] for each in own)} to {max(each['date'] for each in own)}"
            print(f"{name} {repository}: {len(own)} in {n_commits} commits, {n_tests} in tests, {dates}", flush=True)
            for each in own:
                chosen.append(Position(f"{name}-{number:03}", repository, **each))
                number += 1
    # No time in the header, so that the same positions give the same file.
    with FILE.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as out:
        for position in chosen:
            out.write((json.dumps(asdict(position)) + "\n").encode())
    return 0


def _choose(
    mirrors: Mirrors, repository: str, suffixes: Sequence[str], n: int, draw: random.Random
) -> Iterator[dict[str, Any]]:
    n_chosen, n_tests, used = 0, 0, set[str]()
    for commit, date in _commits(mirrors, repository, draw):
        added, removed = _changes(mirrors, repository, commit, suffixes)
        if sum(map(len, added.values())) not in ADDED_LINES or len(added) > MAX_FILES:
            continue
        n_here, paths = 0, [path for path in added if not NOT_WRITTEN.search(path) and path not in used]
        draw.shuffle(paths)
        for path in paths:
            is_test = bool(TEST.search(path))
            if n_here >= MAX_PER_COMMIT or n_chosen >= n or (is_test and n_tests >= n * MAX_TESTS):
                continue
            text = mirrors.file(repository, commit, path)
            if text is None or "\r" in text or len(text) > MAX_CHARS:
                continue
            kind = KINDS[QUOTA[n_chosen % len(QUOTA)]]
            place = _place(path, text, added[path], removed, kind, draw)
            if place is None:
                continue
            n_here, n_chosen, n_tests = n_here + 1, n_chosen + 1, n_tests + is_test
            used.add(path)
            facts = {"commit": commit, "date": date, "path": path, "kind": kind, "is_test": is_test}
            yield {**facts, **place, "sha256": fingerprint(text)}
        if n_chosen >= n:
            return


def _commits(mirrors: Mirrors, repository: str, draw: random.Random) -> Iterator[tuple[str, str]]:
    """Yield commits and their dates in random order, those since the first date before the others."""
    log = mirrors.git(repository, "log", f"--since={SINCE[1]}", "--no-merges", "--format=%H%x09%as%x09%s").decode(
        "utf-8", "replace"
    )
    rows = [line.split("\t", 2) for line in log.splitlines()]
    kept = [(commit, date) for commit, date, subject in rows if date >= SINCE[1] and not NOT_NEW.search(subject)]
    for is_old in (False, True):
        part = [row for row in kept if (row[1] < SINCE[0]) == is_old]
        draw.shuffle(part)
        yield from part


def _changes(mirrors: Mirrors, repository: str, commit: str, suffixes: Iterable[str]) -> tuple[dict[str, list[int]], set[str]]:
    """Return the numbers of the lines that the commit added to each path, from 0, and the lines that it removed, stripped."""
    patterns = [f"*{suffix}" for suffix in suffixes]
    options = ("--format=", "--unified=0", "-M", "--no-color", "--no-ext-diff")
    diff = mirrors.git(repository, "show", *options, commit, "--", *patterns).decode("utf-8", "replace")
    added, removed, path, number = defaultdict[str, list[int]](list), set[str](), "", 0
    for line in diff.split("\n"):
        if line.startswith("+++ "):
            path = line[6:] if line[4:6] == "b/" else ""
        elif line.startswith("@@"):
            match = re.match(r"@@ -\S+ \+(\d+)", line)
            number = int(match[1]) - 1 if match else 0
        elif line.startswith("+") and path:
            added[path].append(number)
            number += 1
        elif line.startswith("-") and not line.startswith("--- "):
            removed.add(line[1:].strip())
    return added, removed


def _place(
    path: str, text: str, added: Sequence[int], removed: set[str], kind: str, draw: random.Random
) -> dict[str, Any] | None:
    """Return the offsets of a hole of this kind in added lines of code, or None if there is none."""
    language = languages.for_path(path)
    if language is None:
        return None
    code = _Code(syntax.parse(text, language), frozenset(added), removed)
    blocks = list(code.blocks() if kind == SEVERAL_LINES else code.lines(LINE_CHARS[kind]))
    if not blocks:
        return None
    first, last = draw.choice(blocks)
    start, end = code.start(first), code.end(last)
    cursor = start
    if kind == REST_OF_LINE:
        low, high = (start + share * (end - start) for share in CUT_AT)
        cursors = [at for at in range(start + 1, end) if low <= at <= high and not code.is_barred(at)]
        cursors = [at for at in cursors if len("".join(text[at:end].split())) >= LEFT_CHARS]
        if not cursors:
            return None
        cursor = draw.choice(cursors)
    return {"n_lines": last - first + 1, "line": code.index.start(first), "cursor": cursor, "end": end}


class _Code:
    """The lines of a file that a commit added and that are code: no comments, no strings, and nothing that was moved."""

    def __init__(self, tree: Syntax, added: frozenset[int], removed: set[str]) -> None:
        self.index = tree.lines
        nodes = [(name, node) for name in ("comment", "docstring", "string") for node in tree.facts.all(name)]
        self._comments = [tree.span(node) for name, node in nodes if name == "comment"]
        self._barred = [*self._comments, *(tree.span(node) for name, node in nodes if name != "comment")]
        self._added, self._removed = added, removed

    def start(self, line: int) -> int:
        return self.index.start(line) + len(self.index.indent(line))

    def end(self, line: int) -> int:
        return self.index.start(line) + len(self.index.content(line).rstrip())

    def is_barred(self, at: int) -> bool:
        """Return whether the offset is within a comment or a string."""
        return any(span.start < at < span.end for span in self._barred)

    def lines(self, least: int) -> Iterator[tuple[int, int]]:
        """Yield the lines with so many characters that do not open a string of several lines."""
        for line in sorted(self._added):
            is_long = self.end(line) - self.start(line) >= least and _WORD.search(self.index.content(line))
            if is_long and self._is_code(line) and not self._is_open(line):
                yield line, line

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last of several lines of one block, at whose end or before a less indented line they end."""
        for first in sorted(self._added):
            if not self._is_code(first) or not _WORD.search(self.index.content(first)):
                continue
            width = len(self.index.indent(first))
            for last in range(first + 1, first + N_LINES[1]):
                if not self._is_code(last) or len(self.index.indent(last)) < width:
                    break
                following = next((line for line in range(last + 1, len(self.index)) if not self.index.is_blank(line)), None)
                ends = following is not None and len(self.index.indent(following)) <= width
                text = self.index.text[self.start(first) : self.end(last)]
                if last - first + 1 >= N_LINES[0] and ends and _is_balanced(text) and not self._is_open(last):
                    yield first, last

    def _is_code(self, line: int) -> bool:
        # The first line has no line above, at whose end its author began to write.
        if line < 1 or line not in self._added or line >= len(self.index):
            return False
        code, start = self.index.content(line).strip(), self.start(line)
        # A line of closing brackets alone is removed and added everywhere.
        if not code or (code in self._removed and _WORD.search(code)) or self.is_barred(start):
            return False
        return not any(span.start == start for span in self._comments)

    def _is_open(self, line: int) -> bool:
        """Return whether the line ends within a string or a comment of several lines, or in a comment."""
        end = self.end(line)
        return self.is_barred(end) or any(span.end == end for span in self._comments)


def _is_balanced(text: str) -> bool:
    depth = 0
    for char in re.sub(r"\"(\\.|[^\"\\\n])*\"|'(\\.|[^'\\\n])*'", "", text):
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            return False
    return not depth


if __name__ == "__main__":
    sys.exit(main())
