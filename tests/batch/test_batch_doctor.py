"""What `dg-lsp doctor` finds, and its advice."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dg_lsp.cli import doctor
from dg_lsp.cli import main as cli
from dg_lsp.cli.doctor import Finding, Trial
from dg_lsp.wire import discovery, laptop, stream
from dg_lsp.wire.discovery import EngineId, State
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.stream import Message
from tests.engine import laptop_kit
from tests.engine.engine_kit import lease, running
from tests.patience import PATIENCE_S


def test_a_missing_package_is_named_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.engine_packages().advice == ""
    monkeypatch.setattr(doctor, "ENGINE_NEEDS", ("sys", "no_such_package"))
    finding = doctor.engine_packages()
    assert finding.state == "no_such_package not installed"
    assert finding.advice == f"To install them: {install_command('engine')}"


@pytest.mark.parametrize(
    ("model", "is_well"), [("fim:llama:http://127.0.0.1:9", True), ("vllm:http://127.0.0.1:9", False), ("embedded", False)]
)
def test_only_a_model_that_needs_a_package_misses_it(
    engines: Path, monkeypatch: pytest.MonkeyPatch, model: str, is_well: bool
) -> None:
    monkeypatch.setattr(doctor, "ENGINE_NEEDS", ("no_such_package",))
    monkeypatch.setattr(doctor, "VLLM_NEEDS", ("no_such_package",))
    assert (diagnosed(model)["engine"].advice == "") is is_well


def test_a_model_that_is_not_whole_is_reported(tmp_path: Path) -> None:
    for name in doctor.MODEL_FILES[1:]:
        (tmp_path / name).write_bytes(b"x" * 1000)
    assert doctor.model_files(tmp_path).state == f"config.json missing in {tmp_path}"
    (tmp_path / "config.json").write_bytes(b"{}")
    assert doctor.model_files(tmp_path).advice == ""


def test_a_runtime_folder_that_others_can_enter_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DG_LSP_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o755)
    assert "chmod 700" in doctor.runtime_folder().advice
    tmp_path.chmod(0o700)
    assert doctor.runtime_folder().advice == ""
    assert doctor.running_engines().state == "none; the first request starts one"


def test_a_log_that_engines_cannot_write_is_reported(engines: Path) -> None:
    log = discovery.engine_files(EngineId()).log
    log.write_text("an earlier engine\n")
    assert doctor.runtime_folder().advice == ""
    log.unlink()
    log.mkdir()
    assert diagnosed()["runtime folder"].advice == f"Remove {log}."
    assert run("--no-sample").exit_code == 1


def run(*arguments: str | Path) -> Result:
    findings = CliRunner().invoke(cli.app, ["doctor", *map(str, arguments)])
    assert findings.exception is None or isinstance(findings.exception, SystemExit), findings.exc_info
    assert "Traceback" not in findings.output
    return findings


def diagnosed(model: str | Path = "", *, with_sample: bool = False) -> dict[str, Finding]:
    """Return the findings by name."""
    return {finding.what: finding for finding in doctor.findings(str(model), with_sample=with_sample)}


WITHOUT_ENGINE = (
    "dg-lsp",
    "Python",
    "engine",
    "grammars: 14 languages",
    "embedded model",
    "configuration",
    "runtime folder",
    "running engines: none",
    "what fits: embedded needs",
    "model",
)


@pytest.mark.e2e
def test_each_check_prints_a_line_without_starting_an_engine_or_loading_torch(engines: Path) -> None:
    loaded = "torch" in sys.modules
    findings = run("--no-sample")
    assert findings.exit_code == 0, findings.output
    lines = findings.stdout.splitlines()
    assert [line.startswith(f"ok  {what}") for line, what in zip(lines, WITHOUT_ENGINE, strict=True)] == [True] * len(lines)
    assert discovery.all_engine_files() == ()
    assert ("torch" in sys.modules) == loaded


@pytest.mark.slow
def test_a_sample_fill_reports_where_the_model_runs_and_its_times(engines: Path, trained_layout: Path) -> None:
    findings = diagnosed(trained_layout, with_sample=True)
    state = findings["model"].state
    assert re.fullmatch(
        rf"{trained_layout} runs on cpu \(.+\), in \w+ \(.+\), with \d+ threads? \(.+\), connected in .* s, process \d+", state
    )
    assert findings["memory"].state.startswith("the engine uses ")
    findings = diagnosed()
    process = state.rpartition(", ")[2]
    assert findings["running engines"].state.startswith(f"{trained_layout}: ready, {process}, device cpu, 0 clients, ")


@pytest.mark.e2e
def test_a_model_that_cannot_be_loaded_is_reported_with_advice(engines: Path, tmp_path: Path) -> None:
    findings = diagnosed(tmp_path / "nowhere", with_sample=True)
    assert findings["what fits"].state == "unknown, as its configuration can't be read"
    assert findings["what fits"].advice == (
        f"{tmp_path / 'nowhere'}: {tmp_path / 'nowhere' / 'config.json'} can't be read: no such file or directory."
    )
    assert "model" not in findings  # the engine is not started with a model that can't be read
    empty = tmp_path / "empty"
    empty.mkdir()
    shutil.copy(Path(doctor.__file__).parents[1] / "models" / "embedded" / "config.json", empty)
    findings = diagnosed(empty, with_sample=True)
    assert findings["model"].state == f"{empty} does not respond"
    assert findings["model"].advice.endswith("More is in the engine's log: dg-lsp engine logs")


def test_configuration_files_are_reported_with_their_problems(
    engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = tmp_path / "config.toml"
    user.write_text("[engine]\nthread = 3\n")
    (tmp_path / ".dg-lsp.toml").write_text("[batch]\ncandidates = 2\n")
    monkeypatch.setenv("DG_LSP_CONFIG", str(user))
    monkeypatch.setenv("DG_LSP_API_KEY", "sk-secret")
    monkeypatch.chdir(tmp_path)
    findings = diagnosed()
    assert findings["configuration"].state == (
        f"{user} was read; {tmp_path / '.dg-lsp.toml'} was read; DG_LSP_CONFIG, DG_LSP_API_KEY override them"
    )
    assert f"Unknown key engine.thread in {user}. Did you mean engine.threads?" in findings["configuration"].advice
    assert "sk-secret" not in str(findings)


@pytest.mark.parametrize(
    ("n_bytes", "state", "advice"),
    [
        (None, "PATH is a llama model of 1 MB, which is converted on first use. It needs ", ""),
        (-1000, "unknown, as its configuration can't be read", "PATH is cut short."),
        (300, "unknown, as its configuration can't be read", "PATH is cut short."),
        (3, "unknown, as its configuration can't be read", "PATH is not a GGUF file."),
    ],
)
def test_a_gguf_file_is_described_without_a_conversion(
    engines: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, n_bytes: int | None, state: str, advice: str
) -> None:
    monkeypatch.setenv(laptop.STORE_VARIABLE, str(tmp_path / "store"))
    file = laptop_kit.write_gguf(tmp_path / "tiny.GGUF")
    file.write_bytes(file.read_bytes()[:n_bytes])
    found = diagnosed(file)["what fits"]
    assert (found.state.replace(str(file), "PATH").startswith(state), found.advice) == (True, advice.replace("PATH", str(file)))
    assert not (tmp_path / "store").exists()
    monkeypatch.setenv("DG_LSP_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text(f"[engine]\nedit_model = '{file}'\n")
    assert diagnosed("embedded")["next edits"] == Finding("next edits", found.state, found.advice)


@pytest.mark.e2e
def test_engines_that_run_are_reported_with_their_clients(engines: Path) -> None:
    with running() as engine, lease(engine.state):
        state = doctor.running_engines().state
        assert state.startswith(f"toy: ready, process {engine.process.pid}, device toy, 1 client, ")
    # Without a client, this engine would end soon.
    with running(model="fails", wait_for="failed") as engine, lease(engine.state):
        finding = doctor.running_engines()
        assert finding.advice.startswith("the model could not be loaded: there is no checkpoint of that name. ")


@contextlib.contextmanager
def an_engine_that_says(line: bytes) -> Iterator[None]:
    """A socket in place of the default engine, which answers with this line."""
    files = discovery.engine_files(EngineId())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(discovery.socket_path(files)))
        listener.listen()

        def answer() -> None:
            caller, _ = listener.accept()
            with caller:
                caller.recv(4096)
                caller.sendall(line + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        discovery.write_state(files, State(os.getpid(), listener.getsockname(), "token", "9.9"))
        try:
            yield
        finally:
            files.state.unlink()  # otherwise this process would be killed as a left-over engine
            thread.join(PATIENCE_S)


def reply(info: dict[str, object]) -> bytes:
    return stream.encode(Message("reply", info, 1)).strip()


@pytest.mark.parametrize("info", [{"memory": 3}, {"leases": "x"}, {"state": "failed", "message": 3}])
def test_an_engine_with_a_malformed_answer_is_reported(engines: Path, info: dict[str, object]) -> None:
    with an_engine_that_says(reply(info)):
        finding = doctor.running_engines()
    assert finding.state == "an answer can't be parsed"
    assert "must be" in finding.advice
    assert finding.advice.endswith("To restart it, run: dg-lsp engine stop --now --all")


def test_a_command_reports_an_engine_with_a_malformed_answer(engines: Path) -> None:
    with an_engine_that_says(reply({"pid": 1, "state": 3})):
        findings = CliRunner().invoke(cli.app, ["engine", "status"])
    assert findings.exit_code != 0
    assert "sent an invalid response: state must be a string" in findings.output


def test_a_line_over_the_deadline_is_reported() -> None:
    info = {"model": "a", "device": "cpu", "dtype": "int8", "version": "1", "pid": 1}
    quick, slow = (list(doctor.of_sample("a", Trial(ms=9000, line_ms=line_ms, info=info)))[-1] for line_ms in (200, 2000))
    assert quick.state == "9000 ms for a body in a new file, then 200 ms for a line"
    assert quick.advice == ""
    assert slow.advice.startswith("A line takes longer than the deadline for suggestions. ")


@pytest.mark.parametrize(("line_ms", "way"), [(200, "to get it: dg-lsp engine pull"), (400, "too slow or too large for this")])
def test_the_next_larger_model_has_its_estimated_times(
    line_ms: float, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(laptop.STORE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(laptop, "machine_memory", lambda: 1 << 34)
    laptop.note("qwen2.5-coder-0.5b", laptop.Times(line_ms, 2 * line_ms))
    info = {"model": "qwen2.5-coder-0.5b", "device": "cpu", "dtype": "int8", "version": "1", "pid": 1}
    larger = list(doctor.of_sample("auto", Trial(ms=2 * line_ms, line_ms=line_ms, info=info)))[-1]
    ms = round(line_ms * 1543714304 / 494032768)
    assert larger.what == "a larger model"
    assert larger.state.startswith(f"qwen2.5-coder-1.5b: about {ms} ms for a line on this machine, ")
    assert "estimated from qwen2.5-coder-0.5b; 1.1 GB to download; " in larger.state
    assert way in larger.state
