"""Run the language server over standard input and output, or for one client over TCP.

Imports nothing that a command line needs: an editor waits for the answer to `initialize`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, BinaryIO, NoReturn

if TYPE_CHECKING:
    from dg_lsp.server.app import DgLanguageServer

ENGINE_VARIABLE = "DG_LSP_SERVE_ENGINE"


def serve(*, stdio: bool = False, tcp: str = "", log: str = "warning", engine: str = "") -> NoReturn:
    """Serve one client and end the process: with 0 when the editor asked for the end, with 2 for wrong options, else with 1.

    `engine` names another opener than the resident engine's as `module:function`; without it the environment may.
    """
    if stdio and tcp:
        _refuse("--stdio and --tcp exclude each other")
    level = logging.getLevelName(log.upper())
    if not isinstance(level, int):
        _refuse(f"--log must be debug, info, warning or error, not {log}")
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # pygls writes messages, and so the user's code, to its log.
    logging.getLogger("pygls").setLevel(logging.CRITICAL)
    if tcp:
        reader, writer = _accept(*_address(tcp))
    else:
        reader, writer = _standard_streams()
    code = asyncio.run(_server(engine or os.environ.get(ENGINE_VARIABLE, "")).serve(reader, writer))
    logging.shutdown()
    # The thread that reads may still wait for input, and the interpreter would wait for it.
    os._exit(code)


def _server(engine: str) -> DgLanguageServer:
    from pathlib import Path

    from dg_lsp.server import handlers, resident, stats
    from dg_lsp.server.app import DgLanguageServer

    try:
        opener = resident.named(engine) if engine else resident.resident
    except ValueError as error:
        _refuse(str(error))
    folder = os.environ.get(stats.FOLDER_VARIABLE)
    server = DgLanguageServer(opener, statistics=Path(folder) if folder else stats.default_folder())
    handlers.add(server)
    return server


def _standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return the streams to the client; whatever else prints writes to standard error from now on."""
    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return reader, writer


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        _refuse(f"--tcp must be HOST:PORT, not {text}")
    return host.strip("[]"), int(port)


def _accept(host: str, port: int) -> tuple[BinaryIO, BinaryIO]:
    try:
        with socket.create_server((host, port)) as listening:
            bound = listening.getsockname()
            sys.stderr.write(f"dg-lsp: waiting for a client at {bound[0]}:{bound[1]}\n")
            sys.stderr.flush()
            connection, _ = listening.accept()
    except OSError as error:
        _refuse(f"{host}:{port} can't be used: {error.strerror or error}")
    return connection.makefile("rb"), connection.makefile("wb")


def _refuse(sentence: str) -> NoReturn:
    sys.stderr.write(f"dg-lsp: {sentence}\n")
    raise SystemExit(2)
