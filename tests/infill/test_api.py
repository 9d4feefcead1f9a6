"""The library's interface: what it returns, and the examples of its page."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dg_lsp import infill
from dg_lsp.batch import api as batch_api
from dg_lsp.batch.options import Options
from dg_lsp.client import engine as engines
from dg_lsp.client.port import EngineError
from tests.batch.engines import connecting
from tests.fakes import Filling

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TWO = 'def f():\n    """Do."""\n    ...\n\n\n' + "# far away\n" * 200 + 'def g():\n    """Do."""\n    ...\n'


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Filling:
    """An engine that stands in for the user's own wherever it is joined."""
    filling = Filling("return 1")

    @contextlib.asynccontextmanager
    async def join(*_: Any, **__: Any) -> AsyncIterator[Filling]:
        yield filling

    monkeypatch.setattr(engines, "connect", join)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return filling


def test_the_page_has_three_examples() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("number", range(3))
def test_an_example_of_the_page_runs(number: int, engine: Filling, capsys: pytest.CaptureFixture[str]) -> None:
    Path("src").mkdir()
    Path("src", "a.py").write_text(TWO)
    Path("prices.py").write_text(TWO)
    exec(compile(EXAMPLES[number], "docs/api.md", "exec"), {"__name__": "example"})
    output = capsys.readouterr().out
    assert engine.requests
    if number == 1:
        assert Path("prices.py").read_text() == TWO.replace("...", "return 1")
    else:
        assert "return 1" in output
    assert Path("src", "a.py").read_text() == TWO


def test_every_name_of_the_interface_is_there() -> None:
    assert all(getattr(infill, name) for name in infill.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fil'"):
        infill.fil  # noqa: B018


def test_a_place_has_fills_best_first() -> None:
    async def fills() -> tuple[infill.Fill, ...]:
        async with infill.connect(engine=Filling("return 1", "return 2"), candidates=2, seed=3) as session:
            return await session.fill_at("def f():\n    ...\n", 14, path="a.py")

    assert [(fill.start, fill.end, fill.text, fill.probability) for fill in asyncio.run(fills())] == [
        (13, 16, "return 1", 0.9),
        (13, 16, "return 2", 0.45),
    ]


def test_improbable_or_unparsable_fills_stay_open() -> None:
    with infill.connect_sync(engine=Filling(lambda request: ("return 1",) * len(request.holes))) as session:
        assert session.fill_text(TWO, path="a.py").text == TWO.replace("...", "return 1")
        assert session.fill_text(TWO, path="a.py", kinds=["markers"]).text == TWO
        result = session.fill_text(TWO, language="python", min_probability=0.95)
    assert (result.text, result.fills) == (TWO, ())
    assert result.open_holes == ((3, "its probability is below 0.95"), (208, "its probability is below 0.95"))


def test_invalid_arguments_and_engine_errors_are_raised() -> None:
    class Failing:
        """Fails."""

        async def fill(self, request: object) -> tuple[()]:
            raise EngineError("the engine is busy")

    with infill.connect_sync(engine=Failing()) as session:
        with pytest.raises(EngineError, match="the engine is busy"):
            session.fill_text(TWO, path="a.py")
        with pytest.raises(ValueError, match="5 to 4 is not a valid range in a text of 3 characters"):
            session.fill_at("abc", 5, 4)
        with pytest.raises(ValueError, match="unknown kind of hole: bdies"):
            session.fill_text(TWO, path="a.py", kinds=["bdies"])
    with pytest.raises(batch_api.ERRORS, match="there is no gone"):
        batch_api.run_sync(Options(paths=(Path("gone"),)), connect=connecting(Filling("pass")))


def test_a_batch_has_a_patch_and_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(TWO)
    (tmp_path / "b.py").write_bytes(b"\0")
    run = functools.partial(batch_api.run_sync, connect=connecting(Filling("return 1")))
    result = run(Options((Path(),)))
    assert result.patch.count("+    return 1") == 2
    assert [row.status for row in result.rows] == ["filled", "filled"]
    assert [skip.name for skip in result.skipped] == ["b.py"]
    assert result.report["summary"]["filled"] == 2
    assert (tmp_path / "a.py").read_text() == TWO
    assert run(Options((Path(),), min_confidence=0.95)).report["summary"]["unsure"] == 2
    run(Options((Path(),), write=True))
    assert (tmp_path / "a.py").read_text() == TWO.replace("...", "return 1")


def test_a_file_is_private_by_the_patterns_of_its_own_workspace(
    engine: Filling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user.toml").write_text("engine.model = 'fim:mercury'\n")
    monkeypatch.setenv("DG_LSP_CONFIG", str(tmp_path / "user.toml"))
    for workspace, pattern in (("here", "ours/"), ("there", "theirs/")):
        for folder in ("ours", "theirs"):
            (tmp_path / workspace / folder).mkdir(parents=True)
            (tmp_path / workspace / folder / "a.py").write_text('def f():\n    """Do."""\n    ...\n')
        (tmp_path / workspace / ".dg-lsp.toml").write_text(f"privacy.local_only = ['{pattern}']\n")
    monkeypatch.chdir(tmp_path / "here")
    with infill.connect_sync() as session:
        for private in ("here/ours/a.py", "there/theirs/a.py"):
            with pytest.raises(EngineError, match=r"^\w+/a\.py is for local models only"):
                session.fill_file(tmp_path / private)
        assert not engine.requests
        for shared_name in ("here/theirs/a.py", "there/ours/a.py"):
            assert len(session.fill_file(tmp_path / shared_name).fills) == 1


def test_a_file_without_indentation_takes_that_of_its_project(engine: Filling, tmp_path: Path) -> None:
    (tmp_path / ".editorconfig").write_text("root = true\n[*.py]\nindent_size = 2\n")
    (tmp_path / "a.py").write_text("def f(): ...\n")
    with infill.connect_sync() as session:
        assert session.fill_file(tmp_path / "a.py").text == "def f():\n  return 1\n"
