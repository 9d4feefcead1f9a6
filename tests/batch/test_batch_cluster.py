"""A run on a local Ray cluster gives the same patch, even if a worker dies."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from dg_lsp.batch import api, cluster
from dg_lsp.batch.options import Options
from dg_lsp.client.port import EngineError
from dg_lsp.core.values import Candidate, InfillRequest
from tests.batch.engines import connecting
from tests.batch.ray_worker import load
from tests.engine.engine_kit import wait_until

ray = pytest.importorskip("ray", reason="dg-lsp[ray] is not installed")
# Ray closes its threads and files late.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STUB = 'def f{n}():\n    """Do."""\n    raise NotImplementedError\n\n\n' + "# far away\n" * 200
N_FILES = 12


class Here:
    """Fills like a worker, but in this process."""

    def __init__(self, folder: Path) -> None:
        self.worker = cluster.RayWorker(str(folder), load)

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        candidates, problem = self.worker._answer(request)
        if problem:
            raise EngineError(problem)
        return candidates


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The model's folder."""
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    (root / ".git").mkdir(parents=True)
    for idx in range(N_FILES):
        (root / f"a{idx:02}.py").write_text(STUB.format(n=idx))
    monkeypatch.chdir(root)
    # Workers import this test's model.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    # Ray gives its workers a low priority, and on a busy machine they would be too slow.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    return root


def patch(folder: Path, n_workers: int = 0) -> str:
    """Return the patch of a run on this number of workers, or in this process."""
    connect = cluster.connecting("local", n_workers, load) if n_workers else connecting(Here(folder))
    return api.run_sync(Options((Path(),), model=str(folder), ray="local"), connect=connect).patch


def test_two_workers_give_the_same_patch(project: Path, folder: Path) -> None:
    expected = patch(folder)
    assert expected.count("+    return ") == N_FILES
    ours = {path.name for path in folder.glob("*.pid")}
    assert patch(folder, 2) == expected
    assert {path.name for path in folder.glob("*.pid")} - ours


def test_a_worker_that_is_killed_changes_nothing(project: Path, folder: Path) -> None:
    expected = patch(folder)
    (folder / f"{os.getpid()}.pid").unlink()
    (folder / "hold").touch()

    killed_names: list[str] = []

    def kill() -> None:
        try:
            # On a busy machine the second worker takes long to start; the first is in its first request until it is killed.
            wait_until(lambda: list(folder.glob("*.pid")), patience_s=300)
            victim = min(folder.glob("*.pid"))
            os.kill(int(victim.stem), signal.SIGKILL)
            killed_names.append(victim.stem)
        finally:
            (folder / "hold").unlink()

    killing = threading.Thread(target=kill)
    killing.start()
    assert patch(folder, 2) == expected
    killing.join()
    assert len(killed_names) == 1
    assert len({path.stem for path in folder.glob("*.pid")} - set(killed_names)) >= 1, "others did its work"


def test_a_failed_request_does_not_affect_others(project: Path, folder: Path) -> None:
    for name in ("refused", "broken"):
        (project / f"{name}.py").write_text(STUB.format(n=99))
    connect = cluster.connecting("local", 2, load)
    result = api.run_sync(Options((Path(),), model=str(folder), ray="local"), connect=connect)
    reasons = {row.path: row.reason for row in result.rows if row.status != "filled"}
    assert reasons == {
        "broken.py": "the engine failed on this request (RuntimeError)",
        "refused.py": "the file is refused",
    }
    assert len(result.rows) == N_FILES + 2


def test_a_cluster_that_is_not_there_is_reported(project: Path) -> None:
    with pytest.raises(EngineError, match=r"^there is no Ray cluster at 127\.0\.0\.1:1: "):
        api.run_sync(Options((Path(),), model="embedded"), connect=cluster.connecting("127.0.0.1:1"))
