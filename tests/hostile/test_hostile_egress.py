"""What leaves the process: a real server records all that reaches it, for every route times `privacy.local_only`.

A second one stands where the environment's proxies are, so that what is meant for any other host is recorded too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dg_lsp.engine.backends import fim
from dg_lsp.engine.serve import endpoints
from dg_lsp.engine.serve.service import Service
from dg_lsp.wire import config, model_names
from dg_lsp.wire.discovery import EngineId, EngineSettings
from tests.e2e.editor import CODE, Editor, command, environment
from tests.engine import engine_kit
from tests.engine.backends_kit import request, serving
from tests.engine.engine_kit import Running, home, lease, running
from tests.engine.toy_filler import ToyFiller
from tests.patience import PATIENCE_S
from tests.processes import dg_lsp

pytestmark = pytest.mark.e2e

CODE_TEXT, KEY = "hush_this_code", "sk-hush"


@dataclass
class Wire:
    """Everything that reached a server."""

    seen: list[str] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        body = (await request.body()).decode()
        self.seen.append(f"{request.method} {request.url.path}\n{dict(request.headers)}\n{body}")
        choice = {"text": "1", "message": {"content": "1"}, "finish_reason": "stop"}
        return JSONResponse({"content": "1", "response": "1", "choices": [choice]})

    def holds(self, text: str) -> bool:
        return any(text in each for each in self.seen)


@contextlib.contextmanager
def recorded(wire: Wire) -> Iterator[str]:
    with serving({f"{method} /{{rest:path}}": wire.answer for method in ("GET", "POST", "PUT", "HEAD")}) as url:
        yield url


@dataclass(frozen=True)
class Route:
    """One way to ask the engine, by a path of its port or "" for the socket; `path` is the file that the request names."""

    address: str
    body: dict[str, Any] = field(default_factory=dict)
    path: str = ""


OPENAI = {"prompt": f"{CODE_TEXT} = ", "suffix": "\n", "max_tokens": 5}
LLAMA = {"input_prefix": f"{CODE_TEXT} = ", "input_suffix": "\n", "prompt": "", "n_predict": 5}
NEAR = {"input_extra": [{"filename": "vault/b.py", "text": CODE_TEXT}]}
ROUTES = (
    *(Route("", path=path) for path in ("src/a.py", "vault/a.py", "src/../vault/a.py", "/elsewhere/a.py", "")),
    Route("/v1/completions", OPENAI),
    Route("/v1/completions", {**OPENAI, "stream": True}),
    Route("/infill", LLAMA),
    Route("/infill", {**LLAMA, **NEAR}),
    Route("/infill", {**LLAMA, "stream": True}),
    Route("/infill", {**LLAMA, "n_predict": 0}),
)


@dataclass(frozen=True)
class Case:
    """A configuration, and which routes it lets out. `harm` does to the file what no text can."""

    text: str
    lets_out: Callable[[Route], bool]
    harm: Callable[[Path], object] = lambda path: None


def everything(route: Route) -> bool:
    """Where no pattern is given, all that is asked goes to the model that the user chose."""
    return route.body.get("n_predict") != 0


def nothing(route: Route) -> bool:
    return False


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CASES = {
    "no pattern": Case("", everything),
    "another file": Case("[privacy]\nlocal_only = ['vault/']", lambda route: route.path == "src/a.py"),
    "a pattern that fits nothing": Case(
        "[privacy]\nlocal_only = ['no-such-file']", lambda route: bool(route.path[:1].strip("/"))
    ),
    "every file": Case("[privacy]\nlocal_only = ['*']", nothing),
    "every file, in another way": Case("[privacy]\nlocal_only = ['/**', 'x']", nothing),
    "a pattern that is wrong": Case("[privacy]\nlocal_only = 3", nothing),
    "a pattern that gives away": Case("[privacy]\nlocal_only = ['!a']", nothing),
    "no TOML": Case("[privacy\n", nothing),
    "no text": Case("", nothing, lambda path: path.write_bytes(b"\xff")),
    "too large": Case("", nothing, lambda path: path.write_bytes(b"#" * (config.MAX_BYTES + 1))),
    "gone": Case("", nothing, Path.unlink),
    "a pipe": Case("", nothing, as_pipe),
    "of another user": Case("", nothing, lambda path: os.chown(path, 4711, -1)),
}


def test_every_route_is_in_the_table() -> None:
    """A route that is new has to be added above."""

    service = Service(lambda _: ToyFiller("auto"), EngineId(), EngineSettings())
    gate = cast("Any", endpoints.build(service, "token" * 8))
    asking = {route.path for route in gate._app.routes if "POST" in route.methods}
    assert asking == {route.address for route in ROUTES if route.address}


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with home(monkeypatch) as folder:
        yield folder


MODELS = ("chat:{url}#m", *(f"fim:{dialect.name}:{{url}}#m" for dialect in fim.DIALECTS))
# All cases for one dialect of each kind, and the telling one for the others.
ASKED = (
    *((model, name) for model in ("fim:llama:{url}", "chat:{url}#m") for name in CASES),
    *((model, "another file") for model in MODELS if model.split(":")[1] not in ("llama", "{url}#m")),
)


def test_every_kind_of_server_is_asked() -> None:
    """A kind that is new has to be added above; vLLM's tests are in test_backends_vllm.py, as it needs a tokenizer."""
    assert {model.partition(":")[0] + ":" for model in MODELS} | {"vllm:"} == set(model_names.REMOTE)


@pytest.mark.parametrize(("model", "name"), ASKED)
@pytest.mark.slow
def test_nothing_leaves_the_engine_that_should_stay(
    model: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    if name == "of another user" and os.getuid() != 0:
        pytest.skip("only root can give a file away")
    wire, elsewhere = Wire(), Wire()
    users = tmp_path / "config.toml"
    with recorded(wire) as url, recorded(elsewhere) as proxy:
        users.write_text(f"[keys]\n'127.0.0.1' = '{KEY}'\n{case.text}\n")
        case.harm(users)
        monkeypatch.setenv(config.FILE_VARIABLE, str(users))
        for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(variable, proxy)
        state = "ready" if any(map(case.lets_out, ROUTES)) else "failed"
        with engine(url, state, model) as running_engine:
            for route in ROUTES:
                before = len(wire.seen)
                answer = ask(running_engine, route)
                new = wire.seen[before:]
                assert bool(new) == case.lets_out(route), (route, answer)
                assert all(CODE_TEXT in each and KEY in each for each in new)
                if case.text:
                    assert not any("vault/b.py" in each for each in new)
    assert bool(wire.seen) == (state == "ready")
    assert elsewhere.seen == []


def test_a_pattern_counts_as_soon_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wire, users = Wire(), tmp_path / "config.toml"
    users.write_text("")
    monkeypatch.setenv(config.FILE_VARIABLE, str(users))
    with recorded(wire) as url, engine(url, "ready") as running_engine:
        ask(running_engine, ROUTES[0])
        assert wire.seen
        for text in ("privacy.local_only = ['*']", "privacy.local_only = 3", "[privacy"):
            users.write_text(text)
            wire.seen.clear()
            for route in ROUTES:
                ask(running_engine, route)
            assert wire.seen == []


@contextlib.contextmanager
def engine(url: str, state: str, model: str = "fim:llama:{url}") -> Iterator[Running]:
    """An engine on a remote model, with a user, so that it stays though it could not load."""
    start = running("--port=0", model=model.format(url=url), filler="", wait_for=state)
    with start as running_engine, lease(running_engine.state):
        yield running_engine


def ask(running_engine: Running, route: Route) -> object:
    """Ask, and return the whole answer."""
    if not route.address:
        return engine_kit.ask(running_engine.state, request(f"{CODE_TEXT} = ", "\n", path=route.path))
    return running_engine.http.post(route.address, json=route.body)


def test_the_command_sends_nothing_where_a_configuration_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, wire = tmp_path / "project", Wire()
    (project / ".git").mkdir(parents=True)
    (project / "a.py").write_text(f'def {CODE_TEXT}(a, b):\n    """Return the sum."""\n    raise NotImplementedError\n')
    with recorded(wire) as url:
        (tmp_path / "config.toml").write_text(
            f"[engine]\nmodel = 'fim:llama:{url}'\nexit_after = 60\n[batch]\ncandidates = 1\n"
        )
        monkeypatch.setenv(config.FILE_VARIABLE, str(tmp_path / "config.toml"))

        infilled = partial(dg_lsp, "infill", "--all", "a.py", cwd=project)
        (project / config.WORKSPACE_FILE).write_text("[privacy\n")
        assert "is not valid TOML" in infilled().stderr
        (project / config.WORKSPACE_FILE).write_text("[engine]\nmodel = 'fim:llama:http://127.0.0.1:1'\n")
        assert "to engine.allow in" in infilled().stderr
        assert wire.seen == []
        (project / config.WORKSPACE_FILE).unlink()
        assert infilled().returncode == 0
        assert wire.holds(CODE_TEXT)


def test_what_an_editor_says_sends_nothing_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real server and engine; the editor's settings, read from the clone's files, name a foreign server."""
    users, theirs, ours = tmp_path / "config.toml", Wire(), Wire()

    async def main(evil: str) -> None:
        settings = {"engine": {"model": f"fim:llama:{evil}"}, "completion": {"debounce": 0, "threshold": 0, "speculate": False}}
        client = Editor(*command(), env=environment(tmp_path / "server", DG_LSP_SERVE_ENGINE=""))
        async with client:
            await client.hello(CODE, settings=settings, options=settings)
            while (await client.status())["state"] != "ready":
                await asyncio.sleep(0.05)
            client.open(f"{CODE_TEXT} = ")
            await client.suggestions(0, len(CODE_TEXT) + 3)
            problems = (await client.status())["problems"]
            assert [problem for problem in problems if f'add "{evil[7:]}" to engine.allow in {users}' in problem]
            messages = [each["message"] for each in client.said("window/showMessage") if "engine.allow" in each["message"]]
            assert len(messages) == 1
            client.notify("workspace/didChangeConfiguration", {"settings": None})
            await client.suggestions(0, len(CODE_TEXT) + 3)
            assert len([each for each in client.said("window/showMessage") if "engine.allow" in each["message"]]) == 1
            assert await client.end() == 0

    with recorded(theirs) as evil, recorded(ours) as own:
        users.write_text(f"[engine]\nmodel = 'fim:llama:{own}'\nexit_after = 60\n[keys]\n'127.0.0.1' = '{KEY}'\n")
        monkeypatch.setenv(config.FILE_VARIABLE, str(users))
        asyncio.run(asyncio.wait_for(main(evil), PATIENCE_S))
    assert theirs.seen == []
    assert ours.holds(CODE_TEXT)


@pytest.mark.parametrize(
    ("keys", "environ", "sends"),
    [
        ("'127.0.0.1' = 'sk-hush'", "", True),
        ("'other.example' = 'sk-hush'", "", False),
        ("", "127.0.0.1=sk-hush", True),
        ("", "other.example=sk-hush", False),
        ("", "sk-hush", False),
    ],
)
def test_a_key_goes_to_its_host_alone(
    keys: str, environ: str, sends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the model was named on the command line, and the key for another one."""
    wire = Wire()
    (tmp_path / "config.toml").write_text(f"engine.model = 'fim:openai:https://other.example#m'\n[keys]\n{keys}\n")
    monkeypatch.setenv(config.FILE_VARIABLE, str(tmp_path / "config.toml"))
    monkeypatch.setenv(config.KEY_VARIABLE, environ)
    with recorded(wire) as url, engine(url, "ready") as running_engine:
        ask(running_engine, Route("", path="a.py"))
    assert wire.holds(CODE_TEXT)
    assert wire.holds(KEY) == sends
