"""Several servers as one client: which one gets a call, and what happens if one is unavailable, busy or of another kind."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response

from dg_lsp.engine.backends import fim, replicas, vllm
from dg_lsp.engine.backends.http_client import Call, RemoteError, ServerAddress
from dg_lsp.engine.backends.remote import RemoteTask
from dg_lsp.engine.backends.replicas import Replicas
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.wire import config, model_names
from dg_lsp.wire.config import Config
from tests.engine.backends_kit import Recorder, StandIn, finish, request, rules, serving
from tests.engine.engine_kit import wait_until
from tests.engine.test_backends_vllm import PREFIX, SUFFIX, folder, vocabulary
from tests.patience import PATIENCE_S

__all__ = ["folder", "vocabulary"]

OK = {"choices": [{"text": "x"}]}
CALL = Call("/v1/completions", {"prompt": "x"})


class Servers:
    """Servers that each answer with their number, and a client for all of them with a stopped clock."""

    def __init__(self, *recorders: Recorder, away: int = 0) -> None:
        self.recorders, self.now, self._away = recorders, 100.0, away
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Servers:
        urls = [self._stack.enter_context(serving({"POST /v1/completions": each.answer})) for each in self.recorders]
        for _ in range(self._away):
            unused = self._stack.enter_context(socket.socket())
            unused.bind(("127.0.0.1", 0))
            urls.insert(0, f"http://127.0.0.1:{unused.getsockname()[1]}")
        self.client = Replicas([ServerAddress(url) for url in urls], lambda: self.now)
        self._stack.callback(self.client.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def counts(self) -> list[int]:
        return [len(each.bodies) for each in self.recorders]


def test_calls_go_to_the_least_loaded_server() -> None:
    hold = threading.Event()
    with Servers(*(Recorder([OK], hold=hold) for _ in range(3))) as servers:
        answers = [servers.client.send(CALL) for _ in range(9)]
        wait_until(lambda: servers.counts == [3, 3, 3])
        hold.set()
        assert all(answer.result(PATIENCE_S).values == OK for answer in answers)


def test_a_server_that_fails_is_left_out_and_tried_again_later() -> None:
    with Servers(Recorder([(500, {}), OK]), Recorder([OK])) as servers:
        for _ in range(4):
            assert servers.client.ask(CALL).values == OK
        assert servers.counts == [1, 4]
        servers.now += replicas.FIRST_PAUSE_S
        for _ in range(2):
            assert servers.client.ask(CALL).values == OK
        assert sum(servers.counts) == 7
        assert servers.counts[0] >= 2


def test_a_server_that_is_not_there_is_left_out_longer_each_time() -> None:
    with Servers(Recorder([OK]), away=1) as servers:
        unreachable = servers.client.replicas[0]
        pauses = []
        for _ in range(8):
            servers.client.ask(CALL)
            pauses.append(unreachable.back_at - servers.now)
            servers.now = unreachable.back_at
            # The other server was used less recently than the one that is back.
            servers.client.replicas[1].last_used += 10
        assert pauses == sorted(pauses)
        assert (pauses[0], pauses[-1]) == (replicas.FIRST_PAUSE_S, replicas.LONGEST_PAUSE_S)
        assert servers.counts == [8]


def test_if_no_server_responds_the_last_error_is_reported() -> None:
    with Servers(Recorder([(500, {})]), Recorder([(502, {})])) as servers:
        with pytest.raises(RemoteError, match=r"failed \(50[02]\)"):
            servers.client.ask(CALL)
        assert servers.counts == [1, 1]
        # All are left out, but one of them is tried rather than none.
        with pytest.raises(RemoteError, match=r"failed \(50[02]\)"):
            servers.client.ask(CALL)


def test_a_call_that_is_refused_is_not_sent_elsewhere() -> None:
    with Servers(Recorder([(400, {"error": "no"})]), Recorder([OK])) as servers:
        with pytest.raises(RemoteError, match="refuses the request"):
            servers.client.ask(CALL)
        assert servers.counts == [1, 0]


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_gets_as_many_calls_as_it_admits(status: int) -> None:
    class Narrow:
        """Accepts a limited number of concurrent calls, and refuses others."""

        def __init__(self, n: int) -> None:
            self.recorder = Recorder([OK], hold=threading.Event())
            self.n, self.now, self.refused = n, 0, 0

        async def answer(self, request: Request) -> Response:
            if self.now >= self.n:
                self.refused += 1
                return Response(status_code=status)
            self.now += 1
            try:
                return await self.recorder.answer(request)
            finally:
                self.now -= 1

    narrow = Narrow(3)
    with serving({"POST /v1/completions": narrow.answer}) as url:
        client = Replicas([ServerAddress(url)])
        try:
            answers = [client.send(CALL) for _ in range(12)]
            wait_until(lambda: narrow.refused > 0 and narrow.recorder.most_at_once == 3)
            assert narrow.recorder.hold
            narrow.recorder.hold.set()
            assert all(answer.result(PATIENCE_S).values == OK for answer in answers)
            assert narrow.recorder.most_at_once == 3
        finally:
            client.close()


def test_a_pause_that_ends_while_a_call_is_scheduled_is_not_missed() -> None:
    readings = itertools.count()
    with serving({"POST /v1/completions": Recorder([(429, {}), OK]).answer}) as url:
        # Each reading is more than half a pause later than the one before, as on a busy machine.
        client = Replicas([ServerAddress(url)], lambda: next(readings) * replicas.FIRST_PAUSE_S * 0.6)
        try:
            assert client.send(CALL).result(PATIENCE_S).values == OK
        finally:
            client.close()


def test_a_short_pause_is_not_waited_out_with_a_long_one() -> None:
    recorder = Recorder([(429, {}), OK], hold=threading.Event())
    with serving({"POST /v1/completions": recorder.answer}) as url:
        client = Replicas([ServerAddress(url), ServerAddress("http://127.0.0.1:1")])
        try:
            busy, unreachable = client.replicas
            busy.admits, unreachable.back_at = 1, time.monotonic() + 2 * PATIENCE_S
            first, second = client.send(CALL), client.send(CALL)
            wait_until(lambda: len(recorder.bodies) == 1)
            assert recorder.hold
            recorder.hold.set()
            assert first.result(PATIENCE_S).values == second.result(PATIENCE_S).values == OK
        finally:
            client.close()


def test_a_cancelled_call_is_dropped_in_every_state() -> None:
    hold = threading.Event()
    with Servers(Recorder([OK], hold=hold)) as servers:
        [replica] = servers.client.replicas
        replica.admits = 1
        first, second = servers.client.send(CALL), servers.client.send(CALL)
        wait_until(lambda: servers.counts == [1])
        assert second.cancel()
        assert first.cancel()
        wait_until(lambda: servers.recorders[0].dropped == 1)
        hold.set()
        assert servers.client.ask(CALL).values == OK
        assert servers.counts == [2]


def test_a_filler_in_any_dialect_takes_several_servers() -> None:
    recorders = [Recorder([(500, {})]), Recorder([{"choices": [{"text": "a + b"}]}])]
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(serving({"POST /v1/completions": each.answer})) for each in recorders]
        filler = fim.connect("openai", ",".join(urls), "m", Config(), {})
        stack.callback(filler.close)
        task = filler.start(request("return ", "\n"))
        assert isinstance(task, RemoteTask)
        assert finish(task).candidates()[0].texts == ("a + b",)
        assert str(filler.about()["device"]).count("127.0.0.1") == 2


@contextlib.contextmanager
def standing_in(*servers: StandIn) -> Iterator[list[str]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(serving(each.routes())) for each in servers]


def test_vllm_replicas_share_the_calls(folder: Path, vocabulary: Vocabulary) -> None:
    servers = [StandIn(vocabulary, rules, root=str(folder)) for _ in range(2)]
    with standing_in(*servers) as urls:
        filler = vllm.connect(",".join(urls), "", Config())
        try:
            task = filler.start(request(PREFIX, SUFFIX, language="python", n=4))
            assert isinstance(task, RemoteTask)
            assert finish(task).candidates()
        finally:
            filler.close()
    assert all(server.asked for server in servers)
    assert not any("must" in refusal for server in servers for refusal in server.refused if "exactly" not in refusal)


def test_an_unavailable_vllm_is_checked_and_used_once_it_is_back(folder: Path, vocabulary: Vocabulary) -> None:
    servers = [StandIn(vocabulary, rules, root=str(folder)) for _ in range(2)]
    with socket.socket() as unused, standing_in(*servers) as urls:
        unused.bind(("127.0.0.1", 0))
        filler = vllm.connect(f"http://127.0.0.1:{unused.getsockname()[1]},{urls[0]}", "", Config())
        try:
            client = filler.client
            assert isinstance(client, Replicas)
            away = client.replicas[0]
            assert not away.is_checked
            # Like a server that has started at its address.
            away.client.close()
            away.client = type(away.client)(ServerAddress(urls[1]))
            away.back_at = 0.0
            for _ in range(2):
                task = filler.start(request(PREFIX, SUFFIX, language="python", n=4))
                assert isinstance(task, RemoteTask)
                assert finish(task).candidates()
                wait_until(lambda: away.is_checked)
        finally:
            filler.close()
    assert servers[1].asked


def test_servers_of_another_model_are_not_replicas(folder: Path, vocabulary: Vocabulary) -> None:
    servers = [StandIn(vocabulary, rules, root=str(folder), canvas=canvas) for canvas in (64, 32)]
    with standing_in(*servers) as urls, pytest.raises(RemoteError, match=r"canvas of 32 tokens, but .* replicas must serve"):
        vllm.connect(",".join(urls), "", Config())


@pytest.mark.parametrize(
    ("model", "missing"),
    [
        ("vllm:https://a.example,https://b.example", None),
        ("vllm:https://a.example,https://evil.example", "evil.example"),
        ("vllm:https://a.example/x,https://evil.example", "evil.example"),
        ("fim:openai:https://a.example,http://b.example#m", "http://b.example"),
        ("vllm:https://a.example,evil.example", ""),
        ("vllm:https://a.example,https://user@b.example", ""),
    ],
)
def test_each_of_several_servers_must_be_allowed(model: str, missing: str | None) -> None:
    assert config.unallowed(model, ("a.example", "b.example")) == missing


def test_a_password_in_any_of_the_urls_is_seen() -> None:
    assert model_names.has_password("vllm:https://a.example,https://user:pw@b.example#m")
    assert not model_names.has_password("vllm:https://a.example,https://b.example/@x")
    assert "pw" not in model_names.without_password("vllm:https://a.example,https://user:pw@b.example#m")
    assert model_names.parse_remote("vllm:http://a/x,y,http://b/").urls == ("http://a/x,y", "http://b")


def test_a_check_that_fails_in_an_unknown_way_is_repeated_later(caplog: pytest.LogCaptureFixture) -> None:
    def check(_client: object) -> None:
        raise ValueError("an answer that no check expects")

    with Servers(Recorder([OK]), Recorder([OK])) as servers:
        unsure = servers.client.replicas[0]
        unsure.is_checked, servers.client.check = False, check
        assert servers.client.ask(CALL).values == OK
        wait_until(lambda: unsure.back_at == servers.now + replicas.FIRST_PAUSE_S)
        assert not unsure.is_checked
        assert "checking 127.0.0.1" in caplog.text
        servers.client.check = lambda _client: None
        servers.now = unsure.back_at
        assert servers.client.ask(CALL).values == OK
        wait_until(lambda: unsure.is_checked)
    assert servers.counts[1] == 2
