"""Replace a file's content atomically, and commit written fills to git.

After a crash or on a full disk, a file has its old or its new content (`wire.files`). No other change is committed: a file that
differs from HEAD before the run is not touched.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.batch import git
from dg_lsp.batch.keep import FileResult
from dg_lsp.core.values import Hole
from dg_lsp.core.wording import counted
from dg_lsp.wire import files

_TOKEN = re.compile(r"\w+|[^\w\s'\"`,;()]")  # formatters change the other characters
_MANY = 5_000  # tokens whose exact comparison would take seconds


class WriteError(Exception):
    """The file was not changed; the message says why."""


def replace(path: Path, data: bytes, *, expected: bytes) -> None:
    """Replace the file's content, and preserve its mode and, if permitted, its group and owner.

    Raises WriteError if the file no longer contains `expected`, or can't be written.
    """
    try:
        if files.read_regular(path, len(expected)) != expected:
            raise WriteError("the file changed in the meantime")
        before = path.stat()
        # A rename needs no permission to write the file itself, but a read-only file must not be changed, not even by root.
        if not before.st_mode & 0o222 or not os.access(path, os.W_OK):
            raise WriteError("the file is read-only")
        if before.st_nlink > 1:
            raise WriteError(f"the file has {before.st_nlink} names (hard links), and only this one would change")
        files.replace(path, data, finish=files.like(path), is_durable=True)
    except files.TooLargeError as error:
        raise WriteError("the file changed in the meantime") from error
    except files.NotRegularError as error:
        raise WriteError(f"the file {error}") from error
    except OSError as error:
        raise WriteError(f"the file can't be written: {(error.strerror or str(error)).lower()}") from error


# --- What is in the files afterwards


_N_NAMED = 5  # files in a message
_TAKEN_OUT = "a hook took the fills out of the commit"


@dataclass(frozen=True, slots=True)
class Written:
    """A file's result, its text now, and a note if that is not the result's or was not committed."""

    result: FileResult
    text: str
    note: str = ""
    is_committed: bool = True


def write(results: Sequence[FileResult], on_message: Callable[[str], None], *, commits: bool) -> list[Written]:
    """Write the fills of all files and, with `commits`, commit them; return what is there.

    If a file can't be written, or git could not commit it alone, its holes fail with the reason. There is one commit for each
    repository, of these files only. What git or a hook then refuses stays written.
    """
    results = [_written(result, commits=commits) for result in results]
    by_root: dict[Path, list[FileResult]] = {}
    for result in results if commits else ():
        if result.fills:
            by_root.setdefault(_repository(result.plan.source.path), []).append(result)
    committed: dict[Path, Written] = {}
    for root, own in by_root.items():
        committed |= _committed(root, own, on_message)
    return [committed.get(result.plan.source.path) or Written(result, result.text) for result in results]


def _written(result: FileResult, *, commits: bool) -> FileResult:
    source = result.plan.source
    if not result.fills:
        return result
    try:
        if commits:
            root = _repository(source.path)
            if status := git.run(root, "status", "--porcelain", "--ignored", "-uall", "--", _spec(root, result)):
                is_ignored = status.startswith(b"!!")
                raise WriteError("git ignores the file" if is_ignored else "the file has uncommitted changes")
            if not git.run(root, "ls-files", "-v", "--", _spec(root, result)).startswith(b"H"):
                raise WriteError("git is told to see no changes of the file (git update-index); its changes can't be known")
        replace(source.path, result.text.encode(), expected=source.data)
    except (WriteError, git.GitError) as error:
        return result.refused(str(error))
    return result


def _committed(root: Path, results: Sequence[FileResult], on_message: Callable[[str], None]) -> dict[Path, Written]:
    """Commit written files, and return what is in them and in HEAD: a hook may have changed both, and moved HEAD."""

    def subject(fills: Sequence[Collection[Hole]]) -> str:
        return f"fill {counted(sum(map(len, fills)), 'hole')} in {counted(sum(map(bool, fills)), 'file')}"

    specs, refusal, moved, others = [_spec(root, result) for result in results], "", "", []
    before, branch = _revision(root, "HEAD"), _asked(root, "symbolic-ref", "--quiet", "HEAD")
    try:
        git.run(root, "commit", "--only", "-m", subject([result.fills for result in results]), "--", *specs)
    except git.GitError as error:  # HEAD may have the commit in spite of it, if a hook was ended that runs afterwards
        refusal = str(error)
    head, branch_after = _revision(root, "HEAD"), _asked(root, "symbolic-ref", "--quiet", "HEAD")
    if _asked(root, "merge-base", before, head) != before:
        moved = f"a hook moved HEAD to {head[:12] or 'no commit'}, whose history lacks {before[:12]}: see git reflog"
    elif branch_after != branch:
        on_message(f"a hook switched {root} from {branch or 'a detached HEAD'} to {branch_after or 'a detached HEAD'}")
    try:
        others = _update_index(root, before, specs)
    except git.GitError as error:
        refusal = refusal or moved or str(error)
    in_head = [_holes_filled(result, _head_text(root, result)) for result in results]
    if any(in_head):
        on_message(f"committed in {root}: {subject(in_head)}" + f", but {moved}" * bool(moved))
        if not branch_after:
            on_message(f"HEAD is detached in {root}: run git branch to name the commit, or it is lost when you switch branches")
    else:
        on_message(f"nothing is committed in {root}: {refusal or _TAKEN_OUT}")
    if others:
        named = ", ".join(others[:_N_NAMED]) + ", …" * (len(others) > _N_NAMED)
        on_message(f"a hook changed other files in HEAD of {root}: {named}")
    pairs = zip(results, in_head, strict=True)
    return {result.plan.source.path: _found(result, holes, refusal, on_message) for result, holes in pairs}


def _update_index(root: Path, before: str, specs: Sequence[str]) -> list[str]:
    """Put the files of the commit into the index as they are in HEAD, and return what else differs there from `before`.

    A hook may have formatted or added files. The next commit would take that back where the index has what is in `before`.
    What the user staged stays staged.
    """
    names = "-z", "--name-only", before
    changed, staged = (
        [f":(literal){os.fsdecode(name)}" for name in git.read(root, *command).split(b"\0") if name]
        for command in (("diff-tree", "-r", *names, "HEAD"), ("diff-index", "--cached", *names))
    )
    if changed:
        git.run(root, "reset", "-q", "--", *specs, *(spec for spec in changed if spec not in staged))
    return [spec.removeprefix(":(literal)") for spec in changed if spec not in specs]


def _revision(root: Path, name: str) -> str:
    return _asked(root, "rev-parse", "--quiet", "--verify", name)


def _asked(root: Path, command: str, *arguments: str) -> str:
    """Return the line that a reading command of git prints; "" if it fails."""
    try:
        return git.read(root, command, *arguments).decode().strip()
    except git.GitError:
        return ""


def _head_text(root: Path, result: FileResult) -> str:
    try:
        name = result.plan.source.path.relative_to(root).as_posix()
        # As it would be checked out: a filter may encrypt what is stored.
        return git.run(root, "cat-file", "--filters", f"HEAD:{name}").decode(errors="surrogateescape")
    except git.GitError:
        return result.plan.source.document.text


def _found(result: FileResult, in_head: Collection[Hole], refusal: str, on_message: Callable[[str], None]) -> Written:
    """Return what a file holds after the commit. Fills that a hook removed from it fail."""
    source = result.plan.source
    try:
        text, removed = source.path.read_bytes().decode(errors="surrogateescape"), "a hook removed the fill"
    except OSError as error:
        text, removed = source.document.text, f"the file can't be read after the commit: {error.strerror or error}"
    kept = _holes_filled(result, text)
    notes = [] if kept <= set(in_head) else [f"is written, but not committed: {refusal or _TAKEN_OUT}"]
    if kept and text != result.text:
        on_message(f"{source.name} was changed by a hook after it was filled")
        notes.append("was changed by a hook after it was filled")
    result = result.refused("; ".join(filter(None, [removed, refusal])), kept)
    return Written(result, text, "; ".join(notes), kept <= set(in_head))


def _holes_filled(result: FileResult, text: str) -> frozenset[Hole]:
    """Return the holes whose fill is in the text: half of its tokens, without those of the hole's own text, are in their place.

    Formatters change other characters and the case of numbers.
    """
    original, filled = result.plan.source.document.text, result.text
    if text in (original, filled):
        return frozenset(result.fills if text == filled else ())
    tokens, after = list(_TOKEN.finditer(filled)), [token.casefold() for token in _TOKEN.findall(text)]
    matcher = difflib.SequenceMatcher(None, [token[0].casefold() for token in tokens], after, autojunk=len(after) > _MANY)
    in_place = {at for block in matcher.get_matching_blocks() for at in range(block.a, block.a + block.size)}
    holes, shift = set(), 0
    for hole, fill in sorted(result.fills.items(), key=lambda item: item[1].start):
        start, end = fill.start + shift, fill.start + shift + len(fill.text)
        placeholder = original[fill.start : fill.end]
        shift += len(fill.text) - len(placeholder)
        own = [at for at, token in enumerate(tokens) if token.start() < end and token.end() > start]
        old = set(_TOKEN.findall(placeholder))
        own = [at for at in own if tokens[at][0] not in old] or own
        if 2 * len(in_place.intersection(own)) >= len(own):
            holes.add(hole)
    return frozenset(holes)


def _repository(path: Path) -> Path:
    """Return the root of a file's git repository, which may be above the workspace; raise WriteError if it is in none."""
    if root := git.root_of(path.parent):
        return root
    raise WriteError("the file is not in a git repository")


def _spec(root: Path, result: FileResult) -> str:
    return f":(literal){result.plan.source.path.relative_to(root)}"
