"""A running engine's state file: its process, address and token, read and written atomically."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dg_lsp.wire.discovery.runtime import DiscoveryError, EngineFiles, EngineId, unusable
from dg_lsp.wire.fields import WireError, parse
from dg_lsp.wire.files import replace
from dg_lsp.wire.messages import PROTOCOL_MAX, PROTOCOL_MIN

MAX_STATE_BYTES = 64 * 1024

_ADDRESS = re.compile(r"/[^\0]+|127\.0\.0\.1:[0-9]{1,5}")
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class State:
    """What a running engine publishes about itself. `address` is a socket's path, or `127.0.0.1:port`.

    `version` is its build (`wire.build`).
    """

    pid: int
    address: str
    token: str = field(repr=False)
    version: str
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX
    engine_id: EngineId = field(default_factory=EngineId)


def is_token(text: str) -> bool:
    """Return whether a text can be a token: it is sent in a header, so it must be printable ASCII without spaces."""
    return _TOKEN.fullmatch(text) is not None


def read_state(files: EngineFiles) -> State | None:
    """Return the state that the engine last wrote, or None if it can't be read. The engine may have ended since.

    Raises DiscoveryError if the file is not a regular file of this user.
    """
    try:
        status = files.state.lstat()
        # The state of another user could direct our code to their process. An engine could not be found through it either.
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            raise DiscoveryError(f"{files.state} is not a regular file of this user; remove it")
        with open(files.state, "rb", opener=_opener) as file:
            if not os.path.samestat(status, os.fstat(file.fileno())):
                return None  # replaced just now
            fields = parse(file.read(MAX_STATE_BYTES))
        engine_id = fields.inner("which")
        protocol = fields.inner("protocol")
        address, token = fields.text("address"), fields.text("token")
        # An address or token that no engine writes would cause other errors later.
        if not _ADDRESS.fullmatch(address) or not is_token(token):
            return None
        return State(
            pid=fields.integer("pid", low=1, high=2**31 - 1),
            address=address,
            token=token,
            version=fields.text("version"),
            protocol_min=protocol.integer("min"),
            protocol_max=protocol.integer("max"),
            engine_id=EngineId(**{name: engine_id.text(name) for name in asdict(EngineId())}),
        )
    except (OSError, WireError):
        return None


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def write_state(files: EngineFiles, state: State) -> None:
    """Write the state atomically, readable only by this user.

    Raises DiscoveryError if it can't be written.
    """
    data = {
        "pid": state.pid,
        "address": state.address,
        "token": state.token,
        "version": state.version,
        "protocol": {"min": state.protocol_min, "max": state.protocol_max},
        "which": asdict(state.engine_id),
    }
    try:
        replace(files.state, json.dumps(data).encode())
    except OSError as error:
        raise unusable(files.state, error) from error


def check_owner(address: str) -> None:
    """Raise DiscoveryError if a socket belongs to another user, whose process would then read the user's code."""
    if not address.startswith("/"):
        return
    status = Path(address).lstat()
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.getuid():
        raise DiscoveryError(f"{address} belongs to another user; dg-lsp does not connect to it")
