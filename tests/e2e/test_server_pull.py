"""The server offers a laptop model once, pulls it if the user agrees, and uses it without a restart of the editor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dg_lsp.wire import laptop
from tests.e2e.editor import CODE, KATE, Editor, environment
from tests.engine import laptop_kit
from tests.engine.laptop_kit import Index
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.e2e


@pytest.fixture
def index(gguf: bytes, tmp_path: Path) -> Iterator[Index]:
    laptop_kit.in_parts(gguf, tmp_path / "wheels")
    with laptop_kit.serving(tmp_path / "wheels") as server:
        yield server


@contextlib.asynccontextmanager
async def editor(
    index: Index, folder: Path, gguf: bytes, choose: Callable[[list[str]], Any], capabilities: dict[str, Any] = CODE
) -> AsyncIterator[Editor]:
    """Yield an editor whose user answers questions with `choose`, which receives the titles of the buttons."""
    model = laptop_kit.in_parts(gguf, folder / "wheels")
    variables = laptop_kit.environment(index.url, folder / "home")
    variables |= {"XDG_STATE_HOME": str(folder / "state"), "TEST_LAPTOP_MODEL": laptop_kit.as_text(model)}
    ours = {name: value for name, value in environment(folder).items() if name != laptop.NO_PULL_VARIABLE}
    client = Editor(sys.executable, "-m", "tests.e2e.laptop_server", env={**ours, **variables})
    client.journal = folder / "journal"
    client.answers["window/showMessageRequest"] = lambda params: choose([action["title"] for action in params["actions"]])
    async with client:
        await client.hello(capabilities, settings={"completion": {"debounce": 0}})
        await client.until_ready()
        yield client
        if client.process.returncode is None:
            await client.end()


def questions(client: Editor) -> list[Any]:
    return [request["params"] for request in client.requests if request["method"] == "window/showMessageRequest"]


def download(titles: list[str]) -> dict[str, str]:
    assert titles == ["Download", "Not now", "Never"]
    return {"title": "Download"}


async def until_model(client: Editor, name: str) -> None:
    while (await client.status())["model"] != name:
        await asyncio.sleep(0.02)


async def test_an_accepted_model_is_pulled_and_used_without_a_restart(index: Index, tmp_path: Path, gguf: bytes) -> None:
    async with editor(index, tmp_path, gguf, download) as client:
        await asyncio.wait_for(until_model(client, "tiny"), PATIENCE_S)
        await client.until_ready()
        await client.until(lambda: client.said("window/showMessage"))
        (question,) = questions(client)
        assert question["message"].startswith("dg-lsp: download the model tiny (1 MB, once)?")
        said = client.said("window/showMessage")[-1]["message"]
        assert said == "dg-lsp: tiny is there and makes the suggestions from now on"
        values = [note["value"] for note in client.said("$/progress")]
        assert values[0]["title"] == "Downloading tiny"
        assert any(" MB" in value.get("message", "") for value in values)
        assert values[-1]["kind"] == "end"
    # A model that the user removes is not pulled again.
    assert "accepted" not in json.loads((tmp_path / "state" / "dg-lsp" / "pull-offer.json").read_text())
    # The next session finds it there, and asks nothing.
    n_asked = len(index.asked)
    async with editor(index, tmp_path, gguf, download) as client:
        assert (await client.status())["model"] == "tiny"
        assert not questions(client)
    assert len(index.asked) == n_asked


@pytest.mark.parametrize("title", ["Never", "Not now", None])
async def test_a_declined_model_is_not_offered_again_and_nothing_is_fetched(
    index: Index, tmp_path: Path, gguf: bytes, title: str | None
) -> None:
    async with editor(index, tmp_path, gguf, lambda _titles: {"title": title} if title else None) as client:
        await client.until(lambda: questions(client))
        choice = tmp_path / "state" / "dg-lsp" / "pull-offer.json"
        while title == "Never" and json.loads(choice.read_text()) != {"never": True}:
            await asyncio.sleep(0.02)
        assert (await client.status())["model"] == "embedded"
    async with editor(index, tmp_path, gguf, download) as client:
        # The offer would have been sent before the answers to these.
        for _ in range(20):
            await client.status()
        assert not questions(client)
    assert not index.asked


async def test_a_pull_ends_with_the_editor_and_continues_in_the_next_session(index: Index, tmp_path: Path, gguf: bytes) -> None:
    index.hang_after = 50_000
    async with editor(index, tmp_path, gguf, download) as client:
        assert await asyncio.to_thread(index.hangs.wait, PATIENCE_S)
        # The embedded model serves meanwhile.
        assert (await client.status())["model"] == "embedded"
    index.hang_after = None
    async with editor(index, tmp_path, gguf, lambda _titles: pytest.fail("it asked again")) as client:
        await asyncio.wait_for(until_model(client, "tiny"), PATIENCE_S)


async def test_a_pull_by_another_process_is_noticed(index: Index, tmp_path: Path, gguf: bytes) -> None:
    async with editor(index, tmp_path, gguf, lambda _titles: None, KATE) as client:
        model = laptop_kit.in_parts(gguf, tmp_path / "wheels")
        command = [sys.executable, "-m", "tests.engine.laptop_kit", laptop_kit.as_text(model), "tiny"]
        process = await asyncio.create_subprocess_exec(
            *command, env=laptop_kit.environment(index.url, tmp_path / "home"), stdout=asyncio.subprocess.DEVNULL
        )
        assert await process.wait() == 0
        await asyncio.wait_for(until_model(client, "tiny"), PATIENCE_S)


async def test_a_failed_pull_is_one_sentence(index: Index, tmp_path: Path, gguf: bytes) -> None:
    index.redirect = "file:///etc"
    async with editor(index, tmp_path, gguf, download) as client:
        await client.until(lambda: client.said("window/showMessage"))
        (said,) = client.said("window/showMessage")
        assert said["message"].startswith("dg-lsp: tiny can't be pulled: ")
        assert "Traceback" not in said["message"]
        assert (await client.status())["model"] == "embedded"
        client.stderr = b""
