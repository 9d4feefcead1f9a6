"""The real server with the embedded model, driven by Microsoft's own `vscode-languageserver-protocol` client on Node."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.editor import ROOT, STUB, command, environment
from tests.engine.engine_kit import home
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

NODE = Path(__file__).parent / "node"
# Kept between runs; `make clean` removes it.
INSTALLED = ROOT / "build" / "node-client"
READERS = """\
def read_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def read_𝕏(path):
    with open("𝕏", """


@pytest.fixture(scope="module")
def modules(readers_own: Mapping[str, str]) -> Path:
    """A folder with the client's node_modules, as its lock file says."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("there is no Node here")
    lock = (NODE / "package-lock.json").read_bytes()
    stamp = INSTALLED / "installed"
    if not stamp.exists() or stamp.read_bytes() != lock:
        shutil.rmtree(INSTALLED, ignore_errors=True)
        INSTALLED.mkdir(parents=True)
        for name in ("package.json", "package-lock.json", ".npmrc"):
            shutil.copy(NODE / name, INSTALLED)
        command_line = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        process = subprocess.run(command_line, cwd=INSTALLED, env=dict(readers_own), capture_output=True)
        assert process.returncode == 0, process.stderr.decode()
        stamp.write_bytes(lock)
    return INSTALLED


@pytest.mark.slow
def test_microsofts_client_is_served(modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line, character = READERS.count("\n"), len(READERS.rpartition("\n")[2].encode("utf-16-le")) // 2
    scene = tmp_path / "scene.json"
    scene.write_text(json.dumps({"text": READERS + "\n", "line": line, "character": character, "stub": STUB}), "utf-8")
    with home(monkeypatch):
        process = subprocess.run(
            ["node", str(NODE / "client.mjs"), str(modules), str(scene), *command()],
            env=environment(tmp_path / "server", DG_LSP_SERVE_ENGINE=""),
            capture_output=True,
            timeout=PATIENCE_S,
        )
    assert (process.returncode, process.stderr.decode()) == (0, "")
    values: dict[str, Any] = {}
    for report in map(json.loads, process.stdout.decode().splitlines()):
        assert report["what"] not in values, report
        values[report["what"]] = report["value"]
    assert "error" not in values
    assert "unhandled" not in values

    capabilities = values["initialize"]["capabilities"]
    assert values["initialize"]["name"] == "dg-lsp"
    assert capabilities["positionEncoding"] == "utf-16"
    assert capabilities["experimental"] == {"dgLsp": {"version": 1}}
    assert capabilities["inlineCompletionProvider"] == {}

    (item,) = values["automatic"]
    here = {"line": line, "character": character}
    assert item["range"] == {"start": here, "end": here}
    (rest,) = values["typed through"]
    assert rest["insertText"] == item["insertText"][2:]
    invoked = [each["insertText"] for each in values["invoked"]]
    assert len(invoked) == len(set(invoked)) >= 1
    assert values["cancelled"] == -32800

    assert values["actions"][0] == "Fill function body"
    assert values["resolved"]
    assert values["progress"] == ["begin", "end", True]
    assert values["command"]["applied"] is True
    assert len(values["command"]["fills"]) == 1
    applied_edit = values["applyEdit"]
    assert applied_edit["version"] == applied_edit["current"]
    start = STUB.index("raise")
    ast.parse(values["text"])
    assert "NotImplementedError" not in values["text"]
    assert values["text"].startswith(STUB[:start])
    assert values["text"].endswith(STUB[STUB.index("\n", start) :])
    assert values["stale"] == -32801
    assert values["status"] == "ready"
    assert values["exit"] == 0
