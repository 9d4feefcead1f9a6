"""Play minutes of the recorded day at a person's speed, and print the processor time of the engine for them.

    python benchmarks/day.py [FROM] [TO] [MODEL] [PYTHON]

What was typed before is there at once. The cursor arrives at each place, and a suggestion is asked for after each key, with the
settings at their default. PYTHON is the interpreter of another commit, to compare with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import time
from itertools import zip_longest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.arguments import parsed
from tests.e2e import day
from tests.e2e.day import Act, Player
from tests.e2e.editor import CODE, Editor
from tests.processes import processor_ms

MINUTE_MS = 60_000.0
READY_S = 0.1
SETTLES_S = 3.0  # until what is read for the last place is read


class Person(Player):
    """Plays acts when they were recorded, each key at its own time."""

    n_moves = 0

    async def play_from(self, acts: list[Act], start_ms: float) -> None:
        began = time.monotonic()
        for act in acts:
            await asyncio.sleep(max(0.0, began + (act["at"] - start_ms) / 1000 - time.monotonic()))
            self._see()
            if act["do"] in ("switch", "move"):
                await getattr(self, f"_{act['do']}")(act)
                self._arrive()
            elif act["do"] == "type":
                await self._type_slowly(act)
            elif act["do"] not in ("menu", "fill"):
                await getattr(self, f"_{act['do']}")(act)

    def _see(self) -> None:
        """Count the suggestion for the last key, if it came."""
        if self.shown is None and self.requests and self.requests[-1].done() and not self.requests[-1].exception():
            items = (self.requests[-1].result() or {}).get("items") or [None]
            self.shown = items[0]
            self.n_shown += self.shown is not None

    async def _type_slowly(self, act: Act) -> None:
        keys = re.findall(r"\r\n|.", act["keys"], re.DOTALL)
        for key, gap_ms in zip_longest(keys, act["gaps"][: len(keys)], fillvalue=0):
            await asyncio.sleep(gap_ms / 1000)
            self.edit(self.file.cursor, self.file.cursor, key)
            self.ask()
            self.n_keys += 1

    def _arrive(self) -> None:
        """Ask for the code actions at the cursor, as VS Code does wherever it arrives."""
        self.n_moves += 1
        at = self.at(self.file.cursor)
        context = {"diagnostics": [], "triggerKind": 2}
        where = {"textDocument": {"uri": self.file.uri}, "range": {"start": at, "end": at}, "context": context}
        self.client.start("textDocument/codeAction", where)


async def measure(start_ms: float, end_ms: float, model: str, python: str) -> None:
    with tempfile.TemporaryDirectory(prefix="day-") as name:
        own = {"XDG_RUNTIME_DIR": name, "XDG_STATE_HOME": f"{name}/state", "XDG_CONFIG_HOME": f"{name}/config"}
        variables = {key: value for key, value in os.environ.items() if not key.startswith("DG_LSP_")} | own
        client = Editor(python, "-P", "-m", "dg_lsp", "serve", "--stdio", env=variables | {"DG_LSP_MODEL": model})
        async with client:
            await client.hello(CODE, settings={})
            while (await client.status())["state"] != "ready":
                await asyncio.sleep(READY_S)
            [engine] = [json.loads(file.read_text())["pid"] for file in Path(name).rglob("engine-*.json")]
            try:
                await _play(client, engine, start_ms, end_ms)
            finally:
                os.kill(engine, signal.SIGTERM)


async def _play(client: Editor, engine: int, start_ms: float, end_ms: float) -> None:
    person, acts = Person(client), day.recording()
    for act in (act for act in acts if act["at"] < start_ms):
        if act["do"] == "type":
            person.edit(person.file.cursor, person.file.cursor, act["keys"])
        elif act["do"] not in ("menu", "fill", "accept"):
            await getattr(person, f"_{act['do']}")(act)
    await client.status()
    await asyncio.sleep(SETTLES_S)
    before: list[float] = [processor_ms(engine), processor_ms(client.process.pid)]
    await person.play_from([act for act in acts if start_ms <= act["at"] < end_ms], start_ms)
    await asyncio.sleep(SETTLES_S)
    spent: list[Any] = [processor_ms(engine) - before[0], processor_ms(client.process.pid) - before[1]]
    print(
        f"{(end_ms - start_ms) / 1000:.0f} s of the day: {person.n_keys} keys, {person.n_moves} moves, {person.n_shown} shown"
    )
    print(f"processor time: engine {spent[0] / 1000:.1f} s, server {spent[1] / 1000:.1f} s; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    first, last, model, python = parsed(__doc__, FROM=0.0, TO=1.5, MODEL="qwen2.5-coder-0.5b", PYTHON=sys.executable)
    asyncio.run(measure(first * MINUTE_MS, last * MINUTE_MS, model, python))
