"""Where the processes of one user find each other: a private directory with a lock, a socket, a state and a log per engine.

The engine holds its lock for life, so the kernel releases it however the engine ends, and nobody guesses from process ids.
A starter holds another lock while it starts one, so two starters at the same moment start one engine.
Knows nothing of what is said over the socket.
"""

from dg_lsp.wire.meeting.locks import Lock, hold, is_held
from dg_lsp.wire.meeting.process import MAX_LOG_BYTES, Settings, alive, log_tail, start_engine
from dg_lsp.wire.meeting.runtime import (
    MAX_SOCKET_PATH,
    RUNTIME_DIR_VARIABLE,
    MeetingError,
    Place,
    Which,
    place,
    places,
    runtime_dir,
    socket_path,
    unusable,
)
from dg_lsp.wire.meeting.states import State, check_owner, is_token, read_state, write_state
from dg_lsp.wire.settings import EMBEDDED

__all__ = [
    "EMBEDDED",
    "MAX_LOG_BYTES",
    "MAX_SOCKET_PATH",
    "RUNTIME_DIR_VARIABLE",
    "Lock",
    "MeetingError",
    "Place",
    "Settings",
    "State",
    "Which",
    "alive",
    "check_owner",
    "hold",
    "is_held",
    "is_token",
    "log_tail",
    "place",
    "places",
    "read_state",
    "runtime_dir",
    "socket_path",
    "start_engine",
    "unusable",
    "write_state",
]
