"""A further run: it asks only for what has changed, and proves what an earlier one made possible."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dg_lsp.batch.api import Front, fill
from dg_lsp.batch.journal import Journal
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.options import Options
from dg_lsp.batch.plan import FilePlan
from dg_lsp.core.values import InfillRequest
from tests.batch.engines import connecting, planned
from tests.batch.test_batch_verify import PYTEST, outcome
from tests.fakes import Filling

FAR = "# far away\n" * 200
CALLER = 'def caller():\n    """Return twice `callee()`."""\n    ...\n\n\n'
CALLEE = "def callee():\n    ...\n\n\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


class ScriptedRun:
    """Answers by the function of a hole: the last one that is defined before it."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts
        self.order: list[str] = []
        self.engine = Filling(self._answer)

    def _answer(self, request: InfillRequest) -> tuple[str, ...]:
        names = [text.rpartition("def ")[2].partition("(")[0] for text in (request.prefix, *request.between)]
        self.order += names
        return tuple(self.texts.get(name, f"print({name!r})") for name in names)


def run(
    scripted: ScriptedRun, *plans: FilePlan, journal: Path | None = None, check: str = "", n_retries: int = 0
) -> list[FileResult]:
    options = Options(check=check, retries=n_retries, model="embedded")

    async def results() -> list[FileResult]:
        with Journal(journal) as answers:
            return await fill(options, plans, answers, connecting(scripted.engine), Front())

    return asyncio.run(results())


def test_a_run_that_is_resumed_asks_for_nothing_again(project: Path, tmp_path: Path) -> None:
    plans = (
        planned(project / "a.py", "from b import far\n\n\n" + CALLER.replace("callee", "far") + FAR + CALLEE),
        planned(project / "b.py", CALLER + FAR + "def far():\n    # FILL\n    return callee()\n"),
    )
    first, second = ScriptedRun(), ScriptedRun()
    results = run(first, *plans, journal=tmp_path / "journal")
    assert [result.text for result in run(second, *plans, journal=tmp_path / "journal")] == [each.text for each in results]
    assert (len(first.order), second.order) == (4, [])


@pytest.mark.parametrize(
    ("name", "old", "new", "n_asked"),
    [
        pytest.param("far/copied.py", "total", "amount", 1, id="a passage to copy from"),
        pytest.param("near.py", "price, day", "price, hour", 1, id="a file in its folder"),
        pytest.param("far/unused.py", "one", "two", 0, id="a file that no request contains"),
    ],
)
def test_a_resumed_run_asks_again_where_its_requests_changed(
    project: Path, name: str, old: str, new: str, n_asked: int
) -> None:
    (project / "far").mkdir()
    (project / "far/copied.py").write_text("    items = prices(day)\n    total = 1\n    return total\n")
    (project / "near.py").write_text("def rate_of(price, day):\n    pass\n")
    (project / "far/unused.py").write_text("one = 1\n")
    text = "def total_of(day):\n    x = rate_of(1, day)\n    items = prices(day)\n    # FILL\n    return total\n"
    plans = [planned(project / "a.py", text)]
    journal = project / "journal"

    def asked() -> int:
        scripted = ScriptedRun()
        run(scripted, *plans, journal=journal)
        return len(scripted.engine.requests)

    assert (asked(), asked()) == (1, 0)
    path = project / name
    path.write_text(path.read_text().replace(old, new))
    assert (asked(), asked()) == (n_asked, 0)


def test_a_caller_of_another_file_s_hole_is_proven_by_a_further_run(project: Path) -> None:
    (project / "test_a.py").write_text("from a import caller\n\n\ndef test():\n    assert caller() == 42\n")
    (project / "test_b.py").write_text("from b import callee\n\n\ndef test():\n    assert callee() == 21\n")
    raising = "raise NotImplementedError"
    texts = {"a.py": "from b import callee\n\n\n" + CALLER.replace("...", raising), "b.py": CALLEE.replace("...", raising)}
    scripted = ScriptedRun(caller="return callee() * 2", callee="return 21")
    scripted.engine.best = 0.01  # only fills that the check proves are accepted
    results = run(scripted, *(planned(project / name, text) for name, text in texts.items()), check=PYTEST)
    assert (results[0].fills, outcome(results[1])) == ({}, [("return 21", "the check: 1 test")])
    planned(project / "b.py", results[1].text)
    [result] = run(scripted, planned(project / "a.py", texts["a.py"]), check=PYTEST)
    assert outcome(result) == [("return callee() * 2", "the check: 1 test")]
