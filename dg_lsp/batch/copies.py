"""Provide the copies of projects in which checks run: at most one copy of a project for each job.

A check proves a fill only if it fails while the hole raises an error (`edit_for`). The error contains a token, so that the
check's output shows which hole was executed. In Python the body also writes the token to a file. So the proof works for a
check that prints nothing, and not for one that fails for another reason, such as an import that is unused while the hole
raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dg_lsp.batch import check, scratch
from dg_lsp.batch.check import Check, Verdict
from dg_lsp.batch.plan import FilePlan
from dg_lsp.batch.scratch import Copy
from dg_lsp.core import values
from dg_lsp.core.values import Document, Edit, Hole
from dg_lsp.wire import config


@dataclass(slots=True)
class Copies:
    """The copies of a run, created when first needed."""

    folder: Path
    check: Check
    n_jobs: int
    on_message: Callable[[str], None]
    _slots: asyncio.Semaphore = field(init=False)
    _free: dict[Path, list[Copy]] = field(default_factory=dict)
    _n_made: int = 0

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.n_jobs)

    @contextlib.asynccontextmanager
    async def taken(self, root: Path) -> AsyncIterator[Copy]:
        """Yield a copy of the project for exclusive use; raise ScratchError or OSError if it can't be created."""
        async with self._slots:
            free = self._free.setdefault(root, [])
            copy = free.pop() if free else await self._made(root)
            try:
                yield copy
            finally:
                free.append(copy)

    async def _made(self, root: Path) -> Copy:
        number, self._n_made = self._n_made, self._n_made + 1
        making = asyncio.ensure_future(asyncio.to_thread(scratch.copy, root, self.folder / str(number), self.check.command))
        try:
            copy, problems = await asyncio.shield(making)
        except asyncio.CancelledError:
            # The thread is still running, so the directory must not be removed yet.
            await asyncio.wait([making])
            raise
        if not number:
            for problem in problems:
                self.on_message(f"the copy for --check lacks {problem}")
        return copy


@contextlib.contextmanager
def open_copies(a_check: Check, n_jobs: int, on_message: Callable[[str], None]) -> Iterator[Copies]:
    """Yield the copies of a run; they are removed afterwards."""
    with scratch.directory() as folder:
        yield Copies(folder, a_check, n_jobs, on_message)


def root_of(plan: FilePlan, here: Path) -> Path:
    """Return the project to copy for a file: the current one if it contains the file, else the file's own."""
    path = plan.source.path
    current = config.workspace_of(here)
    return current if path.is_relative_to(current) else config.workspace_of(path)


@dataclass(slots=True)
class Prober:
    """Runs the check for one file, in one copy, with edits in place."""

    plan: FilePlan
    copy: Copy
    check: Check
    _longest_s: float = 0.0

    @property
    def _note(self) -> Path:
        return self.copy.root.parent / "executed"

    def raising(self) -> dict[Hole, Edit]:
        """Return the edits that make holes raise, for those that can."""
        document = self.plan.source.document
        edits = {hole: edit_for(document, hole, str(self._note)) for hole in self.plan.holes}
        return {hole: edit for hole, edit in edits.items() if edit}

    async def probe(self, edits: Sequence[Edit], tests: Collection[str] = ()) -> Verdict:
        """Run the check on the file with these edits and return the result; raise ValueError if they overlap."""
        source = self.plan.source
        self._note.unlink(missing_ok=True)
        self.copy.restore()
        self.copy.put(source.path, values.apply(source.document.text, tuple(edits)).encode())
        try:
            limited = replace(self.check, limits=self.check.limits.after(self._longest_s))
            verdict = await check.run(limited, self.copy, source.path, tests)
            # A check that fails early, as at an import, says nothing about how long one takes that passes.
            if not verdict.problem or (verdict.tests and verdict.tests.passed):
                self._longest_s = max(self._longest_s, verdict.took_s)
        finally:
            self.copy.put(source.path, source.data)
        executed = self._note.read_text(errors="replace") if self._note.is_file() else ""
        tokens = {token_of(source.document, hole) for hole in self.plan.holes}
        return replace(verdict, executed=frozenset(token for token in tokens if token in executed or token in verdict.output))


_STATEMENTS = {
    "javascript": "throw new Error({});",
    "typescript": "throw new Error({});",
    "tsx": "throw new Error({});",
    "java": "throw new RuntimeException({});",
    "csharp": "throw new System.Exception({});",
    "go": "panic({})",
    "rust": "panic!({});",
    "ruby": "raise NotImplementedError, {}",
    "php": "throw new \\RuntimeException({});",
    "lua": "error({})",
    "bash": "echo {} >&2; exit 70",
}
# A compiler refuses code after an unconditional `throw`, but not after a conditional one.
_CONDITIONAL = frozenset({"java"})


def token_of(document: Document, hole: Hole) -> str:
    """Return the text that identifies the hole in a check's output."""
    place = f"{document.uri} {hole.span.start} {hole.span.end}"
    return f"dg-lsp-hole-{hashlib.sha256(place.encode()).hexdigest()[:12]}"


def edit_for(document: Document, hole: Hole, note_file: str) -> Edit | None:
    """Return the edit that makes the hole raise an error; None if it holds no statements or the language is not supported."""
    if not hole.block:
        return None
    token = token_of(document, hole)
    if document.language == "python":
        text = f"open({note_file!r}, 'a').write({token!r}); raise NotImplementedError({token!r})"
    elif document.language in _STATEMENTS:
        text = _STATEMENTS[document.language].format(f'"{token}"')
        if document.language in _CONDITIONAL and hole.kind != "body":
            text = f"if (true) {text}"
    else:
        return None
    return Edit(hole.span, f"{hole.lead}{text}{hole.trail}")
