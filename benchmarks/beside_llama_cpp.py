"""Compare the engine with llama.cpp on the same weights and holes: right answers and time, in turns.

    python benchmarks/beside_llama_cpp.py run OUT --server FILE --gguf FILE [--limit N] [--mirror DIR]
    python benchmarks/beside_llama_cpp.py table OUT…

`--server` is llama.cpp's `llama-server`, built for this machine without AMX, whose products ended with an illegal instruction
on a Xeon that has it. `--gguf` is the file that Qwen's weights are converted from. Each hole is asked twice of both: without
its last three characters and with nothing cached, and then whole, with the prefix known, as while typing. llama.cpp gets the
request that llama.vim sends, which writes for at most 250 ms and goes on over line ends, but greedy ("vim"). A third time, it
is one that stops at a line end where the hole is one line, and may write for four seconds where it is not ("best").

The holes are of held-out packages, which the model has read, the thirty everyday snippets and, with `--mirror`, of positions of
commits that no model has read (`commits.py`). Processor milliseconds count: other work changes them less than the clock's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import commits, everyday
from benchmarks.commits import Mirrors
from dg_lsp.client.engine import ConnectOptions, EngineClient, connect
from dg_lsp.core import languages, syntax
from dg_lsp.core.values import Budget
from dg_lsp.evaluate import tasks as evaluation
from dg_lsp.evaluate.answers import percentile, trimmed
from dg_lsp.evaluate.tasks import Task
from dg_lsp.infill import pipeline
from dg_lsp.wire.discovery import ENGINE_COMMAND, EngineId, EngineSettings
from dg_lsp.wire.messages import Done
from tests.processes import processor_ms

ROOT = Path(__file__).parents[1]
MODEL = "qwen2.5-coder-0.5b"
OWN_WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}
# What llama.vim sends (autoload/llama.vim of 2026-01), but for the temperature, which makes it greedy.
LINES_BEFORE, LINES_BEHIND = 256, 64
VIM: dict[str, Any] = {
    "input_extra": [],
    "n_predict": 128,
    "stop": [],
    "top_k": 40,
    "top_p": 0.9,
    "samplers": ["top_k", "top_p", "infill", "temperature"],
    "temperature": 0.0,
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 250,
}
# What its settings for a model of this size start the server with.
SERVER = ("-ub", "1024", "-b", "1024", "-c", "0", "--cache-reuse", "256")
TYPED = 3
# The engine reads ahead after an answer, and llama.cpp must not wait for it.
PAUSE_S = 0.3
FRESH = 16  # tokens that two places may share: the first, which says what follows, or an import

Answer = dict[str, Any]


async def run(options: argparse.Namespace) -> int:
    """Ask both at each hole, and add a line to the file for each."""
    state = tempfile.mkdtemp(prefix="beside-")
    os.environ |= {"DG_LSP_RUNTIME_DIR": state, "DG_LSP_CONFIG": os.devnull, "XDG_STATE_HOME": state, **OWN_WITHOUT_AMX}
    engine_settings = EngineSettings(threads=options.threads, exit_after_s=60)
    connecting = ConnectOptions(EngineId(MODEL), engine_settings, command=ENGINE_COMMAND)
    holes, ends = _holes(options), time.monotonic() + 60 * options.minutes
    with _llama(options.server, options.gguf, options.threads) as llama, Path(options.out).open("a", encoding="utf-8") as out:
        async with connect(connecting) as engine:
            pid = int(str((await engine.info())["pid"]))
            for number, task in enumerate([holes[0], *holes]):
                if time.monotonic() > ends:
                    print(f"stopped after {options.minutes} minutes, at {number - 1} of {len(holes)} holes")
                    break
                answers: dict[str, Answer] = {}
                for own in (True, False) if number % 2 else (False, True):
                    answers |= await _ours(engine, pid, task) if own else await asyncio.to_thread(llama.answers, task)
                    await asyncio.sleep(PAUSE_S)
                if number:  # the first is asked once more than it counts, because both are slower at first
                    row = {"id": task.task_id, "kind": task.kind, "threads": options.threads, "load": os.getloadavg()[0]}
                    print(json.dumps(row | answers), file=out, flush=True)
    return 0


def _holes(options: argparse.Namespace) -> list[Task]:
    draw, chosen = random.Random(7), list[Task]()
    held_out = evaluation.read(ROOT / "fixtures" / "eval" / "heldout.jsonl.gz")
    for kind in ("rest-of-line", "whole-line", "block"):
        chosen += draw.sample([task for task in held_out if task.kind == kind], options.limit)
    chosen += [replace(task, kind="everyday") for task in everyday.tasks()][: options.limit]
    if options.mirror:
        positions, mirrors = commits.read("dev"), Mirrors(options.mirror)
        for kind in commits.KINDS:
            own = [each for each in positions if each.kind == kind]
            chosen += [_task(mirrors, each) for each in draw.sample(own, min(options.limit, len(own)))]
    draw.shuffle(chosen)
    return chosen


def _task(mirrors: Mirrors, position: commits.Position) -> Task:
    hole, language = mirrors.hole(position), languages.for_path(position.path)
    assert language is not None
    kind = f"{position.kind}, unread"
    return Task(position.id, hole.before, hole.after, hole.truth, kind=kind, language=language.name, path=position.path)


async def _ours(engine: EngineClient, pid: int, task: Task) -> dict[str, Answer]:
    cold = await _filled(engine, pid, replace(task, prompt=task.prompt[:-TYPED]))
    await asyncio.sleep(PAUSE_S)
    warm = await _filled(engine, pid, task)
    return {"ours cold": cold, "ours": warm | _right(task, warm["text"])}


async def _filled(engine: EngineClient, pid: int, task: Task) -> Answer:
    document = task.document
    tree = syntax.of(document)
    file_context = pipeline.FileContext(path=task.path, budget=Budget(ms=0))
    request = pipeline.to_request(document, (task.hole,), file_context, syntax=tree)
    ends = list[Done]()
    spent, began = processor_ms(pid), time.monotonic()
    candidates = await engine.fill(request, on_done=ends.append)
    times = {"ms": 1000 * (time.monotonic() - began), "cpu_ms": processor_ms(pid) - spent}
    answer = await pipeline.to_answer(request, candidates, document, syntax=tree, is_file=True)
    text = answer.suggestions[0].edits[0].text if answer.suggestions else ""
    return times | {"text": text, "reused": ends[0].cached_tokens if ends else 0}


def _right(task: Task, text: str) -> Answer:
    """Return whether the text is what stood there, and whether its first line is."""
    given, expected = trimmed(text), trimmed(task.answer)
    return {"first_line": given.split("\n")[0] == expected.split("\n")[0], "exact": given == expected}


# --- llama.cpp


class Llama:
    """A running server of llama.cpp."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.port = process, port

    def wait(self) -> None:
        """Wait until the model is loaded. Raises SystemExit if the server ends."""
        while self.process.poll() is None:
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            time.sleep(0.1)
        raise SystemExit(f"llama.cpp's server ended with {self.process.returncode}")

    def answers(self, task: Task) -> dict[str, Answer]:
        """Return the answers to the hole: with nothing cached, as llama.vim asks, and with the better limits."""
        shorter = replace(task, prompt=task.prompt[:-TYPED])
        best = {"t_max_predict_ms": 4_000} if task.hole.extent == "block" else {"stop": ["\n"]}
        cold = self._ask(shorter, cache_prompt=False, **best)
        time.sleep(PAUSE_S)
        vim = self._ask(task)
        self._ask(shorter, n_predict=1)
        time.sleep(PAUSE_S)
        short = self._ask(task, **best)
        return {"llama cold": cold, "vim": vim | _right(task, vim["text"]), "best": short | _right(task, short["text"])}

    def _ask(self, task: Task, **changes: Any) -> Answer:
        *before, line = task.prompt.split("\n")
        rest, *behind = task.suffix.split("\n")
        indent = len(line + rest) - len((line + rest).lstrip())
        # In a line of white space, llama.vim sends none of it, and cuts as much from the answer.
        is_blank, width = not (line + rest).strip(), len(line + rest)
        if is_blank:
            line, rest, indent = "", "", 0
        request = VIM | {
            "id_slot": 0,
            "input_prefix": "\n".join(before[-LINES_BEFORE:]) + "\n",
            "input_suffix": rest + "\n" + "\n".join(behind[:LINES_BEHIND]) + "\n",
            "prompt": line,
            "n_indent": indent,
            **changes,
        }
        spent, began = processor_ms(self.process.pid), time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/infill", json.dumps(request), {"Content-Type": "application/json"})
        response = json.loads(connection.getresponse().read())
        times = {"ms": 1000 * (time.monotonic() - began), "cpu_ms": processor_ms(self.process.pid) - spent}
        text = response["content"]
        if is_blank:
            first = text.split("\n")[0]
            text = text[min(len(first) - len(first.lstrip()), width) :]
        return times | {"text": text.rstrip("\n")}


@contextlib.contextmanager
def _llama(server: Path, gguf: Path, threads: int) -> Iterator[Llama]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    counts = ("-t", str(threads), "-tb", str(threads))
    command = (str(server), "-m", str(gguf), "--host", "127.0.0.1", "--port", str(port), *SERVER, *counts)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        llama = Llama(process, port)
        llama.wait()
        yield llama
    finally:
        process.terminate()
        process.wait()


# --- The table


SIDES = "ours", "vim", "best"


def table(paths: Sequence[Path]) -> int:
    """Print what result files say about each kind of hole: medians of times, and how many answers are right."""
    rows = [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]
    for threads in sorted({row["threads"] for row in rows}):
        own = [row for row in rows if row["threads"] == threads]
        print(f"\n{threads} threads, load {percentile([row['load'] for row in own], 50):.1f}; sides: {', '.join(SIDES)}\n")
        heads = [
            *("holes", "n", "first line right", "exact", "processor ms", "ours : vim", "ours : best"),
            *("nothing cached, processor ms", "ours : llama.cpp", "ms"),
        ]
        print(f"| {' | '.join(heads)} |\n| --- |{' ---: |' * (len(heads) - 1)}")
        for kind in sorted({row["kind"] for row in own}):
            print(_line(kind, [row for row in own if row["kind"] == kind]))
    return 0


def _line(kind: str, rows: Sequence[Mapping[str, Any]]) -> str:
    def middle(side: str, key: str = "cpu_ms") -> float:
        return percentile([row[side][key] for row in rows], 50)

    def sides(key: str, value: Callable[[str, str], float]) -> str:
        return ", ".join(f"{value(side, key):.0f}" for side in SIDES)

    def right(side: str, key: str) -> int:
        return sum(row[side][key] for row in rows)

    fresh = [row for row in rows if row["ours cold"]["reused"] <= FRESH]
    ours, theirs = (percentile([row[side]["cpu_ms"] for row in fresh], 50) for side in ("ours cold", "llama cold"))
    ratios = [f"{middle('ours') / middle(side):.2f}" for side in ("vim", "best")]
    cells = [kind, str(len(rows)), sides("first_line", right), sides("exact", right), sides("cpu_ms", middle), *ratios]
    cells += [f"{ours:.0f}, {theirs:.0f}", f"{ours / theirs:.2f}" if theirs else "-", sides("ms", middle)]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="do", required=True)
    ask = commands.add_parser("run", help="ask both at each hole")
    ask.add_argument("out", help="the result file; a second run adds to it")
    ask.add_argument("--server", type=Path, required=True, help="a server of llama.cpp")
    ask.add_argument("--gguf", type=Path, required=True, help="its weights")
    ask.add_argument("--mirror", type=Path, metavar="DIR", help="the folder of the git folders; adds positions of commits")
    ask.add_argument("--limit", type=int, default=20, help="holes of each kind")
    ask.add_argument("--threads", type=int, default=1)
    ask.add_argument("--minutes", type=float, default=60.0)
    show = commands.add_parser("table", help="print the tables of result files")
    show.add_argument("outs", type=Path, nargs="+", metavar="OUT")
    options = parser.parse_args(arguments)
    return table(options.outs) if options.do == "table" else asyncio.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
