"""A small JSON-RPC client without a library, so that it sees every byte and shares no bug with the server."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S


class RpcError(Exception):
    """An error response from the server."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: int = error["code"]
        self.message: str = error["message"]


class Rpc:
    """A server process and its messages. `answers` holds the responses to the server's own requests; the default is null."""

    def __init__(self, *command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
        self.command, self.env, self.cwd = command, env, cwd
        self.notes: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.answers: dict[str, Callable[[Any], Any]] = {}
        self.pending: dict[int, asyncio.Future[Any]] = {}
        self.strays: list[dict[str, Any]] = []
        self._ids = itertools.count(1)
        self._heard = asyncio.Condition()
        self._is_over = False

    async def __aenter__(self) -> Rpc:
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(self.env) if self.env is not None else None,
            cwd=self.cwd,
            limit=1 << 26,
        )
        self.stderr = b""
        self._readers = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._read_stderr())]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await asyncio.gather(*self._readers)
        for future in self.pending.values():
            # A caller that stopped waiting has reported that already.
            future.cancel()

    @property
    def _stdin(self) -> asyncio.StreamWriter:
        assert self.process.stdin is not None
        return self.process.stdin

    def write(self, data: bytes) -> None:
        self._stdin.write(data)

    def send(self, message: object) -> None:
        body = json.dumps(message).encode()
        self.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def notify(self, method: str, params: object = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def start(self, method: str, params: object = None) -> tuple[int, asyncio.Future[Any]]:
        msg_id = next(self._ids)
        self.pending[msg_id] = asyncio.get_running_loop().create_future()
        future = self.pending[msg_id]
        # A test that ignores a response accepts any.
        future.add_done_callback(lambda future: future.cancelled() or future.exception())
        if self._is_over:
            future.set_exception(self._gone())
        else:
            self.send({"jsonrpc": "2.0", "id": msg_id, "method": method, "params": params})
        return msg_id, future

    async def request(self, method: str, params: object = None) -> Any:
        return await asyncio.wait_for(self.start(method, params)[1], PATIENCE_S)

    async def until(self, check: Callable[[], Any]) -> Any:
        """Return the check's result as soon as it is true; the check runs after each message. Raises EOFError at their end."""

        async def look() -> Any:
            async with self._heard:
                await self._heard.wait_for(lambda: check() or self._is_over)
            if not check():
                raise self._gone()
            return check()

        return await asyncio.wait_for(look(), PATIENCE_S)

    async def end(self) -> int:
        """Shut the server down by `shutdown` and `exit`, and return its exit code."""
        await self.request("shutdown")
        self.notify("exit")
        return await asyncio.wait_for(self.process.wait(), PATIENCE_S)

    def said(self, method: str) -> list[Any]:
        return [note["params"] for note in self.notes if note["method"] == method]

    async def _read(self) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        while True:
            length = None
            while header := (await stdout.readline()).strip():
                name, _, value = header.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if length is None:
                break
            self._take(json.loads(await stdout.readexactly(length)))
            async with self._heard:
                self._heard.notify_all()
        self._is_over = True
        for future in self.pending.values():
            if not future.done():
                future.set_exception(self._gone())
        async with self._heard:
            self._heard.notify_all()

    def _gone(self) -> EOFError:
        return EOFError(f"the server is gone: {self.stderr.decode()[-2000:]}")

    def _take(self, message: dict[str, Any]) -> None:
        assert message["jsonrpc"] == "2.0"
        if "method" not in message:
            future = self.pending.pop(message["id"], None) if message["id"] is not None else None
            if future is None:
                self.strays.append(message)
            elif not future.done() and "error" in message:
                future.set_exception(RpcError(message["error"]))
            elif not future.done():
                future.set_result(message["result"])
        elif "id" in message:
            self.requests.append(message)
            reply = self.answers.get(message["method"])
            answer = reply(message.get("params")) if reply is not None else None
            self.send({"jsonrpc": "2.0", "id": message["id"], "result": answer})
        else:
            self.notes.append(message)

    async def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        while chunk := await self.process.stderr.read(65_536):
            self.stderr += chunk
