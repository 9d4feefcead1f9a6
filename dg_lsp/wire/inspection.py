"""Query a running engine without starting it or keeping it alive."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from dg_lsp.wire import discovery
from dg_lsp.wire.discovery import EngineFiles, State
from dg_lsp.wire.fields import Fields, WireError, parse


@dataclass(frozen=True, slots=True)
class EngineReport:
    """An engine's files, and its answer. `info` is None if it does not respond, `state` if no engine holds its lock."""

    files: EngineFiles
    state: State | None
    info: Fields | None


def inspect_engine(files: EngineFiles) -> EngineReport:
    """Return an engine's files, state and answer, without starting it or keeping it alive.

    Raises DiscoveryError if its socket or its state file belongs to another user.
    """
    state = discovery.read_state(files)
    if state is None:
        return EngineReport(files, None, None)
    try:
        return EngineReport(files, state, request(state, "GET", "/v1/info"))
    except (httpx.HTTPError, OSError, WireError):
        # The state of a killed engine may name a process id that another process has now.
        return EngineReport(files, state if discovery.is_held(files.lock) else None, None)


def request(state: State, method: str, path: str, body: dict[str, object] | None = None) -> Fields:
    """Return an engine's answer; raise httpx.HTTPError, OSError, DiscoveryError or WireError if the request fails."""
    discovery.check_owner(state.address)
    by_socket = state.address.startswith("/")
    transport = httpx.HTTPTransport(uds=state.address if by_socket else None)
    with httpx.Client(
        transport=transport, base_url=f"http://{'localhost' if by_socket else state.address}", timeout=10
    ) as http:
        answer = http.request(method, path, json=body, headers={"Authorization": f"Bearer {state.token}"})
        answer.raise_for_status()
        return parse(answer.content)
