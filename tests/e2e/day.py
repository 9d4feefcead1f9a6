"""Play a recording of half an hour of edits to a server.

A recording is a list of acts, each with the time in milliseconds at which it began. Positions in it are told by the text
before them, since what a suggestion adds depends on the model. Played, the clock is the server's own: keys of one burst
follow each other as fast as the server takes them, and where the recording pauses, the player waits for the answer to
the last request, as a user who pauses sees it.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dg_lsp.core import positions
from dg_lsp.core.positions import Lines
from tests import naive
from tests.e2e.editor import Editor
from tests.e2e.rpc import RpcError
from tests.patience import PATIENCE_S

RECORDING = Path(__file__).parents[2] / "fixtures" / "day" / "session.jsonl"
LANGUAGES = {".py": "python", ".js": "javascript"}
# After a pause this long, the user looks at the suggestion.
PAUSE_MS = 900
CANCELLED = -32800

Act = dict[str, Any]


@dataclass
class File:
    """A document as the editor has it. An entry of `undo` is an offset, a length to remove and a text to insert."""

    uri: str
    text: str
    version: int = 1
    cursor: int = 0
    undo: list[tuple[int, int, str]] = field(default_factory=list)


@dataclass
class Player:
    """Plays recorded acts to a server, and records the results."""

    client: Editor
    files: dict[str, File] = field(default_factory=dict)
    here: str = ""
    requests: list[asyncio.Future[Any]] = field(default_factory=list)
    shown: dict[str, Any] | None = None
    asked: int = 0
    last: int = 0
    n_keys: int = 0
    n_shown: int = 0
    n_accepted: int = 0

    async def play(self, acts: list[Act]) -> None:
        """Play acts, and wait for an answer at each pause."""
        for act in acts:
            if act["at"] - self.last >= PAUSE_MS:
                await self.look()
            await getattr(self, f"_{act['do']}")(act)
            self.last = act["at"] + sum(act.get("gaps", ()))
        await self.look()

    async def look(self) -> None:
        """Wait until the last request is answered, and store the suggestion."""
        if not self.requests or self.shown is not None:
            return
        try:
            answer = await asyncio.wait_for(asyncio.shield(self.requests[-1]), PATIENCE_S)
        except RpcError as error:
            if error.code != CANCELLED:
                raise
            return
        if isinstance(answer, dict) and answer.get("items"):
            self.shown = answer["items"][0]
            self.n_shown += 1

    @property
    def file(self) -> File:
        return self.files[self.here]

    def at(self, offset: int) -> dict[str, int]:
        line, character = positions.to_position(positions.lines(self.file.text), offset, "utf-16")
        return {"line": line, "character": character}

    def edit(self, start: int, end: int, new: str, *, undone: bool = False) -> None:
        """Change the text here, and send the change with the protocol's positions."""
        file = self.file
        change = naive.edit(new, *(positions.to_position(positions.lines(file.text), at, "utf-16") for at in (start, end)))
        ends = {"start": self.at(start), "end": self.at(end)}
        if not undone:
            file.undo.append((start, len(new), file.text[start:end]))
        file.text = naive.change(file.text, change, "utf-16")
        file.version += 1
        file.cursor = start + len(new)
        self.shown = None
        self.client.change(file.version, {"range": ends, "text": new}, uri=file.uri)

    def ask(self) -> None:
        """Request a suggestion as typing does, and cancel the request before, as most editors do."""
        if self.requests and not self.requests[-1].done() and self.here != "orders.py":
            self.client.notify("$/cancelRequest", {"id": self.asked})
        position = self.at(self.file.cursor)
        where = self.client.inline(position["line"], position["character"], uri=self.file.uri)
        self.asked, future = self.client.start("textDocument/inlineCompletion", where)
        self.requests.append(future)

    async def _open(self, act: Act) -> None:
        name = act["file"]
        self.files[name] = File(f"untitled:day/{name}", act["text"], cursor=len(act["text"]))
        self.client.open(act["text"], uri=self.files[name].uri, language=LANGUAGES[Path(name).suffix])
        self.here = name

    async def _switch(self, act: Act) -> None:
        self.here, self.shown = act["file"], None
        self.file.cursor = len(self.file.text)

    async def _move(self, act: Act) -> None:
        start = self.file.text.rfind(act["after"])
        self.file.cursor = start + len(act["after"]) if start >= 0 else len(self.file.text)
        self.shown = None

    async def _type(self, act: Act) -> None:
        for key in re.findall(r"\r\n|.", act["keys"], re.DOTALL):
            self.edit(self.file.cursor, self.file.cursor, key)
            self.ask()
            self.n_keys += 1
            # The server must process each key before the next; it answers this in order and without the engine.
            if self.n_keys % 8 == 0:
                await self.client.status()

    async def _delete(self, act: Act) -> None:
        self.edit(max(0, self.file.cursor - act["count"]), self.file.cursor, "")

    async def _paste(self, act: Act) -> None:
        self.edit(self.file.cursor, self.file.cursor, act["text"])

    async def _undo(self, act: Act) -> None:
        for _ in range(act["times"]):
            if self.file.undo:
                start, n_new, old = self.file.undo.pop()
                self.edit(start, start + n_new, old, undone=True)

    async def _accept(self, act: Act) -> None:
        if self.shown is None:
            return
        item, index = self.shown, positions.lines(self.file.text)
        start, end = _offsets(index, item["range"])
        self.edit(start, end, item["insertText"])
        self.n_accepted += 1
        await self.look()

    async def _reject(self, act: Act) -> None:
        # An editor sends no message when a suggestion is dismissed, only when the user types something else.
        self.shown = None

    async def _save(self, act: Act) -> None:
        self.client.notify("textDocument/didSave", {"textDocument": {"uri": self.file.uri}})

    async def _menu(self, act: Act) -> None:
        position = self.at(self.file.cursor)
        await self.client.menu(position["line"], position["character"], uri=self.file.uri)

    async def _fill(self, act: Act) -> None:
        """Request the edit of the first code action, and apply it if there is one."""
        position = self.at(self.file.cursor)
        for action in (await self.client.menu(position["line"], position["character"], uri=self.file.uri))[:1]:
            resolved = await self.client.request("codeAction/resolve", action)
            for change in resolved.get("edit", {}).get("documentChanges", []):
                assert change["textDocument"]["version"] == self.file.version
                index = positions.lines(self.file.text)
                for edit in reversed(change["edits"]):
                    self.edit(*_offsets(index, edit["range"]), edit["newText"])


def recording() -> list[Act]:
    """Return the recorded acts."""
    return [json.loads(line) for line in RECORDING.read_text("utf-8").splitlines()]


def _offsets(index: Lines, range_: dict[str, Any]) -> tuple[int, int]:
    start, end = (range_[end] for end in ("start", "end"))
    return (
        positions.to_offset(index, start["line"], start["character"], "utf-16"),
        positions.to_offset(index, end["line"], end["character"], "utf-16"),
    )
