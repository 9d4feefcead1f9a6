"""Look at an engine from outside, without starting it, holding it or keeping it alive.

Knows where engines are met and asks over HTTP; nothing of how to run one. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from dg_lsp.wire import meeting
from dg_lsp.wire.fields import Fields, WireError, parse
from dg_lsp.wire.meeting import Place, State


@dataclass(frozen=True, slots=True)
class Seen:
    """An engine's files, and what it answers; `info` is None when nothing answers, `state` when no engine has its lock."""

    place: Place
    state: State | None
    info: Fields | None


def look(place: Place) -> Seen:
    """Return what there is of an engine; nothing is started or kept alive by looking.

    Raises MeetingError when its socket is someone else's.
    """
    state = meeting.read_state(place)
    if state is None:
        return Seen(place, None, None)
    try:
        return Seen(place, state, request(state, "GET", "/v1/info"))
    except (httpx.HTTPError, OSError, WireError):
        # What a killed engine left names a process that may be somebody else's by now.
        return Seen(place, state if meeting.is_held(place.lock) else None, None)


def request(state: State, method: str, path: str, body: dict[str, object] | None = None) -> Fields:
    """Return an engine's answer; raise what httpx raises, OSError, MeetingError or WireError when there is none."""
    meeting.check_owner(state.address)
    by_socket = state.address.startswith("/")
    transport = httpx.HTTPTransport(uds=state.address if by_socket else None)
    with httpx.Client(
        transport=transport, base_url=f"http://{'localhost' if by_socket else state.address}", timeout=10
    ) as http:
        answer = http.request(method, path, json=body, headers={"Authorization": f"Bearer {state.token}"})
        answer.raise_for_status()
        return parse(answer.content)
