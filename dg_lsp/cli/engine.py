"""The commands `dg-lsp engine run | start | stop | status | logs | token | pull | models`.

Front ends start and use the resident engine without these commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from dg_lsp.cli import progress
from dg_lsp.cli.options import command_group, complete_model, fail, named_path, with_options
from dg_lsp.client import life
from dg_lsp.client.engine import ConnectOptions, connect
from dg_lsp.client.port import EngineError
from dg_lsp.core.wording import counted, size
from dg_lsp.engine.model.fit import machine
from dg_lsp.engine.model.weights import fetch
from dg_lsp.engine.model.weights.fetch import PullError
from dg_lsp.wire import config, discovery, laptop, model_names
from dg_lsp.wire.discovery import (
    ENGINE_COMMAND,
    DiscoveryError,
    EngineFiles,
    EngineId,
    EngineReport,
    EngineSettings,
    State,
    call,
    inspect_engine,
)
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.laptop import LaptopModel
from dg_lsp.wire.messages import WireError
from dg_lsp.wire.settings import AUTO, EMBEDDED
from dg_lsp.wire.visible import visible_line


class EngineCommands(typer.core.TyperGroup):
    """The engine commands. They report errors of the runtime folder or of an engine's response in one sentence."""

    def invoke(self, ctx: Any) -> Any:  # click's context class, or the copy of it in newer typer versions
        """Run the selected command."""
        try:
            return super().invoke(ctx)
        except DiscoveryError as error:
            _fail(str(error))
        except WireError as error:
            _fail(f"the engine sent an invalid response: {error}; stop it with: dg-lsp engine stop --now")


app = command_group(cls=EngineCommands, summary="The resident engine: it keeps a model loaded for editors and commands.")

STOP_PATIENCE_S = 30.0
_fail = partial(fail, who="dg-lsp engine")
OnProgress = Callable[[str, float], None]
Port = Annotated[int, typer.Option(help="Also listen on this port of 127.0.0.1; 0: any, -1: none.", min=-1, max=65535)]


def _resolved(engine_id: EngineId) -> EngineId:
    """Return the engine that a command's options select."""
    if model_names.has_password(engine_id.model):
        _fail(f"--model {model_names.NO_PASSWORD}")
    return replace(engine_id, model=laptop.resolve(engine_id.model))


with_shared_options = partial(with_options, made={EngineId: _resolved})


@app.callback()
def configure(context: typer.Context) -> None:
    """Use the user's configuration as the default of each option."""
    configured, problems = config.read()
    for problem in problems:
        typer.echo(visible_line(f"dg-lsp engine: {problem}"), err=True)
    option_defaults = {
        setting.field: getattr(configured.settings, setting.field)
        for setting in config.SETTINGS
        if setting.key.startswith("engine.")
    }
    # A command ignores the defaults for which it has no option.
    context.default_map = dict.fromkeys(
        (str(command.name or command.callback.__name__) for command in app.registered_commands if command.callback),
        option_defaults,
    )


@app.command()
@with_shared_options
def run(
    engine_id: EngineId,
    settings: EngineSettings,
    port: Port = -1,
    detached: Annotated[bool, typer.Option(hidden=True, help="Write standard output and error to the log file.")] = False,
) -> None:
    """Run an engine in the foreground until it is stopped or unused. DG_LSP_ENGINE_TOKEN sets its token."""
    from dg_lsp.engine.common.task import UserError
    from dg_lsp.engine.serve import daemon  # imported here, because the other commands need no server

    options = daemon.RunOptions(engine_id, settings, port, detached)
    try:
        daemon.run(options)
    except UserError as error:
        _fail(str(error))


@app.command()
@with_shared_options
def start(engine_id: EngineId, settings: EngineSettings, port: Port = -1) -> None:
    """Start an engine in the background, or give a running one these settings, and wait until it has loaded its model."""
    options = ConnectOptions(engine_id, settings, command=(*ENGINE_COMMAND, f"--port={port}"))
    asyncio.run(_ready(options))
    report = inspect_engine(discovery.engine_files(engine_id))
    if report.state is None:
        _fail("the engine has ended again; see: dg-lsp engine logs")
    with contextlib.suppress(OSError, WireError):  # it has ended meanwhile
        call(report.state, "settings", asdict(settings))
    summary = f"The engine for {engine_id.model} is ready (process {report.state.pid})."
    url = report.info.text("url", "") if report.info else ""
    if port >= 0 and not url:
        _fail(f"{summary} It already ran, without a port for other clients; stop it with: dg-lsp engine stop")
    if other := other_version(report.state):
        summary += f" {other}"
    others = f" Other clients reach it at {url}, with the token that `dg-lsp engine token` prints." if url else ""
    typer.echo(visible_line(summary + others))


@app.command()
@with_shared_options
def stop(
    engine_id: EngineId,
    now: Annotated[bool, typer.Option("--now", help="Stop at once, even if it is in use.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Stop all engines, not only this model's.")] = False,
) -> None:
    """Stop an engine when no client uses it any more, or at once with --now."""
    all_files = discovery.all_engine_files() if everything else (discovery.engine_files(engine_id),)
    reports = [inspect_engine(files) for files in all_files]
    running = [each for each in reports if each.info is not None and each.state is not None]
    silent = [each.state for each in reports if each.info is None and each.state is not None]
    if not running and not silent:
        typer.echo(visible_line(_others(engine_id)))
    for report in running:
        assert report.state is not None
        waits_for = _end(report.files, report.state, now=now)
        if waits_for is None:
            _fail(f"process {report.state.pid} has not stopped yet; it is still working on a step")
        if waits_for:
            typer.echo(
                f"Process {report.state.pid} has {waits_for}; it stops after the last of them. To stop it at once, add --now"
            )
        else:
            typer.echo(f"Process {report.state.pid} has stopped.")
    if silent:
        _fail("; ".join(map(silence, silent)))


@app.command()
@with_shared_options
def status(
    engine_id: EngineId,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object: pid, state, model, device, leases, memory, and more.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show all running engines; with --json, a list.")] = False,
) -> None:
    """Show whether an engine runs, and its state. Exits with 1 if it does not run."""
    all_files = discovery.all_engine_files() if everything else (discovery.engine_files(engine_id),)
    reports = [inspect_engine(files) for files in all_files]
    if everything:
        # An engine that has ended leaves its log, which names no model.
        reports = [report for report in reports if report.state is not None]
    model = "" if everything else engine_id.model
    if as_json:
        facts_by_engine = [facts_of(report, model) for report in reports]
        typer.echo(json.dumps(facts_by_engine if everything else facts_by_engine[0], indent=2))
    else:
        for report in reports:
            typer.echo(visible_line(line_of(report, model)))
        if not reports:
            typer.echo("No engine is running.")
    if all(report.info is None for report in reports):
        raise typer.Exit(1)


@app.command()
@with_shared_options
def logs(
    engine_id: EngineId,
    n_lines: Annotated[int, typer.Option("--lines", "-n", help="Number of lines to print, from the end.", min=1)] = 50,
) -> None:
    """Print the end of an engine's log. The log contains no code."""
    files = discovery.engine_files(engine_id)
    if not files.log.exists():
        typer.echo(visible_line(f"dg-lsp engine: no log for {engine_id.model} yet"), err=True)
    for line in discovery.log_tail(files, n_lines):
        typer.echo(visible_line(line))


@app.command()
@with_shared_options
def token(engine_id: EngineId) -> None:
    """Print the token that other clients of a running engine use as their API key."""
    report = inspect_engine(discovery.engine_files(engine_id))
    if report.state is None:
        start_command = shlex.join(("dg-lsp", "engine", "start", "--model", engine_id.model, "--port", "0"))
        _fail(f"no engine for {engine_id.model} is running; start one with: {start_command}")
    if report.info is None:
        _fail(silence(report.state))
    typer.echo(report.state.token)


# --- Laptop models


def _names() -> str:
    return ", ".join(model.name for model in laptop.every())


@app.command()
def pull(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help=f"A laptop model ({_names()}), auto for the first that can be downloaded unless one is pulled, or a hub "
            "id (OWNER/NAME, maybe with @REVISION); default: the configured model, or auto if that can't be fetched.",
            autocompletion=complete_model,
        ),
    ] = "",
    file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Take a laptop model from this GGUF file.", parser=named_path)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", hidden=True, help="Print the progress as JSON objects.")] = False,
) -> None:
    """Fetch a model ahead of its first use. What is there is not fetched again, and what was begun is continued."""
    source = context.get_parameter_source("model")
    is_configured = source is not None and source.name == "DEFAULT_MAP"
    if is_configured and laptop.by_name(model) is None and not model_names.is_hub_id(model):
        model = AUTO
    if model in ("", AUTO):
        laptop_models = laptop.suitable(machine.usable_card())
        laptop_models += tuple(each for each in laptop.MODELS if each.is_pulled and each not in laptop_models)
    else:
        laptop_models = tuple(each for each in laptop.every() if each.name == model)
    if not laptop_models and file is not None:
        _fail(f"--from is for a laptop model ({_names()})")

    def say(text: str, share: float) -> None:
        typer.echo(json.dumps({"text": text, "share": share}))

    try:
        with progress.shares() if not as_json else contextlib.nullcontext(say) as on_progress:
            name, folder = (
                pull_first(laptop_models, on_progress, file) if laptop_models else (model, _from_hub(model, on_progress))
            )
    except PullError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("stopped; the same command continues where it was", code=130)
    if not as_json:
        typer.echo(visible_line(f"{name} is in {folder}"))
        if name == laptop.EDIT_MODEL.name:
            typer.echo('it writes next edits; to see them: next_edit.trigger = "pause"')
        elif (used := config.read()[0].model()) != name:
            typer.echo(visible_line(f"the model in use is {used}; to use {name}: dg-lsp setup --yes {name}"))


@app.command()
def models(
    remove: Annotated[str, typer.Option("--remove", metavar="NAME", help="Remove a pulled model from the disk.")] = "",
) -> None:
    """List the models for a laptop: which are pulled, which one is used, their size, and what they give."""
    if remove:
        from dg_lsp.engine.model.pull import pulling

        if (known := laptop.by_name(remove)) is None:
            _fail(f"{remove} is not a laptop model ({_names()})")
        try:
            removed = pulling.remove(known)
        except PullError as error:
            _fail(str(error))
        return typer.echo(f"{remove} was removed" if removed else f"{remove} is not there")
    configured = config.read()[0]
    used = configured.model()
    edits = laptop.resolve_edits(configured.settings.edit_model) if configured.settings.next_edit != "off" else ""
    rows = list[tuple[str, str, str]]()
    for model in laptop.every():
        state = "not in use" if model.is_pulled else f"{size(model.n_bytes)} to pull"
        is_older = model.is_pulled and not model.is_current
        better = f" (better ones after: dg-lsp engine pull {model.name})" if is_older else ""
        rows.append((model.name, state, f"{model.promise}{better}"))
    rows.append((EMBEDDED, "not in use", laptop.EMBEDDED_GIVES))
    if all(name != used for name, *_ in rows):
        rows.append((used, "", "the configured model"))
    for name, state, gives in rows:
        typer.echo(visible_line(f"{name:24} {'in use' if name in (used, edits) else state:16} {gives}"))
    return None


def pull_first(candidates: tuple[LaptopModel, ...], on_progress: OnProgress, file: Path | None = None) -> tuple[str, Path]:
    """Return the name and folder of the first model that is pulled, or else can be downloaded; raise PullError.

    A pulled model whose weights lack this version's adapter is pulled again, and stays as it is if that fails.
    """
    try:
        from dg_lsp.engine.model.pull.pulling import pull as pull_model
    except ModuleNotFoundError as error:
        needs = f"pulling needs {error.name}, which is not installed; install it with: {install_command('engine')}"
        raise PullError(needs) from error

    there = next((model for model in candidates if model.is_pulled), None)
    failures = []
    for model in candidates if there is None else (there,):
        try:
            return model.name, pull_model(model, on_progress, file=file)
        except PullError as error:
            failures.append(str(error))
    if there is not None:
        raise PullError(f"{failures[0]}. Until then, {there.name} works as an earlier version pulled it")
    # The other models mostly fail for the same reason.
    raise PullError(f"{failures[0]}. The embedded model is used" if len(failures) > 1 else failures[0])


def _from_hub(model: str, on_progress: OnProgress) -> Path:
    if not model_names.is_hub_id(model):
        raise PullError(f"{model} can't be fetched; give a laptop model ({_names()}) or a hub id (OWNER/NAME)")
    return fetch.snapshot(model, on_progress)


# --- What the commands say and do


def _others(engine_id: EngineId) -> str:
    """Return that no such engine is running, and which others are, each with the command that ends it."""
    states = [report.state for report in map(inspect_engine, discovery.all_engine_files()) if report.state is not None]
    if not states:
        return "No engine is running."
    commands = []
    for other in (state.engine_id for state in states):
        differing = [each.name for each in fields(other) if getattr(other, each.name) != getattr(engine_id, each.name)]
        commands.append(shlex.join(["dg-lsp", "engine", "stop", *(f"--{name}={getattr(other, name)}" for name in differing)]))
    names = " and ".join(state.engine_id.model for state in states)
    return f"No engine for {engine_id.model} is running, but one for {names}. To stop it: {' && '.join(commands)}"


def _end(files: EngineFiles, state: State, *, now: bool) -> str | None:
    """End an engine; return which clients and requests it waits for, "" once it has ended, None if it takes too long."""
    n_clients = n_requests = 0
    # An engine that does not answer may have ended meanwhile. If not, its lock is still held.
    with contextlib.suppress(OSError, WireError):
        answer = call(state, "shutdown", {"when": "now" if now else "idle"})
        n_clients, n_requests = answer.integer("leases", 0), answer.integer("requests", 0)
    if not now and (n_clients or n_requests):
        return f"{counted(n_clients, 'client')} and {counted(n_requests, 'request')}"
    give_up = time.monotonic() + STOP_PATIENCE_S
    while (lock := discovery.hold(files.lock)) is None:
        if time.monotonic() >= give_up:
            return None
        time.sleep(0.05)
    lock.release()
    return ""


async def _ready(options: ConnectOptions) -> None:
    """Connect to the engine as an editor does, and show how its model is loaded. Fail if the client gives up."""
    with progress.shares() as show:

        def on_state(state: life.LifeState) -> None:
            if state.name == "loading":
                show(state.message, state.fraction)

        try:
            async with connect(options, on_state=on_state):
                pass
        except EngineError as error:
            _fail(str(error))


def facts_of(report: EngineReport, model: str) -> dict[str, object]:
    """Return the object that `status --json` prints; `model` is the name to show if no engine runs."""
    state = report.state
    pid, name = (state.pid, "silent") if state else (None, "absent")
    absent = {"pid": pid, "state": name, "model": model or report.files.name, "device": None, "leases": 0, "memory": None}
    values = report.info.values if report.info else {}
    return {**absent, **values, "address": state.address if state else None, "log": str(report.files.log)}


def line_of(report: EngineReport, model: str = "") -> str:
    """Return the line that `status` and `dg-lsp doctor` print; `model` is the name to show if no engine runs."""
    if report.info is None or report.state is None:
        name = model or report.files.name
        return f"{name}: {silence(report.state)}" if report.state else f"{name}: no engine is running"
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
    own_build = discovery.current_build()
    if state.version == own_build:
        return ""
    return f"It is from dg-lsp {state.version}, this is dg-lsp {own_build}; the next request replaces it if no client uses it."


def silence(state: State) -> str:
    """Return the sentence about an engine that does not respond."""
    if state.version != (own_build := discovery.current_build()):
        return (
            f"process {state.pid} is from dg-lsp {state.version} and does not answer {own_build}; end it with: kill {state.pid}"
        )
    return f"process {state.pid} does not respond; end it with: kill -9 {state.pid}"
