"""The command that runs an engine, which front ends pass to the client that starts it. Imports only `sys`."""

from __future__ import annotations

import sys

ENGINE_COMMAND = (sys.executable, "-m", "dg_lsp.engine.commands", "run")
