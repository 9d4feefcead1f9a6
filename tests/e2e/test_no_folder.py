"""A process of ours needs no current folder, which `git checkout` may remove, and not each folder of the workspace."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.editor import CODE, NEOVIM, Editor, command, editor, environment
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("is_gone_before", [True, False])
async def test_a_server_in_a_removed_folder_answers_reads_settings_and_ends_with_its_editor(
    is_gone_before: bool, tmp_path: Path
) -> None:
    here, root = tmp_path / "here", tmp_path / "work"
    here.mkdir()
    root.mkdir()
    script = f"cd {here} && {'rmdir ../here; ' if is_gone_before else ''}exec {' '.join(command())}"
    client = Editor("sh", "-c", script, env=environment(tmp_path / "more"))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as parent:
        async with client:
            await client.hello(NEOVIM, root=root, settings={"completion": {"debounce": 0}}, process_id=parent.pid)
            await client.until_ready()
            shutil.rmtree(here, ignore_errors=True)
            for name in ("a", "b"):
                uri = (root / f"{name}.txt").as_uri()
                client.open("def f(n):\n    return \n", uri, "plaintext")
                assert await client.suggestions(1, 11, uri=uri)
            (root / ".dg-lsp.toml").write_text("[completion]\ntrigger = 'manual'\n")
            while not await has_paused(client):
                await asyncio.sleep(0.05)
            parent.communicate()
            assert await asyncio.wait_for(client.process.wait(), PATIENCE_S) == 1
            assert b"Error" not in client.stderr


async def has_paused(client: Editor) -> bool:
    suppressed = (await client.status())["suppressed"]
    return suppressed is not None and suppressed["code"] == "manual"


GONE = "dg-lsp: the current folder no longer exists; change to another one, or name full paths\n"
ANY_MODEL = "--model embedded"


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        ("--version", 0, ""),
        ("engine status", 1, ""),
        ("engine models", 0, ""),
        (f"infill {ANY_MODEL} --dry-run PROJECT", 0, ""),
        (f"infill {ANY_MODEL} --dry-run --at PROJECT/a.py:2:5", 0, ""),
        (f"infill {ANY_MODEL} --patch PROJECT/a.diff PROJECT/b.py", 0, "dg-lsp: no holes found\n"),
        (f"infill {ANY_MODEL} --dry-run a.py", 2, GONE),
        (f"infill {ANY_MODEL} --dry-run .", 2, GONE),
        (f"infill {ANY_MODEL} --at a.py:1:1", 2, GONE),
        (f"infill {ANY_MODEL} --patch a.diff PROJECT", 2, GONE),
        (f"calibrate {ANY_MODEL} --check", 2, GONE),
        ("bench a.jsonl", 2, "dg-lsp bench: a.jsonl can't be read as .jsonl or .jsonl.gz: no such file or directory\n"),
    ],
)
def test_a_command_in_a_removed_folder_takes_full_paths(arguments: str, code: int, error: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.py").write_text("def f():\n    ...\n")
    (tmp_path / "project" / "b.py").write_text("x = 1\n")
    command = f"{sys.executable} -m dg_lsp {arguments.replace('PROJECT', str(tmp_path / 'project'))}"
    env = environment(tmp_path / "more", DG_LSP_MODEL="./none")
    shell = ["sh", "-c", f"cd {here} && rmdir ../here; exec {command}"]
    process = subprocess.run(shell, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (process.returncode, process.stderr) == (code, error)


SETTINGS = {"completion": {"debounce": 0, "speculate": False}}


@pytest.mark.parametrize("how", ["name too long", "closed"])
async def test_an_unreadable_workspace_folder_leaves_the_others_as_they_are(tmp_path: Path, how: str) -> None:
    bad, good = tmp_path / ("x" * 300 if how == "name too long" else "closed"), tmp_path / "good"
    good.mkdir()
    if how == "closed":
        if os.geteuid() == 0:
            pytest.skip("root may read every folder")
        bad.mkdir(mode=0)
    async with editor(tmp_path) as client:
        client.answers["workspace/configuration"] = lambda params: [SETTINGS for _ in params["items"]]
        folders = [{"uri": folder.as_uri(), "name": folder.name[:9]} for folder in (bad, good)]
        await client.request("initialize", {"processId": None, "capabilities": CODE, "workspaceFolders": folders})
        client.notify("initialized", {})
        await client.until_ready()
        uri, inside = (good / "a.py").as_uri(), (bad / "a.py").as_uri()
        client.open("x = \n", uri=uri)
        (item,) = await client.suggestions(0, 4, uri=uri)
        assert item["insertText"] == "answer = 1"
        client.open("x = \n", uri=inside)
        assert await client.suggestions(0, 4, uri=inside) == []
        suppressed = (await client.status())["suppressed"]
        assert suppressed["code"] == "ignored"
        assert "lies in a workspace folder that can't be read" in suppressed["message"]
        assert b"can't be read" in client.stderr
        assert b"Traceback" not in client.stderr
        client.stderr = b""
