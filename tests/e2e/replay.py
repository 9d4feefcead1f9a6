"""Ask the real server at many positions, as an editor does, and record the suggestions."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.editor import Editor, command, environment
from tests.e2e.positions import Position

# This client sends its settings by notifications, which take effect at once.
CLIENT = {"general": {"positionEncodings": ["utf-16"]}, "textDocument": {"inlineCompletion": {"dynamicRegistration": False}}}
_PROBABILITY = re.compile(r"probability of (\d\.\d+)")


@dataclass(frozen=True, slots=True)
class Record:
    """The result at a position: the best suggestion, its probability, and all suggestions of an explicit request."""

    position: Position
    text: str
    score: float
    by_hand: tuple[str, ...]
    silence: str
    """Why there is no suggestion at any threshold; "" if there is one."""


def settings(**completion: object) -> dict[str, object]:
    return {"completion": {"debounce": 0, "speculate": False, "deadline": 0, **completion}}


@contextlib.asynccontextmanager
async def session(folder: Path) -> AsyncIterator[Editor]:
    """Yield a client whose server is connected to a real engine with the model in DG_LSP_MODEL; then shut it down."""
    client = Editor(*command(), env=environment(folder / "server", DG_LSP_SERVE_ENGINE=""))
    async with client:
        await client.hello(CLIENT, options=settings())
        while (state := (await client.status())["state"]) != "ready":
            assert state != "failed", client.stderr.decode()
            await asyncio.sleep(0.05)
        yield client
        assert await client.end() == 0


async def replay(client: Editor, positions: Sequence[Position]) -> AsyncIterator[Record]:
    """Yield the result at each position, in order."""
    for number, position in enumerate(positions):
        uri = f"untitled:{number}/{position.path}"
        line, character = position.point
        client.open(position.before + position.after, uri=uri)
        # No suggestion reaches this threshold, and the reason names its probability.
        _configure(client, threshold=1)
        await client.suggestions(line, character, uri=uri)
        reason = (await client.status())["suppressed"] or {"code": "", "message": ""}
        score = _PROBABILITY.search(reason["message"])
        _configure(client, threshold=0)
        items = await client.suggestions(line, character, uri=uri)
        by_hand = await client.suggestions(line, character, uri=uri, trigger=1)
        client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
        yield Record(
            position,
            items[0]["insertText"] if items else "",
            float(score[1]) if score else 0.0,
            tuple(item["insertText"] for item in by_hand),
            "" if items else reason["code"] + (f": {reason['message']}" if reason["code"] == "noAnswer" else ""),
        )


def _configure(client: Editor, **completion: object) -> None:
    client.notify("workspace/didChangeConfiguration", {"settings": {"dgLsp": settings(**completion)}})
