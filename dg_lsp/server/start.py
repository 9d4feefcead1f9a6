"""Run the language server over standard input and output.

Imports no command-line library, because an editor waits for the response to `initialize`.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from dg_lsp.wire.visible import LogFormatter

if TYPE_CHECKING:
    from dg_lsp.server.session import DgLanguageServer

ENGINE_VARIABLE = "DG_LSP_SERVE_ENGINE"
LEVELS = ("debug", "info", "warning", "error")


def serve(*, log: str = "warning", engine: str = "") -> NoReturn:
    """Serve one client, then end the process: with 0 after `shutdown`, with 2 for invalid options, else with 1.

    `engine` names the function that connects to the engine as `module:function`, for tests. Without it the variable
    `DG_LSP_SERVE_ENGINE` counts, and then the resident engine.
    """
    level = logging.getLevelName(log.upper())
    if not isinstance(level, int):
        _refuse(f"--log must be {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, not {log}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    # pygls writes messages, and so the user's code, to its log.
    logging.getLogger("pygls").setLevel(logging.CRITICAL)
    # Standard output becomes standard error, so that no print breaks the protocol.
    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    code = asyncio.run(_server(engine or os.environ.get(ENGINE_VARIABLE, "")).serve(reader, writer))
    logging.shutdown()
    # The reader thread may still wait for input. A normal exit would wait for the thread.
    os._exit(code)


def _server(engine: str) -> DgLanguageServer:
    from dg_lsp.client.engine import join
    from dg_lsp.server import handlers
    from dg_lsp.server.session import DgLanguageServer

    module, _, function = engine.partition(":")
    try:
        server = DgLanguageServer(getattr(importlib.import_module(module), function) if engine else join)
    except (ImportError, AttributeError, ValueError) as error:
        _refuse(f"can't import the engine {engine}: {error}")
    handlers.add(server)
    return server


def _refuse(sentence: str) -> NoReturn:
    sys.stderr.write(f"dg-lsp: {sentence}\n")
    raise SystemExit(2)
