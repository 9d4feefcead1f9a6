"""What it costs to carry a request to the engine and back: processor time on both sides, the engine's start and its memory.

    python benchmarks/transport.py

The model is the tests' toy, which takes no time of its own.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

from dg_lsp.client.engine import ConnectOptions, connect
from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import ENGINE_COMMAND, EngineId, EngineSettings
from tests.engine.engine_kit import FILLER, ROOT, request

N_REQUESTS, IDLE_S = 500, 5.0


def cpu_s(pid: object) -> float:
    """Return the processor time of a process so far."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def measure() -> None:
    options = ConnectOptions(EngineId("toy", filler=FILLER), EngineSettings(exit_after_s=2), command=ENGINE_COMMAND)
    async with connect(options) as engine:
        pid = (await engine.info())["pid"]
        print(f"start of the engine: {cpu_s(pid):.2f} s of processor time")
        for _ in range(50):
            await engine.fill(request())
        here, there, waits_s = time.process_time(), cpu_s(pid), []
        for _ in range(N_REQUESTS):
            start = time.perf_counter()
            await engine.fill(request())
            waits_s.append(time.perf_counter() - start)
        here_ms, there_ms = (1000 * spent_s / N_REQUESTS for spent_s in (time.process_time() - here, cpu_s(pid) - there))
        print(
            f"a request: client {here_ms:.2f} ms, engine {there_ms:.2f} ms, median {1000 * statistics.median(waits_s):.1f} ms"
        )
        memory = (await engine.info())["memory"]
        assert isinstance(memory, dict)
        before = cpu_s(pid)
        await asyncio.sleep(IDLE_S)
        idle_ms = 1000 * (cpu_s(pid) - before) / IDLE_S
        print(f"the engine has {memory['rss_bytes'] / 1e6:.0f} MB; idle, it takes {idle_ms:.1f} ms of each second")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="dg") as folder:
        os.environ |= {discovery.RUNTIME_DIR_VARIABLE: folder, "PYTHONPATH": str(ROOT)}
        asyncio.run(measure())
