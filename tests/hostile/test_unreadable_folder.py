"""A folder of the workspace that can't be read costs the suggestions in that folder, not those of the others."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.e2e.editor import CODE, editor

pytestmark = pytest.mark.e2e

SETTINGS = {"completion": {"debounce": 0, "speculate": False}}


@pytest.mark.parametrize("how", ["name too long", "closed"])
def test_an_unreadable_workspace_folder_leaves_the_others_as_they_are(tmp_path: Path, how: str) -> None:
    bad, good = tmp_path / ("x" * 300 if how == "name too long" else "closed"), tmp_path / "good"
    good.mkdir()
    if how == "closed":
        if os.geteuid() == 0:
            pytest.skip("root may read every folder")
        bad.mkdir(mode=0)

    async def main() -> None:
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

    asyncio.run(main())
