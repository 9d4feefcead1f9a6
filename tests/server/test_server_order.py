"""The order of requests: what the engine is asked and what is shown while a user types, accepts, deletes and moves on.

Time is that of the test's event loop, which passes only when nothing is left to do. So each row of `order.txt` says exactly
when something is shown, and takes no time.
"""

from __future__ import annotations

import asyncio
import re
import selectors
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lsprotocol import types as lsp

from dg_lsp.client.engine import ConnectOptions, EngineClient
from dg_lsp.client.port import EngineError
from dg_lsp.core.values import Calibrated, Candidate, InfillRequest
from dg_lsp.server import handlers
from dg_lsp.server.completion import Completer, SuggestionRequest
from dg_lsp.server.snapshot import Nearby, Snapshots
from dg_lsp.server.sync import Documents
from dg_lsp.wire.settings import Settings
from tests import marked, naive
from tests.fakes import ReadyEngine, connecting

ROWS = marked.rows(Path(__file__).with_name("order.txt"))

# What the engine answers: the text up to the next `)`. It knows no other text, and says `2` there, or goes on with zeros.
WHOLE = "total = price(a, b) + price(c, d) + price(e, f)\nshow(total)\n"
ZEROS = "ab\n\nzeros = [" + "0, " * 300
STEP = re.compile(r"(\d+) (?:'(.*)'|(\w+)(?: (.+))?)", re.DOTALL)


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time passes when no callback is ready and no thread works: then to the next timer, at once."""

    def __init__(self) -> None:
        self.now, self.n_threads, loop = 0.0, 0, self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> list[Any]:
                if timeout is None or loop.n_threads:
                    return super().select(timeout if timeout == 0 else None)
                events = super().select(0)
                if not events:
                    loop.now += timeout
                return events

        super().__init__(Selector())

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self.n_threads += 1
        future.add_done_callback(self._one_less)
        return future

    def _one_less(self, _future: asyncio.Future[Any]) -> None:
        self.n_threads -= 1


class Timed(ReadyEngine):
    """An engine that answers after a fixed time, or with "(" at the deadline, and notes what it is asked and what is cancelled.

    It takes one request at a time, in the order in which they came, and half the time for a text that it has read.
    """

    def __init__(self, ms: float, *, is_sure: bool = True) -> None:
        self.ms, self.is_sure = ms, is_sure
        self.asked: list[str] = []
        self.fails: set[int] = set()
        self._turn = asyncio.Lock()
        self._read: set[str] = set()

    async def answer(self, request: InfillRequest, document: str) -> tuple[Candidate, ...]:
        n, idx = request.budget.candidates, len(self.asked)
        line = request.prefix.rpartition("\n")[2].rstrip() or "''"
        line = f"{line.count('0')} zeros" if "zeros" in line else line
        line = f"b: {line}" if document.startswith("untitled:b") else line
        self.asked.append(line + (" +" if document.endswith("#ahead") else "") + (f" x{n}" if n > 1 else ""))
        try:
            async with self._turn:
                limit, ms = request.budget.ms, self.ms / (1 + (line in self._read))
                self._read.add(line)
                await asyncio.sleep((min(ms, limit) if limit else ms) / 1000)
        except asyncio.CancelledError:
            self.asked[idx] += " !"
            raise
        if idx in self.fails:
            raise EngineError("the engine has no memory left")
        if limit and ms > limit:
            return (Candidate(("(",), finished=False),)
        text = answer(request.prefix)
        confidence = Calibrated(0.9 if self.is_sure else 0.05)
        return tuple(Candidate((each,), confidence) for each in [text, *(f"{text}.n{idx}" for idx in range(1, n))])


def answer(prefix: str) -> str:
    """Return what the engine writes after a text."""
    if not WHOLE.startswith(prefix):
        return "0, 0, 0, 0]" if prefix.endswith("0, ") else "2"
    part, closed, _ = WHOLE[len(prefix) :].partition(")")
    return part + closed


class Play:
    """A user at an editor with two files, who does something at given times."""

    def __init__(self, debounce: int | None, engine: Timed, text: str = "", **settings: Any) -> None:
        self.engine = engine
        self.loop = asyncio.get_running_loop()
        self.documents = Documents()
        self.nearby = Nearby(self.loop.time)
        self.settings = Settings(debounce=debounce, **settings)
        connector = connecting(lambda _model: engine)
        self.client = EngineClient(None, lambda _: None, lambda _: None, clock=self.loop.time, connector=connector)
        snapshots = Snapshots(self.documents, self.nearby, lambda _uri: self.settings)
        on_late = lambda _document: self.ask("late")  # noqa: E731  # as an editor does
        self.completer = Completer(snapshots, self.client, self.loop.time, lambda _reason: None, on_late)
        self.uri = "untitled:a"
        self.texts = {"untitled:a": text, "untitled:b": ""}
        self.at = {"untitled:a": len(text), "untitled:b": 0}
        self.older: list[tuple[str, str, int]] = []
        self.ghost: tuple[str, str, int, str] | None = None
        self.shown: list[str] = []
        self.requests: list[asyncio.Task[None]] = []
        self.start = 0.0

    async def run(self, steps: str) -> None:
        for uri, text in self.texts.items():
            self.documents.open(uri, "python", 1, text)
        self.client.use(ConnectOptions())
        await self.client.ready()
        for uri in self.texts:
            await self.nearby.look(uri)
        self.start = self.loop.time()
        for step in steps.split(" | "):
            match = STEP.fullmatch(step)
            assert match is not None, f"not a step: {step}"
            await asyncio.sleep(self.start + int(match[1]) / 1000 - self.loop.time())
            self.act(match[2], match[3], match[4] or "")
        await asyncio.sleep(10.0)
        await self.completer.close()
        await self.nearby.close()
        await self.client.close()

    def act(self, typed: str | None, verb: str | None, what: str) -> None:
        """Do one step. `what` is a number of characters or `explicit`."""
        text, at = self.texts[self.uri], self.at[self.uri]
        if typed is not None:
            self.edit(text[:at] + typed + text[at:], at + len(typed))
        elif verb in ("accept", "word"):
            assert self.ghost is not None, "nothing is shown that could be accepted"
            uri, then, start, ghost = self.ghost
            assert (uri, then, start) == (self.uri, text, at), "what is shown is of another text"
            taken = ghost if verb == "accept" else re.match(r"\W*\w*", ghost)[0]  # type: ignore[index]
            self.edit(text[:at] + taken + text[at:], at + len(taken))
        elif verb in ("delete", "remove"):  # the latter as a change that the editor asks nothing after
            n = int(what or 1)
            self.edit(text[: at - n] + text[at:], at - n, asks=verb == "delete")
        elif verb == "close":  # a bracket that the editor closes by itself, with the one typed
            self.edit(f"{text[:at]}(){text[at:]}", at + 1, asks=what != "silent")
        elif verb == "undo":
            self.uri, text, at = self.older.pop()
            self.edit(text, at, keeps=False)
        elif verb == "silent":  # a change that the editor asks nothing after
            self.edit(text[:at] + what + text[at:], at + len(what), asks=False)
        elif verb in ("above", "first"):  # a line is written before all others, or the first one goes
            more = f"{what}\n" if verb == "above" else ""
            rest = text if more else text.partition("\n")[2]
            self.edit(more + rest, at + len(more) + len(rest) - len(text), asks=False)
        elif verb == "import":  # a line before all others and a text at the cursor, as one notification
            server: Any = SimpleNamespace(documents=self.documents, completer=self.completer, settings=self.settings)
            places = [(0, 0), (text[:at].count("\n") + 1, at - 1 - text.rfind("\n", 0, at))]
            changes = [naive.edit(new, place, place) for new, place in zip(("cd\n", what), places, strict=True)]
            handlers.changed(server, lsp.VersionedTextDocumentIdentifier(2, self.uri), changes)
            self.texts[self.uri], self.at[self.uri] = f"cd\n{text[:at]}{what}{text[at:]}", at + 3 + len(what)
            self.ask("")
        elif verb == "switch":
            self.uri = "untitled:b" if self.uri == "untitled:a" else "untitled:a"
            self.completer.arrived(self.uri, self.at[self.uri])
        elif verb == "move":
            self.at[self.uri] = int(what)
            self.completer.arrived(self.uri, int(what))
        elif verb == "ask":
            self.ask(what)
        elif verb == "cancel":
            self.requests[-1].cancel()
        elif verb == "shut":
            self.documents.close(self.uri)
            self.completer.forget(self.uri)
        elif verb == "fails":
            self.engine.fails.add(int(what))
        elif verb == "settings":
            self.completer.forget_answers()
        else:
            raise AssertionError(f"unknown verb: {verb}")

    def edit(self, text: str, at: int, *, asks: bool = True, keeps: bool = True) -> None:
        before = self.texts[self.uri]
        if keeps:
            self.older.append((self.uri, before, self.at[self.uri]))
        self.texts[self.uri], self.at[self.uri] = text, at
        self.documents.change(self.uri, 2, [naive.edit(text)])
        self.completer.typed(self.uri, before, text)
        if asks:
            self.ask("")

    def ask(self, how: str) -> None:
        self.ghost = None
        if how == "late":
            self.shown.append(f"{self.ms()} late")
        request = SuggestionRequest(self.uri, self.at[self.uri], automatic=how != "explicit")
        self.requests.append(self.loop.create_task(self.see(request)))

    async def see(self, request: SuggestionRequest) -> None:
        text = self.texts[request.uri]
        try:
            reply = await self.completer.complete(request)
        except EngineError as error:
            self.shown.append(f"{self.ms()} error: {error}")
            return
        if reply.suggestions:
            texts = [suggestion.text for suggestion in reply.suggestions]
            is_here = (request.uri, self.texts[request.uri]) == (self.uri, reply.index.text)
            assert is_here or text == self.texts[request.uri], "shown for a text that the editor has not"
            if is_here and reply.at == self.at[self.uri]:
                self.ghost = (self.uri, reply.index.text, reply.at, texts[0])
            more = f" x{len(texts)}" if len(texts) > 1 else ""
            self.shown.append(f"{self.ms()} {texts[0]}{more}".replace("\n", "\\n"))

    def ms(self) -> int:
        return round(1000 * (self.loop.time() - self.start))


def played(debounce: str, engine_ms: str, steps: str, **more: Any) -> tuple[str, str]:
    """Return what the engine was asked, and what was shown, each as a row says it."""

    async def play() -> tuple[str, str]:
        is_sure = more.pop("is_sure", True)
        play = Play(int(debounce) if debounce else None, Timed(float(engine_ms), is_sure=is_sure), **more)
        await play.run(steps)
        return " | ".join(play.engine.asked), " | ".join(play.shown)

    with asyncio.Runner(loop_factory=Clock) as runner:
        return runner.run(play())


OPTIONS: dict[str, dict[str, Any]] = {
    "typing": {"speculate": False},
    "ahead": {},
    "late": {"deadline": 1_500},
    "unsure": {"speculate": False, "is_sure": False},
    "again": {},
    "repeated": {"speculate": False, "text": ZEROS},
    "commented": {"speculate": False, "text": "ab\n" + "# a comment\n" * 100 + "x = "},
}


@pytest.mark.parametrize(
    ("kind", "debounce", "engine_ms", "steps", "asked", "shown"),
    [pytest.param(kind, *row.values, id=row.id) for kind, rows in ROWS.items() for row in rows],
)
def test_what_the_engine_is_asked_and_what_is_shown(
    kind: str, debounce: str, engine_ms: str, steps: str, asked: str, shown: str
) -> None:
    assert played(debounce, engine_ms, steps, **OPTIONS[kind]) == (asked, shown)


def test_no_place_is_asked_for_twice() -> None:
    rows = [row for kind, rows in ROWS.items() if kind not in ("again", "late") for row in rows]
    assert len(rows) >= 60
    for row in rows:
        places = Counter(place.removesuffix(" !").replace(" +", "") for place in row.values[3].split(" | "))
        assert not [place for place, n in places.items() if place and n > 1], row.id
