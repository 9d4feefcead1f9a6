"""The context of a file: the same on each route, by the settings of its workspace, and read again when asked for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dg_lsp import infill
from dg_lsp.batch import api as batch_api
from dg_lsp.batch.options import Options
from dg_lsp.cli import main as cli
from dg_lsp.core.values import Document, InfillRequest, Snippet
from dg_lsp.infill.workspace import ContextReader, RepositoryIndex
from tests.batch.engines import connecting
from tests.fakes import Filling
from tests.patience import PATIENCE_S

TEXT = (
    '"""Prices of items, by day and by customer."""\n\nfrom rates import rate_of\n\n\n'
    'def price(item):\n    """Return the price by `rate_of`."""\n    ...\n'
)
RATES = "def rate_of(item, day):\n    table = {1: 2}\n    return table[item] * day\n"
FAR = (
    "def copied(items, day):\n    total = sum(items)\n    return total\n\n\n"
    'def price(item):\n    """Return the price by `rate_of`."""\n    return 1\n'
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {"src/a.py": TEXT, "src/rates.py": RATES, "far/away.py": FAR}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sent_by_command() -> InfillRequest:
    engine = Filling("return 1")
    result = CliRunner().invoke(cli.app, ["infill", "src/a.py"], obj=connecting(engine))
    assert result.exit_code == 0, result.stderr
    [request] = engine.requests
    return request


def sent_by_batch_api() -> InfillRequest:
    engine = Filling("return 1")
    batch_api.run_sync(Options(paths=(Path("src/a.py"),)), connect=connecting(engine))
    [request] = engine.requests
    return request


def sent_by_session() -> InfillRequest:
    engine = Filling("return 1")
    with infill.connect_sync(engine=engine) as session:
        session.fill_file(Path("src/a.py"))
    [request] = engine.requests
    return request


def test_every_route_sends_the_same_context(project: Path) -> None:
    command, *others = (sent() for sent in (sent_by_command, sent_by_batch_api, sent_by_session))
    assert {near.path for near in command.related} == {"src/rates.py", "far/away.py"}
    assert command.path == "src/a.py"
    assert str(project) not in repr(command), "no request has an absolute path"
    for other in others:
        assert replace(other, seed=command.seed) == command


@pytest.mark.parametrize("sent", [sent_by_command, sent_by_batch_api, sent_by_session])
def test_every_route_reads_the_settings_of_context(project: Path, sent) -> None:  # type: ignore[no-untyped-def]
    (project / ".dg-lsp.toml").write_text("[context]\nrelated_chars = 0\n")
    assert sent().related == ()
    (project / ".dg-lsp.toml").write_text("[context]\nrelated_chars = 60\nwindow_chars = 100\n")
    request = sent()
    assert 0 < sum(len(near.text) for near in request.related if not near.for_copying) <= 60
    assert len(request.prefix) <= 100 < len(TEXT)


def test_a_session_reads_the_settings_of_batch_and_context_for_texts(project: Path) -> None:
    (project / ".dg-lsp.toml").write_text("[context]\nwindow_chars = 100\n[batch]\ncandidates = 3\ndeadline = 70\n")
    engine = Filling("return 1")
    with infill.connect_sync(engine=engine) as session:
        session.fill_text(TEXT, path="a.py", related=[Snippet("b.py", "x = 1\n")])
        session.fill_at(TEXT, TEXT.index("..."), path="a.py")
    with infill.connect_sync(engine=engine, candidates=2, deadline_ms=0) as session:
        session.fill_text(TEXT, path="a.py")
    budgets = [(request.budget.candidates, request.budget.ms) for request in engine.requests]
    assert budgets == [(3, 70), (3, 70), (2, 0)]
    assert [[near.path for near in request.related] for request in engine.requests] == [["b.py"], [], []]
    assert all(len(request.prefix) <= 100 for request in engine.requests)


def test_a_wrong_setting_is_an_error_of_the_session(project: Path) -> None:
    (project / ".dg-lsp.toml").write_text("[context]\nrelated_chars = -1\n")
    with (
        pytest.raises(infill.EngineError, match=r"context\.related_chars in .* must be a whole number"),
        infill.connect_sync(engine=Filling("return 1")),
    ):
        pass


def test_a_session_sees_files_that_changed_since(project: Path) -> None:
    engine = Filling("return 1")
    with infill.connect_sync(engine=engine) as session:
        session.fill_file(Path("src/a.py"))
        Path("src/rates.py").write_text(RATES.replace("day", "hour"))
        session.fill_file(Path("src/a.py"))
    first, second = ("".join(near.text for near in request.related) for request in engine.requests)
    assert "def rate_of(item, day)" in first
    assert "def rate_of(item, hour)" in second


def test_a_workspace_that_is_being_read_does_not_delay_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("big", "small"):
        (tmp_path / name / ".git").mkdir(parents=True)
        (tmp_path / name / "a.py").write_text(TEXT)
    is_reading, go_on = threading.Event(), threading.Event()
    update = RepositoryIndex.update

    def slow(index: RepositoryIndex) -> bool:
        if index._ignore.root == (tmp_path / "big").resolve():
            is_reading.set()
            assert go_on.wait(2 * PATIENCE_S)
        return update(index)

    monkeypatch.setattr(RepositoryIndex, "update", slow)
    reader = ContextReader()

    def read(name: str) -> str:
        path = tmp_path / name / "a.py"
        return reader.read(path, Document(path.as_uri(), "python", TEXT)).path

    with ThreadPoolExecutor() as pool:
        big = pool.submit(read, "big")
        try:
            assert is_reading.wait(PATIENCE_S)
            assert pool.submit(read, "small").result(PATIENCE_S) == "a.py"
            assert not big.done()
        finally:
            go_on.set()
        assert big.result(PATIENCE_S) == "a.py"


def test_what_a_run_has_shown_of_other_files_may_stay(project: Path) -> None:
    path, engine = Path("src/many.py"), Filling("return 1")
    between = "".join(f"NUMBER_{n} = {n}\n" for n in range(60))  # two holes so far apart have a request each
    path.write_text(f"import rates\n\n\ndef rate_of(item):\n    ...\n\n\n{between}\n\ndef last(name):\n    ...\n")
    with infill.connect_sync(engine=engine) as session:
        session.fill_file(path)
    shown, after = (request.related for request in engine.requests)
    assert {each.text for each in shown if not each.for_copying} <= {each.text for each in after if not each.for_copying}
