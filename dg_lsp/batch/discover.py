"""Find and read the files of a run.

A file that can't be used becomes a `Skipped` with its reason, never an exception, so that the other files are still used.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.batch import git
from dg_lsp.core import generated, languages, secrets
from dg_lsp.core.values import Document
from dg_lsp.infill import ignoring, workspace
from dg_lsp.wire import config, programs
from dg_lsp.wire.files import NotRegularError, TooLargeError, read_regular, read_start

MAX_BYTES = 1 << 20  # larger files are generated or data, and take longer to parse than to fill
N_HEAD_BYTES = 256  # enough for a first line with an interpreter

# What tools or others write is not filled by default. It is known by its folder, by its name, or by what it says
# itself (`core.generated`). Letter case does not count. A folder `build` or `target` that git does not ignore may be source.
_FOREIGN_FOLDER = re.compile(
    r"\.eggs|__generated__|bower_components|dist|godeps|node_modules|pods|site-packages|(?:3rd|third)[-_]?party|vendor",
    re.IGNORECASE,
)
_GENERATED_NAME = re.compile(
    r"[.-]min\.(?:[cm]?js|css|html)$|\.(?:bundle|chunk|pnp)\.[cm]?js$|\.(?:designer|feature|g|g\.i)\.(?:cs|fs|vb)$"
    r"|\.(?:freezed|g|gr|mocks)\.dart$|[._]generated\.|\.gen\.\w+$"
    r"|\.pb(?:\.\w+)?\.\w+$|_pb2(?:_grpc)?\.pyi?$|_pb(?:\.d)?\.(?:[cm]?[jt]s|rb)$"
    r"|\.(?:tab|yy|zep)\.(?:[ch]|cc|cpp|hh|php)$|^moc_.*\.cpp$|_tlb\.pas$",
    re.IGNORECASE,
)
_MARKER = re.compile(r"^(?:([<>])\1{6}(?: .*)?|={7})\r?$", re.MULTILINE)

# The only rule that naming a path overrides: git's ignore files are about commits; ours and the secret rules are about dg-lsp.
_GIT_IGNORED = "is ignored by .gitignore"
OTHER_REPOSITORY = "is another repository; name its path to fill it"
WITH_GENERATED = "; --generated fills such files, too"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that the run does not use, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Source:
    """One file as it was read: its resolved path, its name in reports, its bytes and its text."""

    path: Path
    name: str
    data: bytes
    document: Document


def files(paths: Sequence[Path], *, with_foreign: bool = False) -> Iterator[Path | Skipped]:
    """Yield each file to fill once: for each named path in order, the file itself or the folder's files, sorted.

    Folders of foreign files below a named folder are skipped, unless `with_foreign`.

    A named path is used even if `.gitignore` excludes it, but not if `.dgignore` or the secret rules do. Links inside a folder
    are not followed: their targets are either found directly or are outside of the named paths. Nor are other repositories
    inside the folder's repository: submodules, clones and worktrees are filled if a path names them.
    """
    seen: set[Path] = set()
    named = {Path(os.path.realpath(path)) for path in paths}
    for path in paths:
        for file in _under(path, named, with_foreign=with_foreign) if os.path.isdir(path) else [_named(path)]:  # noqa: PTH112 -- that of Path may raise
            if isinstance(file, Skipped):
                yield file
            elif file not in seen:
                seen.add(file)
                yield file


def read(path: Path) -> Source | Skipped:
    """Return the file as a document, with its byte order mark and line ends unchanged, or why it can't be filled."""
    name = show(path)
    try:
        data = read_regular(path, MAX_BYTES)
    except (NotRegularError, TooLargeError) as error:
        return Skipped(name, str(error))
    except OSError as error:
        return Skipped(name, f"can't be read: {_sentence(error)}")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return Skipped(name, "is UTF-16, and only UTF-8 can be filled")
    if b"\0" in data:
        return Skipped(name, "is binary")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return Skipped(name, f"is not UTF-8 (byte {error.start})")
    if line := _conflict_line(text):
        return Skipped(name, f"contains the markers of a merge conflict (line {line}); resolve it first")
    language = languages.for_path(path.name, text)
    document = Document(path.as_uri(), language.name if language else "", text)
    return Source(path, name, data, workspace.with_indent(document, path))


def foreign(source: Source) -> str:
    """Return why a file is not its project's to change: it is generated, or in a folder of foreign files; else ""."""
    folders = source.path.relative_to(config.workspace_of(source.path)).parts[:-1]
    if folder := next(filter(_FOREIGN_FOLDER.fullmatch, folders), ""):
        return f"is in {folder}"
    if _GENERATED_NAME.search(source.path.name):
        return "is generated, as its name says"
    line = generated.line_of(source.document)
    return f"is generated, as line {line} says" if line else ""


def show(path: Path) -> str:
    """Return the path for messages and reports: relative to the current folder if it is inside it."""
    try:
        return path.relative_to(programs.here()).as_posix()
    except ValueError:
        return path.as_posix()


def _named(path: Path) -> Path | Skipped:
    try:
        real = Path(os.path.realpath(path, strict=True))
    except OSError as error:
        return Skipped(show(path), _lookup_problem(path, error))
    reason = _secret_reason(real, real) or ignoring.Ignore.for_root(real.parent, is_named=True).renewed().reason(real)
    return Skipped(show(real), reason) if reason not in ("", _GIT_IGNORED) else real


def _lookup_problem(path: Path, error: OSError) -> str:
    """Return why a path leads to no file."""
    if error.errno == errno.ELOOP:
        return "is a link in a loop of links"
    if error.errno == errno.ENOENT:
        return "is a link to a file that does not exist" if os.path.islink(path) else "does not exist"  # noqa: PTH114
    return f"can't be read: {_sentence(error)}"


def _secret_reason(path: Path, file: Path) -> str:
    """Return why a named path may not be read because of its name or its parent folders, or "". `file` is a file in it."""
    below = path.relative_to(config.workspace_of(path))
    return "may hold secrets" if ignoring.is_secret(below) or ignoring.is_secret_outside(str(file)) else ""


def _under(folder: Path, named: Collection[Path], *, with_foreign: bool) -> Iterator[Path | Skipped]:
    root = folder.resolve()
    ignore = ignoring.Ignore.for_root(root)
    if ignore.reason(root) == _GIT_IGNORED:
        ignore = ignoring.Ignore.for_root(root, is_named=True)
    if reason := ignore.reason(root) or _secret_reason(root, root / "_"):
        yield Skipped(show(root), reason)
        return
    problems: list[OSError] = []
    for here, folders, names in os.walk(root, onerror=problems.append):
        own_folders = [name for name in folders if not Path(here, name).is_symlink() and ignore.allows(Path(here, name))]
        others = [name for name in own_folders if git.is_root(Path(here, name)) and git.root_of(Path(here))]
        folders[:] = sorted(set(own_folders).difference(others))
        for place in (Path(here, name) for name in sorted(others)):
            if place not in named:
                yield Skipped(show(place), OTHER_REPOSITORY)
        for name in () if with_foreign else list(filter(_FOREIGN_FOLDER.fullmatch, folders)):
            folders.remove(name)
            yield Skipped(show(Path(here, name)), f"holds files of others{WITH_GENERATED}")
        for name in sorted(names):
            path = Path(here, name)
            if (language := languages.for_path(name, "")) is None and path.suffix:
                continue
            if path.is_symlink():
                try:
                    path.stat()
                except OSError as error:
                    if language:
                        yield Skipped(show(path), _lookup_problem(path, error))
            # `ignore` does not see the folders above its root, but `hosts.yml` is a secret only in `.config/gh`.
            elif ignore.allows(path) and not secrets.in_place(path.parts) and (language or _names_interpreter(path)):
                yield path
    for file, reason in ignore.problems():
        yield Skipped(show(file), reason)
    for problem in problems:
        yield Skipped(show(Path(problem.filename)), f"can't be read: {_sentence(problem)}")


def _names_interpreter(path: Path) -> bool:
    try:
        head = read_start(path, N_HEAD_BYTES)
    except OSError:
        return False  # nothing shows that it is code, so it is not reported as skipped
    return head.startswith(b"#!") and languages.for_path(path.name, head.decode(errors="replace")) is not None


def _conflict_line(text: str) -> int:
    """Return the line of a merge conflict, from 1; 0 without all three markers in their order.

    A line of equals signs alone is a heading in some texts.
    """
    starts: list[int] = []
    for marker in _MARKER.finditer(text):
        if marker[0][0] == "<=>"[len(starts)]:
            starts.append(marker.start())
        if len(starts) == len("<=>"):
            return text.count("\n", 0, starts[0]) + 1
    return 0


def _sentence(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).lower()
