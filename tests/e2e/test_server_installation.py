"""The installation changes or goes while the server runs: the user is told once, and what is loaded goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import dg_lsp
from dg_lsp.server import installation
from tests.e2e.editor import CODE, NEOVIM, ROOT, URI, Editor, command, environment, says
from tests.e2e.rpc import RpcError

pytestmark = pytest.mark.e2e


def remove(package: Path) -> None:
    # At once, because a server that still imports from it writes there.
    package.rename(package.with_name("gone"))


def update(package: Path) -> None:
    """Replace modules by others; the package's own file stays, as in most updates."""
    for name in ("running", "offers", "completion", "next_edit"):
        (package / "server" / f"{name}.py").write_text("from dg_lsp.server.methods import NewInThisVersion\n")
    shutil.rmtree(package / "server" / "__pycache__", ignore_errors=True)


def lose_tables(package: Path) -> None:
    for table in (package / "core" / "queries").glob("*.scm"):
        table.unlink()


def installed(folder: Path) -> tuple[Path, Editor]:
    """Return a copy of the package, and an editor whose server runs it."""
    package = folder / "site" / "dg_lsp"
    shutil.copytree(Path(dg_lsp.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    (package.parent / "tests").symlink_to(ROOT / "tests")
    client = Editor(*command(), env=environment(folder, PYTHONPATH=str(package.parent), PYTHONSAFEPATH="1"))
    client.journal = folder / "journal"
    return package, client


@pytest.mark.parametrize(
    ("changed", "sentence", "choice"),
    [(update, installation.UPDATED, "Restart"), (update, installation.UPDATED, None), (remove, installation.REMOVED, None)],
)
async def test_a_changed_installation_is_named_once_and_suggestions_go_on(
    tmp_path: Path, changed: Callable[[Path], None], sentence: str, choice: str | None
) -> None:
    package, client = installed(tmp_path)
    questions = list[str]()

    def chosen(params: dict[str, str]) -> dict[str, str] | None:
        questions.append(params["message"])
        return {"title": choice} if choice else None

    client.answers["window/showMessageRequest"] = chosen
    async with client:
        await client.hello(NEOVIM, settings={"completion": {"debounce": 0, "speculate": False}})
        client.open(says(text="1") + "x = \n")
        (item,) = await client.suggestions(1, 4)
        changed(package)
        for _ in range(2):
            with pytest.raises(RpcError) as error:
                await client.menu(1, 0)
            assert sentence in str(error.value)
            if choice:
                break
        await client.until(lambda: questions)
        if choice:
            assert await client.process.wait() == 1, "an editor starts it again"
            assert questions == [sentence]
            return
        client.change(2, {"text": says(text="1") + "xy = \n"}, uri=URI)
        (item,) = await client.suggestions(1, 5)
        assert item["insertText"] == "1"
        assert questions == [sentence]
        assert await client.end() == 0


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [(update, installation.UPDATED), (lose_tables, installation.UPDATED), (remove, installation.REMOVED)],
)
async def test_an_installation_that_changes_before_the_first_suggestion_is_named_once(
    tmp_path: Path, changed: Callable[[Path], None], sentence: str
) -> None:
    package, client = installed(tmp_path)
    questions = list[str]()
    client.answers["window/showMessageRequest"] = lambda params: questions.append(params["message"])
    async with client:
        await client.hello(CODE, settings={"completion": {"debounce": 0}, "next_edit": {"trigger": "manual"}})
        client.open(says(text="1") + "x = \n")
        changed(package)
        assert [await client.suggestions(1, 4) for _ in range(2)] == [[], []]
        at = {
            "textDocument": {"uri": URI, "version": 1},
            "position": {"line": 1, "character": 4},
            "context": {"triggerKind": 1},
        }
        assert await client.request("textDocument/copilotInlineEdit", at) == {"edits": []}
        await client.until(lambda: questions)
        assert questions == [sentence]
        assert (await client.status())["suppressed"]["message"] == sentence
        assert await client.end() == 0
