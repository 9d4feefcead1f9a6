"""A process of ours needs no current folder: it may be removed, as by `git checkout` of a branch without it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.editor import NEOVIM, Editor, command, environment
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


@pytest.mark.parametrize("arguments", [("--version",), ("engine", "status"), ("engine", "models")])
def test_a_command_that_needs_no_folder_runs_in_a_removed_one(arguments: tuple[str, ...], tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    script = f"cd {here} && rmdir ../here; exec {sys.executable} -m dg_lsp {' '.join(arguments)}"
    env = environment(tmp_path / "more", DG_LSP_MODEL="./none")
    process = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (process.returncode, process.stderr) == (1 if arguments == ("engine", "status") else 0, "")
