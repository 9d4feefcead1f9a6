"""The engine's life: it is unique and private, exits when unused, and leaves no files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from dg_lsp.cli import main as cli
from dg_lsp.engine.serve import daemon, worker
from dg_lsp.engine.serve.daemon import next_action
from dg_lsp.engine.serve.service import Inbox, Service
from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import ENGINE_COMMAND, DiscoveryError, EngineId, EngineSettings
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.messages import Bye, Event
from tests.engine.engine_kit import FILLER, ROOT, ask, engine_id, gate, lease, request, running, wait_until
from tests.engine.toy_filler import ToyFiller
from tests.patience import PATIENCE_S
from tests.processes import dg_lsp, is_gone

pytestmark = pytest.mark.e2e


NEVER = EngineSettings(unload_after_s=0, exit_after_s=0)
TIMES = EngineSettings(unload_after_s=10, exit_after_s=30)


@pytest.mark.parametrize(
    ("facts", "settings", "now", "expected"),
    [
        ({}, NEVER, 1e9, ("wait", None)),
        ({}, TIMES, 4, ("wait", 6)),
        ({}, TIMES, 10, ("unload", None)),
        ({"state": "unloaded"}, TIMES, 10, ("wait", 20)),
        ({"state": "unloaded"}, TIMES, 30, ("exit", None)),
        ({"state": "unloaded", "n_leases": 1}, TIMES, 99, ("wait", None)),
        ({"n_leases": 1}, TIMES, 99, ("unload", None)),
        ({"n_leases": 1, "is_on_gpu": True}, TIMES, 99, ("wait", None)),
        ({"is_on_gpu": True}, TIMES, 10, ("unload", None)),
        ({"state": "unloaded", "last_lease": 5.0}, TIMES, 30, ("wait", 5)),
        ({"state": "unloaded", "last_used": 5.0}, TIMES, 30, ("wait", 5)),
        ({"n_jobs": 1}, TIMES, 99, ("wait", None)),
        ({"state": "loading"}, TIMES, 99, ("wait", None)),
        ({"state": "failed"}, NEVER, 1, ("wait", 1)),
        ({"state": "failed"}, NEVER, 2, ("exit", None)),
        ({"state": "failed", "n_leases": 1}, TIMES, 99, ("wait", None)),
        ({"stop_when_idle": True}, NEVER, 0, ("exit", None)),
        ({"stop_when_idle": True, "n_jobs": 1}, NEVER, 0, ("wait", None)),
        ({"stop_when_idle": True, "n_leases": 1}, NEVER, 0, ("wait", None)),
    ],
)
@pytest.mark.smoke
def test_next_action_unloads_and_exits_only_when_unused(
    facts: dict[str, Any], settings: EngineSettings, now: float, expected: tuple[str, float | None]
) -> None:
    usual: dict[str, Any] = {"state": "ready", "n_leases": 0, "n_jobs": 0, "last_lease": 0.0, "last_used": 0.0}
    assert next_action(settings, now, **usual | facts) == expected


@pytest.mark.smoke
async def test_nothing_holds_the_model_when_its_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[weakref.ref[ToyFiller]] = []
    held: list[bool] = []

    def load(_: object) -> ToyFiller:
        model = ToyFiller("auto")
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(worker, "give_back_memory", lambda: held.append(models[0]() is not None))
    service = Service(load, EngineId(), EngineSettings(unload_after_s=0.01))
    service.start()
    inbox: Inbox[Event] = Inbox()
    service.take_lease(inbox.put)
    watching = asyncio.ensure_future(daemon._watch(service, lambda: None))
    async with asyncio.timeout(PATIENCE_S):
        while not held:
            await inbox.take(1.0)
    service.stop("the test is over")
    await watching
    service.worker.close()
    assert held == [False]


def test_files_are_private_and_removed_at_the_end(engines: Path) -> None:
    with running() as engine:
        modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in engines.iterdir()}
        assert modes == {".lock": 0o600, ".sock": 0o600, ".json": 0o600, ".log": 0o600}
        assert stat.S_IMODE(engines.stat().st_mode) == 0o700
        assert len(engine.state.token) == 64
    assert [path.suffix for path in engines.iterdir()] == [".log"]


@pytest.mark.slow
def test_a_second_engine_of_the_same_kind_does_not_start(engines: Path) -> None:
    with running() as engine:
        output = command("run", *OPTIONS, code=2)
        assert output == f"dg-lsp engine: an engine for toy is already running (process {engine.process.pid})\n"
        with running(model="other"):
            assert len(discovery.all_engine_files()) == 2


def test_files_of_a_killed_engine_do_not_block_the_next(engines: Path) -> None:
    with running() as engine:
        engine.process.kill()
        engine.process.wait()
        assert engine.files.state.exists()
        assert command("token", *OPTIONS, code=2) == NO_TOKEN
        assert command("status", *OPTIONS, code=1) == "toy: no engine is running\n"
    with running() as fresh:
        assert fresh.state.token != engine.state.token
        assert ask(fresh.state, request())


def test_a_socket_with_a_too_long_path_gets_a_short_one(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = engines / ("d" * 100)
    monkeypatch.setenv(discovery.RUNTIME_DIR_VARIABLE, str(deep))
    with running() as engine:
        path = Path(engine.state.address)
        assert len(os.fsencode(path)) < discovery.MAX_SOCKET_PATH
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert ask(engine.state, request())
    assert not path.exists()
    path.parent.rmdir()


def test_a_socket_of_another_user_is_not_used(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impostor = engines / "x.sock"
    impostor.write_text("no socket")
    with pytest.raises(DiscoveryError, match="belongs to another user"):
        discovery.check_owner(str(impostor))
    with running() as engine:
        discovery.check_owner(engine.state.address)
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(DiscoveryError, match="belongs to another user"):
            discovery.check_owner(engine.state.address)
        monkeypatch.undo()
        monkeypatch.setenv(discovery.RUNTIME_DIR_VARIABLE, str(engines))


def test_clients_can_watch_the_loading(engines: Path) -> None:
    door = engines / "door"
    with running(model=f"gate:{door}", wait_for="loading") as engine:
        wait_until(lambda: engine.info()["message"] == "reading weights")
        health = engine.http.get("/health")
        assert (health.status_code, health.json()) == (
            503,
            {"status": "loading", "state": "loading", "message": "reading weights", "fraction": 0.5},
        )
        door.touch()
        wait_until(lambda: engine.http.get("/health").status_code == 200)


@pytest.mark.parametrize(
    ("options", "state"),
    [(("--exit-after=10", "--unload-after=0"), "ready"), (("--exit-after=0", "--unload-after=0.05"), "unloaded")],
)
@pytest.mark.slow
def test_a_client_that_disconnects_during_a_step_does_not_keep_the_engine_alive(
    engines: Path, tmp_path: Path, options: tuple[str, str], state: str
) -> None:
    stop = gate(tmp_path)
    with running(*options, wait_for=state) as engine:
        with lease(engine.state) as client:
            client.ask(request({"gate": str(stop.path)}))
            wait_until(lambda: engine.info()["running"] == 1)
        # The engine learns that the client is gone while its step still goes on.
        wait_until(lambda: engine.info()["leases"] == 0)
        stop.let(1)
        if state == "unloaded":
            wait_until(lambda: engine.info()["state"] == "unloaded")
        else:
            wait_until(lambda: engine.process.poll() is not None)


def test_a_full_log_is_rotated(engines: Path) -> None:
    files = discovery.engine_files(engine_id("fails"))
    files.log.write_bytes(b"x" * (discovery.MAX_LOG_BYTES + 1))
    process = discovery.start_engine(ENGINE_COMMAND, files, engine_id("fails"), EngineSettings())
    wait_until(lambda: process.poll() is not None)
    assert files.log.stat().st_size < discovery.MAX_LOG_BYTES
    assert files.log.with_suffix(".log.1").exists()


INSTALL_IT = f"install the engine's parts with: {install_command('engine')}"
WITHOUT_ENGINE = """
import sys
for name in ("torch", "transformers", "tokenizers", "safetensors", "numpy"):
    sys.modules[name] = None
from dg_lsp.engine.common.task import UserError
from dg_lsp.engine.serve.daemon import load
from dg_lsp.wire.discovery import EngineId, EngineSettings
filler = load(EngineId("fim:llama:http://127.0.0.1:9"), EngineSettings(), lambda _text, _share: None)
print(type(filler).__name__)
for model in ("embedded", "vllm:http://127.0.0.1:9"):
    try:
        load(EngineId(model), EngineSettings(), lambda _text, _share: None)
    except UserError as error:
        print(error)
"""


def test_a_remote_model_needs_no_engine_packages_and_a_local_one_names_them() -> None:
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINE], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S
    )
    assert process.stdout.splitlines() == [
        "RemoteFiller",
        f"torch is not installed; {INSTALL_IT}",
        f"tokenizers is not installed; {INSTALL_IT}",
    ], process


OPTIONS = ["--model=toy", f"--filler={FILLER}"]
NO_TOKEN = "dg-lsp engine: no engine for toy is running; start one with: dg-lsp engine start --model toy --port 0\n"


def command(*arguments: str, code: int = 0) -> str:
    process = dg_lsp("engine", *arguments, code=code)
    return process.stdout + process.stderr


def quick_command(*arguments: str, code: int = 0) -> str:
    """Return what a command prints that runs in this process, which has imported what it needs."""
    result = CliRunner().invoke(cli.app, ["engine", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout + result.stderr


@pytest.mark.smoke
def test_the_commands_start_show_and_stop_an_engine(engines: Path) -> None:
    assert quick_command("logs", *OPTIONS) == "dg-lsp engine: no log for toy yet\n"
    assert json.loads(quick_command("status", "--json", *OPTIONS, code=1))["state"] == "absent"
    assert quick_command("status", *OPTIONS, code=1) == "toy: no engine is running\n"
    assert quick_command("start", *OPTIONS).startswith("The engine for toy is ready (process ")
    status = json.loads(quick_command("status", "--json", *OPTIONS))
    assert list(status)[:6] == ["pid", "state", "model", "device", "leases", "memory"]
    assert (status["state"], status["model"], status["device"], status["leases"]) == ("ready", "toy", "toy", 0)
    assert quick_command("start", *OPTIONS) == f"The engine for toy is ready (process {status['pid']}).\n"
    state = discovery.read_state(discovery.engine_files(EngineId("toy", filler=FILLER)))
    assert state is not None
    for n_threads in (3, 0):
        ready = f"The engine for toy is ready (process {status['pid']}).\n"
        assert quick_command("start", *OPTIONS, f"--threads={n_threads}") == ready
        assert discovery.call(state, "settings").values["threads"] == n_threads
    assert quick_command("status", "--all").startswith(f"toy: ready, process {status['pid']}, device toy, 0 clients, ")
    assert "model ready" in quick_command("logs", *OPTIONS)
    assert quick_command("stop", "--model=other") == (
        f"No engine for other is running, but one for toy. To stop it: dg-lsp engine stop --model=toy --filler={FILLER}\n"
    )
    assert quick_command("stop", *OPTIONS) == f"Process {status['pid']} has stopped.\n"
    wait_until(lambda: is_gone(status["pid"]))
    assert quick_command("stop", *OPTIONS) == "No engine is running.\n"
    assert quick_command("status", "--all", code=1) == "No engine is running.\n"


def test_start_with_a_port_prints_the_url_and_the_token_command(engines: Path) -> None:
    output = quick_command("start", "--port=0", *OPTIONS)
    url = json.loads(quick_command("status", "--json", *OPTIONS))["url"]
    assert output.endswith(f" Other clients reach it at {url}, with the token that `dg-lsp engine token` prints.\n")
    bearer = {"Authorization": f"Bearer {quick_command('token', *OPTIONS).strip()}"}
    assert httpx.get(f"{url}/health", headers=bearer).json()["status"] == "ok"
    quick_command("stop", *OPTIONS)
    assert quick_command("token", *OPTIONS, code=2) == NO_TOKEN


def test_a_used_port_is_reported(engines: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        output = command("run", f"--port={port}", *OPTIONS, code=2)
    assert output.endswith(f"\ndg-lsp engine: port {port} of this machine can't be used: Address already in use\n")
    assert [path.suffix for path in engines.iterdir()] == [".log"]


def refusal(*arguments: str) -> str:
    """The one sentence with which a command ends, its own name and the log's lines left out."""
    return command(*arguments, code=2).splitlines()[-1].removeprefix("dg-lsp engine: ")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("run", "lock"), ("run", "json"), ("run", "sock"), ("run", "log"), ("start", "starting"), ("start", "log")],
)
def test_a_folder_in_place_of_a_file_is_named(engines: Path, name: str, kind: str) -> None:
    path = engines / f"{engine_id().name}.{kind}"
    path.mkdir()
    assert refusal(name, *OPTIONS).startswith(f"{path} can't be used: ")
    assert name == "start" or {path.suffix for path in engines.iterdir()} <= {f".{kind}", ".log"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a engines away")
@pytest.mark.parametrize("name", ["run", "start", "stop", "status", "logs", "token"])
def test_every_command_refuses_a_runtime_folder_of_another_user(engines: Path, name: str) -> None:
    os.chown(engines, 12345, -1)
    try:
        assert refusal(name, *OPTIONS) == (
            f"{engines} belongs to another user; set {discovery.RUNTIME_DIR_VARIABLE} to a directory of your own"
        )
        assert list(engines.iterdir()) == []
    finally:
        os.chown(engines, 0, -1)


def test_a_runtime_folder_that_is_a_file_is_refused(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = engines / "file"
    file.touch()
    with monkeypatch.context() as context:
        context.setenv(discovery.RUNTIME_DIR_VARIABLE, str(file))
        assert refusal("start", *OPTIONS) == (
            f"{file} can't be used: File exists; set {discovery.RUNTIME_DIR_VARIABLE} to another directory"
        )


def test_stop_waits_for_users_unless_now_is_given(engines: Path) -> None:
    with running() as engine, lease(engine.state) as client:
        assert "has 1 client and 0 requests" in command("stop", *OPTIONS)
        assert engine.process.poll() is None
        assert command("stop", "--now", "--all") == f"Process {engine.process.pid} has stopped.\n"
        assert isinstance(list(client.events())[-1], Bye)


def test_start_reports_why_a_model_fails_to_load(engines: Path) -> None:
    output = command("start", "--model=fails", f"--filler={FILLER}", code=2)
    assert output.endswith("dg-lsp engine: the model could not be loaded: there is no checkpoint of that name\n")
    output = command("start", "--model=toy", "--filler=nowhere:load", code=2)
    assert f"nowhere is not installed; {INSTALL_IT}" in output


def test_start_reports_a_running_engine_without_the_requested_port(engines: Path) -> None:
    command("start", *OPTIONS)
    assert "It already ran, without a port" in refusal("start", "--port=0", *OPTIONS)
    command("stop", *OPTIONS)


def disguise(version: str) -> None:
    """Make the running engine one of another dg-lsp version."""
    state_file = discovery.engine_files(engine_id()).state
    state_file.write_text(json.dumps({**json.loads(state_file.read_text()), "version": version}))


def test_start_replaces_an_unused_engine_of_another_version(engines: Path) -> None:
    with running() as engine:
        disguise("0.0.1")
        both = f"It is from dg-lsp 0.0.1, this is dg-lsp {discovery.current_build()}"
        assert command("status", *OPTIONS).endswith(f". {both}; the next request replaces it if no client uses it.\n")
        pid = engine.process.pid
        output = command("start", *OPTIONS)
        assert output.startswith("The engine for toy is ready (process ")
        assert f"process {pid})" not in output
        assert "0.0.1" not in output
        assert "0.0.1" not in command("status", *OPTIONS)
        wait_until(lambda: engine.process.poll() is not None)


def test_start_says_that_an_engine_in_use_is_of_another_version(engines: Path) -> None:
    with running() as engine, lease(engine.state):
        disguise("0.0.1")
        output = command("start", *OPTIONS)
        assert output.startswith(f"The engine for toy is ready (process {engine.process.pid}). It is from dg-lsp 0.0.1, ")
        assert ", 1 client, " in command("status", *OPTIONS)


@pytest.mark.slow
def test_an_unresponsive_engine_is_reported(engines: Path) -> None:
    with running() as engine:
        pid = engine.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            processes = [
                subprocess.Popen(
                    [sys.executable, "-m", "dg_lsp", "engine", name, *OPTIONS],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    cwd=ROOT,
                )
                for name in ("status", "stop", "token")
            ]
            outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
        finally:
            os.kill(pid, signal.SIGCONT)
    silence = f"process {pid} does not respond; end it with: kill -9 {pid}\n"
    assert outputs == [f"toy: {silence}", *[f"dg-lsp engine: {silence}"] * 2]
    assert [process.returncode for process in processes] == [1, 2, 2]


def test_a_process_that_reuses_a_killed_engines_pid_is_left_alone(engines: Path) -> None:
    with running() as engine:
        os.kill(engine.process.pid, signal.SIGKILL)
        wait_until(lambda: is_gone(engine.process.pid))
        state = json.loads(engine.files.state.read_text())
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
            engine.files.state.write_text(json.dumps({**state, "pid": other.pid}))
            assert "ok  running engines: none; " in dg_lsp("doctor", "--no-sample").stdout
            engine.files.state.unlink()
            other.communicate(b"\n")


@pytest.mark.smoke
def test_a_token_that_is_invalid_in_a_header_is_refused(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DG_LSP_ENGINE_TOKEN", "two words")
    assert refusal("run", *OPTIONS).startswith("DG_LSP_ENGINE_TOKEN must consist of ASCII letters, ")
