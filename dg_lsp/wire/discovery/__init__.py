"""How the processes of one user find each other: a private directory with a lock, socket, state and log for each engine.

An engine holds its lock as long as it runs. The kernel releases the lock however the engine ends, so nothing is guessed
from process ids. A starter holds a second lock while it starts an engine, so that two starters at the same moment start
only one.
"""

from dg_lsp.wire.discovery.locks import Lock, hold, is_held
from dg_lsp.wire.discovery.process import MAX_LOG_BYTES, EngineSettings, alive, last_words, log_tail, start_engine
from dg_lsp.wire.discovery.runtime import (
    MAX_SOCKET_PATH,
    RUNTIME_DIR_VARIABLE,
    DiscoveryError,
    EngineFiles,
    EngineId,
    all_engine_files,
    engine_files,
    runtime_dir,
    socket_path,
    unusable,
)
from dg_lsp.wire.discovery.states import State, check_owner, is_token, read_state, write_state
from dg_lsp.wire.settings import EMBEDDED

__all__ = [
    "EMBEDDED",
    "MAX_LOG_BYTES",
    "MAX_SOCKET_PATH",
    "RUNTIME_DIR_VARIABLE",
    "DiscoveryError",
    "EngineFiles",
    "EngineId",
    "EngineSettings",
    "Lock",
    "State",
    "alive",
    "all_engine_files",
    "check_owner",
    "engine_files",
    "hold",
    "is_held",
    "is_token",
    "last_words",
    "log_tail",
    "read_state",
    "runtime_dir",
    "socket_path",
    "start_engine",
    "unusable",
    "write_state",
]
