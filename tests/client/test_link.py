"""Requests that end in any way leave one open connection, and nothing on it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dg_lsp.client import link as links
from dg_lsp.client.link import Link
from dg_lsp.client.port import LinkLostError
from dg_lsp.wire.messages import Ask, Done
from tests.engine.engine_kit import Running, home, request, running, wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="nothing here tells which files are open"),
]


def n_open() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_a_link_that_closes_under_requests_ends_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with home(monkeypatch), running() as engine:
        before = n_open()
        link = await reached(engine)
        asking = asyncio.gather(
            *(link.infill(Ask(request({"steps": 99, "pause_s": 0.01}))) for _ in range(10)), return_exceptions=True
        )
        await asyncio.sleep(0)  # they are sent
        await link.close()
        assert {type(answer) for answer in await asking} == {LinkLostError}
        assert n_open() == before
        wait_until(lambda: engine.info()["running"] == engine.info()["leases"] == 0)


async def test_a_request_that_is_cancelled_as_it_ends_leaves_the_connection_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancel(task: asyncio.Task[object], n_steps: int) -> None:
        for _ in range(n_steps):
            await asyncio.sleep(0)
        task.cancel()

    with home(monkeypatch), running() as engine:
        link = await reached(engine)
        before = n_open()
        for n_steps in range(6):
            cancelling: list[asyncio.Future[None]] = []

            def on_done(_done: Done, n_steps: int = n_steps, cancelling: list[asyncio.Future[None]] = cancelling) -> None:
                task = asyncio.current_task()
                assert task is not None
                cancelling.append(asyncio.ensure_future(cancel(task, n_steps)))

            await asyncio.wait([asyncio.ensure_future(link.infill(Ask(request()), on_done=on_done))])
            await asyncio.gather(*cancelling)
            assert (n_open(), link.lost) == (before, False)
        await link.close()


async def reached(engine: Running) -> Link:
    link = await links.reach(engine.state, lambda _link: None)
    assert link is not None
    return link
