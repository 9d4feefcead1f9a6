"""Time the language server as an editor meets it: python tests/benchmarks/server_latency.py [NAME…]

Starts real servers and speaks to them over standard input and output. Prints a table of what is wanted, what was
measured, and whether it held; exits with 0 either way, as clocks differ. Names choose among the measurements.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dg_lsp.client.engine import ConnectOptions, OnLink, join
from dg_lsp.client.link import Link, OnDone, OnDraft
from dg_lsp.core import holes, local, syntax
from dg_lsp.core.values import Calibrated, Candidate, Document
from dg_lsp.wire import messages
from dg_lsp.wire.messages import Ask
from tests.fakes import InProcess, ReadyEngine

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "fixtures" / "eval" / "heldout.jsonl.gz"
ENGINE = "tests.benchmarks.server_latency:engine"
JOURNAL, REAL = "DG_LSP_BENCHMARK_JOURNAL", "DG_LSP_BENCHMARK_REAL"

LINES, PLACES, STARTS, FILLS = 10_000, 40, 21, 40
# As long as fast typists take for a key.
PAUSE_S = 0.08
# What is typed at each place, a key at a time; the suggestion is asked for behind each of the last ones.
TYPED, ASKED = "\n{}found = ", 8
ANSWER = "self.answer_{}(first, second)"

CAPABILITIES = {
    "general": {"positionEncodings": ["utf-16"]},
    "textDocument": {
        "inlineCompletion": {"dynamicRegistration": True},
        "codeAction": {
            "codeActionLiteralSupport": {"codeActionKind": {"valueSet": ["quickfix", "refactor.rewrite", "source"]}},
            "dataSupport": True,
            "resolveSupport": {"properties": ["edit"]},
        },
        "completion": {"completionItem": {"snippetSupport": True, "documentationFormat": ["markdown", "plaintext"]}},
        "synchronization": {"dynamicRegistration": True, "didSave": True, "willSave": True},
    },
    "workspace": {
        "configuration": True,
        "applyEdit": True,
        "workspaceEdit": {"documentChanges": True},
        "workspaceFolders": True,
    },
    "window": {"workDoneProgress": True},
}


# The engine, in the server's process


async def engine(options: ConnectOptions, version: str, on_change: OnLink) -> Link | None:
    """Connect to the resident engine, or one that answers at once.

    Notes when a request was made, with the question written for the wire, and when it was done.
    """
    link = await join(options, version, on_change) if os.environ.get(REAL) else InProcess(ReadyEngine(), version, on_change)
    assert link is not None
    infill = link.infill

    async def noting(ask: Ask, on_draft: OnDraft | None = None, on_done: OnDone | None = None) -> tuple[Candidate, ...]:
        if ask.prepares:
            return await infill(ask)
        body = messages.as_json(asdict(replace(ask, client="benchmark")))
        called_at = time.monotonic_ns()
        if os.environ.get(REAL):
            candidates = await infill(ask, on_draft, on_done)
        else:
            # Each another, as one that was passed over is not shown again at once.
            candidates = (Candidate((ANSWER.format(called_at % 100_000),), Calibrated(0.9)),)
        with Path(os.environ[JOURNAL]).open("a", encoding="ascii") as journal:
            journal.write(json.dumps([ask.document, called_at, time.monotonic_ns(), len(body)]) + "\n")
        return candidates

    link.infill = noting  # type: ignore[method-assign]
    return link


# The editor


class Editor:
    """A blocking client, so that little of what is measured is its own."""

    def __init__(self, folder: Path, *, real: bool = False, plain: bool = False) -> None:
        self.journal = folder / "journal"
        self.journal.write_text("")
        more = {} if plain else {"DG_LSP_SERVE_ENGINE": ENGINE, JOURNAL: str(self.journal), REAL: "1" if real else ""}
        own = {"PYTHONPATH": str(ROOT), "DG_LSP_MODEL": "embedded"}
        environment = {**os.environ, **own, **more}
        beside = Path(sys.executable).with_name("dg-lsp")
        command = [str(beside)] if beside.exists() else [sys.executable, "-m", "dg_lsp"]
        self.started = time.monotonic_ns()
        self.process = subprocess.Popen(
            [*command, "serve", "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self.texts: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self._id = self._seen = 0

    def __enter__(self) -> Editor:
        return self

    def __exit__(self, *_: object) -> None:
        self.request("shutdown", None)
        self.send({"jsonrpc": "2.0", "method": "exit"})
        self.process.wait()

    def send(self, message: object) -> None:
        assert self.process.stdin is not None
        body = json.dumps(message).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def notify(self, method: str, params: object) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def request(self, method: str, params: object) -> Any:
        """Return the answer; requests of the server's own that come before are answered with null."""
        self._id += 1
        self.send({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        while True:
            message = self._read()
            if "method" not in message and message.get("id") == self._id:
                if "error" in message:
                    raise SystemExit(f"{method} was refused: {message['error']['message']}")
                return message["result"]
            if "method" in message and "id" in message:
                settings = {"completion": {"debounce": 0}}
                answer = [settings] if message["method"] == "workspace/configuration" else None
                self.send({"jsonrpc": "2.0", "id": message["id"], "result": answer})

    def _read(self) -> dict[str, Any]:
        stdout, length = self.process.stdout, 0
        assert stdout is not None
        while (line := stdout.readline().strip()) or not length:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
            elif not line and self.process.poll() is not None:
                raise SystemExit("the server is gone")
        message: dict[str, Any] = json.loads(stdout.read(length))
        return message

    def hello(self) -> None:
        self.request(
            "initialize",
            {
                "processId": os.getpid(),
                "rootUri": None,
                "capabilities": CAPABILITIES,
                "clientInfo": {"name": "Visual Studio Code"},
                "workspaceFolders": None,
            },
        )

    def until_ready(self) -> None:
        self.notify("initialized", {})
        while (state := self.request("workspace/executeCommand", {"command": "dgLsp.status"}))["state"] != "ready":
            if state["state"] == "failed":
                raise SystemExit(state["message"])
            time.sleep(0.01)

    def open(self, uri: str, text: str) -> None:
        self.texts[uri], self.versions[uri] = text, 1
        document = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": document})

    def type(self, uri: str, line: int, character: int, key: str) -> None:
        self.versions[uri] += 1
        at = {"line": line, "character": character}
        self.notify(
            "textDocument/didChange",
            {
                "textDocument": {"uri": uri, "version": self.versions[uri]},
                "contentChanges": [{"range": {"start": at, "end": at}, "text": key}],
            },
        )

    def suggestions(self, uri: str, line: int, character: int) -> list[dict[str, Any]]:
        params = {
            "textDocument": {"uri": uri},
            "position": {"line": line, "character": character},
            "context": {"triggerKind": 2},
        }
        return list(self.request("textDocument/inlineCompletion", params)["items"])

    def called(self) -> list[tuple[int, int]]:
        """Return when the engine was called since this was last asked, and when it had answered; not for looking ahead."""
        text = self.journal.read_text(encoding="ascii")
        rows = [json.loads(line) for line in text[self._seen :].splitlines()]
        self._seen = len(text)
        return [(row[1], row[2]) for row in rows if not row[0].endswith("#ahead")]


# What is measured


Row = tuple[str, str, str, bool]


def start(folder: Path) -> Iterator[Row]:
    took, cpu = [], []
    for _ in range(STARTS):
        before = os.times()
        with Editor(folder, plain=True) as editor:
            editor.hello()
            took.append((time.monotonic_ns() - editor.started) / 1e6)
        after = os.times()
        cpu.append(1000 * (after.children_user + after.children_system - before.children_user - before.children_system))
    p50, p95 = spread(took)
    note = f"p50 {p50:.0f} ms, p95 {p95:.0f} ms ({STARTS} starts; CPU of the whole life p50 {statistics.median(cpu):.0f} ms)"
    yield "`initialize` answered after process start", "p50 <= 600 ms", note, p50 <= 600


def keystroke(folder: Path) -> Iterator[Row]:
    text = long_text()
    lines = text.split("\n")
    uri = "untitled:long.py"
    chance = random.Random(0)
    # In the middle of functions: behind statements that stand at two levels or more.
    inside = [no for no, line in enumerate(lines) if line.startswith(" " * 8) and line.endswith(")") and "#" not in line]
    to_engine, through, empty = [], [], []
    with Editor(folder) as editor:
        editor.hello()
        editor.until_ready()
        editor.open(uri, text)
        editor.suggestions(uri, 0, 0)
        time.sleep(1)
        for place, line in enumerate(sorted(chance.sample(inside, PLACES), reverse=True)):
            at, character = line, len(lines[line])
            keys = TYPED.format(" " * (len(lines[line]) - len(lines[line].lstrip())))
            items: list[dict[str, Any]] = []
            for _ in range(ASKED):
                began = time.monotonic_ns()
                editor.request("workspace/executeCommand", {"command": "dgLsp.status"})
                empty.append((time.monotonic_ns() - began) / 1e6)
                time.sleep(PAUSE_S)
            for idx, key in enumerate(keys):
                if idx == len(keys) - ASKED:
                    # Wait until all changes so far are processed: no user types ten characters in a millisecond.
                    editor.request("workspace/executeCommand", {"command": "dgLsp.status"})
                editor.called()
                began = time.monotonic_ns()
                editor.type(uri, at, character, key)
                at, character = (at + 1, 0) if key == "\n" else (at, character + 1)
                if idx >= len(keys) - ASKED:
                    items = editor.suggestions(uri, at, character)
                    if place and (calls := editor.called()):
                        to_engine.append((calls[0][0] - began) / 1e6)
                    time.sleep(PAUSE_S)
            for key in items[0]["insertText"][:ASKED] if items else "":
                editor.called()
                began = time.monotonic_ns()
                editor.type(uri, at, character, key)
                character += 1
                items = editor.suggestions(uri, at, character)
                end = time.monotonic_ns()
                if place and items and not editor.called():
                    through.append((end - began) / 1e6)
                time.sleep(PAUSE_S)
    p50, p95 = spread(to_engine)
    note = f"p50 {p50:.1f} ms, p95 {p95:.1f} ms ({len(to_engine)} keys in {LINES:,} lines)"
    yield "key and request to engine call", "p95 <= 5 ms", note, p95 <= 5
    floor = "a request that does nothing: p50 {:.1f} ms, p95 {:.1f} ms".format(*spread(empty))
    p50, p95 = spread(through)
    note = f"p50 {p50:.1f} ms, p95 {p95:.1f} ms ({len(through)} keys; {floor})"
    yield "key and request to typed-through answer", "p95 <= 2 ms", note, p95 <= 2


def parse(folder: Path) -> Iterator[Row]:
    """Compare what a key costs where all of the text is parsed with what it costs near the cursor, in this process."""
    text = long_text()
    document = Document("untitled:long.py", "python", text)
    before = syntax.of(document)
    assert before is not None
    whole_ms, near_ms, n_same = [], [], 0
    ends = [before.lines.end(line) for line in range(len(before.lines)) if not before.lines.is_blank(line)]
    for at in random.Random(0).sample(ends, 3 * PLACES):
        typed_document = replace(document, text=f"{text[:at]}\n{text[at:]}")
        parts = local.parts(before.tree, before.offsets, before.lines, at)
        near = syntax.parse(text, before.language, None, parts)
        took = []
        for earlier in (before, near):
            assert earlier.lines  # the server has them at hand
            began = time.thread_time()
            after = syntax.of(typed_document, earlier)
            took.append((1000 * (time.thread_time() - began), holes.at_cursor(typed_document, at + 1, after)))
        whole_ms.append(took[0][0])
        near_ms.append(took[1][0])
        n_same += took[0][1] == took[1][1]
    (p50, p95), (near_p50, near_p95) = spread(whole_ms), spread(near_ms)
    note = f"p50 {p50:.1f}, p95 {p95:.1f}; near the cursor {near_p50:.1f} and {near_p95:.1f}; "
    note += f"the same hole at {n_same} of {len(near_ms)} places"
    yield "processor time to parse after a key, ms", "the same holes", note, n_same == len(near_ms)


def memory(folder: Path) -> Iterator[Row]:
    with Editor(folder, real=True) as editor:
        editor.hello()
        editor.until_ready()
        for number, text in enumerate([long_text(), *texts()[:9]]):
            uri = f"untitled:{number}.py"
            editor.open(uri, text)
            lines = text.split("\n")
            editor.suggestions(uri, len(lines) - 1, len(lines[-1]))
        status = Path(f"/proc/{editor.process.pid}/status").read_text()
    mib = {
        name: int(value.split()[0]) / 1024
        for name, _, value in (row.partition(":") for row in status.splitlines())
        if "kB" in value
    }
    note = f"{mib['VmRSS']:.0f} MiB, at most {mib['VmHWM']:.0f} MiB (one file of {LINES:,} lines, nine of {FILE_LINES})"
    yield "resident memory with ten open files", "< 120 MB", note, mib["VmRSS"] * 1.048576 < 120


def completion(folder: Path) -> Iterator[Row]:
    with gzip.open(TASKS, "rt", encoding="utf-8") as file:
        tasks = [json.loads(line) for line in file]
    lines_to_complete = [task for task in tasks if task["kind"] == "rest-of-line"][:FILLS]
    whole, from_memory, inside = [], [], []
    with Editor(folder, real=True) as editor:
        editor.hello()
        editor.until_ready()
        for number, task in enumerate(lines_to_complete):
            before, after = task["prompt"], task["suffix"]
            uri, key = f"untitled:{number}.py", before[-1:]
            editor.open(uri, before[:-1] + after)
            line, character = before[:-1].count("\n"), len(before[:-1].rpartition("\n")[2])
            if not key or key in "\r\n" or not before.isascii():
                continue
            # The engine has read all but the last character, as while a user types.
            editor.suggestions(uri, line, character)
            time.sleep(1)
            editor.called()
            began = time.monotonic_ns()
            editor.type(uri, line, character, key)
            editor.suggestions(uri, line, character + 1)
            end = time.monotonic_ns()
            if calls := editor.called():
                whole.append((end - began) / 1e6)
                inside.append((calls[0][1] - calls[0][0]) / 1e6)
            else:
                from_memory.append((end - began) / 1e6)
    p50, p95 = spread(whole)
    note = f"p50 {p50:.0f} ms, p95 {p95:.0f} ms (engine p50 {spread(inside)[0]:.0f} ms; {len(whole)} held-out lines"
    note += f", {len(from_memory)} more answered from memory)"
    yield "warm inline completion, embedded model", "p50 <= 350 ms", note, p50 <= 350


FILE_LINES = "200 to 2,000"


def texts() -> list[str]:
    """Return installed Python files of an ordinary size, the same ones each time."""
    folder = package("rich")
    all_texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))]
    return [text for text in all_texts if 200 <= text.count("\n") <= 2000]


def long_text() -> str:
    """Return so many lines of a real file, repeated where it has fewer."""
    lines = (package("mypy") / "checker.py").read_text(encoding="utf-8").split("\n")
    return "\n".join((lines * (LINES // len(lines) + 1))[:LINES])


def package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the texts are taken from {name}, which is not installed here")
    return Path(spec.submodule_search_locations[0])


def spread(values: list[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile."""
    if len(values) < 2:
        raise SystemExit("too little was measured to say anything")
    return statistics.median(values), statistics.quantiles(values, n=20, method="inclusive")[-1]


MEASURES: dict[str, Callable[[Path], Iterator[Row]]] = {
    "start": start,
    "parse": parse,
    "keystroke": keystroke,
    "memory": memory,
    "completion": completion,
}


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in MEASURES]:
        print(f"there is no measurement {', '.join(unknown)}; there are {', '.join(MEASURES)}")
        return 2
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n\n| what | wanted | measured | |\n| --- | --- | --- | --- |")
    for name in names or MEASURES:
        folder = Path(tempfile.mkdtemp(prefix="dg-lsp-"))
        try:
            for what, bound, value, is_met in MEASURES[name](folder):
                print(f"| {what} | {bound} | {value} | {'held' if is_met else 'MISSED'} |", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
