"""Smaller harm that files do: journals, crash logs, names on the terminal, long files in the editor."""

from __future__ import annotations

import asyncio
import os
import resource
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lsprotocol import types as lsp

from dg_lsp.batch.journal import Journal
from dg_lsp.batch.plan import PlanError
from dg_lsp.cli import main as cli
from dg_lsp.core.values import Calibrated, Document, Edit, Hole, Span
from dg_lsp.engine.backends.remote import to_probability
from dg_lsp.infill.fill import Fill
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.server import reasons, running
from dg_lsp.server.snapshot import Snapshots
from dg_lsp.server.sync import Documents, OpenDocument
from dg_lsp.wire.discovery import EngineId
from dg_lsp.wire.settings import Settings
from tests.batch.test_batch_process import on_a_terminal
from tests.processes import dg_lsp

DOCUMENT = Document("file:///a.py", "python", "def f():\n    pass\n")
HOLE = Hole(Span(13, 17), "body", indent="    ", extent="block")
FILLS = (Fill(Edit(HOLE.span, "return 1"), Calibrated(0.5), 7),)


@pytest.mark.parametrize("room", [0, 20])
def test_a_full_disk_is_said_of_the_journal(tmp_path: Path, room: int) -> None:
    path = tmp_path / "journal"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(path) as journal:
        journal.add(DOCUMENT, HOLE, FILLS)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
        try:
            with pytest.raises(PlanError, match=f"^{path} can't be written: "):
                journal.add(DOCUMENT, HOLE, FILLS)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with Journal(path) as journal:
        assert journal.get(DOCUMENT, HOLE) == FILLS


def test_crash_logs_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    before = os.umask(0)
    try:
        message = cli.about(ValueError("text of a \udcff file \x1b[2J"))
    finally:
        os.umask(before)
    [log] = tmp_path.rglob("crash-*.log")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    assert str(log) in message
    assert "\x1b" not in message


NAMES = ["evil\x1b]0;owned\x07.py", "evil\x1b[2J\x9b31m.py", "evil\rgood.py", "evil\u202egood.py"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_files_give_no_orders_to_a_terminal(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"def f(:\n\xff")
    text = on_a_terminal(tmp_path, TERM="dumb").decode("utf-8", "replace").replace("\r\n", "\n")
    assert "evil" in text
    assert not any(char in text for char in "\x1b\x07\x9b\r\u202e")


def printed(folder: Path, *arguments: str) -> str:
    """Return what a command prints in a folder."""
    process = dg_lsp(*arguments, cwd=folder, env=environment(folder), errors="replace")
    return process.stdout + process.stderr


def environment(folder: Path) -> dict[str, str]:
    runtime = folder / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    return {**os.environ, "DG_LSP_RUNTIME_DIR": str(runtime), "PYTHONPATH": str(Path(cli.__file__).parents[2])}


def test_values_of_settings_and_lines_of_logs_give_no_orders_to_a_terminal(tmp_path: Path) -> None:
    (tmp_path / ".dg-lsp.toml").write_text('engine.model = "./evil\\u001b]0;owned\\u0007"\n')
    (Path(environment(tmp_path)["DG_LSP_RUNTIME_DIR"]) / f"{EngineId().name}.log").write_text("evil \x1b]0;owned\x07\n")
    for arguments in (["doctor", "--no-sample"], ["engine", "logs"]):
        text = printed(tmp_path, *arguments)
        assert "evil" in text
        assert "\x1b" not in text


@pytest.mark.slow
def test_a_line_break_in_a_model_s_name_begins_no_line_of_its_own(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".dg-lsp.toml").write_text('engine.model = "./a\\nforged"\n')
    name = "--model=./a\nforged"
    for arguments in (
        ["doctor", "--no-sample"],
        ["doctor", "--no-sample", name],
        *(["engine", command, name] for command in ("start", "status", "stop", "logs", "token")),
        ["infill", name, "a.py"],
        ["calibrate", "--forget", name],
        ["bench", name],
    ):
        (tmp_path / "a.py").write_text("def f():\n    pass\n")
        lines = printed(tmp_path, *arguments).splitlines()
        assert lines
        assert not [line for line in lines if line.startswith("forged")], arguments


def test_the_menu_of_a_long_file_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    documents, messages = Documents(), list[str]()
    documents.open("file:///a.py", "python", 1, "x = 1\n" * 100)
    monkeypatch.setattr(reasons, "MAX_FILE_CHARS", 500)
    monkeypatch.setattr(OpenDocument, "syntax", lambda _self: pytest.fail("all of the file was parsed"))

    async def look(_uri: str, *, is_cell: bool) -> str:
        return ""

    async def tell(message: str) -> None:
        messages.append(message)

    nearby: Any = SimpleNamespace(look=look, context=lambda _document, _settings: FileContext(""))
    snapshots = Snapshots(documents, nearby, lambda _uri: Settings())
    server: Any = SimpleNamespace(documents=documents, snapshots=snapshots, tell=tell)
    start = lsp.Position(0, 0)
    for kind in (lsp.CodeActionTriggerKind.Invoked, lsp.CodeActionTriggerKind.Automatic):
        context = lsp.CodeActionContext([], trigger_kind=kind)
        params = lsp.CodeActionParams(lsp.TextDocumentIdentifier("file:///a.py"), lsp.Range(start, start), context)
        assert asyncio.run(running.menu(server, params)) == []
    assert messages == ["no code actions: the file has more than 500 characters"]


def test_a_huge_number_among_log_probabilities_is_no_failure() -> None:
    assert [to_probability(each) for each in (10**400, float("inf"), 0)] == [1.0] * 3
    assert [to_probability(each) for each in (-(10**400), float("nan"), float("-inf"), None, "x")] == [0.0] * 5
