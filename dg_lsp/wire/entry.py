"""The commands of the engine that front ends start: one that runs an engine, and one that pulls a model. Imports only `sys`."""

from __future__ import annotations

import sys

ENGINE_COMMAND = (sys.executable, "-m", "dg_lsp.engine.commands", "run")
PULL_COMMAND = (sys.executable, "-m", "dg_lsp.engine.commands", "pull")
