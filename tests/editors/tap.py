"""Log all messages between an editor and its server.

As a program, `tap.py LOG COMMAND...` starts the server and passes every byte on; the editor starts it instead of the server.
As a module, it reads the log.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple


class Heard(NamedTuple):
    """A message, and who sent it."""

    sender: Literal["editor", "server"]
    message: dict[str, Any]


def heard(log: Path) -> list[Heard]:
    """Return the messages so far, oldest first."""
    if not log.exists():
        return []
    lines = log.read_bytes().split(b"\n")
    # The last line may be incomplete.
    return [Heard(*json.loads(line)) for line in lines[:-1]]


def most_alive(messages: list[Heard], method: str) -> tuple[int, int]:
    """Return the number of requests of a method, and the largest number of them that were running at the same time."""
    alive, n_requests, most = set[int | str](), 0, 0
    for sender, message in messages:
        if sender == "editor" and message.get("method") == method:
            alive.add(message["id"])
            n_requests, most = n_requests + 1, max(most, len(alive))
        elif sender == "editor" and message.get("method") == "$/cancelRequest":
            alive.discard(message["params"]["id"])
        elif sender == "server" and "method" not in message:
            alive.discard(message.get("id", ""))
    return n_requests, most


def _messages(stream: IO[bytes]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each message of a stream, as bytes with its header and as JSON."""
    while head := _head(stream):
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        body = stream.read(int(lengths[0]))
        yield head + body, json.loads(body)


def _head(stream: IO[bytes]) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        if not (line := stream.readline()):
            return b""
        head += line
    return head


def _main(log: Path, command: list[str]) -> int:
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    lock = threading.Lock()
    # Each write is one line and is not buffered, so that a test can read it at once.
    with log.open("ab", buffering=0) as file:

        def pass_on(sender: str, source: IO[bytes], target: IO[bytes]) -> None:
            for whole, message in _messages(source):
                with lock:
                    file.write(json.dumps([sender, message]).encode() + b"\n")
                target.write(whole)
                target.flush()
            target.close()

        threading.Thread(target=pass_on, args=("editor", sys.stdin.buffer, server.stdin), daemon=True).start()
        pass_on("server", server.stdout, sys.stdout.buffer)
        return server.wait()


if __name__ == "__main__":
    raise SystemExit(_main(Path(sys.argv[1]), sys.argv[2:]))
