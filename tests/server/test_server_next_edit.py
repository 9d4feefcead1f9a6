"""One request for the next edit after another, on a real event loop, with an engine that writes what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dg_lsp.client.engine import ConnectOptions, EngineClient
from dg_lsp.client.port import EngineBusyError, EngineError
from dg_lsp.core import edits
from dg_lsp.core.values import Candidate, InfillRequest, Ranked
from dg_lsp.server import next_edit
from dg_lsp.server.completion import Completer, SuggestionRequest
from dg_lsp.server.next_edit import FRESH_S, EditOffer, EditRequest, NextEdits
from dg_lsp.server.snapshot import Nearby, Snapshots
from dg_lsp.server.sync import Documents
from dg_lsp.wire.settings import Settings
from tests import naive
from tests.fakes import ReadyEngine, connecting
from tests.patience import PATIENCE_S, until

URI = "untitled:a"
BEFORE = "def area(w, h):\n    return w * h\n\n\na = area(2, 3)\nprint(a)\nb = area(4, 5)\nprint(a, b)\n"
AFTER = BEFORE.replace("def area(w", "def size(w")
Write = Callable[[str], str]


def to_size(window: str) -> str:
    return window.replace("area", "size")


class Writer(ReadyEngine):
    """An engine that rewrites windows, and may wait until the test lets it."""

    def __init__(self) -> None:
        self.write: Write = to_size
        self.doubted = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[InfillRequest] = []
        self.prepared: list[InfillRequest] = []
        self.n_cancelled = 0

    async def prepare(self, request: InfillRequest) -> None:
        self.prepared.append(request)

    async def answer(self, request: InfillRequest, document: str) -> tuple[Candidate, ...]:
        self.asked.append(request)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        if request.question is None:
            return (Candidate(("1",)),)
        return (Candidate((self.write(request.question.window.text),), Ranked(0, doubted=self.doubted)),)


class Session:
    """Next edits of open documents. `withheld` are those that the model may not see."""

    def __init__(self) -> None:
        self.writer, self.documents, self.now = Writer(), Documents(), 0.0
        self.settings = Settings(next_edit="pause", edit_model="./m")
        self.withheld: set[str] = set()
        self.said: list[str] = []
        self.nearby = Nearby(lambda: self.now)
        self.snapshots = Snapshots(self.documents, self.nearby, lambda _uri: self.settings)
        connector = connecting(lambda _: self.writer)

        def client() -> EngineClient:
            return EngineClient(None, lambda _: None, lambda _: None, clock=lambda: self.now, connector=connector)

        self.engine, self.other = client(), client()
        self.completer = Completer(self.snapshots, self.other, lambda: self.now, lambda _: None)
        self.edits = NextEdits(
            self.snapshots,
            self.completer,
            lambda: self.engine,
            lambda uri: "is private" if uri in self.withheld else "",
            lambda: self.now,
            self.said.append,
        )

    def open(self, text: str = BEFORE, uri: str = URI) -> None:
        self.documents.open(uri, "python", 1, text)

    def change(self, text: str = AFTER, uri: str = URI, *, after_s: float = 1.0) -> None:
        self.now += after_s
        doc = self.documents.get(uri)
        assert doc is not None
        before = doc.index.text
        self.documents.change(uri, (doc.document.version or 0) + 1, [naive.edit(text)])
        self.completer.typed(uri, before, text)
        self.edits.typed(uri, before, text)

    def text(self, uri: str = URI) -> str:
        doc = self.documents.get(uri)
        assert doc is not None
        return doc.index.text

    def ask(self, at: str = "a = ", *, automatic: bool = True, uri: str = URI) -> asyncio.Task[EditOffer | None]:
        offset = self.text(uri).index(at)
        return asyncio.ensure_future(self.edits.offer(EditRequest(uri, offset, automatic)))

    async def offered(self, at: str = "a = ", *, automatic: bool = True) -> str | None:
        """Return the text with the offered edit."""
        offer = await asyncio.wait_for(self.ask(at, automatic=automatic), PATIENCE_S)
        if offer is None:
            return None
        assert offer.index.text == self.text()
        return offer.index.text[: offer.span.start] + offer.text + offer.index.text[offer.span.end :]

    async def until_asked(self, n: int) -> None:
        await until(lambda: len(self.writer.asked) >= n)


@pytest.fixture
async def session(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Session]:
    monkeypatch.setattr(next_edit, "PAUSE_S", 0.0)
    monkeypatch.setattr(next_edit, "PREPARE_S", 0.0)
    session = Session()
    for engine in (session.engine, session.other):
        engine.use(ConnectOptions())
    session.open()
    try:
        yield session
    finally:
        await session.edits.close()
        await session.completer.close()
        await session.engine.close()
        await session.other.close()
        await session.nearby.close()


async def test_the_nearest_change_is_offered_and_the_rest_when_it_is_accepted(session: Session) -> None:
    session.change()
    first = await session.offered("a = ")
    assert first == AFTER.replace("a = area", "a = size")
    session.now += FRESH_S  # what is on the screen stays there, and nothing is asked again for the same text
    assert await session.offered("= area(2") == first
    session.change(first)
    second = await session.offered("b = ")
    assert second == to_size(AFTER)
    assert len(session.writer.asked) == 1
    session.change(second)
    session.writer.write = lambda window: window
    assert await session.offered() is None
    assert len(session.writer.asked) == 2
    question = session.writer.asked[-1].question
    assert question is not None
    assert question.shown == BEFORE
    assert [edit.old for edit in question.edits] == ["def area(w, h):\n", "a = area(2, 3)\n", "b = area(4, 5)\n"]
    assert session.writer.asked[-1] in session.writer.prepared  # read during the pause, once an engine is connected


async def test_a_quiet_line_is_asked_for_once(session: Session) -> None:
    session.writer.write = lambda window: window
    session.change()
    for at in ("a = ", "area(2", "b = "):
        assert await session.offered(at) is None
    assert len(session.writer.asked) == 2
    assert set(session.said) == {"the model changes nothing here"}


@pytest.mark.parametrize(
    ("setting", "at", "seconds", "automatic", "is_asked"),
    [
        ("pause", "a = ", 1.0, True, True),
        ("pause", "a = ", FRESH_S + 1, True, False),
        ("pause", "a = ", FRESH_S + 1, False, True),
        ("manual", "a = ", 1.0, True, False),
        ("manual", "a = ", 1.0, False, True),
        ("off", "a = ", 1.0, False, False),
    ],
)
async def test_when_a_model_is_asked(
    session: Session,
    setting: str,
    at: str,
    seconds: float,
    automatic: bool,
    is_asked: bool,
) -> None:
    session.settings = replace(session.settings, next_edit=setting)  # type: ignore[arg-type]
    assert await session.offered(at, automatic=automatic) is None  # nothing was edited yet
    session.change()
    session.now += seconds
    assert (await session.offered(at, automatic=automatic) is not None) == is_asked
    assert bool(session.writer.asked) == is_asked


Change = Callable[[Session], None]
CODE = "x = 1\n" * 9


@pytest.mark.parametrize(
    ("before", "after", "at", "write", "offered"),
    [
        # the typed line is left to suggestions, and the next change is offered
        (BEFORE, AFTER, "size(w", lambda _: to_size(AFTER), AFTER.replace("a = area", "a = size")),
        (BEFORE, AFTER, "size(w", lambda window: window.replace("(w, h)", "(w)"), None),
        # what was removed does not come back
        (BEFORE, BEFORE.replace("print(a, b)\n", ""), "b = ", lambda window: window + "print(a, b)\n", None),
        (BEFORE, AFTER, "return", lambda window: window.replace("size", "area"), None),
        # white space is no edit, and an answer may say where its cursor is
        (BEFORE, AFTER, "a = ", lambda window: window.replace("a = ", "a  = "), None),
        (
            BEFORE,
            AFTER,
            "a = ",
            lambda window: window.replace("area(2", f"size{edits.CURSOR}(2"),
            AFTER.replace("area(2", "size(2"),
        ),
        (BEFORE, AFTER, "a = ", lambda window: window + "exit()\n", AFTER + "exit()\n"),
        (BEFORE, AFTER, "a = ", lambda window: window.replace("b = area(4, 5)\n", ""), AFTER.replace("b = area(4, 5)\n", "")),
        # what no suggestion may write
        *(
            (BEFORE, AFTER, "a = ", lambda window, text=text: window.replace("print(a)", text), None)
            for text in (
                "print(a))",
                "print(a, \xa0b)",
                "print(“a”)",
                "print(a\u200b)",
                "a  # \u202e b",
                "a\0",
                "'\x1b[2J'",
                "a\u2028",
            )
        ),
        (BEFORE, AFTER, "a = ", lambda window: window.replace("(a)", "(“a”)") + "x()\n", AFTER + "x()\n"),
        (BEFORE, AFTER, "a = ", lambda window: window.replace("(a)", "('“a”')"), AFTER.replace("(a)", "('“a”')")),
        (BEFORE + "f(", AFTER + "f(", "a = ", lambda window: window.replace("(a)", "(b)"), AFTER.replace("(a)", "(b)") + "f("),
        (BEFORE + "f(", AFTER + "f(", "a = ", lambda window: window.replace("(a)", "(b))"), None),
        # other line ends
        (
            BEFORE.replace("\n", "\r\n"),
            AFTER.replace("\n", "\r\n"),
            "b = ",
            lambda window: to_size(window) + "exit()\n",
            AFTER.replace("b = area", "b = size").replace("\n", "\r\n"),
        ),
        (BEFORE.replace("\n\n", "\n\f\n", 1), AFTER.replace("\n\n", "\n\f\n", 1), "a = ", to_size, None),
        # marks of the prompt
        (BEFORE + edits.CURSOR, AFTER + edits.CURSOR, "a = ", to_size, None),
        # blank lines, an empty file, no end
        ("\n" * 20, "x = 1\n" + "\n" * 20, "", lambda window: window + "y\n", "x = 1\ny\n" + "\n" * 20),
        (CODE, "", "", to_size, None),
        ("a = 1\nb = 1", "a = 2\nb = 1", "b = ", lambda _: "a = 2\nb = 2", "a = 2\nb = 2"),
    ],
)
async def test_what_is_offered_of_an_answer(
    session: Session, before: str, after: str, at: str, write: Write, offered: str | None
) -> None:
    session.open(before)
    session.change(after)
    session.writer.write = write
    assert await session.offered(at) == offered


async def test_a_doubted_answer_is_only_for_who_asks(session: Session) -> None:
    session.writer.doubted = True
    session.change()
    assert await session.offered() is None
    assert session.said == ["the model is not sure of it"]
    assert await session.offered(automatic=False) is not None
    assert len(session.writer.asked) == 1


async def test_a_rejected_edit_is_not_offered_again(session: Session) -> None:
    session.change()
    offer = await session.ask()
    assert offer is not None
    session.edits.reject("unknown")
    session.edits.reject(offer.id)
    assert await session.offered() is None
    session.change(AFTER + "exit()\n")
    assert await session.offered() is None
    assert session.said == ["the user rejected it"] * 2


async def test_what_was_rejected_is_forgotten_when_its_document_closes(session: Session) -> None:
    session.change()
    offer = await session.ask()
    assert offer is not None
    session.edits.reject(offer.id)
    session.edits.forget(URI)
    session.open()
    session.change()
    assert await session.offered() is not None


async def test_a_server_s_pause_is_no_message_unless_an_edit_was_asked_for(session: Session) -> None:
    def paused(_window: str) -> str:
        raise EngineBusyError("no requests until 12:00:00", 30)

    session.change()
    session.writer.write = paused
    assert await session.offered() is None
    assert await session.offered() is None
    assert (session.said, len(session.writer.asked)) == (["no requests until 12:00:00"] * 2, 1)
    with pytest.raises(EngineBusyError):
        await session.offered(automatic=False)


@pytest.mark.parametrize(
    "mishap",
    [
        lambda session: session.change(AFTER + "#\n"),
        lambda session: session.change(BEFORE),
        lambda session: session.edits.forget(URI),
        lambda session: session.ask("b = "),
    ],
    ids=["a change", "an undo", "closed", "a newer request"],
)
async def test_what_makes_an_answer_stale_ends_its_work(session: Session, mishap: Change) -> None:
    session.change()
    session.writer.gate.clear()
    asking = session.ask()
    await session.until_asked(1)
    mishap(session)
    assert await asyncio.wait_for(asking, PATIENCE_S) is None
    await until(lambda: session.writer.n_cancelled)


async def test_a_cancelled_request_ends_its_work(session: Session) -> None:
    session.change()
    session.writer.gate.clear()
    asking = session.ask()
    await session.until_asked(1)
    asking.cancel()
    await until(lambda: session.writer.n_cancelled)


async def test_an_edit_waits_for_a_suggestion_and_gives_way_to_one_that_is_shown(session: Session) -> None:
    session.settings = replace(session.settings, debounce=0, speculate=False)
    session.change(AFTER + "x = \n")
    session.writer.gate.clear()
    end = len(AFTER) + 4
    suggesting = asyncio.ensure_future(session.completer.complete(SuggestionRequest(URI, end, automatic=False)))
    await session.until_asked(1)
    asking = asyncio.ensure_future(session.edits.offer(EditRequest(URI, end, automatic=True)))
    await asyncio.sleep(0.01)
    assert len(session.writer.asked) == 1
    session.writer.gate.set()
    reply = await asyncio.wait_for(suggesting, PATIENCE_S)
    assert reply.suggestions
    assert await asyncio.wait_for(asking, PATIENCE_S) is None
    assert session.said == ["a suggestion is shown"]
    assert await session.offered("a = ") is not None


async def test_edits_of_files_that_a_model_may_not_see_are_not_sent(session: Session) -> None:
    session.open("size = 1\n", "untitled:b")
    session.change("width = 1\n", "untitled:b")
    session.open("a = 1\n", "untitled:c")
    session.change("password = 'hunter22hunter9'\n", "untitled:c")
    session.change()
    for private, n_edits in ((set[str](), 2), ({"untitled:b"}, 1)):
        session.withheld = private
        session.edits.forget_answers()
        assert await session.offered() is not None
        question = session.writer.asked[-1].question
        assert question is not None
        assert len(question.edits) == n_edits
        assert "hunter22" not in str(question.edits)
    session.withheld = {URI}
    assert await session.offered() is None
    assert "it is private" in session.said[-1]


async def test_an_engines_failure_is_the_requests(session: Session) -> None:
    session.change()
    session.engine.refuse("the model is missing")
    assert await session.offered() is None  # unprompted
    with pytest.raises(EngineError, match="the model is missing"):
        await session.offered(automatic=False)


async def test_a_huge_file_is_not_remembered(session: Session, tmp_path: Path) -> None:
    session.change("x" * 1_000_001)
    session.change("x" * 1_000_000)
    session.change("y\n")
    assert await session.offered("y") is None
    assert session.said == ["no edit may be shown to the model"]


LONG = "item = [" + "1, " * 300 + "]\n"
KEY = "-----BEGIN PRIVATE KEY-----\n" + "".join(
    f"MIIE{i}vQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC{i}7\n" for i in range(40)
)


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        (f"{LONG}size = 1\n", "size", "a line around the cursor is too long"),
        (
            f'key = """{KEY}-----END PRIVATE KEY-----"""\n',
            "MIIE20",
            "the lines around the cursor hold what looks like a secret",
        ),
    ],
)
async def test_a_window_that_may_not_be_rewritten_is_not_asked_for(session: Session, text: str, place: str, why: str) -> None:
    session.open("width = 1\n", "untitled:b")
    session.change("size = 1\n", "untitled:b")
    session.open(text)
    assert await session.offered(place) is None
    assert session.said[-1] == why
    assert session.writer.asked == []


async def test_an_edit_in_a_secret_is_not_remembered(session: Session) -> None:
    text = f'key = """{KEY}-----END PRIVATE KEY-----"""\n'
    session.open(text, "untitled:b")
    session.change(text.replace("MIIE20", "MIIE21"), "untitled:b")
    assert await session.offered() is None
    assert session.said == ["no edit may be shown to the model"]


async def test_a_change_in_another_file_asks_again(session: Session) -> None:
    session.change()
    await session.offered()
    session.open("width = 1\n", "untitled:b")
    session.change("size = 1\n", "untitled:b")
    await session.offered()
    assert len(session.writer.asked) == 2
