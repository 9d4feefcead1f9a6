"""One attempt to reach an engine: the one that runs, or a new one.

Knows the meeting place and links to engines. Knows nothing of requests, nor of when to try again (`life`).
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dg_lsp import __version__
from dg_lsp.infill import link as links
from dg_lsp.infill.link import SILENCE_S, Link
from dg_lsp.infill.port import EngineError
from dg_lsp.wire import meeting, messages
from dg_lsp.wire.meeting import MeetingError, Place, Settings, State, Which

BIND_PATIENCE_S = 60.0
END_PATIENCE_S = 15.0
YOUNG_S = 60.0


@dataclass(frozen=True, slots=True)
class Joiner:
    """Which engine to reach, the command that starts one (empty: start none), and who hears of the links to it."""

    which: Which
    settings: Settings
    command: tuple[str, ...]
    on_change: Callable[[Link], None]

    async def join(self) -> Link | None:
        """Return a link to the engine, started where there is none; None when the process that was started has ended.

        Its model may still have to be loaded. Raises EngineError when no engine can be had, and SilentError when there is
        one that does not respond.
        """
        try:
            place = meeting.place(self.which)
            while True:
                link = await self._reach(place)
                if link is not None:
                    return link
                if not self.command:
                    raise EngineError("no engine is running, and this client may not start one: dg-lsp engine start")
                starting = meeting.hold(place.starting)
                if starting is None:
                    await asyncio.sleep(0.05)  # somebody else is starting it
                    continue
                try:
                    return await self._reach(place) or await self._start(place)
                finally:
                    starting.release()
        except MeetingError as error:
            raise EngineError(str(error)) from error

    async def _reach(self, place: Place) -> Link | None:
        """Return a link to the engine of this place; None when none answers. Raises EngineError when it speaks otherwise."""
        state = meeting.read_state(place)
        if state is None:
            return None
        speaks_ours = messages.common_protocol(state.protocol_min, state.protocol_max) is not None
        if speaks_ours and state.version == __version__:
            return await links.reach(state, self.on_change, first_word_s=_first_word_s(place))
        try:
            meeting.check_owner(state.address)
        except OSError:
            return None  # its socket is gone, and so is it
        # Not by the process's id, which may be another's by now: an engine has its lock for as long as it lives.
        if not meeting.is_held(place.lock):
            return None
        # An engine of another dg-lsp makes room as soon as nobody uses it.
        if (self.command or not speaks_ours) and await links.ask_to_end(state):
            await _until(lambda: meeting.read_state(place) != state, END_PATIENCE_S)
            return None
        if speaks_ours:
            return await links.reach(state, self.on_change, first_word_s=_first_word_s(place))
        raise EngineError(
            f"the engine that runs (dg-lsp {state.version}) speaks another protocol than this dg-lsp and is in use; "
            "close what uses it, or stop it with: dg-lsp engine stop --now"
        )

    async def _start(self, place: Place) -> Link | None:
        """Return a link to a new engine; None when the new process ended."""
        before = meeting.read_state(place)
        process = meeting.start_engine(self.command, place, self.which, self.settings)
        await _until(partial(self._is_decided, place, before, process), BIND_PATIENCE_S)
        return await self._reach(place)

    def _is_decided(self, place: Place, before: State | None, process: subprocess.Popen[bytes]) -> bool:
        """Return whether an engine has come up, be it one that somebody else started, or ours has ended."""
        return process.poll() is not None or meeting.read_state(place) not in (None, before)


def _first_word_s(place: Place) -> float:
    """Return how long the engine may be silent at first: one that came up lately may still import what it needs."""
    with contextlib.suppress(OSError):
        if time.time() - place.state.stat().st_mtime < YOUNG_S:
            return YOUNG_S
    return SILENCE_S


async def _until(check: Callable[[], bool], patience_s: float) -> None:
    """Wait until a check holds, or patience ends."""
    give_up, pause_s = time.monotonic() + patience_s, 0.01
    while not check() and time.monotonic() < give_up:
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.2)
