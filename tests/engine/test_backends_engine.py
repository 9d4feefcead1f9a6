"""A remote model behind the real resident engine, and no local-only file is sent."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from dg_lsp.client.engine import ConnectOptions, connect
from dg_lsp.client.port import EngineError
from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.wire.discovery import ENGINE_COMMAND, EngineId, EngineSettings
from tests.checkpoints import gemma_like_tokenizer
from tests.engine.backends_kit import BODY, Recorder, StandIn, own_judge, request, rules, serving
from tests.engine.engine_kit import running
from tests.processes import dg_lsp

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("engines")]


def options(model: str) -> ConnectOptions:
    return ConnectOptions(EngineId(model), EngineSettings(exit_after_s=60), command=ENGINE_COMMAND)


async def fill(model: str, infill_request: InfillRequest) -> tuple[tuple[Candidate, ...], Any]:
    async with connect(options(model)) as engine:
        return await engine.fill(infill_request), await engine.info()


@pytest.mark.parametrize("judged_by", ["known rules", "vLLM's own code"])
async def test_a_vllm_server_fills_through_the_resident_engine(tmp_path: Path, judged_by: str) -> None:
    gemma_like_tokenizer().save(str(tmp_path / "tokenizer.json"))
    before, after = "def add(x, y):\n    ", "\n\nadd(1, 2)\n"
    with contextlib.ExitStack() as stack:
        judge = rules if judged_by == "known rules" else stack.enter_context(own_judge())
        vocabulary = Vocabulary.from_file(tmp_path / "tokenizer.json")
        server = StandIn(vocabulary, judge, answers=["return x+y"], canvas=128)
        url = stack.enter_context(serving(server.routes()))
        candidates, info = await fill(f"vllm:{url}#{tmp_path}", request(before, after, BODY))
    assert "return" in ast.dump(ast.parse(before + candidates[0].texts[0] + after)).lower()
    assert info["remote"]["canvas"] == 128
    assert info["device"] == url.removeprefix("http://")
    assert server.asked


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("SSL_CERT_FILE", "/nonexistent", r"SSL_CERT_FILE names /nonexistent, which can't be used"),
        ("HTTPS_PROXY", "http://127.0.0.1:1", r"is the proxy of HTTPS_PROXY running\? Without it: NO_PROXY=models\.example"),
    ],
)
async def test_a_variable_that_keeps_a_remote_model_away_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(EngineError, match=rf"models\.example can't be reached: .*{sentence}"):
        await fill("fim:openai:https://models.example#m", request("a", "b"))


async def test_a_cancelled_request_is_cancelled_on_the_server() -> None:
    recorder = Recorder([{"content": "1"}], hold=threading.Event())
    with serving({"POST /infill": recorder.answer}) as url:
        async with connect(options(f"fim:llama:{url}")) as engine:
            asking = asyncio.ensure_future(engine.fill(request("a", "b", n=3)))
            while len(recorder.bodies) < 3:
                await asyncio.sleep(0.005)
            asking.cancel()
            while recorder.dropped < 3:
                await asyncio.sleep(0.005)


def test_another_clients_request_asks_a_server_for_as_many_answers_as_it_wants() -> None:
    recorder = Recorder([{"content": "1"}])
    with serving({"POST /infill": recorder.answer}) as url, running("--port=0", model=f"fim:llama:{url}", filler="") as engine:
        for n in (1, 2):
            recorder.bodies.clear()
            assert engine.http.post("/v1/completions", json={"prompt": "x = ", "suffix": "\n", "n": n}).status_code == 200
            assert len(recorder.bodies) == n


async def test_requests_at_the_same_time_do_not_wait_for_each_other() -> None:
    hold = threading.Event()
    recorder = Recorder([{"content": "1"}], hold=hold)
    with serving({"POST /infill": recorder.answer}) as url:
        async with connect(options(f"fim:llama:{url}")) as engine:
            asking = [asyncio.ensure_future(engine.fill(request("a", "b"))) for _ in range(8)]
            while recorder.most_at_once < 8:
                await asyncio.sleep(0.005)
            hold.set()
            assert [candidates[0].texts for candidates in await asyncio.gather(*asking)] == [("1",)] * 8


@pytest.mark.smoke
def test_the_command_uses_the_configured_model_and_sends_no_local_only_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / "vault").mkdir(parents=True)
    (project / ".dg-lsp.toml").write_text("[privacy]\nlocal_only = ['/vault/']\n")
    body = 'def {}(a, b):\n    """Return the sum."""\n    raise NotImplementedError\n'
    (project / "open.py").write_text("from vault.hidden import hidden\n\n\n" + body.format("shown"))
    (project / "vault" / "hidden.py").write_text(body.format("hidden"))
    recorder = Recorder([{"content": "return a + b\n"}])
    with serving({"POST /infill": recorder.answer}) as url:
        config = tmp_path / "config.toml"
        config.write_text(f"[engine]\nmodel = 'fim:llama:{url}'\nexit_after = 60\n[batch]\ncandidates = 1\n")
        monkeypatch.setenv("DG_LSP_CONFIG", str(config))
        completed = dg_lsp("infill", "--all", ".", cwd=project, code=0)
    assert "+    return a + b" in completed.stdout
    assert "hidden.py: it is for local models only (privacy.local_only)" in completed.stderr
    assert len(recorder.bodies) == 1
    assert "def hidden" not in str(recorder.bodies)
