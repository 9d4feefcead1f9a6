"""The command that runs an engine, for front ends to pass to the client that starts it. Imports nothing of the engine."""

from __future__ import annotations

import sys

ENGINE_COMMAND = (sys.executable, "-m", "dg_lsp.engine.commands", "run")
