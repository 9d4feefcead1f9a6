"""No process of ours runs code of the folder that it is started in, which may be a repository that nobody has read."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dg_lsp.cli import setup
from dg_lsp.engine.model.fit import machine
from dg_lsp.wire import extras, laptop
from tests.e2e.editor import CODE, ENGINE, ROOT, Editor
from tests.engine import laptop_kit
from tests.engine.engine_kit import FILLER
from tests.patience import PATIENCE_S
from tests.planted import AT_START, MODULES, planted, ran


def variables(folder: Path, **more: str) -> dict[str, str]:
    """Return variables with which no package index and no hub is reached, and the current folder comes first in PATH."""
    nothing = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY"), "http://127.0.0.1:9")
    offline = {"PIP_RETRIES": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "HF_HUB_OFFLINE": "1", **nothing}
    ours = {name: value for name, value in os.environ.items() if name not in (laptop.NO_PULL_VARIABLE, "PYTHONPATH")}
    places = {"DG_LSP_RUNTIME_DIR": str(folder / "run"), "XDG_STATE_HOME": str(folder / "state"), "DG_LSP_SERVE_ENGINE": ENGINE}
    return {**ours, **offline, **places, "PATH": f":.:bin:{os.environ['PATH']}", **more}


SCRIPT = (str(Path(sys.executable).with_name("dg-lsp")),)
SAFE = (sys.executable, "-P", "-m", "dg_lsp")
MODULE = (sys.executable, "-m", "dg_lsp")
ISOLATED = (sys.executable, "-I", "-m", "dg_lsp")
COMMANDS = (
    ("--version",),
    ("doctor", "--no-sample"),
    ("engine", "models"),
    ("engine", "pull", "smollm2-135m"),
    ("engine", "start"),
    ("engine", "status"),
    ("infill", ".", "--patch", "../a.diff", "--changed-since", "HEAD"),
    ("infill", ".", "--write", "--commit", "--check", "true"),
    ("infill", "a.py", "--all"),
    ("setup", "--json"),
    ("engine", "logs"),
    ("engine", "stop", "--now"),
)


def run(root: Path, command: Sequence[str], *, env: dict[str, str]) -> str:
    """Run a command in a workspace, and return what it printed; a traceback is an error."""
    process = subprocess.run(
        command, cwd=root, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert "Traceback" not in process.stderr, process.stderr
    return process.stdout + process.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("program", "path"), [(SCRIPT, ""), (SAFE, ""), (ISOLATED, ".")], ids=["script", "-P", "-I"])
def test_no_command_runs_code_of_the_current_folder(program: tuple[str, ...], path: str, tmp_path: Path) -> None:
    root = planted(tmp_path / "work", (*MODULES, *AT_START))
    run(root, [*GIT, "init"], env=dict(os.environ))
    env = variables(tmp_path, PYTHONPATH=path)
    for command in COMMANDS:
        run(root, [*program, *command], env=env)
        assert ran(root) == [], command


GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b")


@pytest.mark.parametrize(
    ("program", "path"),
    [
        (MODULE, ""),
        (SCRIPT, ":src"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((SAFE, ""), (SCRIPT, "."), (SCRIPT, "{root}"))),
    ],
)
async def test_a_server_imports_nothing_from_the_current_folder(program: tuple[str, ...], path: str, tmp_path: Path) -> None:
    root = planted(tmp_path / "work", MODULES)
    (root / "src").symlink_to(root)
    client = Editor(*program, "serve", env=variables(tmp_path, PYTHONPATH=path.format(root=root)), cwd=root)
    async with client:
        await client.hello(CODE, root=root)
        await client.until_ready()
        await client.end()
    assert ran(root) == []


@pytest.mark.parametrize(("program", "path"), [(MODULE, ""), (SCRIPT, ".")])
@pytest.mark.e2e
def test_an_engine_imports_nothing_from_the_current_folder(program: tuple[str, ...], path: str, tmp_path: Path) -> None:
    root = planted(tmp_path / "work", MODULES)
    env = variables(tmp_path, PYTHONPATH=path)
    toy = ("--model=toy", f"--filler={FILLER}")
    assert "is ready" in run(root, [*program, "engine", "start", *toy], env=env)
    assert "has stopped" in run(root, [*program, "engine", "stop", "--now", *toy], env=env)
    assert ran(root) == []


@pytest.mark.e2e
def test_what_is_only_in_another_folder_of_pythonpath_is_still_found(tmp_path: Path) -> None:
    (tmp_path / "only.py").write_text("")
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    code = "from dg_lsp.wire import programs; programs.ignore_current_folder(); import json, only; print(json.__file__)"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert str(tmp_path) not in printed.stdout


@pytest.mark.e2e
async def test_no_action_of_an_editor_runs_code_of_the_workspace(tmp_path: Path) -> None:
    root = planted(tmp_path / "work", (*MODULES, *AT_START))
    client = Editor(*SAFE, "serve", env=variables(tmp_path, PYTHONPATH=str(ROOT)), cwd=root)
    async with client:
        await client.hello(CODE, root=root, settings={"completion": {"debounce": 0}})
        await client.until_ready()
        uri = (root / "a.py").as_uri()
        client.open((root / "a.py").read_text(), uri)
        await client.suggestions(2, 4, uri=uri)
        for action in await client.menu(2, 4, uri=uri):
            with contextlib.suppress(Exception):
                await client.request("codeAction/resolve", action)
        for command, *arguments in COMMANDS_OF_SERVER:
            with contextlib.suppress(Exception):
                await client.request("workspace/executeCommand", {"command": command, "arguments": arguments})
        # The download fails, because nothing is reached, after all of its programs have started.
        await client.until(lambda: client.said("window/showMessage"))
        await client.end()
    assert ran(root) == []


COMMANDS_OF_SERVER: tuple[tuple[Any, ...], ...] = (
    ("dgLsp.status",),
    ("dgLsp.fill", {"what": "body"}),
    ("dgLsp.restartEngine",),
    ("dgLsp.pull", "download"),
)


@pytest.mark.parametrize("is_continued", [False, True])
@pytest.mark.e2e
async def test_a_download_runs_no_code_of_the_workspace(is_continued: bool, tmp_path: Path) -> None:
    root = planted(tmp_path / "work", (*MODULES, *AT_START))
    data = laptop_kit.write_gguf(tmp_path / "tiny.gguf").read_bytes()
    model = laptop_kit.in_parts(data, tmp_path / "wheels")
    if is_continued:
        choice = tmp_path / "state" / "dg-lsp" / "pull-offer.json"
        choice.parent.mkdir(parents=True)
        choice.write_text(json.dumps({"accepted": model.name}))

    with laptop_kit.serving(tmp_path / "wheels") as index:
        places = {"PYTHONPATH": str(ROOT), "TEST_LAPTOP_MODEL": laptop_kit.as_text(model)}
        places |= {"PIP_INDEX_URL": f"{index.url}/simple", "DG_LSP_MODELS": str(tmp_path / "models"), "NO_PROXY": "127.0.0.1"}
        client = Editor(sys.executable, "-P", "-m", "tests.e2e.laptop_server", env=variables(tmp_path, **places), cwd=root)
        client.answers["window/showMessageRequest"] = lambda _: {"title": "Download"}
        async with client:
            await client.hello(CODE, root=root)
            await client.until(lambda: any("tiny" in said["message"] for said in client.said("window/showMessage")))
            (said,) = client.said("window/showMessage")
            assert said["message"] == "dg-lsp: tiny is there and makes the suggestions from now on"
            await client.end()
    assert ran(root) == []


@pytest.mark.e2e
def test_what_setup_installs_is_not_chosen_by_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = planted(tmp_path / "work", (*MODULES, *AT_START))
    monkeypatch.chdir(root)
    for name, value in variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    for command in extras.install_commands(*extras.requirements("engine")):
        setup.install(command)
    assert capsys.readouterr().err
    assert ran(root) == []
    assert machine.nvidia() == () or ran(root) == []
