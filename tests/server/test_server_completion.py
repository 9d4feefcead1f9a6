"""One request for suggestions after another, on a real event loop, with an engine that answers when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lsprotocol import types as lsp

from dg_lsp.client.engine import ConnectOptions, EngineClient
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.values import Calibrated, Candidate, Confidence, InfillRequest, Ranked, Span
from dg_lsp.server import handlers
from dg_lsp.server.completion import Completer, Reply, SuggestionRequest
from dg_lsp.server.reasons import Reason
from dg_lsp.server.snapshot import Nearby, Snapshots
from dg_lsp.server.sync import Documents
from dg_lsp.wire.settings import Settings
from tests import marked, naive
from tests.fakes import ReadyEngine, connecting
from tests.patience import until

ROWS = marked.rows(Path(__file__).with_name("removed.txt"))

# No name that ends with .py: what the engine of these tests writes need not be bound.
URI = "untitled:a"


class Held(ReadyEngine):
    """An engine that holds each request until the test answers it, or answers at once with `text`."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.others: tuple[str, ...] = ()
        self.confidence: Confidence = Calibrated(0.9)
        self.finished = True
        self.is_empty = False
        self.asked: list[tuple[str, InfillRequest, asyncio.Future[str]]] = []
        self.prepared: list[InfillRequest] = []

    async def prepare(self, request: InfillRequest) -> None:
        self.prepared.append(request)

    async def answer(self, request: InfillRequest, document: str) -> tuple[Candidate, ...]:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.asked.append((document, request, future))
        if self.text is not None:
            future.set_result(self.text)
        text = await future
        if self.is_empty:
            return ()
        n = request.budget.candidates
        texts = [text, *(self.others or (f"{text}.n{idx}" for idx in range(1, n)))][:n]
        return tuple(Candidate((each,), self.confidence, finished=self.finished) for each in texts)


class Session:
    """A completer with one open document."""

    def __init__(self, settings: Settings, *, asks_again: bool) -> None:
        self.held = Held()
        self.documents = Documents()
        self.now = 0.0
        self.noted: list[str] = []
        self.said: list[str] = []
        self.late: list[int | None] = []
        self.settings = settings
        self.nearby = Nearby(lambda: self.now)
        connector = connecting(lambda _model: self.held)
        self.engine = EngineClient(None, lambda _: None, lambda _: None, clock=lambda: self.now, connector=connector)
        self.snapshots = Snapshots(self.documents, self.nearby, lambda _uri: self.settings)
        on_late = (lambda document: self.late.append(document.version)) if asks_again else None
        self.completer = Completer(self.snapshots, self.engine, lambda: self.now, self._note, on_late)

    def _note(self, reason: Reason | None) -> None:
        self.noted.append(reason.code if reason else "")
        self.said.append(reason.message if reason else "")

    def opened(self, text: str) -> int:
        """Open the text that is marked with a cursor, or change to it, and return the cursor."""
        plain = text.replace("$0", "")
        if (doc := self.documents.get(URI)) is None:
            self.documents.open(URI, "python", 1, plain)
        else:
            before = doc.index.text
            self.documents.change(URI, 2, [naive.edit(plain)])
            self.completer.typed(URI, before, plain)
        return text.index("$0")

    def ask(self, text: str, *, automatic: bool = True, selection: tuple[Span, str] | None = None) -> asyncio.Task[Reply]:
        ask = SuggestionRequest(URI, self.opened(text), automatic=automatic, selected=selection)
        return asyncio.ensure_future(self.completer.complete(ask))

    async def until_asked(self, n: int) -> None:
        await until(lambda: len(self.held.asked) >= n)

    def answer(self, n: int, text: str) -> None:
        self.held.asked[n][2].set_result(text)


@pytest.fixture
def settings() -> Settings:
    return Settings(debounce=0, speculate=False)


@pytest.fixture
def asks_again() -> bool:
    return False


@pytest.fixture
async def session(settings: Settings, asks_again: bool) -> AsyncIterator[Session]:
    session = Session(settings, asks_again=asks_again)
    session.engine.use(ConnectOptions())
    await until(lambda: session.engine.state.name == "ready")
    yield session
    await session.completer.close()
    await session.nearby.close()
    await session.engine.close()


def texts(answer: Reply) -> list[str]:
    return [suggestion.text for suggestion in answer.suggestions]


async def test_unprompted_requests_get_one_offer_and_explicit_ones_several(session: Session) -> None:
    session.held.text = "f(a)"
    assert texts(await session.ask("x = $0\n")) == ["f(a)"]
    assert texts(await session.ask("y = $0\n", automatic=False)) == ["f(a)", "f(a).n1", "f(a).n2"]
    assert session.held.asked[0][1].prefix == "x = "
    assert session.noted == ["", ""]


async def test_the_text_at_a_place_is_read_when_the_cursor_arrives(session: Session) -> None:
    at = session.opened("x = 1\ny = $0\n")
    for offset in (0, 1, 2, at):  # passes the others
        session.completer.arrived(URI, offset)
    await until(lambda: session.held.prepared)
    assert [request.prefix for request in session.held.prepared] == ["x = 1\ny = "]
    assert session.held.asked == []
    assert session.noted == []


@pytest.mark.parametrize("settings", [Settings(enable=False), Settings(trigger="manual")])
async def test_nothing_is_read_where_nothing_would_be_suggested(session: Session, settings: Settings) -> None:
    before = asyncio.all_tasks()
    session.completer.arrived(URI, session.opened("y = $0\n"))
    await asyncio.wait(asyncio.all_tasks() - before)
    assert session.held.prepared == []


async def test_nothing_is_read_for_a_text_that_changes_at_once(session: Session) -> None:
    session.completer.arrived(URI, session.opened("y = $0\n"))
    session.completer.arrived(URI, session.opened("yy = $0\n"))
    await until(lambda: session.held.prepared)
    assert [request.prefix for request in session.held.prepared] == ["yy = "]


async def test_a_shown_suggestion_stays_where_an_earlier_answer_was_not_sure(session: Session) -> None:
    session.held.text, session.held.confidence = "foo(a, b)", Calibrated(0.1)
    assert texts(await session.ask("x = $0\n")) == []
    session.held.text, session.held.confidence = " foo(a, b)", Calibrated(0.9)
    assert texts(await session.ask("x =$0\n")) == [" foo(a, b)"]
    assert texts(await session.ask("x = $0\n")) == ["foo(a, b)"]
    assert len(session.held.asked) == 2


async def test_a_request_of_an_editor_has_no_absolute_path(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "a b.py"
    file.write_text("x = ")
    session.held.text = "f(a)"
    session.documents.open(file.as_uri(), "python", 1, "x = ")
    await session.completer.complete(SuggestionRequest(file.as_uri(), 4, automatic=False))
    [(_, request, _)] = session.held.asked
    assert request.path == "a b.py"
    assert str(tmp_path) not in repr(request)


WRITTEN = "return self.price"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        pytest.param([WRITTEN, "return "], "self.price", id="a selection"),
        pytest.param([WRITTEN, "return "], "self.price * 2", id="with more behind it"),
        pytest.param([WRITTEN[:end] for end in range(len(WRITTEN), 6, -1)], "self.price", id="backspace held"),
        pytest.param([WRITTEN[:end] for end in range(len(WRITTEN), 14, -1)], "ce", id="backspace within a word"),
        pytest.param([WRITTEN, "return self.", "return self", "return "], "self.price", id="word by word"),
        pytest.param([WRITTEN, "return self.p", ""], "return self", id="more than is suggested"),
        pytest.param([WRITTEN, "", "return "], "self.price", id="a line, begun by hand"),
        pytest.param([WRITTEN, "return ", "return self."], "price", id="begun by hand"),
        pytest.param(["return ", WRITTEN, "return "], "self.price", id="accepted, undone"),
        pytest.param([WRITTEN, "return x", "return "], "self.price", id="typed over"),
        pytest.param(["return f(self.price)", "return f", "return f()"], "self.price", id="a bracket that the editor closes"),
    ],
)
async def test_what_was_removed_is_not_suggested_again_but_the_next_best_is(
    session: Session, lines: list[str], text: str
) -> None:
    def drawn(line: str) -> str:
        line = line.removesuffix(")") + "$0)" if line.endswith("()") else f"{line}$0"
        return f"class A:\n    def total(self):\n        {line}\n\n    def other(self):\n        return 1\n"

    session.held.text, session.held.others = text, ("cost",)
    for line in lines[:-1]:
        session.opened(drawn(line))
        await session.ask(drawn(line))
    assert texts(await session.ask(drawn(lines[-1]))) == ["cost"]
    assert texts(await session.ask(drawn(lines[-1]), automatic=False))[0] == text


async def test_what_several_cursors_remove_is_not_suggested_again_at_any_of_their_places(session: Session) -> None:
    line = "    return {}\n\n"
    session.held.text, session.held.others = "a + b", ("cost",)
    session.opened("def f():\n" + line.format("a + b") + "def g():\n" + line.format("a + b$0"))
    of = lsp.VersionedTextDocumentIdentifier(version=2, uri=URI)
    server: Any = SimpleNamespace(documents=session.documents, completer=session.completer, settings=session.settings)
    handlers.changed(server, of, [naive.edit("", (row, 11), (row, 16)) for row in (1, 4)])
    doc = session.documents.get(URI)
    assert doc is not None
    assert doc.index.text.count("return \n") == 2
    for row in (1, 4):
        lines = ["def f():", "    return ", "", "def g():", "    return ", "", ""]
        lines[row] += "$0"
        at = "\n".join(lines).index("$0")
        assert texts(await session.completer.complete(SuggestionRequest(URI, at, automatic=True))) == ["cost"]


@pytest.mark.parametrize(("written", "left", "text", "expected"), ROWS["beginnings"])
async def test_a_longer_text_is_suggested_where_only_its_beginning_was_removed(
    session: Session, written: str, left: str, text: str, expected: str
) -> None:
    session.held.text, session.held.others = text, ("cost",)
    session.opened(f"a = 1\n{written}$0\n")
    assert texts(await session.ask(f"a = 1\n{left}$0\n")) == [expected]


@pytest.mark.parametrize("around", ROWS["around"])
async def test_what_was_removed_is_not_suggested_again_when_the_text_around_it_changes(session: Session, around: str) -> None:
    session.opened("class A:\n    def total(self):\n        return self.price$0\n")
    session.opened("class A:\n    def total(self):\n        return $0\n")
    session.held.text, session.held.others = "self.price", ("cost",)
    assert texts(await session.ask(around)) == ["cost"]


async def test_what_was_removed_and_is_written_by_hand_or_stands_elsewhere_is_suggested(session: Session) -> None:
    session.opened("a = 1\nx = f(a)$0\n")
    session.opened("a = 1\nx = $0\n")
    session.held.text = "f(a)"
    assert texts(await session.ask("a = 1\nx = $0\n")) == []
    assert texts(await session.ask("a = 1\nx = \nx = $0\n")) == ["f(a)"]
    session.opened("a = 1\nx = $0\n")
    session.held.text = "oo(a)"
    assert texts(await session.ask("a = 1\nx = f$0\n")) == ["oo(a)"]
    session.opened("a = 1\nx = f(a)$0\n")
    session.opened("a = 1\nx = f(a)\nx = $0\n")
    session.held.text = "f(a)"
    assert texts(await session.ask("a = 1\nx = f(a)\nx = $0\n")) == ["f(a)"]


async def test_the_item_selected_in_the_editors_list_is_part_of_the_text(session: Session) -> None:
    session.held.text = "(a)"
    answer = await session.ask("x = os.pa$0\n", selection=(Span(7, 9), "path"))
    assert texts(answer) == ["path(a)"]
    assert answer.replaced == Span(7, 9)
    assert session.held.asked[0][1].prefix == "x = os.path"


@pytest.mark.parametrize(
    ("text", "answer", "code"),
    [
        ("x = $0\n", "f(", "noAnswer"),
        ("x = $0\n", "", "noAnswer"),
        ("# say $0", "x", "comment"),
        ("foo$0bar\n", "x", "midWord"),
    ],
)
async def test_every_reason_suppresses_the_suggestion(session: Session, text: str, answer: str, code: str) -> None:
    session.held.text = answer
    assert texts(await session.ask(text)) == []
    assert session.noted == [code]


async def test_an_unfinished_answer_is_shown_but_not_cached(session: Session) -> None:
    session.held.text, session.held.finished = "f(a)", False
    assert texts(await session.ask("x = $0\n")) == ["f(a)"]
    await session.ask("x = $0\n")
    assert len(session.held.asked) == 2


@pytest.mark.parametrize(
    ("answer", "confidence"),
    [("f(", Calibrated(0.9)), ("y", Calibrated(0.1)), ("y", Ranked(doubted=True))],
)
async def test_an_answer_that_the_deadline_cut_short_is_not_shown_and_the_reason_is_the_time(
    session: Session, answer: str, confidence: Confidence
) -> None:
    session.held.text, session.held.confidence, session.held.finished = answer, confidence, False
    for _ in range(2):
        reply = await session.ask("x = $0\n")
        assert (reply.suggestions, session.noted[-1]) == ((), "deadline")
    assert session.said[-1] == "the time (1.5 s) ran out; raise `completion.deadline`, or choose a faster model"
    assert len(session.held.asked) == 2, "the answer was cached"
    session.held.finished = True
    await session.ask("x = $0\n")
    assert session.noted[-1] in ("noAnswer", "unsure")


async def test_no_answer_at_the_deadline_is_a_matter_of_time(session: Session) -> None:
    session.held.is_empty = True
    for seconds, code in ((0.2, "noAnswer"), (1.5, "deadline")):
        reply = session.ask(f"x{seconds:.0f} = $0\n", automatic=False)
        await session.until_asked(len(session.held.asked) or 1)
        await until(lambda: session.held.asked and not session.held.asked[-1][2].done())
        session.now += seconds
        session.answer(-1, "")
        await reply
        assert session.noted[-1] == code


async def silent(session: Session, text: str = "x = $0\n", *, automatic: bool = True) -> None:
    """Ask at a place where the deadline ends the engine's work."""
    session.held.text, session.held.finished = "f(", False
    task = session.ask(text, automatic=automatic)
    await session.until_asked(1)
    session.held.text, session.held.finished = None, True
    assert texts(await task) == []
    assert session.noted == ["deadline"]


late = pytest.mark.parametrize(("asks_again", "settings"), [(True, Settings(debounce=0))])


@late
@pytest.mark.parametrize(("confidence", "finished"), [(Calibrated(0.1), True), (Calibrated(0.9), False)])
async def test_a_late_answer_that_would_not_be_shown_or_kept_is_not_reported(
    session: Session, confidence: Confidence, finished: bool
) -> None:
    await silent(session)
    await session.until_asked(2)
    session.held.confidence, session.held.finished = confidence, finished
    session.answer(1, "f(a)")
    await until(lambda: session.held.asked[1][2].done() and not session.completer._answers.is_asked(URI))
    assert (session.late, len(session.held.asked)) == ([], 2)


@pytest.mark.parametrize(
    ("asks_again", "automatic", "settings"),
    [
        (False, True, Settings(debounce=0)),
        (True, False, Settings(debounce=0)),
        (True, True, Settings(debounce=0, speculate=False)),
    ],
)
async def test_work_ends_at_the_deadline_where_no_late_answer_would_be_shown(session: Session, automatic: bool) -> None:
    await silent(session, automatic=automatic)
    assert len(session.held.asked) == 1


@pytest.mark.parametrize("automatic", [True, False])
async def test_a_defect_in_a_request_is_a_reason_and_no_error(session: Session, automatic: bool) -> None:
    task = session.ask("x = $0\n", automatic=automatic)
    await session.until_asked(1)
    session.held.asked[0][2].set_exception(ValueError("a defect"))
    assert texts(await task) == []
    assert session.noted == ["internal"]


async def test_an_unbound_name_is_shown_in_a_cell_of_a_notebook_and_not_in_a_file(session: Session) -> None:
    session.held.text = "defined_in_another_cell"
    for uri, n in [("file:///a.py", 0), ("file:///notebook/cell.py", 3)]:
        session.documents.open(uri, "python", 1, "x = ")
        session.documents.open_notebook("file:///notebook", ["file:///notebook/cell.py"])
        answer = await session.completer.complete(SuggestionRequest(uri, 4, automatic=False))
        assert len(answer.suggestions) == n
    assert session.noted[0] == "noAnswer"


async def test_files_that_may_hold_secrets_are_never_sent(session: Session, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("hidden.py\n")
    (tmp_path / "open.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("def helper():\n    return 'related text'\n")
    session.nearby.set_roots([tmp_path.as_uri()])
    session.held.text = "abs(1)"
    for name, n in [("hidden.py", 0), (".env", 0), ("secrets.py", 0), ("open.py", 3)]:
        uri = (tmp_path / name).as_uri()
        session.documents.open(uri, "python", 1, "import helper\nx = ")
        answer = await session.completer.complete(SuggestionRequest(uri, 18, automatic=False))
        assert len(answer.suggestions) == n
    assert len(session.held.asked) == 1
    assert session.noted[:3] == ["ignored"] * 3
    snippets = (await session.nearby.read(session.documents.get(uri).document, session.settings)).nearby  # type: ignore[union-attr]
    assert [snippet.path for snippet in snippets] == ["helper.py"]
    assert session.nearby.context(session.documents.get(uri).document, session.settings).path == "open.py"  # type: ignore[union-attr]


async def test_a_request_has_paragraphs_first_and_passages_last(session: Session, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.py").write_text("def rounded(value):\n    return value\n\nother = rounded\n")
    (tmp_path / "z.py").write_text("with open(path, encoding='utf-8') as file:\n    text = file.read()\n")
    session.nearby.set_roots([tmp_path.as_uri()])
    uri, text = (tmp_path / "here.py").as_uri(), "from lib.a import other\ny = rounded(2)\nwith open(path, encoding="
    session.documents.open(uri, "python", 1, text)
    document = session.documents.get(uri).document  # type: ignore[union-attr]
    await session.nearby.look(uri)
    await session.nearby.read(document, session.settings)
    while not session.nearby.context(document, Settings(related_chars=1_000)).files.files:
        await asyncio.sleep(0.01)
    session.held.text = "'utf-8'"
    await session.completer.complete(SuggestionRequest(uri, len(text), automatic=False))
    related = session.held.asked[-1][1].related
    assert (related[0].path, related[0].text) == ("lib/a.py", "def rounded(value):\n    return value\n\nother = rounded\n")
    assert [(snippet.path, snippet.for_copying) for snippet in related if snippet.for_copying] == [("z.py", True)]
    assert related[-1].for_copying


async def test_a_new_file_is_indented_as_its_project_says(session: Session, tmp_path: Path) -> None:
    (tmp_path / ".editorconfig").write_text("root = true\n[*.js]\nindent_style = tab\n")
    uri = (tmp_path / "new.js").as_uri()

    session.documents.open(uri, "javascript", 1, "function f() {")
    session.held.text = "g();\n\tif (a) {\n\t    h();\n\t}"
    answer = await session.completer.complete(SuggestionRequest(uri, 14, automatic=False))
    assert texts(answer)[0].startswith("\n\tg();\n\tif (a) {\n\t")


LONG = {
    "string": ("python", "x = '" + "ab c" * 60_000),
    "array": ("javascript", "const a=[" + "1," * 100_000),
    "neighbour": ("python", "x = [" + "f(a), " * 40_000 + "]\ny = f("),
}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("automatic", [True, False])
async def test_nothing_is_parsed_near_a_very_long_line(
    session: Session, kind: str, automatic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    language, text = LONG[kind]
    parsed: list[int] = []
    monkeypatch.setattr(syntaxes, "parse", lambda text, *_rest, **_more: parsed.append(len(text)))
    uri = f"untitled:{kind}"
    session.settings = replace(session.settings, in_strings=True)
    session.documents.open(uri, language, 1, text)
    session.held.text = "z"
    reply = await session.completer.complete(SuggestionRequest(uri, len(text), automatic=automatic))
    assert reply.suggestions[0].text.startswith("z")
    assert parsed == []


@pytest.mark.parametrize("line", ["x = [" + "f(a), " * 3_000, "x = ["])
async def test_lines_of_usual_lengths_are_parsed(session: Session, line: str) -> None:
    text = f"{'y = 1' * 6_000}\n" + "z = 1\n" * 4_000 + line  # the long line is far above
    session.documents.open("untitled:x", "python", 1, text)
    now = await session.snapshots.take("untitled:x", len(text))
    assert now is not None
    assert session.snapshots.syntax(now) is not None
