"""What holds for a document: the user's file, that of its folder, and the editor's word on top; and what stays local."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dg_lsp.core.values import Candidate, Hole, InfillRequest, Snippet, Span
from dg_lsp.infill.port import Engine, EngineError
from dg_lsp.server.configuration import Configuration
from dg_lsp.server.nearby import Nearby
from dg_lsp.server.resident import Listener, OnDraft, Resident
from dg_lsp.server.settings import Settings
from dg_lsp.wire import config

REMOTE = "vllm:http://127.0.0.1:1"


class Folders:
    """A user's file and some folders with files of their own."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.users = place / "users.toml"
        monkeypatch.setenv(config.FILE_VARIABLE, str(self.users))
        self.user("")
        self.configuration = Configuration()

    def user(self, text: str) -> None:
        self.users.write_text(text)

    def folder(self, name: str, text: str | None = None) -> str:
        (self.place / name).mkdir(exist_ok=True)
        if text is not None:
            (self.place / name / config.WORKSPACE_FILE).write_text(text)
        return (self.place / name).as_uri()

    def uri(self, name: str) -> str:
        return (self.place / name).as_uri()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    return Folders(tmp_path, monkeypatch)


def test_each_source_counts_over_the_one_before(folders: Folders) -> None:
    folders.user("[completion]\nthreshold = 0.5\ncandidates = 5\ndeadline = 700\nspeculate = false\n")
    held = folders.configuration
    held.options = {"completion": {"deadline": 900}}
    held.set_roots([folders.folder("a", "completion.candidates = 7\n")])
    found = held.at(folders.uri("a/x.py"))
    assert (found.threshold, found.candidates, found.deadline, found.speculate) == (0.5, 7, 900, False)
    held.say({"completion": {"candidates": 2}})
    assert held.at(folders.uri("a/x.py")).candidates == 2
    held.say(None)
    assert held.session.candidates == 7
    assert held.problems == ()


def test_an_editor_that_sends_its_defaults_along_says_nothing_by_them(folders: Folders) -> None:
    folders.user("completion.candidates = 5\nengine.model = 'embedded'\n")
    held = folders.configuration
    held.say({"completion.candidates": Settings().candidates, "completion.threshold": 0.9})
    assert (held.session.candidates, held.session.threshold) == (5, 0.9)
    held.say({"completion.candidates": None})
    assert held.session.candidates == Settings().candidates


def test_a_default_that_is_said_later_takes_back_what_came_with_the_greeting(folders: Folders) -> None:
    folders.user("completion.candidates = 5\n")
    held = folders.configuration
    held.set_roots([])
    held.options = {"completion": {"trigger": "manual", "candidates": 2}, "completion.deadline": 900}
    assert (held.session.trigger, held.session.candidates, held.session.deadline) == ("manual", 2, 900)
    held.say({"completion.trigger": "auto", "completion": {"candidates": Settings().candidates}})
    # Of what stands in a file, a default still takes nothing back.
    assert (held.session.trigger, held.session.candidates, held.session.deadline) == ("auto", 5, 900)


def test_each_folder_has_its_own(folders: Folders) -> None:
    folders.user("completion.candidates = 5\n")
    a, b = folders.folder("a", "enable = false\n"), folders.folder("b", "context.related_chars = 0\n")
    inner = folders.folder("a/inner", "completion.trigger = 'manual'\n")
    held = folders.configuration
    held.set_roots([a, b, inner])
    assert not held.at(folders.uri("a/x.py")).enable
    assert held.at(folders.uri("b/x.py")) == Settings(candidates=5, related_chars=0)
    assert held.at(folders.uri("a/inner/deep/x.py")) == Settings(candidates=5, trigger="manual")
    assert held.at("untitled:x.py") == Settings(candidates=5)
    held.say({}, {b: {"completion": {"inComments": True}}})
    assert held.at(folders.uri("b/x.py")).in_comments
    assert not held.at(folders.uri("a/x.py")).in_comments


def test_a_document_of_no_folder_answers_to_its_own_workspace(folders: Folders) -> None:
    folders.folder("lone", "completion.candidates = 9\n")
    assert folders.configuration.at(folders.uri("lone/x.py")).candidates == 9


def test_one_window_has_one_engine(folders: Folders) -> None:
    a, b = folders.folder("a", "engine.threads = 1\n"), folders.folder("b", "engine.threads = 2\n")
    held = folders.configuration
    held.set_roots([a, b])
    assert held.session.threads == 1
    rest = "a window uses those of its first folder, embedded."
    assert held.problems == (f"The engine settings in {folders.place / 'b' / config.WORKSPACE_FILE} do not count: {rest}",)


def test_problems_name_the_file_the_key_and_what_is_allowed(folders: Folders) -> None:
    folders.user("completion.candidates = 99\ncompletion.colour = 'red'\n")
    held = folders.configuration
    held.set_roots([folders.folder("a", "completion.threshold = 'high'\n")])
    held.options = {"completion": {"debounce": "soon"}}
    file = folders.place / "a" / config.WORKSPACE_FILE
    assert held.problems[1].startswith(f"Unknown key completion.colour in {folders.users}. ")
    assert (held.problems[0], *held.problems[2:]) == (
        f"completion.candidates in {folders.users} must be a whole number from 1 to 16, not 99.",
        f'completion.threshold in {file} must be a number from 0 to 1, not "high".',
        'dgLsp.completion.debounce in the editor\'s settings must be a whole number from 0 to 10000, or "auto", not "soon".',
    )
    assert held.session == Settings()


def test_a_file_that_changes_is_read_again(folders: Folders) -> None:
    held = folders.configuration
    held.set_roots([folders.folder("a")])
    assert held.session.candidates == Settings().candidates
    assert not held.has_changed()
    folders.folder("a", "completion.candidates = 4\n")
    assert held.has_changed()
    held.forget()
    assert held.session.candidates == 4
    assert not held.has_changed()
    folders.user("completion.deadline = 5\n")
    assert held.has_changed()
    held.forget()
    (folders.place / "a" / config.WORKSPACE_FILE).unlink()
    assert held.session.deadline == 5
    held.forget()
    assert (held.session.candidates, held.session.deadline) == (Settings().candidates, 5)


def test_what_is_local_only_is_withheld_from_remote_models(folders: Folders) -> None:
    folders.user(f"engine.model = '{REMOTE}'\nprivacy.local_only = ['*.key.py']\n")
    held = folders.configuration
    held.set_roots([folders.folder("a", "privacy.local_only = ['secret/']\n")])
    reason = "is for local models only (privacy.local_only), and the chosen model is remote"
    assert held.withheld(folders.uri("a/secret/x.py")) == reason
    assert held.withheld(folders.uri("a/my.key.py")) == reason
    assert held.withheld("untitled:my.key.py") == reason
    assert held.withheld("vscode-notebook-cell:" + folders.uri("a/secret/n.ipynb").removeprefix("file:") + "#W0") == reason
    assert held.withheld(folders.uri("a/x.py")) == ""
    (folders.place / "a" / "secret").mkdir()
    (folders.place / "a" / "secret" / "x.py").write_text("")
    (folders.place / "a" / "link.py").symlink_to(folders.place / "a" / "secret" / "x.py")
    assert held.withheld(folders.uri("a/link.py")) == reason
    nearby = Nearby(lambda: 0.0, held.withheld)
    nearby.set_roots([folders.folder("a")])
    assert asyncio.run(nearby.look(folders.uri("a/secret/x.py"))) == reason
    assert asyncio.run(nearby.look(folders.uri("a/x.py"))) == ""
    folders.user("privacy.local_only = ['*']\n")
    held.forget()
    assert held.withheld(folders.uri("a/x.py")) == ""


def test_where_nobody_can_tell_nothing_leaves(folders: Folders) -> None:
    held = folders.configuration
    folders.user(f"engine.model = '{REMOTE}'\n")
    held.set_roots([folders.folder("a", "privacy.local_only = ['x'\n")])
    assert held.withheld(folders.uri("a/y.py"))
    assert "is not valid TOML" in held.problems[0]


class Remote:
    """A remote engine that remembers what it was shown."""

    def __init__(self) -> None:
        self.shown: list[InfillRequest] = []

    async def ready(self) -> None:
        """It is."""

    def bound(self, document: str, on_draft: OnDraft | None = None) -> Engine:
        return self

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        self.shown.append(request)
        return ()


def request(path: str) -> InfillRequest:
    related = (Snippet("secret/a.py", "hush = 1"), Snippet("b.py", "loud = 1"))
    return InfillRequest("", "", (Hole(Span(0, 0), "cursor"),), path=path, related=related)


@pytest.mark.parametrize("model", [REMOTE, "embedded"])
def test_a_remote_engine_is_shown_nothing_that_stays_here(model: str) -> None:
    remote = Remote()

    @contextlib.asynccontextmanager
    async def opener(settings: Settings, listener: Listener) -> AsyncIterator[Remote]:
        yield remote

    async def main() -> None:
        resident = Resident(opener, lambda: None, lambda: 0.0, lambda uri: ("secret/",))
        resident.start(Settings(model=model))
        engine = await resident.engine("file:///a/b.py", "ahead")
        await engine.fill(request("b.py"))
        paths = [[snippet.path for snippet in shown.related] for shown in remote.shown]
        if model == "embedded":
            assert paths == [["secret/a.py", "b.py"]]
        else:
            assert paths == [["b.py"]]
            with pytest.raises(EngineError, match="local models only"):
                await engine.fill(request("secret/c.py"))
            assert len(remote.shown) == 1
            assert resident.condition.state == "ready"
        await resident.stop()

    asyncio.run(main())
