"""One attempt to connect to an engine: the running one, or a new one. `life` decides when to try again."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dg_lsp.infill import link as links
from dg_lsp.infill.link import SILENCE_S, Link
from dg_lsp.infill.port import EngineError
from dg_lsp.wire import discovery, messages
from dg_lsp.wire.discovery import DiscoveryError, EngineFiles, EngineId, EngineSettings, State

BIND_PATIENCE_S = 60.0
END_PATIENCE_S = 15.0
YOUNG_S = 60.0


@dataclass(frozen=True, slots=True)
class Joiner:
    """Connects to one engine.

    `command` starts an engine; empty means never start one. `on_change` is called when a link's status changes. An engine of
    another build than `own_build` is replaced unless it is in use.
    """

    engine_id: EngineId
    settings: EngineSettings
    command: tuple[str, ...]
    on_change: Callable[[Link], None]
    own_build: str

    async def join(self) -> Link | None:
        """Return a link to the engine, which is started if none runs; None when the started process has ended.

        The model may not be loaded yet. Raises EngineError when no engine can be reached or started, and SilentError when
        the running engine does not respond.
        """
        try:
            files = discovery.engine_files(self.engine_id)
            while True:
                link = await self._reach(files)
                if link is not None:
                    return link
                if not self.command:
                    raise EngineError("no engine is running, and this client may not start one; run: dg-lsp engine start")
                starting = discovery.hold(files.starting)
                if starting is None:
                    await asyncio.sleep(0.05)  # another client is starting it
                    continue
                try:
                    return await self._reach(files) or await self._start(files)
                finally:
                    starting.release()
        except DiscoveryError as error:
            raise EngineError(str(error)) from error

    async def _reach(self, files: EngineFiles) -> Link | None:
        """Return a link to the engine of these files; None when it does not respond.

        Raises EngineError when the engine is in use and speaks another protocol.
        """
        state = discovery.read_state(files)
        if state is None:
            return None
        speaks_ours = messages.common_protocol(state.protocol_min, state.protocol_max) is not None
        if speaks_ours and state.version == self.own_build:
            return await links.reach(state, self.on_change, first_word_s=_first_word_s(files))
        try:
            discovery.check_owner(state.address)
        except OSError:
            return None  # without its socket, the engine has ended
        # Check the lock, which an engine holds as long as it lives. Its process id may belong to another process by now.
        if not discovery.is_held(files.lock):
            return None
        # Ask an engine of another build to end; it does so when no client uses it.
        if (self.command or not speaks_ours) and await links.ask_to_end(state):
            await _until(lambda: discovery.read_state(files) != state, END_PATIENCE_S)
            return None
        if speaks_ours:
            return await links.reach(state, self.on_change, first_word_s=_first_word_s(files))
        raise EngineError(
            f"the running engine (dg-lsp {state.version}) is in use and speaks another protocol than this dg-lsp; "
            "close the programs that use it, or stop it with: dg-lsp engine stop --now"
        )

    async def _start(self, files: EngineFiles) -> Link | None:
        """Return a link to a new engine; None when the new process ended."""
        before = discovery.read_state(files)
        process = discovery.start_engine(self.command, files, self.engine_id, self.settings)
        await _until(partial(self._is_decided, files, before, process), BIND_PATIENCE_S)
        return await self._reach(files)

    def _is_decided(self, files: EngineFiles, before: State | None, process: subprocess.Popen[bytes]) -> bool:
        """Return whether a new engine is running, started by any client, or our process has ended."""
        return process.poll() is not None or discovery.read_state(files) not in (None, before)


def _first_word_s(files: EngineFiles) -> float:
    """Return how long the engine may be silent at first; a newly started one may still import its modules."""
    with contextlib.suppress(OSError):
        if time.time() - files.state.stat().st_mtime < YOUNG_S:
            return YOUNG_S
    return SILENCE_S


async def _until(check: Callable[[], bool], patience_s: float) -> None:
    """Wait until the check returns true, or the time is over."""
    give_up, pause_s = time.monotonic() + patience_s, 0.01
    while not check() and time.monotonic() < give_up:
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.2)
