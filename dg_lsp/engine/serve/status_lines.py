"""Describe a running engine, or that none runs, for `dg-lsp engine status` and `start`.

Sends no requests and prints nothing.
"""

from __future__ import annotations

from dg_lsp.core.wording import counted, size
from dg_lsp.wire import build
from dg_lsp.wire.discovery import State
from dg_lsp.wire.inspection import EngineReport


def facts_of(report: EngineReport, model: str) -> dict[str, object]:
    """Return the object that `status --json` prints; `model` is the name to show if no engine runs."""
    if report.info is None:
        nothing = {
            "pid": report.state.pid if report.state else None,
            "state": "silent" if report.state else "absent",
            "model": model or report.files.name,
            "device": None,
            "leases": 0,
            "memory": None,
        }
        return {**nothing, "log": str(report.files.log)}
    first = {name: report.info.values.get(name) for name in ("pid", "state", "model", "device", "leases", "memory")}
    address = report.state.address if report.state else None
    return {**first, **report.info.values, "address": address, "log": str(report.files.log)}


def line_of(report: EngineReport, model: str) -> str:
    """Return the line that `status` prints; `model` is the name to show if no engine runs."""
    if report.info is None or report.state is None:
        name = model or report.files.name
        return f"{name}: {silence(report.state.pid)}" if report.state else f"{name}: no engine is running"
    info = report.info
    message = f" ({info.text('message', '')})" if info.text("message", "") else ""
    rss_bytes = info.inner("memory").integer("rss_bytes", 0)
    line = (
        f"{info.text('model', '?')}: {info.text('state', '?')}{message}, process {report.state.pid}, "
        f"device {info.values.get('device')}, {counted(info.integer('leases', 0), 'client')}, {size(rss_bytes)}"
    )
    other = other_version(report.state)
    return f"{line}. {other}" if other else line


def other_version(state: State) -> str:
    """Return a sentence that says that the engine is of another build; "" if it is of this one."""
    own_build = build.current()
    if state.version == own_build:
        return ""
    return f"It is from dg-lsp {state.version}, this is dg-lsp {own_build}; the next request replaces it if no client uses it."


def silence(pid: object) -> str:
    """Return the sentence about an engine that does not respond."""
    return f"process {pid} does not respond; end it with: kill -9 {pid}"
