"""A server's refusal reaches the user unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dg_lsp.infill.client import ConnectOptions, connect
from dg_lsp.infill.port import EngineError
from dg_lsp.wire.discovery import ENGINE_COMMAND, EngineId, EngineSettings
from tests.engine.backends_kit import Recorder, request, serving
from tests.engine.engine_kit import home

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with home(monkeypatch) as folder:
        yield folder


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (401, r"requires an API key \(401\); add it to the configuration's \[keys\], or set DG_LSP_API_KEY="),
        (429, r"has too many requests, or the quota is used up \(429\)"),
    ],
)
def test_a_refusal_is_reported_with_advice(status: int, sentence: str) -> None:
    recorder = Recorder([(status, {})] * 20)

    async def refused(model: str) -> None:
        async with connect(ConnectOptions(EngineId(model), EngineSettings(exit_after_s=60), command=ENGINE_COMMAND)) as engine:
            with pytest.raises(EngineError, match=sentence):
                await engine.fill(request("a", "b"))

    with serving({"POST /infill": recorder.answer}) as url:
        asyncio.run(refused(f"fim:llama:{url}"))
