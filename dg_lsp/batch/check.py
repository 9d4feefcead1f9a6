"""Run the user's check in copies of the project, within limits; at most one copy of a project for each job.

The command runs in the shell, as the user typed it; `{}` in it stands for the file in the copy. Imports come from the copy:
its directories are first in PYTHONPATH, before those of editable installs. Some editable installs of compiled packages add
an import hook that comes even before PYTHONPATH. Then the original is imported, and the check passes whether the hole raises
or not. It proves nothing in this case, so no wrong fill counts as verified.

A check proves a fill only if it fails while the hole raises an error (`edit_for`). The error contains a token, so that the
check's output shows which hole was executed. In Python the body also writes the token to a file. So the proof works for a
check that prints nothing, and not for one that fails for another reason, such as an import that is unused while the hole
raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import keyword
import os
import re
import shlex
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.etree import ElementTree as ET

from dg_lsp.batch import scratch
from dg_lsp.batch.plan import FilePlan
from dg_lsp.batch.scratch import Copy
from dg_lsp.core import values
from dg_lsp.core.values import Document, Edit, Hole
from dg_lsp.wire import config, files, programs

MAX_LINE_CHARS = 200
MAX_OUTPUT_BYTES = 64 << 20  # a check that prints without end would fill the disk
N_TAIL_BYTES = 64 << 10
MARK = "DG_LSP_CHECK"  # an environment variable that identifies a check's processes, also in another process group
MOST_S, LEAST_S, TIMES = 600.0, 60.0, 10.0
_POLL_S = 0.1
_MIB = 1 << 20
MAX_SELECTED = 200  # names in one expression of pytest's, which it nests as deep
_OPTIONS = "the command, PYTEST_ADDOPTS and the `addopts` of pytest's settings"
# What pytest prints when `-x` or `--maxfail` ends its run: the tests that it did not run say nothing about a hole.
_STOPPED = re.compile(r"^!+ [^!\n]*stopping after \d+ failures? !+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Tests:
    """What pytest reported: the tests that passed, and the failing ones with the text of their failure."""

    passed: frozenset[str]
    failing: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check: why it failed ("" if it passed), the end of its output, and its tests if pytest ran.

    `took_s` is how long it ran, 0 if it was stopped at a limit. `executed` are the holes that it executed.
    """

    problem: str
    output: str = ""
    tests: Tests | None = None
    took_s: float = 0.0
    executed: frozenset[Hole] = frozenset()


@dataclass(frozen=True, slots=True)
class Check:
    """The user's command, its working folder, as a path in the original project, and its limits.

    These are seconds, and MiB of memory for all its processes together (0: no limit). Without `seconds`, a check may take
    `MOST_S`. Once one has passed, or tests of one have, the next ones may take `TIMES` as long as that, and at least `LEAST_S`:
    a fill may loop for ever, and each that does would cost ten minutes. `advise` gets a sentence that says what to change.
    """

    command: str
    folder: Path = field(default_factory=lambda: Path(programs.here()))
    seconds: float | None = None
    memory_mb: int = 0
    advise: Callable[[str], None] = lambda _sentence: None

    def after(self, longest_s: float) -> Check:
        """Return the next check, if the longest one before took this long (0: there is none)."""
        if self.seconds is not None:
            return self
        return replace(self, seconds=min(MOST_S, max(LEAST_S, TIMES * longest_s)) if longest_s else MOST_S)


async def run(check: Check, copy: Copy, path: Path, tests: Collection[str] = ()) -> Verdict:
    """Run the check in the copy for a file of the original, and return its result. All its processes are ended.

    With `tests`, pytest runs at least these; any other command runs as it is.
    """
    report, mark = copy.private / "tests.xml", uuid.uuid4().hex
    here, there = str(copy.root), str(copy.original)  # messages name the user's own files
    folder = copy.folder(copy.path_of(check.folder) if check.folder.is_relative_to(copy.original) else copy.root)
    scratch.clear(report)
    command = copy.text_in_copy(check.command).replace("{}", shlex.quote(str(copy.path_of(path))))
    # A file, not a pipe: a left-over process would keep a pipe open. It has no name, under which a check could put a link.
    with tempfile.TemporaryFile() as output:
        environment = {**_environment(check.command, copy, path, report, tests), MARK: mark, "PWD": str(folder)}
        for large in sorted(copy.too_large):
            check.advise(f"the check uses {large} itself, which is too large to copy: name it in the command to have it copied")
        began = time.monotonic()
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_shell(
                _limited(command, check.memory_mb),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=environment,
                start_new_session=True,  # so that all its processes can be ended together
            )
        )
        try:
            # If this is cancelled, asyncio would end the shell, but then wait forever for the processes that the shell started.
            problem = await _watched(await asyncio.shield(starting), check, output.fileno())
            took_s = 0.0 if problem else time.monotonic() - began
        finally:
            process = await starting
            _end(process.pid, mark, copy.private)
            await process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - N_TAIL_BYTES))
        tail = output.read().decode(errors="replace").replace(here, there)
    if not problem and process.returncode:
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        last_line = f": {lines[-1][:MAX_LINE_CHARS]}" if lines else ""
        code = process.returncode
        end = f"exited with status {code}" if code >= 0 else f"was ended by signal {-code}"
        problem = f"the check {end}{last_line}"
    if process.returncode and "error: unrecognized arguments: --junit-xml=" in tail:
        problem = f"pytest can't report its tests: remove `-p no:junitxml` from {_OPTIONS}"
    if _STOPPED.search(tail):
        advice = f"pytest stops at a failure, so its tests can't be judged one by one: remove -x or --maxfail from {_OPTIONS}"
        check.advise(advice)
        return Verdict(problem and f"{problem} ({advice})", tail, took_s=took_s)
    return Verdict(problem, tail, _tests(report, here, there), took_s)


def selection(tests: Collection[str]) -> str:
    """Return the option of pytest that runs at least these tests and few others; "" if their names allow none."""
    names = {test.partition("[")[0].rpartition("::")[2] for test in tests}
    are_words = all(each.isascii() and each.isidentifier() and not keyword.iskeyword(each) for each in names)
    return f"-k '{' or '.join(sorted(names))}'" if 0 < len(names) <= MAX_SELECTED and are_words else ""


def _environment(command: str, copy: Copy, path: Path, report: Path, tests: Collection[str]) -> dict[str, str]:
    variables = {**programs.own_variables(), **_keys(command)}
    entries = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    variables["PYTHONPATH"] = os.pathsep.join(map(os.path.realpath, entries))
    moved = variables.keys() - {"HOME"}
    variables |= {name: copy.text_in_copy(variables[name], is_searched=name.endswith("PATH")) for name in moved}
    import_root = path.parent
    while (import_root / "__init__.py").exists() and import_root != copy.original:
        import_root = import_root.parent
    own_paths = [copy.path_of(import_root), *(folder for folder in (copy.root / "src",) if folder.is_dir()), copy.root]
    paths = [*map(str, own_paths), *filter(None, variables["PYTHONPATH"].split(os.pathsep)), *map(str, copy.around())]
    junit = f"--junit-xml={shlex.quote(str(report))}"
    pytest_options = " ".join(filter(None, [variables.get("PYTEST_ADDOPTS", ""), junit, selection(tests)]))
    return {
        **variables,
        "DG_LSP_FILE": str(copy.path_of(path)),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": pytest_options,
        "GIT_CEILING_DIRECTORIES": str(copy.root.parent),
    }


def _keys(command: str) -> dict[str, str]:
    """Return the variables with keys that the command names: its tests may run the model's code, so they get no others."""
    return {name: value for name, value in programs.keys().items() if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", command)}


def _limited(command: str, memory_mb: int) -> str:
    """Return shell code that sets the limits of each process and then runs the command."""
    lines = ["ulimit -c 0"]
    if memory_mb and sys.platform == "linux":
        import resource

        # RLIMIT_DATA, not RLIMIT_AS: runtimes such as Go's and Node's reserve much more address space than they use.
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        n_bytes = memory_mb * _MIB
        lines.append(f"ulimit -d {(n_bytes if hard < 0 else min(n_bytes, hard)) // 1024}")
    return "\n".join([*lines, command])


async def _watched(process: asyncio.subprocess.Process, check: Check, output: int) -> str:
    """Wait for the process; return "" when it has ended, or a sentence if it exceeds a limit."""
    ending = asyncio.ensure_future(process.wait())
    seconds = MOST_S if check.seconds is None else check.seconds
    left_s = seconds
    try:
        while True:
            done, _ = await asyncio.wait([ending], timeout=min(_POLL_S, max(left_s, 0)))
            if done:
                return ""
            left_s -= _POLL_S
            if left_s <= 0:
                return f"the check took longer than {seconds:g} s"
            if os.fstat(output).st_size > MAX_OUTPUT_BYTES:
                return f"the check printed more than {MAX_OUTPUT_BYTES // _MIB} MiB"
            if check.memory_mb and _memory_mb(process.pid) > check.memory_mb:
                return f"the check took more than {check.memory_mb} MiB of memory"
    finally:
        ending.cancel()


def _end(pid: int, mark: str, private: Path) -> None:
    """End the check's process group. On systems with /proc, also end processes that left the group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    entry = f"{MARK}={mark}".encode()
    # A process may fork while the list is read, so repeat until none is left.
    while strays := [stray for stray in _processes() if _belongs(stray, entry, private)]:
        for stray in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(stray, signal.SIGKILL)


def _processes() -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 -- names alone


def _belongs(pid: int, entry: bytes, folder: Path) -> bool:
    """Return whether a running process has this entry in its environment, or works in the folder of the check's copy.

    A process that cleared its environment still works there.
    """
    with contextlib.suppress(OSError, IndexError):
        if Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[0] in (b"Z", b"X"):
            return False
        if entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return True
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(folder)
    return False


def _memory_mb(session: int) -> int:
    """Return the MiB of memory that the processes of a session use; 0 if the system does not report it."""
    pages = 0
    for pid in _processes():
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
            if int(fields[3]) == session:
                pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE") // _MIB if pages else 0


def _tests(report: Path, here: str, there: str) -> Tests | None:
    try:
        text = files.read_regular(report, MAX_OUTPUT_BYTES)
        cases = list(ET.fromstring(text).iter("testcase"))  # noqa: S314 -- written by the user's own tests
    except (OSError, ET.ParseError):
        return None
    passed, failing = set(), {}
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        problems = [*case.iter("failure"), *case.iter("error")]
        if problems:
            failing[name] = "\n".join(f"{problem.get('message') or ''}\n{problem.text or ''}" for problem in problems).replace(
                here, there
            )
        elif case.find("skipped") is None:
            passed.add(name)
    return Tests(frozenset(passed - failing.keys()), failing)


# --- The copies of a run, and the check of one file in one of them


@dataclass(slots=True)
class Copies:
    """The copies of a run, created when first needed."""

    folder: Path
    check: Check
    slots: asyncio.Semaphore
    on_message: Callable[[str], None]
    _free: dict[Path, list[Copy]] = field(default_factory=dict)
    _failed: dict[Path, Exception] = field(default_factory=dict)
    _n_made: int = 0

    @contextlib.asynccontextmanager
    async def taken(self, root: Path) -> AsyncIterator[Copy]:
        """Yield a copy of the project for exclusive use; raise ScratchError or OSError if it can't be created."""
        async with self.slots:
            free = self._free.setdefault(root, [])
            copy = free.pop() if free else await self._made(root)
            try:
                yield copy
            finally:
                free.append(copy)

    async def _made(self, root: Path) -> Copy:
        if root in self._failed:
            raise self._failed[root]
        number, self._n_made = self._n_made, self._n_made + 1
        place = self.folder / str(number)
        making = asyncio.ensure_future(asyncio.to_thread(scratch.copy, root, place, self.check.command))
        try:
            copy, problems = await asyncio.shield(making)
        except asyncio.CancelledError:
            # The thread is still running, so the directory must not be removed yet.
            await asyncio.wait([making])
            raise
        except (scratch.ScratchError, OSError) as error:
            self._failed[root] = error
            await asyncio.to_thread(scratch.clear, place)
            raise
        if not number:
            if left_out := sorted(set(programs.keys()) - set(_keys(self.check.command))):
                self.on_message(f"the check does not get {', '.join(left_out)}: name a variable in its command to pass it")
            for problem in problems:
                self.on_message(f"the copy for --check lacks {problem}")
        return copy


@contextlib.contextmanager
def open_copies(a_check: Check, n_jobs: int, on_message: Callable[[str], None]) -> Iterator[Copies]:
    """Yield the copies of a run; they are removed afterwards."""
    place, strange = scratch.place_for(a_check.folder)
    if strange is not None:
        on_message(
            f"{strange} is above the copies for --check, and may change what it does: "
            "remove it, or set TMPDIR to a folder without settings above it"
        )
    with scratch.directory(place) as folder:
        yield Copies(folder, replace(a_check, advise=functools.cache(on_message)), asyncio.Semaphore(n_jobs), on_message)
    if folder.exists():
        on_message(f"{folder} can't be removed: unmount what a check has mounted in it, and the next run removes it")


def root_of(plan: FilePlan, here: Path) -> Path:
    """Return the project to copy for a file: the current one if it contains the file, else the file's own."""
    path = plan.source.path
    current = config.workspace_of(here)
    return current if path.is_relative_to(current) else config.workspace_of(path)


@dataclass(slots=True)
class Prober:
    """Runs the check for one file, in one copy, with edits in place.

    `raising` has the edits that make holes raise, for those that can, and `tokens` the text that then identifies each hole.
    """

    plan: FilePlan
    copy: Copy
    check: Check
    raising: Mapping[Hole, Edit] = field(init=False)
    tokens: Mapping[Hole, str] = field(init=False)
    _longest_s: float = 0.0
    _note: Path = field(init=False)

    def __post_init__(self) -> None:
        document, self._note = self.plan.source.document, self.copy.private / "executed"
        edits = {hole: edit_for(document, hole, str(self._note)) for hole in self.plan.holes}
        self.raising = {hole: edit for hole, edit in edits.items() if edit}
        self.tokens = {hole: token_of(document, hole) for hole in self.plan.holes}

    async def probe(self, edits: Sequence[Edit], tests: Collection[str] = ()) -> Verdict:
        """Run the check on the file with these edits and return the result; raise ValueError if they overlap.

        With `tests`, pytest runs at least these; any other command runs as it is.
        """
        source = self.plan.source
        self.copy.restore()
        self.copy.put(source.path, values.apply(source.document.text, tuple(edits)).encode())
        scratch.clear(self._note)
        try:
            verdict = await run(self.check.after(self._longest_s), self.copy, source.path, tests)
            # A check that fails early, as at an import, says nothing about how long one takes that passes.
            if not verdict.problem or (verdict.tests and verdict.tests.passed):
                self._longest_s = max(self._longest_s, verdict.took_s)
        finally:
            self.copy.put(source.path, source.data)
        executed = self._note.read_text(errors="replace") if self._note.is_file() else ""
        seen = {hole for hole, token in self.tokens.items() if token in executed or token in verdict.output}
        return replace(verdict, executed=frozenset(seen))


_STATEMENTS = {
    "python": "open({1!r}, 'a').write({0}); raise NotImplementedError({0})",
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


def token_of(document: Document, hole: Hole) -> str:
    """Return the text that identifies the hole in a check's output."""
    place = f"{document.uri} {hole.span.start} {hole.span.end}"
    return f"dg-lsp-hole-{hashlib.sha256(place.encode()).hexdigest()[:12]}"


def edit_for(document: Document, hole: Hole, note_file: str) -> Edit | None:
    """Return the edit that makes the hole raise an error; None if it holds no statements or the language is not supported."""
    statement = _STATEMENTS.get(document.language)
    if hole.extent != "block" or statement is None:
        return None
    text = statement.format(f'"{token_of(document, hole)}"', note_file)
    # Java's compiler refuses code after an unconditional `throw`, but not after a conditional one.
    is_conditional = document.language == "java" and hole.kind != "body"
    return Edit(hole.span, f"{hole.lead}{'if (true) ' * is_conditional}{text}{hole.trail}")
