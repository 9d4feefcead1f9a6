"""`dg-lsp setup`: from the command line to a choice of model, its line in the user's file, and a fill to see that it works.

Editors use the same command with `--json` for their own pickers.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dg_lsp.batch.commands import say
from dg_lsp.engine.entry import ENGINE_COMMAND
from dg_lsp.wire import config, model_names
from dg_lsp.wire.settings import EMBEDDED
from dg_lsp.wire.visible import visible

if TYPE_CHECKING:
    from dg_lsp.batch.setup.machine import Machine
    from dg_lsp.batch.setup.offers import Key, Offer
    from dg_lsp.batch.setup.servers import Place, Server
    from dg_lsp.batch.setup.trial import Trial

VERSION = 1
"""Grows when `--json` changes so that an older editor would misread it."""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def setup(
    yes: Annotated[str, typer.Option(metavar="MODEL", help="Choose this model, and ask nothing.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one object, and ask nothing; --yes chooses.")] = False,
    server: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND=URL", help="Look for a server here: ollama, llama, vllm or chat. Repeatable."),
    ] = None,
    trial: Annotated[bool, typer.Option("--try/--no-try", help="Fill a sample with the model that was chosen.")] = True,
) -> None:
    """Look at what this machine has, offer the models that fit, and write the choice into your configuration file.

    Looks for a GPU, for Ollama, llama.cpp, vLLM and chat servers (LM Studio, SGLang), and for API keys in the environment.
    Sends no code and no key for that.
    Ends with 1 when the model that was chosen does not answer.
    """
    from dg_lsp.batch.setup import machine, offers, servers
    from dg_lsp.batch.setup.user_file import UserFileError, write_model

    path = config.sources()[0][0]
    try:
        places = _places(server or ())
        chosen = _checked(yes) if yes else ""
        found = machine.look()
        running = asyncio.run(servers.look(places))
        choices = offers.offers(found, running, _keys(), _measured(), _programs())
        if not as_json and not chosen:
            _show(found, running, choices)
            chosen = _asked(choices)
        if chosen:
            write_model(path, chosen)
    except (UserFileError, _SetupError) as error:
        say(str(error))
        raise typer.Exit(2) from error
    tried = _tried(chosen, quiet=as_json) if chosen and trial else None
    if as_json:
        about = {"cores": found.cores, "memory": found.memory, "gpus": [[gpu.name, gpu.memory] for gpu in found.gpus]}
        stated: dict[str, Any] = {"version": VERSION, "machine": about, "file": str(path), "model": _current()}
        stated["offers"] = [offer.to_json() for offer in choices]
        if chosen:
            stated |= {"written": chosen, "overruled": _overruled(chosen), "trial": tried.to_json() if tried else None}
        typer.echo(json.dumps(stated, indent=2))
    elif chosen:
        _tell(path, chosen, tried)
    raise typer.Exit(int(tried is not None and bool(tried.problem)))


class _SetupError(Exception):
    """What was asked for can't be done; the message is a sentence."""


def _places(stated: Sequence[str]) -> tuple[Place, ...]:
    """Return where to look for servers: the named places, and the usual ones of the kinds that none is named of."""
    from dg_lsp.batch.setup import servers

    named = []
    for each in stated:
        kind, _, url = each.partition("=")
        if kind not in servers.KINDS or model_names.address_of(url) is None:
            raise _SetupError(f"--server {each} must be KIND=URL, where KIND is {', '.join(servers.KINDS)}")
        named.append(servers.Place(next(known for known in servers.KINDS if known == kind), url.rstrip("/")))
    kinds = {place.kind for place in named}
    return (*named, *(place for place in servers.PLACES if place.kind not in kinds))


def _checked(model: str) -> str:
    """Return the model's name; raise _SetupError for one that means nothing."""
    if not model.strip() or not model.isprintable():
        raise _SetupError("--yes needs a model's name")
    if model_names.has_password(model):
        raise _SetupError(f"the model's URL {config.NO_PASSWORD}")
    try:
        if model_names.is_remote(model):
            remote = model_names.parse_remote(model)
            if None in remote.addresses:
                raise _SetupError(f"{model} names no server; a remote model is named {model_names.HELP}")
    except model_names.ModelNameError as error:
        raise _SetupError(str(error)) from error
    folder = model_names.folder_of(model)
    if folder is not None and not folder.is_dir():
        raise _SetupError(f"there is no folder {folder}")
    # The file is read from other folders, where a relative path would mean something else.
    return str(folder or model)


def _keys() -> tuple[Key, ...]:
    """Return the services whose key is in the environment."""
    from dg_lsp.batch.setup.offers import Key
    from dg_lsp.engine.backends.fim import DIALECTS

    return tuple(
        Key(dialect.name, dialect.variable, address.name, dialect.caps.needs_model and not dialect.model)
        for dialect in DIALECTS
        if dialect.variable
        and os.environ.get(dialect.variable, "").strip()
        and (address := model_names.address_of(dialect.url)) is not None
    )


def _measured() -> dict[str, str]:
    """Return what `dg-lsp calibrate` has measured, by the model's name."""
    from dg_lsp.engine import calibration_store

    return {
        name: f"{right:.0%} of {n} answers on your code were right" for name, (right, n) in calibration_store.shares().items()
    }


def _programs() -> frozenset[str]:
    return frozenset(name for name in ("ollama", "llama-server") if shutil.which(name))


def _show(found: Machine, running: Sequence[Server], choices: Sequence[Offer]) -> None:
    from dg_lsp.batch.setup.offers import NAMES, size

    gpus = ", ".join(f"{gpu.name} with {size(gpu.memory)}" for gpu in found.gpus) or "no GPU"
    typer.echo(f"This machine: {found.cores} cores, {size(found.memory)} of memory, {visible(gpus)}.")
    answering = ", ".join(f"{NAMES[server.place.kind]} at {server.place.url}" for server in running) or "none"
    typer.echo(f"Model servers that answer: {answering}.")
    typer.echo(f"Now: {_current()}.\n")
    for number, offer in enumerate(choices, 1):
        state = "recommended" if offer.is_recommended else "" if offer.is_ready else "after these commands"
        typer.echo(f"{number}. {offer.title}{f' ({state})' if state else ''}")
        typer.echo(f"   {offer.where}; {offer.cost}; {offer.quality}")
        for command in offer.commands:
            typer.echo(f"     {command}")


def _asked(choices: Sequence[Offer]) -> str:
    """Return the model that the user chooses, "" for none."""
    if not sys.stdin.isatty():
        say("choose with --yes MODEL, or run this in a terminal")
        return ""
    best = next(number for number, offer in enumerate(choices, 1) if offer.is_recommended)
    while True:
        answer = str(typer.prompt(f"\nWhich one? 1 to {len(choices)}, or q", default=str(best))).strip()
        if answer.lower() in ("q", "quit"):
            return ""
        if answer.isdecimal() and 1 <= int(answer) <= len(choices):
            offer = choices[int(answer) - 1]
            if offer.is_ready:
                return offer.model
            typer.echo("Run these first; the last one chooses it:")
            for command in offer.commands:
                typer.echo(f"  {command}")
        else:
            say(f"answer with a number from 1 to {len(choices)}, or q")


def _current() -> str:
    return config.read(config.workspace_of(Path.cwd()))[0].settings.model


def _overruled(chosen: str) -> str:
    """Return why another model counts here than the one that was written, "" where none does."""
    current = _current()
    if current == (str(model_names.folder_of(chosen) or chosen)):
        return ""
    source = "DG_LSP_MODEL" if os.environ.get("DG_LSP_MODEL") else config.WORKSPACE_FILE
    return f"{source} names {current}, which counts before it here"


def _tried(model: str, *, quiet: bool) -> Trial:
    """Return what came of a sample fill with the model."""
    from dg_lsp.batch.setup import trial
    from dg_lsp.infill.config import connect_options
    from dg_lsp.infill.port import EngineError

    if not quiet:
        typer.echo(f"Trying {model}; a model that is loaded for the first time takes a while.")
    configured = config.read(None)[0]
    try:
        return asyncio.run(trial.take(connect_options(configured, command=ENGINE_COMMAND, model=model)))
    except EngineError as error:
        return trial.Trial(problem=str(error))


def _tell(path: Path, chosen: str, tried: Trial | None) -> None:
    typer.echo(f"{path} says engine.model = {json.dumps(chosen)} now; editors use it within two seconds.")
    if overruled := _overruled(chosen):
        typer.echo(f"But {overruled}.")
    if tried is None:
        return
    if tried.problem:
        say(f"{tried.problem}; dg-lsp setup --yes {EMBEDDED} goes back to the model that always works")
        return
    typer.echo(f"\nA sample, filled in {tried.ms / 1000:.1f} s ({tried.confidence}):\n")
    typer.echo(visible(tried.diff) if tried.diff else "The model had no answer for it.")
