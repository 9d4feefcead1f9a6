"""What a running engine writes about itself: its process, its address and its token, read and written whole."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dg_lsp.wire.fields import WireError, parse
from dg_lsp.wire.meeting.runtime import MeetingError, Place, Which, unusable
from dg_lsp.wire.messages import PROTOCOL_MAX, PROTOCOL_MIN

MAX_STATE_BYTES = 64 * 1024

_ADDRESS = re.compile(r"/[^\0]+|127\.0\.0\.1:[0-9]{1,5}")
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class State:
    """What a running engine tells about itself. `address` is a socket's path, or `127.0.0.1:port`."""

    pid: int
    address: str
    token: str = field(repr=False)
    version: str
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX
    which: Which = field(default_factory=Which)


def is_token(text: str) -> bool:
    """Return whether a text can be a token: it travels in a header, and is a word there."""
    return _TOKEN.fullmatch(text) is not None


def read_state(place: Place) -> State | None:
    """Return what the engine last told; None when there is no readable state. The engine may be gone all the same."""
    try:
        with open(place.state, "rb", opener=_opener) as file:
            status = os.fstat(file.fileno())
            # Another user's would send our code to their process.
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
                return None
            fields = parse(file.read(MAX_STATE_BYTES))
        which = fields.inner("which")
        protocol = fields.inner("protocol")
        address, token = fields.text("address"), fields.text("token")
        # What no engine writes would be an error of its own in whatever is done with it.
        if not _ADDRESS.fullmatch(address) or not is_token(token):
            return None
        return State(
            pid=fields.integer("pid", low=1, high=2**31 - 1),
            address=address,
            token=token,
            version=fields.text("version"),
            protocol_min=protocol.integer("min"),
            protocol_max=protocol.integer("max"),
            which=Which(**{name: which.text(name) for name in asdict(Which())}),
        )
    except (OSError, WireError):
        return None


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def write_state(place: Place, state: State) -> None:
    """Write the state so that a reader sees the old one or the new one, whole, and no other user sees any.

    Raises MeetingError when it can't be written.
    """
    data = {
        "pid": state.pid,
        "address": state.address,
        "token": state.token,
        "version": state.version,
        "protocol": {"min": state.protocol_min, "max": state.protocol_max},
        "which": asdict(state.which),
    }
    try:
        handle, name = tempfile.mkstemp(dir=place.directory, prefix=f".{place.name}-")  # made 0600
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                json.dump(data, file)
            Path(name).replace(place.state)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise unusable(place.state, error) from error


def check_owner(address: str) -> None:
    """Raise MeetingError when a socket is not ours: whoever listens there would read the user's code."""
    if not address.startswith("/"):
        return
    found = Path(address).lstat()
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.getuid():
        raise MeetingError(f"{address} belongs to someone else; dg-lsp does not talk to it")
