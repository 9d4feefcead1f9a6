"""Servers of remote models that mean harm: they never end, they unpack to gigabytes, and they repeat what they were sent."""

from __future__ import annotations

import contextlib
import gzip
import json
import resource
import socket
import threading
import zlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core.secrets import MASK
from dg_lsp.engine.backends import http_client
from dg_lsp.engine.backends.http_client import Call, RemoteError, ServerAddress, ServerClient, redact
from tests.engine.backends_kit import Recorder, serving
from tests.patience import PATIENCE_S

KEY = "my-own-key-0123456789abcdef"
CODE = 'def transfer(account, amount):\n    """Move money."""\n    ledger.post(account, -amount)\n'
BODY = {"model": "some-model-name-of-theirs", "prompt": CODE, "suffix": "\n\nunrelated_suffix_text = 1\n", "n": 3}


@contextlib.contextmanager
def talking(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """The URL of a server that says whatever it likes."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            with caller, contextlib.suppress(OSError):
                caller.recv(65_536)
                talk(caller)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        listener.close()


def refused(url: str, key: str = KEY) -> str:
    line = ServerClient(ServerAddress(url, key))
    try:
        with pytest.raises(RemoteError) as error:
            line.ask(Call("/infill", BODY))
        return str(error.value)
    finally:
        line.close()


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"])
def test_a_byte_now_and_then_is_not_listened_to_for_ever(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    monkeypatch.setattr(http_client, "ANSWER_S", 0.4)
    disconnected = threading.Event()

    def drip(caller: socket.socket) -> None:
        caller.sendall(head)
        try:
            # Far longer than any patience, and each byte in time by itself.
            for _ in range(3_000):
                caller.sendall(b"H" if not head else b" ")
                threading.Event().wait(0.02)
        except OSError:
            disconnected.set()

    with talking(drip) as url:
        assert "did not respond within" in refused(url)
        assert disconnected.wait(PATIENCE_S)


def test_a_compressed_answer_is_not_unpacked() -> None:
    packer = zlib.compressobj(1, wbits=31)
    layer = gzip.compress(b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(256)), packer.flush()]))
    bodies = [
        b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s"
        % (status, encoding, len(layer), layer)
        for status in (200, 400)
        for encoding in (b"gzip, gzip", b"deflate", b"br")
    ]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with talking(lambda caller: caller.sendall(bodies.pop())) as url:
        while bodies:
            assert refused(url).endswith("compressed its answer although the request forbids it")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


def test_nothing_compressed_is_asked_for() -> None:
    recorder = Recorder([{}])
    with serving({"POST /infill": recorder.answer}) as url:
        line = ServerClient(ServerAddress(url, KEY))
        line.ask(Call("/infill", BODY))
        line.close()
    assert recorder.headers[0]["accept-encoding"] == "identity"


ESCAPED = json.dumps(CODE)


@pytest.mark.parametrize(
    "server_message",
    [
        f"wrong key {KEY} for you", f"wrong key {KEY[:14]}... for you", f"wrong key ***{KEY[-8:]} for you",
        f"can't parse: {CODE}", f"can't parse: {ESCAPED}", f"can't parse: {json.dumps(ESCAPED)}",
        f"can't parse: {CODE[20:60]}", f"can't parse: {CODE!r}", f"the suffix {BODY['suffix']} is bad",
        "found AKIA7777WXYZABCDEFGH in it",
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", [400, 500])
def test_what_was_sent_is_not_repeated(server_message: str, status: int) -> None:
    recorder = Recorder([(status, {"error": {"message": server_message, "code": 1}})])
    with serving({"POST /infill": recorder.answer}) as url:
        message = refused(url)
    assert MASK in message
    for piece in (KEY[:10], KEY[-8:], "transfer(account", "ledger", "unrelated_suffix", "AKIA7777"):
        assert piece not in message


def test_a_reason_phrase_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    head = f"HTTP/1.1 401 wrong key {KEY} for {CODE.splitlines()[0]}\r\nContent-Length: 0\r\n\r\n"
    with caplog.at_level("INFO"), talking(lambda caller: caller.sendall(head.encode())) as url:
        message = refused(url)
    assert "(401)" in message
    assert not any(piece in message + caplog.text for piece in (KEY, "transfer(account"))


def test_an_error_repeats_a_message_without_key_and_code() -> None:
    server_message = "maximum context length is 4096 tokens, but 5000 were requested for some-model-name-of-theirs"
    recorder = Recorder([(400, {"error": {"message": server_message}})])
    with serving({"POST /infill": recorder.answer}) as url:
        assert refused(url).endswith(f"refuses the request (400): {server_message}")


@given(key=st.text("abcdefgh0123456789-_", min_size=8, max_size=40), before=st.text(max_size=20), after=st.text(max_size=20))
def test_no_key_survives(key: str, before: str, after: str) -> None:
    assert key not in redact(f"{before} {key} {after}", key, None) or not any(char.isalnum() for char in key)
