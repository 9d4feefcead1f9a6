"""`dg-lsp engine run | start | stop | status | logs`: the resident engine by hand. Front ends do the same by themselves."""

from __future__ import annotations

import functools
import inspect
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NoReturn, TypeVar

import httpx
import typer

from dg_lsp.engine.entry import ENGINE_COMMAND
from dg_lsp.wire import PROTOCOL_MAX, PROTOCOL_MIN, config, meeting, model_names
from dg_lsp.wire.fields import WireError
from dg_lsp.wire.look import Seen, look, request
from dg_lsp.wire.meeting import MeetingError, Place, Settings, Which
from dg_lsp.wire.settings import DEFAULTS, MAX_S


class Plain(typer.core.TyperGroup):
    """Commands that say in one sentence when the engines' folder can't be used."""

    def invoke(self, ctx: Any) -> Any:  # click's own context, or the one that a newer typer brings
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except MeetingError as error:
            _fail(str(error))
        except WireError as error:
            _fail(f"the engine's answer can't be understood: {error}; end it with: dg-lsp engine stop --now")


app = typer.Typer(cls=Plain, help="The resident engine: one warm process for every editor.", no_args_is_help=True)

T = TypeVar("T")

START_PATIENCE_S = 600.0
STOP_PATIENCE_S = 30.0
Port = Annotated[int, typer.Option(help="Also listen on this port of 127.0.0.1; 0: any, -1: none.", min=-1, max=65535)]


def which_engine(
    model: Annotated[str, typer.Option(help="embedded, a folder, or a hub id.")] = DEFAULTS.model,
    revision: Annotated[str, typer.Option(help="Revision of a hub model.")] = "",
    dtype: Annotated[str, typer.Option(help="auto, or a torch dtype such as bfloat16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = DEFAULTS.device,
    filler: Annotated[str, typer.Option(hidden=True, help="Another loader, as module:function.")] = "",
) -> Which:
    """Return which engine the options of a command mean."""
    if model_names.has_password(model):
        _fail(f"--model {config.NO_PASSWORD}")
    return Which(model, revision, dtype, device, filler)


def how_to_run(
    threads: Annotated[
        int, typer.Option(help="CPU threads; 0: half of the cores, for a small model two at most.", min=0)
    ] = DEFAULTS.threads,
    unload_after: Annotated[
        float, typer.Option(help="Seconds without work before the weights are dropped; 0: never.", min=0, max=MAX_S)
    ] = DEFAULTS.unload_after,
    exit_after: Annotated[
        float, typer.Option(help="Seconds without users before the process ends; 0: never.", min=0, max=MAX_S)
    ] = DEFAULTS.exit_after,
    rows: Annotated[
        int, typer.Option(help="Rows of one pass of the model at most; fewer where memory is short.", min=1)
    ] = DEFAULTS.rows,
) -> Settings:
    """Return how the options of a command say that an engine is run."""
    return Settings(threads, unload_after, exit_after, rows)


_SHARED: Mapping[str, Callable[..., object]] = {"which": which_engine, "settings": how_to_run}


def with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options of `which_engine` in place of its `which`, and those of `how_to_run` of `settings`."""
    own = inspect.signature(command, eval_str=True).parameters
    makers = {name: maker for name, maker in _SHARED.items() if name in own}
    options = {name: inspect.signature(maker, eval_str=True).parameters for name, maker in makers.items()}
    shared = [option for name in own if name in options for option in options[name].values()]
    all_options = [*shared, *(parameter for name, parameter in own.items() if name not in options)]

    @functools.wraps(command)
    def run_with(**values: object) -> None:
        made = {name: maker(**{key: values.pop(key) for key in options[name]}) for name, maker in makers.items()}
        command(**made, **values)

    # Typer reads the options from here.
    run_with.__signature__ = inspect.Signature(all_options)  # type: ignore[attr-defined]
    run_with.__annotations__ = {option.name: option.annotation for option in all_options}
    return run_with


@app.callback()
def configure(context: typer.Context) -> None:
    """Take from the user's configuration what the command line does not say."""
    configured, problems = config.read()
    for problem in problems:
        typer.echo(f"dg-lsp engine: {problem}", err=True)
    chosen = {
        name: getattr(configured.settings, name)
        for name in ("model", "device", "threads", "unload_after", "exit_after", "rows")
    }
    # Keyed by command; each takes what it has an option for.
    context.default_map = dict.fromkeys(
        (str(command.name or command.callback.__name__) for command in app.registered_commands if command.callback), chosen
    )


@app.command()
@with_shared_options
def run(
    which: Which,
    settings: Settings,
    port: Port = -1,
    running: Annotated[int, typer.Option(help="Requests of one priority under way at once.", min=1)] = 8,
    queued: Annotated[int, typer.Option(help="Requests that may wait.", min=1)] = 64,
    protocol: Annotated[str, typer.Option(hidden=True, help="Speak MIN:MAX.")] = f"{PROTOCOL_MIN}:{PROTOCOL_MAX}",
    detached: Annotated[bool, typer.Option(hidden=True, help="Standard error is the log.")] = False,
) -> None:
    """Run an engine here, until it is told to stop or nobody needs it. DG_LSP_ENGINE_TOKEN sets its token."""
    from dg_lsp.engine import daemon  # the other commands need no server
    from dg_lsp.engine.scheduler import Limits

    low, _, high = protocol.partition(":")
    options = daemon.Options(
        which=which,
        settings=settings,
        limits=Limits(running, queued, settings.rows),
        port=port,
        protocol=(int(low), int(high)),
        detached=detached,
    )
    try:
        daemon.run(options)
    except daemon.DaemonError as error:
        _fail(str(error))


@app.command()
@with_shared_options
def start(
    which: Which,
    settings: Settings,
    port: Port = -1,
) -> None:
    """Start an engine in the background, and wait until it has loaded its model."""
    place = meeting.place(which)
    seen = _started(place, which, settings, port)
    if _state(seen) not in ("ready", "unloaded"):
        reason = seen.info.text("message", "") if seen.info else ""
        _fail_with_log(place, reason or "the engine did not start")
    told = f"The engine for {which.model} is {_state(seen)} (process {seen.state.pid if seen.state else '?'})."
    url = seen.info.text("url", "") if seen.info else ""
    if port >= 0 and not url:
        _fail(f"{told} It was started before without a port for other clients; end it with: dg-lsp engine stop")
    typer.echo(f"{told} Other clients reach it at {url}, with the token that `dg-lsp engine token` prints." if url else told)


@app.command()
@with_shared_options
def stop(
    which: Which,
    now: Annotated[bool, typer.Option("--now", help="At once, whoever uses it.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All engines, not only this model's.")] = False,
) -> None:
    """Stop an engine: when nobody uses it any more, or at once with --now."""
    places = meeting.places() if everything else (meeting.place(which),)
    everywhere = [look(place) for place in places]
    running = [seen for seen in everywhere if seen.info is not None and seen.state is not None]
    silent = [seen.state.pid for seen in everywhere if seen.info is None and seen.state is not None]
    if not running and not silent:
        typer.echo("No engine is running.")
    for seen in running:
        assert seen.state is not None
        try:
            answer = request(seen.state, "POST", "/v1/shutdown", {"when": "now" if now else "idle"})
        except (httpx.HTTPError, OSError):
            continue  # it ended in between
        n_users, n_requests = answer.integer("leases", 0), answer.integer("requests", 0)
        if not now and (n_users or n_requests):
            typer.echo(
                f"Process {seen.state.pid} is used by {n_users} clients and has {n_requests} requests; "
                "it ends after the last of them. To end it at once: --now"
            )
            continue
        lock = _wait(partial(meeting.hold, seen.place.lock), STOP_PATIENCE_S)
        if lock is None:
            _fail(f"process {seen.state.pid} has not ended yet; it is in the middle of a step")
        lock.release()
        typer.echo(f"Process {seen.state.pid} has ended.")
    if silent:
        _fail("; ".join(map(_silence, silent)))


@app.command()
@with_shared_options
def status(
    which: Which,
    as_json: Annotated[
        bool, typer.Option("--json", help="One object: pid, state, model, device, leases, memory, and more.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="All engines; with --json a list.")] = False,
) -> None:
    """Tell whether an engine runs, and what it does. Exits with 1 when it does not run."""
    places = meeting.places() if everything else (meeting.place(which),)
    found = [_told(look(place), which.model if not everything else "") for place in places]
    if as_json:
        typer.echo(json.dumps(found if everything else found[0], indent=2))
    else:
        for told in found:
            typer.echo(_line(told))
        if not found:
            typer.echo("No engine is running.")
    if all(told["state"] in ("absent", "silent") for told in found):
        raise typer.Exit(1)


@app.command()
@with_shared_options
def logs(
    which: Which,
    n_lines: Annotated[int, typer.Option("--lines", "-n", help="How many of the last lines.", min=1)] = 50,
    path: Annotated[bool, typer.Option("--path", help="Only tell where the log is.")] = False,
) -> None:
    """Print the end of an engine's log. It holds no code."""
    place = meeting.place(which)
    if path:
        typer.echo(str(place.log))
        return
    if not place.log.exists():
        typer.echo(f"dg-lsp engine: no engine for {which.model} has left a log yet", err=True)
    for line in meeting.log_tail(place, n_lines):
        typer.echo(line)


@app.command()
@with_shared_options
def token(
    which: Which,
) -> None:
    """Print the token that an engine wants from other clients, as their API key."""
    seen = look(meeting.place(which))
    # The file of one that was killed is still there.
    if seen.state is None or seen.info is None:
        _fail(f"no engine for {which.model} is running")
    typer.echo(seen.state.token)


def _started(place: Place, which: Which, settings: Settings, port: int) -> Seen:
    """Return the engine once it has loaded its model or failed to, started if there is none; say why when it ends before."""
    process: subprocess.Popen[bytes] | None = None
    give_up = time.monotonic() + START_PATIENCE_S
    while _state(seen := look(place)) in ("loading", "absent"):
        if seen.info is None and process is not None and process.poll() is not None:
            _fail_with_log(place, "the engine ended while starting")
        # Whoever holds the lock is starting it just now, and may fail to; then it is ours to try.
        if seen.info is None and process is None and (starting := meeting.hold(place.starting)) is not None:
            try:
                if look(place).info is None:
                    process = meeting.start_engine(ENGINE_COMMAND, place, which, settings, {"port": str(port)})
                    _wait(partial(_is_decided, place, process), START_PATIENCE_S)
            finally:
                starting.release()
        elif time.monotonic() >= give_up:
            break
        else:
            time.sleep(0.1)
    return seen


def _is_decided(place: Place, process: subprocess.Popen[bytes]) -> bool:
    """Return whether an engine answers, or the one that we started has ended."""
    return look(place).info is not None or process.poll() is not None


def _told(seen: Seen, model: str) -> dict[str, object]:
    if seen.info is None:
        nothing = {
            "pid": seen.state.pid if seen.state else None,
            "state": "silent" if seen.state else "absent",
            "model": model or seen.place.name,
            "device": None,
            "leases": 0,
            "memory": None,
        }
        return {**nothing, "log": str(seen.place.log)}
    first = {name: seen.info.values.get(name) for name in ("pid", "state", "model", "device", "leases", "memory")}
    address = seen.state.address if seen.state else None
    return {**first, **seen.info.values, "address": address, "log": str(seen.place.log)}


def _line(told: dict[str, object]) -> str:
    if told["pid"] is None:
        return f"{told['model']}: no engine is running"
    if told["state"] == "silent":
        return f"{told['model']}: {_silence(told['pid'])}"
    memory = told["memory"]
    rss = memory.get("rss_bytes", 0) if isinstance(memory, dict) else 0
    message = f" ({told['message']})" if told.get("message") else ""
    return (
        f"{told['model']}: {told['state']}{message}, process {told['pid']}, device {told['device']}, "
        f"{told['leases']} users, {rss / 1024**2:.0f} MiB"
    )


def _silence(pid: object) -> str:
    return f"process {pid} does not answer; end it with: kill -9 {pid}"


def _state(seen: Seen) -> str:
    return seen.info.text("state", "absent") if seen.info else "absent"


def _wait(check: Callable[[], T], patience_s: float) -> T:
    """Return the first true value of a check, or its last one when patience ends."""
    give_up, pause_s = time.monotonic() + patience_s, 0.02
    while not (found := check()) and time.monotonic() < give_up:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.25)
    return found


def _fail(sentence: str) -> NoReturn:
    typer.echo(f"dg-lsp engine: {sentence}", err=True)
    raise typer.Exit(2)


def _fail_with_log(place: Place, sentence: str) -> NoReturn:
    tail = "\n  ".join(meeting.log_tail(place))
    _fail(sentence + (f"; the end of its log:\n  {tail}" if tail else ""))


if __name__ == "__main__":
    sys.exit(app())
