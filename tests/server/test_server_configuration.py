"""What holds for a document: the user's file, that of its folder, and the editor's word on top; and what stays local."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dg_lsp.client.engine import ConnectOptions, EngineClient
from dg_lsp.client.port import EngineError
from dg_lsp.core.values import Candidate, Hole, InfillRequest, Snippet, Span
from dg_lsp.server.configuration import Configuration
from dg_lsp.server.snapshot import Nearby
from dg_lsp.wire import config, laptop
from dg_lsp.wire.discovery import EngineId
from dg_lsp.wire.settings import Settings
from tests.fakes import ReadyEngine, connecting

REMOTE = "vllm:http://127.0.0.1:1"


class Folders(Configuration):
    """A user's file, some folders with files of their own, and the configuration that they make."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.place, self.users = place, place / "users.toml"
        monkeypatch.setenv(config.FILE_VARIABLE, str(self.users))
        self.user("")

    def user(self, text: str) -> None:
        self.users.write_text(text)
        self.forget()

    def folder(self, name: str, text: str | None = None) -> str:
        (self.place / name).mkdir(exist_ok=True)
        if text is not None:
            (self.place / name / config.WORKSPACE_FILE).write_text(text)
        return self.uri(name)

    def uri(self, name: str) -> str:
        return (self.place / name).as_uri()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    return Folders(tmp_path, monkeypatch)


def test_held_means_manual_where_the_editor_can_not_hide_a_suggestion(folders: Folders) -> None:
    triggers = list[str]()
    for folders.can_hold in (False, True):
        folders.set_editor_settings({"completion.trigger": "held"})
        triggers.append(folders.session.trigger)
    assert triggers == ["manual", "held"]


def test_each_folder_has_its_own_settings(folders: Folders) -> None:
    folders.user("completion.candidates = 5\n")
    a, b = folders.folder("a", "enable = false\n"), folders.folder("b", "context.related_chars = 0\n")
    inner = folders.folder("a/inner", "completion.trigger = 'manual'\n")
    folders.set_roots([a, b, inner])
    assert not folders.at(folders.uri("a/x.py")).enable
    assert folders.at(folders.uri("b/x.py")) == Settings(candidates=5, related_chars=0)
    assert folders.at(folders.uri("a/inner/deep/x.py")) == Settings(candidates=5, trigger="manual")
    assert folders.at("untitled:x.py") == Settings(candidates=5)
    folders.set_editor_settings({}, {b: {"completion": {"inComments": True}}})
    assert folders.at(folders.uri("b/x.py")).in_comments
    assert not folders.at(folders.uri("a/x.py")).in_comments


def test_a_document_outside_all_folders_uses_its_own_workspace(folders: Folders) -> None:
    folders.folder("lone", "completion.candidates = 9\n")
    assert folders.at(folders.uri("lone/x.py")).candidates == 9


def test_one_window_has_one_engine(folders: Folders) -> None:
    a, b = folders.folder("a", "engine.threads = 1\n"), folders.folder("b", "engine.threads = 2\n")
    folders.set_roots([a, b])
    assert folders.session.threads == 1
    rest = "a window uses those of its first folder, auto."
    assert folders.problems == (f"The engine settings in {folders.place / 'b' / config.WORKSPACE_FILE} are ignored: {rest}",)


def test_problems_name_the_file_the_key_and_what_is_allowed(folders: Folders) -> None:
    folders.user("completion.candidates = 99\ncompletion.colour = 'red'\n")
    folders.set_roots([folders.folder("a", "completion.threshold = 'high'\n")])
    folders.options = {"completion": {"debounce": "soon"}}
    file = folders.place / "a" / config.WORKSPACE_FILE
    assert folders.problems[1].startswith(f"Unknown key completion.colour in {folders.users}. ")
    assert (folders.problems[0], *folders.problems[2:]) == (
        f"completion.candidates in {folders.users} must be a whole number from 1 to 16, not 99.",
        f'completion.threshold in {file} must be a number from 0 to 1, not "high".',
        'dgLsp.completion.debounce in the editor\'s settings must be a whole number from 0 to 10000, or "auto", not "soon".',
    )
    assert folders.session == Settings()


def test_a_file_that_changes_is_read_again(folders: Folders) -> None:
    folders.set_roots([folders.folder("a")])
    assert folders.session.candidates == Settings().candidates
    assert not folders.has_changed()
    folders.folder("a", "completion.candidates = 4\n")
    assert folders.has_changed()
    folders.forget()
    assert folders.session.candidates == 4
    assert not folders.has_changed()
    folders.users.write_text("completion.deadline = 5\n")
    assert folders.has_changed()
    folders.forget()
    (folders.place / "a" / config.WORKSPACE_FILE).unlink()
    assert folders.session.deadline == 5
    folders.forget()
    assert (folders.session.candidates, folders.session.deadline) == (Settings().candidates, 5)


@pytest.mark.parametrize(
    ("model", "trigger", "sentence"),
    [
        ("auto", "off", "dg-lsp engine pull qwen2.5-coder-0.5b-edits"),
        ("zed-industries/zeta", "off", "does not write that of Zeta"),
        ("owner/name", "pause", ""),
    ],
)
def test_next_edits_need_a_model_of_their_form(folders: Folders, model: str, trigger: str, sentence: str) -> None:
    folders.user(f'next_edit.trigger = "pause"\nengine.edit_model = "{model}"\n')
    assert folders.session.next_edit == trigger
    assert any(sentence in problem for problem in folders.problems) == bool(sentence)
    # The editor's settings may come from a file of the workspace.
    folders.set_editor_settings({"engine.editModel": REMOTE})
    assert folders.session.edit_model != REMOTE
    assert any("dgLsp.engine.editModel in the editor's settings is ignored" in problem for problem in folders.problems)


def test_a_model_of_edits_that_is_pulled_later_is_noticed(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(laptop.STORE_VARIABLE, str(tmp_path / "models"))
    folders.user('next_edit.trigger = "pause"\n')
    assert folders.problems
    assert not folders.has_changed()
    laptop.EDIT_MODEL.folder.mkdir(parents=True, mode=0o700)
    for name in (laptop.CONFIG, laptop.FACTS):
        (laptop.EDIT_MODEL.folder / name).write_text("{}")
    assert folders.has_changed()
    folders.forget()
    assert folders.session.next_edit == "pause"
    assert not folders.problems


def test_a_file_may_be_withheld_from_the_model_of_edits_alone(folders: Folders) -> None:
    folders.user("privacy.local_only = ['secret/']\nengine.model = 'embedded'\n")
    folders.folder("a")
    uri = folders.uri("a/secret/x.py")
    assert folders.withheld(uri) == ""
    assert folders.withheld(uri, REMOTE) == config.LOCAL_ONLY


def test_local_only_files_are_withheld_from_remote_models(folders: Folders) -> None:
    folders.user(f"engine.model = '{REMOTE}'\nprivacy.local_only = ['*.key.py']\n")
    folders.set_roots([folders.folder("a", "privacy.local_only = ['secret/']\n")])
    reason = "is for local models only (privacy.local_only), and the chosen model is remote"
    assert folders.withheld(folders.uri("a/secret/x.py")) == reason
    assert folders.withheld(folders.uri("a/my.key.py")) == reason
    assert folders.withheld("untitled:my.key.py") == reason
    assert folders.withheld("vscode-notebook-cell:" + folders.uri("a/secret/n.ipynb").removeprefix("file:") + "#W0") == reason
    assert folders.withheld(folders.uri("a/x.py")) == ""
    (folders.place / "a" / "secret").mkdir()
    (folders.place / "a" / "secret" / "x.py").write_text("")
    (folders.place / "a" / "link.py").symlink_to(folders.place / "a" / "secret" / "x.py")
    assert folders.withheld(folders.uri("a/link.py")) == reason
    assert folders.withheld("vscode-vfs://github/me/a/x.py").startswith("is on another machine")
    # A file outside of all workspaces is judged by its full path.
    folders.user(f"engine.model = '{REMOTE}'\nprivacy.local_only = ['vault/']\n")
    assert folders.withheld(folders.uri("vault/x.py")) == reason
    assert folders.withheld(folders.uri("other/x.py")) == ""
    # A pattern that names a folder of the window means every file in it.
    folders.user(f"engine.model = '{REMOTE}'\nprivacy.local_only = ['a/']\n")
    assert folders.withheld(folders.uri("a/x.py")) == reason
    folders.user(f"engine.model = '{REMOTE}'\n")
    nearby = Nearby(lambda: 0.0, folders.withheld)
    nearby.set_roots([folders.folder("a")])
    assert asyncio.run(nearby.look(folders.uri("a/secret/x.py"))) == reason
    assert asyncio.run(nearby.look(folders.uri("a/x.py"))) == ""
    folders.user("privacy.local_only = ['*']\n")
    assert folders.withheld(folders.uri("a/x.py")) == ""


@pytest.mark.parametrize("uri", ["untitled:{}/a/secret/x.py", "untitled:secret/x.py"])
def test_a_document_that_was_never_saved_is_withheld_as_its_file_would_be(folders: Folders, uri: str) -> None:
    folders.user(f"engine.model = '{REMOTE}'\n")
    folders.set_roots([folders.folder("a", "privacy.local_only = ['secret/']\ncompletion.candidates = 3\n")])
    uri = uri.replace("{}", str(folders.place))
    assert folders.withheld(uri)
    assert "secret/" in folders.local_only(uri)
    assert folders.at(uri).candidates == 3
    assert not folders.withheld(uri.replace("secret/", "src/"))


def test_a_named_document_that_was_never_saved_has_the_patterns_of_each_folder(folders: Folders) -> None:
    folders.user(f"engine.model = '{REMOTE}'\n")
    folders.set_roots([folders.folder("a"), folders.folder("b", "privacy.local_only = ['*.local.py']\n")])
    assert folders.withheld("untitled:x.local.py")
    assert "*.local.py" in folders.local_only("untitled:x.local.py")
    assert not folders.withheld("untitled:x.py")


def test_the_patterns_of_a_linked_folder_count_by_all_names(folders: Folders) -> None:
    folders.user(f"engine.model = '{REMOTE}'\n")
    app, shared = folders.folder("app", "privacy.local_only = ['own/']\n"), folders.folder("shared", "")
    (folders.place / "app" / "packages").symlink_to(folders.place / "shared")
    (folders.place / "shared" / config.WORKSPACE_FILE).write_text("privacy.local_only = ['vault/']\n")
    for roots in ([app], [app, shared], [shared, app]):
        folders.set_roots(roots)
        for name in ("shared", "app/packages"):
            assert folders.withheld(folders.uri(f"{name}/vault/x.py"))
            assert "vault/" in folders.local_only(folders.uri(f"{name}/vault/x.py"))
            assert not folders.withheld(folders.uri(f"{name}/x.py"))
    assert folders.withheld(folders.uri("app/packages/own/x.py"))


def test_a_folder_that_is_opened_by_a_link_has_its_settings_by_all_names(folders: Folders) -> None:
    folders.user(f"engine.model = '{REMOTE}'\n")
    folders.folder("real", "privacy.local_only = ['secret/']\n")
    (folders.place / "link").symlink_to("real")
    folders.set_roots([(folders.place / "link").as_uri()])
    folders.set_editor_settings({}, {(folders.place / "link").as_uri(): {"completion": {"candidates": 3}}})
    for name in ("link", "real"):
        assert folders.withheld(folders.uri(f"{name}/secret/x.py"))
        assert not folders.withheld(folders.uri(f"{name}/x.py"))
        assert folders.at(folders.uri(f"{name}/x.py")).candidates == 3


class Remote(ReadyEngine):
    """A remote engine that remembers what it was shown."""

    def __init__(self) -> None:
        self.shown: list[InfillRequest] = []

    async def prepare(self, request: InfillRequest) -> None:
        """Remember what it was shown."""
        self.shown.append(request)

    async def answer(self, request: InfillRequest, document: str) -> tuple[Candidate, ...]:
        self.shown.append(request)
        return ()


def request(path: str) -> InfillRequest:
    related = (Snippet("secret/a.py", "hush = 1"), Snippet("b.py", "loud = 1"))
    return InfillRequest("", "", (Hole(Span(0, 0), "cursor"),), path=path, related=related)


@pytest.mark.parametrize("model", [REMOTE, "embedded"])
async def test_a_remote_engine_receives_no_local_only_file(model: str) -> None:
    remote = Remote()

    connector = connecting(lambda _model: remote)
    client = EngineClient(None, lambda _: None, lambda _: None, lambda _uri: ("secret/",), connector=connector)
    client.use(ConnectOptions(EngineId(model)))
    engine = await client.for_document("file:///a/b.py", "ahead")
    await engine.fill(request("b.py"))
    paths = [[snippet.path for snippet in request.related] for request in remote.shown]
    if model == "embedded":
        assert paths == [["secret/a.py", "b.py"]]
    else:
        assert paths == [["b.py"]]
        with pytest.raises(EngineError, match="local models only"):
            await engine.fill(request("secret/c.py"))
        assert len(remote.shown) == 1
        assert client.state.name == "ready"
        # Nothing is sent to a remote model before an answer is wanted.
        await client.prepare(request("b.py"))
        assert len(remote.shown) == 1
    await client.close()
