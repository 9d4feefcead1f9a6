"""What the routes of the port answer, asked of a real engine process around the toy model."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from typing import Any, cast

import httpx
import openai
import pytest

from dg_lsp.engine.serve import endpoints
from dg_lsp.engine.serve.service import Service
from dg_lsp.wire.discovery import EngineId, EngineSettings
from tests.engine.engine_kit import Running, body, home, running, wait_until
from tests.engine.toy_filler import ToyFiller

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as monkeypatch, home(monkeypatch), running("--port=0") as process:
        yield process


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["message"]


ENDLESS: dict[str, object] = {"steps": 10_000_000, "pause_s": 0.002}


def connected(engine: Running) -> socket.socket:
    """Return a connection to the engine's port."""
    return socket.create_connection((engine.http.base_url.host, engine.http.base_url.port or 0))


def is_idle(engine: Running) -> bool:
    """Return whether no request runs; an endless one ends only when it is cancelled."""
    return engine.info()["running"] == 0


def test_a_client_that_disconnects_cancels_its_unstreamed_request(engine: Running) -> None:
    content = json.dumps({"prompt": json.dumps(ENDLESS)}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {engine.state.token}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    with connected(engine) as client:
        client.sendall(head.encode() + content)
        wait_until(lambda: engine.info()["running"] == 1)
    wait_until(lambda: is_idle(engine))


def test_the_log_contains_no_code(engine: Running) -> None:
    assert error(engine.http.post("/infill", json=body({"raise": "RuntimeError", "text": "secret"})))[0] == 500
    log = engine.files.log.read_text()
    assert "RuntimeError" in log
    assert "toy_filler.py" in log
    assert "secret" not in log


def routes() -> list[tuple[str, str]]:
    """Return the method and the path of each route of the engine, and of one that does not exist."""

    service = Service(lambda _: ToyFiller("auto"), EngineId(), EngineSettings())
    gate = cast("Any", endpoints.build(service, "token" * 8))
    there = [(method, route.path) for route in gate._app.routes for method in sorted(route.methods)]
    return [*there, ("GET", "/nowhere")]


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic TOKEN", "bearer\u00e9"])
@pytest.mark.parametrize(("method", "path"), routes())
def test_every_route_requires_the_token(engine: Running, method: str, path: str, header: str) -> None:
    header_value = header.replace("TOKEN", engine.state.token).encode("latin-1")
    response = engine.http.request(method, path, headers={b"Authorization": header_value})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.slow
def test_two_thousand_malformed_requests_do_no_harm(engine: Running) -> None:
    rng = random.Random(7)
    whole = json.dumps(body() | {"prompt": ""}).encode()
    for number in range(2000):
        content = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            at = rng.randrange(len(content))
            content[at : at + rng.randint(0, 9)] = rng.randbytes(rng.randint(0, 6))
        path = ("/v1/completions", "/infill")[number % 2]
        assert engine.http.post(path, content=bytes(content), headers=JSON).status_code in (200, 400)
    assert llama(engine, **body())["content"] == "answer"


def test_bytes_that_are_not_http_do_no_harm(engine: Running) -> None:
    with connected(engine) as client:
        client.sendall(b"\x00\xff not http\r\n\r\n")
        assert b"400" in client.recv(4096)
    assert engine.http.get("/health").json() == {"status": "ok", "state": "ready"}


def test_models_names_the_engines_model(engine: Running) -> None:
    assert [model["id"] for model in engine.http.get("/v1/models").json()["data"]] == ["toy"]


@pytest.fixture(scope="module")
def client(engine: Running) -> Iterator[openai.OpenAI]:
    """The `openai` package, which knows no Unix sockets."""
    with openai.OpenAI(base_url=f"{engine.info()['url']}/v1", api_key=engine.state.token, max_retries=0) as openai_client:
        yield openai_client


def prompt(**script: object) -> str:
    return json.dumps(script)


def test_openai_completes_with_a_suffix(client: openai.OpenAI) -> None:
    completion = client.completions.create(
        model="toy", prompt=prompt(text="return a + b"), suffix="\n", n=2, logprobs=1, seed=3
    )
    assert [choice.text for choice in completion.choices] == ["return a + b"] * 2
    assert [choice.finish_reason for choice in completion.choices] == ["stop"] * 2
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 24


def test_openai_streams(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model="toy", prompt=prompt(text="one\ntwo"), stop=["\n"], stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "one"
    assert chunks[-1].usage is not None


def test_openai_truncates(client: openai.OpenAI) -> None:
    completion = client.completions.create(model="toy", prompt=[prompt(text="abcdef")], max_tokens=3)
    assert (completion.choices[0].text, completion.choices[0].finish_reason) == ("abc", "length")


@pytest.mark.parametrize("prompt", [json.dumps({"text": "\ud83d"}), "\ud83d"])
def test_a_lone_surrogate_is_no_error(engine: Running, prompt: str) -> None:
    response = engine.http.post("/v1/completions", content=json.dumps({"prompt": prompt}).encode(), headers=JSON)
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["text"] in ("", "answer")


def test_openai_package_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt must be one string"):
        client.completions.create(model="toy", prompt=[1, 2])
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").completions.create(model="toy", prompt="x")
    with pytest.raises(openai.InternalServerError, match="RuntimeError"):
        client.completions.create(model="toy", prompt=prompt(**{"raise": "RuntimeError"}))
    with pytest.raises(openai.APIError, match="ran out of memory"):
        list(client.completions.create(model="toy", prompt=prompt(**{"raise": "MemoryError"}), stream=True))


def llama(engine: Running, **fields: object) -> dict[str, Any]:
    answer = engine.http.post("/infill", json=fields).json()
    assert isinstance(answer, dict)
    return answer


def test_llama_fills_between_prefix_and_suffix(engine: Running) -> None:
    extra = [{"filename": "b.py", "text": "x = 1\n"}]
    answer = llama(engine, input_prefix=prompt(text="x\ny"), input_suffix="\n", input_extra=extra, seed=-1, n_predict=-1)
    assert {name: answer[name] for name in ("content", "stop", "stop_type", "tokens_predicted", "has_new_line")} == {
        "content": "x\ny",
        "stop": True,
        "stop_type": "eos",
        "tokens_predicted": 3,
        "has_new_line": True,
    }


def test_llama_stops_and_token_limits_apply(engine: Running) -> None:
    at_stop_text = llama(engine, input_prefix=prompt(text="one\ntwo"), stop=["zero", "two"])
    assert (at_stop_text["content"], at_stop_text["stop_type"], at_stop_text["stopping_word"]) == ("one\n", "word", "two")
    at_token_limit = llama(engine, input_prefix=prompt(text="abcdef"), n_predict=2)
    assert (at_token_limit["content"], at_token_limit["stop_type"]) == ("ab", "limit")
    late = llama(engine, input_prefix=prompt(steps=10_000, pause_s=0.005), t_max_predict_ms=1500)
    assert late["content"] == "answer"


def test_other_clients_get_polished_texts(engine: Running) -> None:
    answer = llama(engine, input_prefix=prompt(text="x = 1\n\nfollowing()\n"), input_suffix="\n\nfollowing()\n")
    assert answer["content"] == "x = 1"
    blank = llama(engine, input_prefix=prompt(text="  \n"), input_suffix="\n")
    assert blank["content"] == ""


def test_llama_streams_without_an_end_mark(engine: Running) -> None:
    with engine.http.stream("POST", "/infill", json={"input_prefix": "a", "input_suffix": "", "stream": True}) as response:
        parts = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]
    assert [(part["content"], part["stop"]) for part in parts] == [("answer", False), ("", True)]
