"""Settings in files, through the real server: they count, they change without a restart, and what is wrong is said once."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from dg_lsp.wire import config
from tests.e2e.editor import CODE, Editor, editor

pytestmark = pytest.mark.e2e

TEXT = 'x = \n# engine: {"text": "1", "probability": 0.4}\n'


def session(folder: Path, root: Path) -> contextlib.AbstractAsyncContextManager[Editor]:
    return editor(folder, CODE, settings={"completion": {"debounce": 0, "speculate": False}}, root=root)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


async def until_shown(client: Editor, uri: str, n: int) -> None:
    while len(await client.suggestions(0, 4, uri=uri, trigger=1)) != n:
        pass


async def test_changed_configuration_files_need_no_restart(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = tmp_path / "users.toml"
    users.write_text("completion.candidates = 2\n")
    monkeypatch.setenv(config.FILE_VARIABLE, str(users))
    uri = (root / "a.py").as_uri()

    async with session(tmp_path, root) as client:
        client.open(TEXT, uri)
        await until_shown(client, uri, 2)
        (root / config.WORKSPACE_FILE).write_text("completion.candidates = 4\n")
        client.notify("textDocument/didSave", {"textDocument": {"uri": (root / config.WORKSPACE_FILE).as_uri()}})
        await until_shown(client, uri, 4)
        (root / config.WORKSPACE_FILE).unlink()
        # This time no message is shown.
        users.write_text("completion.candidates = 3\n")
        await until_shown(client, uri, 3)


async def test_a_problem_in_a_file_is_shown_once(tmp_path: Path, root: Path) -> None:
    file = root / config.WORKSPACE_FILE
    file.write_text("completion.threshold = 7\n")

    async with session(tmp_path, root) as client:
        sentence = f"completion.threshold in {file} must be a number from 0 to 1, not 7."
        await client.until(lambda: client.said("window/showMessage"))
        client.notify("workspace/didChangeConfiguration", {"settings": None})
        while (await client.status())["problems"] != [sentence]:
            pass
        file.write_text("completion.threshold = 7\ncolour = 1\n")
        client.notify("textDocument/didSave", {"textDocument": {"uri": file.as_uri()}})
        await client.until(lambda: len(client.said("window/showMessage")) == 2)
        first, second = (message["message"] for message in client.said("window/showMessage"))
        assert first == sentence
        assert second.startswith(f"Unknown key colour in {file}. ")
        file.write_text("")
        client.notify("textDocument/didSave", {"textDocument": {"uri": file.as_uri()}})
        while (await client.status())["problems"]:
            pass
        client.stderr = b""


async def test_local_only_files_get_nothing_from_a_remote_model(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users.toml"
    users.write_text("engine.model = 'vllm:http://127.0.0.1:1'\n")
    monkeypatch.setenv(config.FILE_VARIABLE, str(users))
    (root / config.WORKSPACE_FILE).write_text("privacy.local_only = ['hush/*']\n")
    hush, loud = (root / "hush" / "a.py").as_uri(), (root / "a.py").as_uri()

    async with session(tmp_path, root) as client:
        client.open(TEXT, hush)
        client.open(TEXT, loud)
        assert await client.suggestions(0, 4, uri=hush, trigger=1) == []
        suppressed = (await client.status())["suppressed"]
        assert suppressed["code"] == "ignored"
        assert "privacy.local_only" in suppressed["message"]
        assert await client.menu(0, 0, end=(0, 3), uri=hush) == []
        assert client.asked == []
        assert await client.suggestions(0, 4, uri=loud, trigger=1)
        assert {row["document"] for row in client.asked} == {loud}
