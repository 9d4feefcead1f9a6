"""Tests that fail with pygls 2.1.1 and pass with the patches beside them. Run: pytest docs/upstream/test_pygls.py.

Not collected by `make test`: they state what pygls should do, not what dg-lsp does.
"""

import asyncio
import io
import json
import threading

from lsprotocol import types
from pygls.io_ import run_async
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument


class Client:
    """Feeds messages to a server in this process, and keeps what it answers."""

    def __init__(self) -> None:
        self.server = LanguageServer("test", "1")
        self.answers: list[dict] = []
        self.server.protocol.set_writer(self, include_headers=False)

    def write(self, data: bytes) -> None:
        self.answers.append(json.loads(data))

    def close(self) -> None:
        pass

    def send(self, *messages: dict) -> None:
        data = b""
        for message in messages:
            body = json.dumps({"jsonrpc": "2.0", **message}).encode()
            data += b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        stream = io.BytesIO(data)

        class Reader:
            async def readline(self) -> bytes:
                return stream.readline()

            async def readexactly(self, n: int) -> bytes:
                return stream.read(n)

        async def feed() -> None:
            await run_async(threading.Event(), Reader(), self.server.protocol)
            await asyncio.sleep(0)

        asyncio.run(feed())


INITIALIZE = {"id": 1, "method": "initialize", "params": {"capabilities": {}, "processId": None, "rootUri": None}}


def test_a_form_feed_ends_no_line() -> None:
    document = TextDocument("file:///a.py", "a\fb\nc\n")
    place = types.Range(types.Position(1, 0), types.Position(1, 1))
    document.apply_change(types.TextDocumentContentChangePartial(range=place, text="X"))
    assert document.source == "a\fb\nX\n"


def test_malformed_parameters_are_answered() -> None:
    client = Client()
    client.server.feature("textDocument/hover")(lambda params: None)
    client.send(
        INITIALIZE, {"id": 2, "method": "textDocument/hover", "params": {"textDocument": {"uri": "a"}, "position": "x"}}
    )
    assert [answer["error"]["code"] for answer in client.answers if answer.get("id") == 2] == [-32602]


def test_an_argument_with_a_key_jsonrpc_is_data() -> None:
    client, arguments = Client(), []
    client.server.command("show")(lambda *given: arguments.extend(given))
    params = {"command": "show", "arguments": [{"jsonrpc": "2.0", "method": "x", "id": 3}]}
    client.send(INITIALIZE, {"id": 2, "method": "workspace/executeCommand", "params": params})
    assert [answer for answer in client.answers if answer.get("id") == 2 and "error" not in answer]


def test_a_notification_leaves_no_future() -> None:
    client = Client()
    document = {"uri": "file:///a", "languageId": "python", "version": 1, "text": ""}
    change = {"textDocument": {"uri": "file:///a", "version": 2}, "contentChanges": [{"text": "x"}]}
    client.send(INITIALIZE, {"method": "textDocument/didOpen", "params": {"textDocument": document}})
    client.send(*[{"method": "textDocument/didChange", "params": change}] * 100)
    assert not client.server.protocol._request_futures


def test_a_request_after_shutdown_is_refused() -> None:
    client = Client()
    client.send(INITIALIZE, {"id": 2, "method": "shutdown"}, {"id": 3, "method": "workspace/symbol", "params": {"query": ""}})
    assert [answer["error"]["code"] for answer in client.answers if answer.get("id") == 3] == [-32600]
