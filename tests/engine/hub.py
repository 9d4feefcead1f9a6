"""A local hub server for tests, with the part of the protocol that fetching needs, for one model in a folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0" * 39 + "1"


class Hub:
    """The hub's model, the requests it received, and the number of bytes after which it aborts a larger file."""

    def __init__(self, model: str, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.asked: list[tuple[str, str, str]] = []
        self.break_after: int | None = None
        self.url = ""


@contextlib.contextmanager
def serving(model: str, folder: Path) -> Iterator[Hub]:
    """Yield a hub that serves the folder as `model`."""
    hub = Hub(model, folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name that the base class gives
            """Say nothing."""

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append((self.command, path, self.headers.get("Range", "")))
            if path.startswith(f"/api/models/{hub.model}/revision/") or path == f"/api/models/{hub.model}":
                files = [{"rfilename": str(name)} for name in _names(hub.folder)]
                return self._json({"id": hub.model, "sha": COMMIT, "siblings": files, "private": False, "tags": []}, with_body)
            if path.startswith(f"/api/models/{hub.model}/tree/"):
                file_list = [
                    {"type": "file", "path": name, "size": (hub.folder / name).stat().st_size, "oid": _etag(hub.folder / name)}
                    for name in _names(hub.folder)
                ]
                return self._json(file_list, with_body)
            prefix = f"/{hub.model}/resolve/"
            if path.startswith(prefix):
                file = hub.folder / path.removeprefix(prefix).partition("/")[2]
                if file.is_file():
                    return self._file(file, with_body)
            return self._nothing()

        def _json(self, value: object, with_body: bool) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def _nothing(self) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _file(self, file: Path, with_body: bool) -> None:
            data = file.read_bytes()
            begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0] or 0)
            self.send_response(206 if begin else 200)
            self.send_header("ETag", f'"{_etag(file)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(data) - begin))
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            if not with_body:
                return
            if hub.break_after is not None and len(data) - begin > hub.break_after:
                self.wfile.write(data[begin : begin + hub.break_after])
                self.close_connection = True
                return
            self.wfile.write(data[begin:])

    with in_a_thread(Handler) as hub.url:
        yield hub


@contextlib.contextmanager
def in_a_thread(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Yield the URL of a server on this machine that answers with this handler."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing: a client that was killed breaks its connections."""

    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
