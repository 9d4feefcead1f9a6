"""What a cloned repository says through any source of settings: where code goes and what is loaded stays the user's choice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dg_lsp.cli.engine import app
from dg_lsp.client.engine import connect_options
from dg_lsp.client.port import EngineError
from dg_lsp.engine.backends import load_remote
from dg_lsp.engine.backends.http_client import RemoteError
from dg_lsp.server.configuration import Configuration
from dg_lsp.wire import config, laptop
from dg_lsp.wire.config import OF_EDITORS, SETTINGS, Config, Setting
from dg_lsp.wire.settings import DEFAULTS, Settings
from tests import marked
from tests.pages.settings import default_of, schema_of

ROWS = marked.rows(Path(__file__).with_name("allowed.txt"))

EVIL = "evil.example"
# Model names, and whether the user's own file may contain them. A name that can be read as two addresses is never allowed.
MODELS = {
    "a server": (f"fim:openai:https://{EVIL}#m", True),
    "a server in clear": (f"vllm:http://{EVIL}:8000", True),
    "a chat server": (f"chat:https://{EVIL}#m", True),
    "a dialect's own server": ("fim:mercury", True),
    "a server here": ("fim:llama:http://127.0.0.1:1", True),
    "a server of another address family": ("vllm:https://[::1]:8000", True),
    "a hub id": ("evil/model", True),
    "a hub id without an owner": ("evil-model", True),
    "a folder of the clone": ("./model", True),
    "a folder above the clone": ("../elsewhere/model", True),
    "a folder": ("/elsewhere/model", True),
    "a home folder": ("~/model", True),
    "a password": (f"vllm:https://user:pass-word@{EVIL}", False),
    "a name before the host": (f"vllm:https://allowed.example@{EVIL}", False),
}
UNREADABLE = {
    "a backslash": f"vllm:https://{EVIL}\\@allowed.example",
    "a tab": f"vllm:https://{EVIL}\t.allowed.example",
    "no host": "vllm:https:///allowed.example",
    "another scheme": f"vllm:file://{EVIL}/x",
    "no dialect": "fim:",
    "letters that look like others": "vllm:https://аllowed.example",
}


class Clone:
    """A user with their own configuration file, in a repository by another author."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.users, self.root = place / "users.toml", place / "clone"
        (self.root / "model").mkdir(parents=True)
        self.users.write_text("")
        self._patch = monkeypatch
        monkeypatch.setenv(config.FILE_VARIABLE, str(self.users))
        # Editors start the server in the folder that is open.
        monkeypatch.chdir(self.root)

    def settings(self, source: str, key: str, value: object) -> tuple[Settings, tuple[str, ...]]:
        """What holds in a session where one source says one thing, and the problems that are told."""
        session = Configuration()
        if source == "environment":
            variable = next(setting.variable for setting in SETTINGS if setting.key == key)
            self._patch.setenv(variable, ",".join(value) if isinstance(value, list) else str(value))
        if source in ("user", "workspace"):
            path = self.users if source == "user" else self.root / config.WORKSPACE_FILE
            stated = json.dumps(value, ensure_ascii=False)
            with path.open("a") as file:
                file.write(f"{key} = {stated.replace(': ', ' = ') if isinstance(value, dict) else stated}\n")
        if source == "greeting":
            session.options = {key: value}
        session.set_roots([self.root.as_uri()])
        if source == "editor":
            session.set_editor_settings({key: value})
        if source == "editor's folder":
            session.set_editor_settings({}, {self.root.as_uri(): {key: value}})
        return session.session, session.problems

    def allow(self, *entries: str) -> None:
        self.users.write_text(f"engine.allow = {json.dumps(entries)}\n")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    return Clone(tmp_path, monkeypatch)


OWN, OTHERS = ("user", "environment"), ("workspace", "greeting", "editor", "editor's folder")


@pytest.mark.parametrize("source", OTHERS)
@pytest.mark.parametrize("what", [*MODELS, *UNREADABLE])
@pytest.mark.parametrize("key", ["engine.model", "engine.edit_model"])
def test_no_source_but_the_users_own_chooses_a_model(clone: Clone, source: str, what: str, key: str) -> None:
    model = UNREADABLE.get(what) or MODELS[what][0]
    settings, problems = clone.settings(source, key, model)
    assert settings == Settings()
    [problem] = problems
    assert "pass-word" not in problem
    assert config.squeezed(f"{key} in ") in config.squeezed(problem)


@pytest.mark.parametrize("source", OWN)
@pytest.mark.parametrize("what", MODELS)
def test_the_users_own_sources_choose_any_model_but_with_a_password(clone: Clone, source: str, what: str) -> None:
    model, is_fine = MODELS[what]
    settings, problems = clone.settings(source, "engine.model", model)
    assert (settings.model != DEFAULTS.model) == is_fine
    assert bool(problems) != is_fine
    assert "pass-word" not in repr((settings, problems))


@pytest.mark.parametrize("source", OTHERS)
@pytest.mark.parametrize("what", [what for what, (_, is_fine) in MODELS.items() if is_fine])
def test_allowing_what_a_problem_names_admits_the_model(clone: Clone, source: str, what: str) -> None:
    model, _ = MODELS[what]
    _, [problem] = clone.settings(source, "engine.model", model)
    sentence = (
        r'(?:dgLsp\.)?engine\.model in .+ is ignored: it would (.+) (.+)\. To allow that, add "(.+)" to engine\.allow in (.+)\.'
    )
    said = re.fullmatch(sentence, problem)
    assert said is not None
    verb, there, entry, users = said.groups()
    assert (verb, there, users) == ("send code to" if ":" in model else "load", entry, str(clone.users))
    clone.allow(entry)
    settings, problems = clone.settings("nothing more" if source == "workspace" else source, "engine.model", model)
    assert (settings.model != DEFAULTS.model, problems) == (True, ())


@pytest.mark.parametrize(("entry", "model"), ROWS["allowed"])
def test_what_is_allowed_allows_nothing_else(clone: Clone, entry: str, model: str) -> None:
    clone.allow(entry)
    settings, problems = clone.settings("editor", "engine.model", model)
    assert (settings.model, len(problems)) == ("auto", 1)


def test_a_link_in_an_allowed_folder_leads_nowhere_else(clone: Clone, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "link").symlink_to(clone.root / "model")
    clone.allow(str(tmp_path / "models"))
    settings, [problem] = clone.settings("workspace", "engine.model", str(tmp_path / "models" / "link"))
    assert settings.model == "auto"
    assert str(clone.root / "model") in problem


@pytest.mark.parametrize("source", OTHERS)
def test_no_other_source_allows_anything(clone: Clone, source: str) -> None:
    settings, [problem] = clone.settings(source, "engine.allow", [EVIL, "/"])
    assert settings.allow == ()
    assert "engine.allow" in problem


@pytest.mark.parametrize("source", ["workspace", "greeting", "editor"])
def test_no_other_source_has_a_key_or_gives_a_file_away(clone: Clone, source: str) -> None:
    clone.users.write_text("privacy.local_only = ['vault/']\n")
    _, [problem] = clone.settings(source, "keys", {EVIL: "sk-hush"})
    assert source != "workspace" or problem == (
        f"keys must not be in {clone.root / config.WORKSPACE_FILE}, where others can read them. Move them to {clone.users}."
    )
    assert "sk-hush" not in problem
    for patterns in ([], ["!vault/"]):
        settings, _ = clone.settings(source, "privacy.local_only", patterns)
        assert "vault/" in settings.local_only
    assert not config.read(clone.root)[0].keys


def test_a_model_that_is_not_allowed_leaves_the_users_own_which_an_editor_may_repeat(clone: Clone) -> None:
    clone.users.write_text("engine.model = 'fim:mercury'\n")
    settings, problems = clone.settings("editor", "engine.model", "fim:mercury")
    assert (settings.model, problems) == ("fim:mercury", ())
    for source in ("editor", "workspace"):
        assert clone.settings(source, "engine.model", f"fim:openai:https://{EVIL}#m")[0].model == "fim:mercury"


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_configuration_that_is_no_file_is_neither_waited_for_nor_read(clone: Clone, kind: str) -> None:
    path = clone.root / config.WORKSPACE_FILE
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif os.getuid() != 0:
        pytest.skip("only root can make a device")
    else:
        os.mknod(path, 0o020644, os.makedev(1, 5))  # /dev/zero
    config_read, [problem] = config.read(clone.root)
    assert str(path) in problem
    assert config_read.settings.local_only == ("*",)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("whose", ["user", "workspace"])
def test_a_configuration_of_another_user_does_not_count(clone: Clone, whose: str) -> None:
    path = clone.users if whose == "user" else clone.root / config.WORKSPACE_FILE
    path.write_text("engine.threads = 7\nengine.allow = ['/']\n[keys]\n'a' = 'b'\n")
    os.chown(path, 4711, -1)
    config_read, [problem] = config.read(clone.root)
    assert f"{path} belongs to another user" in problem
    assert (config_read.settings, dict(config_read.keys)) == (Settings(local_only=("*",)), {})
    for folders, is_safe in (
        (f"/nowhere:{path.parent}", True),
        (f"{path.parent}/", True),
        ("*", True),
        (f"{path}x:", False),
        (f"{path.parent}/*:/x", True),
    ):
        _, problems = config.read(clone.root, {**os.environ, config.SAFE_VARIABLE: folders})
        assert any("belongs to another user" in each for each in problems) is not is_safe, folders


# Which source counts


def values(setting: Setting) -> st.SearchStrategy[Any]:
    """Values that a setting may have, as a file writes them, where any source may choose them."""
    stated: Any = schema_of(setting)
    if "enum" in stated or stated["type"] == "boolean":
        return st.sampled_from(stated.get("enum", [True, False]))
    if "minimum" in stated:
        whole = "integer" in stated["type"]
        return (st.integers if whole else st.floats)(stated["minimum"], stated["maximum"])
    if setting.about.is_model:
        return st.sampled_from(["embedded", "own/one", "own/two"])
    return st.lists(st.sampled_from(["a", "b"]), max_size=2) if setting.about.items else st.sampled_from(["cpu", "auto"])


# Another setting decides whether `next_edit` counts, and `local_only` adds up.
FREE = [each for each in SETTINGS if not each.about.is_users_own and each.field not in ("local_only", "next_edit")]


@given(st.data())
def test_the_last_source_that_says_something_counts(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """The user's file, the workspace's, the environment, the editor's greeting, and what it says later, in this order."""
    place = tmp_path_factory.getbasetemp() / "precedence"
    (place / "root").mkdir(parents=True, exist_ok=True)
    stated: dict[str, dict[str, object]] = {}
    for source in ("user", "workspace", "environment", "greeting", "editor"):
        possible = [each for each in FREE if each in OF_EDITORS] if source in ("greeting", "editor") else FREE
        possible = [setting for setting in possible if setting.variable or source != "environment"]
        chosen_settings = data.draw(st.lists(st.sampled_from(possible), max_size=3, unique=True))
        stated[source] = {setting.key: data.draw(values(setting)) for setting in chosen_settings}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(config.FILE_VARIABLE, str(place / "user.toml"))
        for source, path in (("user", place / "user.toml"), ("workspace", place / "root" / config.WORKSPACE_FILE)):
            allow = {"engine.allow": ["own/one", "own/two"]} if source == "user" else {}
            lines = (f"{key} = {json.dumps(value)}\n" for key, value in {**stated[source], **allow}.items())
            path.write_text("".join(lines))
        for setting in FREE:
            if setting.variable:
                patch.delenv(setting.variable, raising=False)
            if setting.variable and setting.key in stated["environment"]:
                value = stated["environment"][setting.key]
                patch.setenv(setting.variable, ",".join(value) if isinstance(value, list) else str(value))
        session = Configuration()
        session.can_hold = True
        session.options = stated["greeting"]
        session.set_roots([(place / "root").as_uri()])
        session.set_editor_settings(stated["editor"])
        settings, problems = session.session, session.problems
    assert problems == ()
    for setting in FREE:
        expected = default_of(setting)
        for source in ("user", "workspace", "environment"):
            if setting.key in stated[source]:
                expected = stated[source][setting.key]
        for source in ("greeting", "editor"):
            # Some editors send all of their defaults along; what was said in the greeting a later word takes back.
            taken_back = source == "greeting" and setting.key in stated["editor"]
            if setting.key in stated[source] and not taken_back and stated[source][setting.key] != default_of(setting):
                expected = stated[source][setting.key]
        assert getattr(settings, setting.field) == setting.parse(expected), setting.key


@given(st.text(max_size=40))
@example("/\0")
@example("~\0")
def test_no_name_is_both_refused_and_without_a_reason(name: str) -> None:
    """Whatever a name is, it is a model that this package knows, or something that only the user's list can allow."""
    admitted_settings, problems = config.admit({"model": name}, Settings(), "a place", Path("/users.toml"))
    known = (None, "auto", "embedded", *(model.name for model in laptop.MODELS))
    assert admitted_settings.get("model") in known or str(admitted_settings["model"]).startswith("/")
    assert bool(problems) == ("model" not in admitted_settings)


@pytest.mark.parametrize("command", ["run", "start", "status", "stop", "logs", "token"])
def test_no_command_takes_a_password_that_a_process_list_would_show(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--model", "vllm:https://user:pass-word@gpu01"])
    assert result.exit_code == 2
    assert "must hold no user name or password" in result.stderr
    assert "pass-word" not in result.output


def test_no_front_end_tells_an_engine_a_password() -> None:
    with pytest.raises(EngineError, match="must hold no user name or password") as error:
        connect_options(Config(), model="vllm:https://user:pass-word@gpu01")
    assert "pass-word" not in str(error.value)


@pytest.mark.parametrize("url", ["ftp://user:pass-word@gpu01", "https://user:pass-word@gpu01:99999", "https://user:pass-word@"])
def test_a_url_that_is_wrong_is_told_without_its_password(url: str) -> None:
    with pytest.raises(RemoteError) as error:
        load_remote(f"vllm:{url}")
    assert "pass-word" not in str(error.value)


@pytest.mark.slow
def test_a_hub_id_never_loads_a_folder_of_that_name(clone: Clone) -> None:
    """The command line's model, in the engine's own process, started in the clone."""
    (clone.root / "owner" / "name").mkdir(parents=True)
    code = (
        "from dg_lsp.engine.common.loading import LoadError, find\n"
        "print(find('./owner/name'))\n"
        "try:\n    print(find('owner/name'))\n"
        "except LoadError as error:\n    print(error)\n"
    )
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(clone.root / "no-cache")}
    process = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    first, second = process.stdout.splitlines()
    assert first == "owner/name"
    assert second.startswith("owner/name can't be fetched from the hub")
    assert second.endswith("write a folder as a path: ./owner/name")
