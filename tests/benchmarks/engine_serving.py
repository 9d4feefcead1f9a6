"""What serving costs, and whether it is fair: python tests/benchmarks/engine_serving.py [SECONDS]

The overhead of HTTP and scheduling is measured twice: on an engine whose model computes nothing, and with the embedded model
as what a request takes over the socket less what the same request takes in this process, each without the model's stages,
which take longer in the process that did something else last. Then one client alone and eight
that ask at the same moment, with requests of equal and of mixed length, and eight that never pause for so many seconds (20).
One thread, held-out tasks; no request finds its prefix known. What is compared takes turns, so that a busy machine is busy
for both. Prints a table; asserts nothing, as clocks differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dg_lsp.core.values import Hole, InfillRequest, Span
from dg_lsp.engine.backends.local import load_local
from dg_lsp.engine.common.local import LocalFiller
from dg_lsp.evaluate import tasks
from dg_lsp.evaluate.score import percentile
from dg_lsp.infill.client import ConnectOptions, ResidentEngine, connect
from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import ENGINE_COMMAND, EngineId, EngineSettings
from dg_lsp.wire.messages import Done
from tests.benchmarks import arguments

TASKS = Path(__file__).parents[2] / "fixtures" / "eval" / "heldout.jsonl.gz"
N_PAIRS = 60
N_CLIENTS, N_ROUNDS = 8, 8
N_STEPS, CONTEXT_CHARS, N_EMPTY = 12, 4000, 300  # like a request to the embedded model, and how often
OVERHEAD_MS, TIMES_ALONE = 5.0, 8.0
LEAST_SHARE = 0.5  # of an equal share: a client that gets less starves

Requests = Iterator[InfillRequest]

_NUMBERS = itertools.count()


def main(seconds: float) -> None:
    base_requests = [
        task.request() for task in tasks.spread([task for task in tasks.read(TASKS) if not task.hole.block], N_PAIRS)
    ]
    with engines_of_our_own():
        asyncio.run(measure(base_requests, seconds))


@contextlib.contextmanager
def engines_of_our_own() -> Iterator[None]:
    """A private folder for the engine, so that no other engine is measured or disturbed."""
    folder = tempfile.mkdtemp(prefix="dg")
    os.environ[discovery.RUNTIME_DIR_VARIABLE] = folder
    os.environ["PYTHONPATH"] = str(TASKS.parents[2])  # of an engine whose model is one of the tests'
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def measure(base_requests: Sequence[InfillRequest], seconds: float) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(options(f"client {number}"))) for number in range(N_CLIENTS)]
        pid = (await clients[0].info())["pid"]
        assert isinstance(pid, int)
        print(f"{len(base_requests)} requests; the machine's load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
        print("| what | measured | wanted | |\n| --- | --- | --- | --- |")
        requests = unknown(base_requests)
        await protocol_alone()
        await overhead(clients[0], pid, requests)
        await at_once(clients, pid, unknown(base_requests[:1]), "equal")
        await at_once(clients, pid, requests, "mixed")
        await shares(clients, requests, seconds)
        os.kill(pid, signal.SIGTERM)


def options(client: str, model: str = "embedded", loader: str = "") -> ConnectOptions:
    return ConnectOptions(
        EngineId(model, filler=loader), EngineSettings(threads=1, exit_after_s=30), client=client, command=ENGINE_COMMAND
    )


def unknown(base_requests: Sequence[InfillRequest]) -> Requests:
    """Yield the requests again and again, each as of another file: the name stands first, so no prefix is known."""
    for number, request in zip(_NUMBERS, itertools.cycle(base_requests), strict=False):
        yield replace(request, path=f"{number:06}.py", seed=number)


async def protocol_alone() -> None:
    """Tell what a request of as many steps costs whose model computes nothing: HTTP and scheduling, without a model's noise."""
    script = json.dumps({"steps": N_STEPS, "text": "x", "rest": "x" * CONTEXT_CHARS})
    request = InfillRequest(script, "\n" * CONTEXT_CHARS, (Hole(Span(0, 0), "cursor"),))
    async with connect(options("alone", "toy", "tests.engine.toy_filler:load")) as engine:
        pid = (await engine.info())["pid"]
        assert isinstance(pid, int)
        pairs = [await used(pid, timed(engine, request)) for _ in range(20 + N_EMPTY)][20:]
        os.kill(pid, signal.SIGTERM)
    waits, works = ([pair[side] for pair in pairs] for side in (0, 1))
    middle = percentile(waits, 50)
    what = f"HTTP and scheduling: {N_STEPS} steps of a model that computes nothing, p50"
    summary = f"{middle:.1f} ms (quartiles {percentile(waits, 25):.1f} and {percentile(waits, 75):.1f})"
    tell(what, summary, f"<= {OVERHEAD_MS:.0f} ms", middle <= OVERHEAD_MS)
    tell("the same in processor time of both processes, p50", f"{percentile(works, 50):.1f} ms")


async def overhead(engine: ResidentEngine, pid: int, requests: Requests) -> None:
    """Tell what a request costs more over the socket than in this process."""
    here = load_local("embedded", threads=1)
    waits, works, elsewhere = [], [], []
    stages: dict[str, float] = {}
    for number in range(N_PAIRS + 2):
        request, ends = next(requests), list[Done]()
        # The second one finds warm processor caches.
        if number % 2:
            over, inside = await used(pid, timed(engine, request, ends)), await used(pid, timed_here(here, request, stages))
        else:
            inside, over = await used(pid, timed_here(here, request, stages)), await used(pid, timed(engine, request, ends))
        # What a process does for the first time is slow.
        if number >= 2:
            waits.append(over[0] - inside[0])
            works.append(over[1] - inside[1])
            timings = asdict(ends[0].timings)
            there = over[0] - sum(timings[f"{name}_ms"] for name in stages)
            elsewhere.append(there - (inside[0] - sum(stages.values())))
    middle, added_ms = statistics.median(waits), statistics.median(elsewhere)
    tell(
        "with the embedded model: over the socket less in this process, outside of the model's stages, p50",
        f"{added_ms:.1f} ms (quartiles {percentile(elsewhere, 25):.1f} and {percentile(elsewhere, 75):.1f})",
        f"<= {OVERHEAD_MS:.0f} ms",
        added_ms <= OVERHEAD_MS,
    )
    quartiles = f"quartiles {percentile(waits, 25):.1f} and {percentile(waits, 75):.1f}"
    tell("the whole of it, with what the same stages took longer in the other process", f"{middle:.1f} ms ({quartiles})")
    quartiles = f"quartiles {percentile(works, 25):.1f} and {percentile(works, 75):.1f}"
    tell("the whole of it in processor time of both processes", f"{statistics.median(works):.1f} ms ({quartiles})")


async def at_once(clients: Sequence[ResidentEngine], pid: int, requests: Requests, length: str) -> None:
    """Tell how long clients wait that ask at the same moment, next to one alone; the two take turns."""
    alone, together = list[float](), list[float]()
    work_ms = [0.0, 0.0]
    for _ in range(N_ROUNDS):
        before = processor_ms(pid)
        alone += [await timed(clients[0], next(requests)) for _ in clients]
        between = processor_ms(pid)
        together += await asyncio.gather(*(timed(client, next(requests)) for client in clients))
        work_ms = [work_ms[0] + between - before, work_ms[1] + processor_ms(pid) - between]
    tell(f"one client alone, requests of {length} length", middle_and_end(alone))
    ratio = percentile(together, 95) / percentile(alone, 50)
    summary = f"{middle_and_end(together)}: {ratio:.1f} times the p50 of one alone"
    tell(
        f"{len(clients)} clients at the same moment, {N_ROUNDS} times, {length} length",
        summary,
        f"<= {TIMES_ALONE:.0f}",
        ratio <= TIMES_ALONE,
    )
    one, eight = (ms / len(alone) for ms in work_ms)
    tell("the engine's processor time for a request", f"{one:.0f} ms alone, {eight:.0f} ms beside seven others")


async def shares(clients: Sequence[ResidentEngine], requests: Requests, seconds: float) -> None:
    """Tell how many answers each client gets when none of them ever pauses."""
    end = time.perf_counter() + seconds
    times: list[list[float]] = [[] for _ in clients]

    async def ask(client: ResidentEngine, own: list[float]) -> None:
        while time.perf_counter() < end:
            own.append(await timed(client, next(requests)))

    await asyncio.gather(*(ask(client, own) for client, own in zip(clients, times, strict=True)))
    counts = [len(own) for own in times]
    tell(f"{len(clients)} clients that never pause, {seconds:.0f} s", middle_and_end([ms for own in times for ms in own]))
    least = min(counts) * len(counts) / sum(counts)
    parts = ", ".join(f"{100 * count / sum(counts):.0f} %" for count in counts)
    summary = f"{parts}; the least has {least:.2f} of an equal share"
    tell(f"each client's share of the {sum(counts)} answers", summary, f">= {LEAST_SHARE}", least >= LEAST_SHARE)


async def timed(engine: ResidentEngine, request: InfillRequest, ends: list[Done] | None = None) -> float:
    """Milliseconds that the asker waits."""
    began = time.perf_counter()
    await engine.fill(request, on_done=None if ends is None else ends.append)
    return 1000 * (time.perf_counter() - began)


async def timed_here(here: LocalFiller, request: InfillRequest, stages: dict[str, float]) -> float:
    """Milliseconds that the same takes in this process; those of its stages are left in `stages`."""
    began = time.perf_counter()
    task = here.start(request)
    while task.step():
        pass
    task.candidates()
    end = time.perf_counter()
    stages.update(task.milliseconds)
    return 1000 * (end - began)


async def used(pid: int, waiting: Awaitable[float]) -> tuple[float, float]:
    """The milliseconds that something says it took, and those of the processor's that this process and the engine used."""
    before = 1000 * time.process_time() + processor_ms(pid)
    wait_ms = await waiting
    return wait_ms, 1000 * time.process_time() + processor_ms(pid) - before


def processor_ms(pid: int) -> float:
    """Milliseconds of processor time that the threads of a process have used; only where there is a /proc."""
    tasks_of = Path(f"/proc/{pid}/task")
    if not tasks_of.exists():
        return float("nan")
    return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks_of.iterdir()) / 1e6


def middle_and_end(times: Sequence[float]) -> str:
    return f"p50 {percentile(times, 50):.0f} ms, p95 {percentile(times, 95):.0f} ms"


def tell(what: str, value: str, bound: str = "", is_met: bool | None = None) -> None:
    verdict = "" if is_met is None else "held" if is_met else "missed"
    print(f"| {what} | {value} | {bound} | {verdict} |", flush=True)


if __name__ == "__main__":
    main(*arguments.parsed(__doc__, seconds=20.0))
