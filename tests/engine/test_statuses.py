"""Each row of the page's table of statuses, provoked over a real socket of a real engine; and sockets that are not ours."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from dg_lsp.client.engine import ConnectOptions, connect
from dg_lsp.client.port import EngineError
from dg_lsp.engine.serve.queue import Limits
from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import ENGINE_COMMAND, EngineId
from tests.engine.engine_kit import FILLER, ROOT, Running, body, gate, home, lease, request, running, wait_until
from tests.engine.test_daemon import OPTIONS, refusal
from tests.patience import PATIENCE_S

Answered = tuple[int, str]
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as monkeypatch, home(monkeypatch), running() as process:
        yield process


def error(response: httpx.Response) -> Answered:
    """The status and the code; the body has the shape of all errors, and a sentence."""
    problem = response.json()["error"]
    assert problem["type"] == problem["code"]
    assert re.fullmatch(r"\S.*\S", problem["message"])
    assert "Traceback" not in problem["message"]
    return response.status_code, problem["code"]


def documented() -> set[Answered]:
    table = (ROOT / "docs" / "engine-http.md").read_text("utf-8")
    return {(int(status), code) for status, code in re.findall(r"^\| (\d{3}) \| `(\w+)` \|", table, re.MULTILINE)}


def posted(engine: Running, content: bytes, path: str = "/infill", **headers: str) -> Answered:
    return error(engine.http.post(path, content=content, headers={**JSON, **headers}))


MALFORMED = (
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    b"null",
    b"[" * 100_000,
    b'{"input_prefix": 1, "prompt": 1}',
)


def bad_request(engine: Running) -> Answered:
    (answer,) = {posted(engine, content, path) for content in MALFORMED for path in ("/v1/completions", "/infill")}
    # An unknown field may have any value.
    newer = engine.http.post("/infill", json={**body(), "surprise": [{}]})
    assert newer.status_code == 200
    return answer


def without_token(engine: Running) -> Answered:
    headers = ["", "Bearer", "Bearer wrong", f"Basic {engine.state.token}", f"Bearer {engine.state.token[:-1]}"]
    (answer,) = {posted(engine, b"{}", Authorization=header) for header in headers}
    return answer


def from_elsewhere(engine: Running) -> Answered:
    origins = [{"Origin": origin} for origin in ("http://localhost", "null", "https://evil.example")]
    hosts = [{"Host": host} for host in ("evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example", "")]
    (answer,) = {posted(engine, b"{}", **headers) for headers in (*origins, *hosts)}
    return answer


def nowhere(engine: Running) -> Answered:
    return error(engine.http.get("/v2/infill"))


def other_method(engine: Running) -> Answered:
    return error(engine.http.get("/infill"))


def large(engine: Running) -> Answered:
    three_mb = b" " * 3_000_000
    answer = posted(engine, three_mb)
    chunked = error(engine.http.post("/infill", content=iter([three_mb[:1_500_000]] * 2), headers=JSON))
    assert answer == chunked
    return answer


def no_json(engine: Running) -> Answered:
    return posted(engine, b"a=1", **{"Content-Type": "application/x-www-form-urlencoded"})


def busy(engine: Running) -> Answered:
    def under_way() -> tuple[object, object]:
        info = engine.info()
        return info["running"], info["waiting"]

    stop = gate(Path(engine.files.directory), "busy")
    waiting = request({"steps": 1, "gate": str(stop.path)})
    with lease(engine.state) as first, lease(engine.state) as second:
        # One in its step, and as many as may wait.
        first.ask(waiting)
        wait_until(lambda: under_way() == (1, 0))
        for _ in range(Limits().queued):
            second.ask(waiting)
        wait_until(lambda: under_way() == (1, Limits().queued))
        refusal = engine.http.post("/infill", json=body())
        stop.let(1)
    assert refusal.headers["retry-after"] == "1"
    wait_until(lambda: under_way() == (0, 0))
    return error(refusal)


def test_a_server_s_pause_is_told_to_other_clients_too(engine: Running) -> None:
    refusal = engine.http.post("/v1/completions", json={"prompt": '{"raise": "PausedError"}'})
    assert error(refusal) == (429, "busy")
    assert (refusal.headers["retry-after"], refusal.json()["error"]["retry_s"]) == ("7", 6.5)


def failing(engine: Running) -> Answered:
    return error(engine.http.post("/v1/completions", json={"prompt": '{"raise": "RuntimeError"}'}))


def without_memory(engine: Running) -> Answered:
    return error(engine.http.post("/v1/completions", json={"prompt": '{"raise": "MemoryError"}'}))


ROWS: dict[Answered, Callable[[Running], Answered]] = {
    (400, "bad_request"): bad_request,
    (401, "unauthorized"): without_token,
    (403, "unauthorized"): from_elsewhere,
    (404, "bad_request"): nowhere,
    (405, "bad_request"): other_method,
    (413, "bad_request"): large,
    (415, "bad_request"): no_json,
    (429, "busy"): busy,
    (500, "engine_failed"): failing,
    (507, "out_of_memory"): without_memory,
}
ELSEWHERE = {(503, "not_loaded"), (503, "stopping")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_each_status_of_the_page_is_answered_and_the_engine_continues(engine: Running, row: Answered) -> None:
    assert ROWS[row](engine) == row
    assert row in documented()
    assert engine.http.get("/health").json() == {"status": "ok", "state": "ready"}
    assert engine.http.post("/infill", json=body()).status_code == 200


def test_every_row_of_the_page_is_tested() -> None:
    assert documented() == ROWS.keys() | ELSEWHERE


@pytest.mark.e2e
def test_an_engine_without_its_model_says_so(engines: Path) -> None:
    # Without a client, this engine would end soon.
    with running(model="fails", wait_for="failed") as engine, lease(engine.state):
        assert error(engine.http.post("/infill", json={"input_prefix": "a"})) == (503, "not_loaded")


@pytest.mark.e2e
def test_a_stopping_engine_says_so(engines: Path, tmp_path: Path) -> None:
    with running() as ending:
        fields = {"prompt": '{"steps": 10000, "pause_s": 0.005}'}

        async def scenario() -> httpx.Response:
            async with httpx.AsyncClient(base_url=ending.http.base_url, headers=ending.http.headers) as http:
                pending = asyncio.ensure_future(http.post("/v1/completions", json=fields, timeout=PATIENCE_S))
                await asyncio.to_thread(wait_until, lambda: ending.info()["running"] == 1)
                await asyncio.to_thread(discovery.call, ending.state, "shutdown", {"when": "now"})
                return await pending

        assert error(asyncio.run(scenario())) == (503, "stopping")
        assert ending.process.wait(PATIENCE_S) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a socket away")
async def test_nothing_is_sent_to_a_socket_of_another_user(engines: Path) -> None:
    with running() as engine:
        os.chown(engine.state.address, 12345, -1)
        with pytest.raises(EngineError, match=r"\.sock belongs to another user; dg-lsp does not connect to it"):
            async with connect(ConnectOptions(EngineId("toy", filler=FILLER), command=ENGINE_COMMAND)):
                pass
        for name in ("start", "status", "stop"):
            assert refusal(name, *OPTIONS) == f"{engine.state.address} belongs to another user; dg-lsp does not connect to it"
        os.chown(engine.state.address, os.getuid(), -1)
        assert engine.info()["leases"] == 0
