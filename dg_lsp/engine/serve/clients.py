"""The connections of our own clients on the engine's socket; see `wire.stream` for what passes on them.

Each connection has one task that reads requests and one that sends events, so that a step of the model delays neither.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from functools import partial

from dg_lsp.engine.serve.queue import Job
from dg_lsp.engine.serve.service import LAST, Inbox, Service, refusal_of
from dg_lsp.wire import stream
from dg_lsp.wire.messages import MAX_BODY_BYTES, Done, Draft, Event, Fields, Problem, Reply, WireError, decode_ask, encode_event
from dg_lsp.wire.stream import Message

log = logging.getLogger("dg_lsp.engine")

HELLO_S = 30.0
"""A connection that says nothing for so long is closed."""
END_S = 3.0
"""At its end, the engine waits so long until its last events are sent."""


class Clients:
    """The listening socket and its connections."""

    def __init__(self, service: Service, token: str) -> None:
        self._service, self._token = service, token
        self._open: dict[Connection, asyncio.Task[None]] = {}

    async def start(self, listener: socket.socket, backlog: int) -> None:
        """Accept connections from now on."""
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, backlog=backlog, limit=MAX_BODY_BYTES)

    async def close(self) -> None:
        """Send what is left, and close all connections."""
        self._server.close()
        for connection in self._open:
            connection.inbox.put((0, None))
        if self._open:
            await asyncio.wait(self._open.values(), timeout=END_S)
        for task in tuple(self._open.values()):
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, task = Connection(self._service, self._token, reader, writer), asyncio.current_task()
        assert task is not None
        self._open[connection] = task
        try:
            await connection.serve()
        except asyncio.CancelledError:
            pass  # by `close`; asyncio would log it as an error
        except Exception:  # one client must not end the others
            log.exception("a connection failed")
        finally:
            del self._open[connection]


class Connection:
    """One client. `inbox` has its events, each with the number of its request; an event of None ends the connection."""

    def __init__(self, service: Service, token: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._service, self._token, self._reader, self._writer = service, token, reader, writer
        self.inbox: Inbox[tuple[int, Event | None]] = Inbox()
        self._state = partial(self._put, 0)
        self._jobs: dict[int, Job] = {}

    async def serve(self) -> None:
        """Answer requests until the client or the engine ends, then cancel what is left of them."""
        sending, receiving = asyncio.ensure_future(self._send()), asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            if receiving.done() and (problem := receiving.result()) is not None:
                self._put(0, problem)
                self.inbox.put((0, None))
                await asyncio.wait((sending,), timeout=END_S)
        finally:
            sending.cancel()
            receiving.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)
            self._writer.transport.abort()
            if self._state in self._service.leases:  # only looking at an engine is no use of it
                self._service.end_lease(self._state)
            for job in self._jobs.values():
                self._service.queue.cancel(job)

    async def _receive(self) -> Problem | None:
        """Take requests until the client ends; return what is wrong when it sends something else."""
        try:
            async with asyncio.timeout(HELLO_S):
                first = await self._next()
            if first is None:
                return None
            fields = Fields(first.fields)
            if first.name != "hello" or not hmac.compare_digest(fields.text("token", "").encode(), self._token.encode()):
                return Problem("unauthorized", "the first message must be `hello` with this engine's token")
            if fields.flag("uses"):
                self._service.take_lease(self._state)
            else:
                self._state(self._service.queue.status)
            while (message := await self._next()) is not None:
                self._answer(message)
                await self._writer.drain()  # the requests of a client that reads no answers wait
        except WireError as error:
            return Problem("bad_request", str(error))
        except (TimeoutError, ConnectionError):
            pass
        return None

    async def _next(self) -> Message | None:
        line = await stream.read(self._reader)
        return stream.decode(line) if line else None

    def _answer(self, message: Message) -> None:
        """Start on a request, or reply to a call."""
        service, fields, answer = self._service, Fields(message.fields), partial(self._put, message.number)
        try:
            match message.name:
                case "infill" if (ask := decode_ask(fields)).prepares:
                    service.queue.expect(ask.request)
                    answer(Done("finished"))
                case "infill":
                    self._jobs[message.number] = service.submit(ask, answer)
                case "cancel":
                    if job := self._jobs.get(message.number):
                        service.queue.cancel(job)
                case "info":
                    answer(Reply(service.info()))
                case "settings":
                    answer(Reply(service.change(fields)))
                case "shutdown":
                    answer(Reply(service.shut_down(fields)))
                case _:
                    raise WireError(f"there is no request {message.name!r}")
        except Exception as error:  # one bad request must not end the connection
            answer(refusal_of(error).problem)

    def _put(self, number: int, event: Event) -> None:
        self.inbox.put((number, event))

    async def _send(self) -> None:
        """Send events, and a ping where none comes."""
        while True:
            item = await self.inbox.take(stream.PING_EVERY_S)
            if item is None:
                self._writer.write(stream.PING)
            else:
                number, event = item
                if event is None:
                    self._writer.close()
                    return await self._writer.wait_closed()
                if isinstance(event, LAST):
                    self._jobs.pop(number, None)
                # A client that reads slowly skips drafts, so that it never shows an old one.
                if not (isinstance(event, Draft) and self.inbox.is_slow()):
                    self._writer.write(_line(number, event))
            await self._writer.drain()


def _line(number: int, event: Event) -> bytes:
    try:
        return stream.encode(Message(*encode_event(event), number))
    except WireError as error:
        return stream.encode(Message(*encode_event(Problem("engine_failed", f"the answer can't be sent: {error}")), number))
