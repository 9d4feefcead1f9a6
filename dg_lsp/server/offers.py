"""Offer to pull a laptop model, and pull it in a process of its own while the embedded model serves.

An editor that shows offers itself gets this one in the status, where no key of a user who is typing can answer it. Its users
pull with the command `dgLsp.pull`. In other editors the server asks a question.
The user's choice holds for all editors: it is a file in the user's state folder. A pull that the user accepted is continued in
the next session if the editor was closed. This module knows the protocol's question and progress bar. `model.pull` does the
work; the server notices by itself that `auto` means another model then.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidParams

from dg_lsp.core.place import last_line
from dg_lsp.core.wording import size
from dg_lsp.wire import files, laptop, programs
from dg_lsp.wire.laptop import LaptopModel

if TYPE_CHECKING:
    from dg_lsp.server.session import DgLanguageServer

log = logging.getLogger(__name__)

PULL_COMMAND: tuple[str, ...] = (*programs.OURSELVES, "engine", "pull")

DOWNLOAD, LATER, NEVER = "Download", "Not now", "Never"
LATER_DAYS = 7
REMINDER_DAYS = 1
"""An offer that asks nothing may be missed, so it comes again the next day."""
MAX_BYTES = 1 << 16


async def offer(server: DgLanguageServer) -> None:
    """Offer the best laptop model for this machine, unless the user has chosen before; pull it if the user agrees."""
    model = laptop.offered(server.settings.model, server.card_bytes)
    if model is None:
        return
    choice = await asyncio.to_thread(read_choice)
    if accepted := laptop.by_name(str(choice.get("accepted"))):
        await pull(server, accepted, is_continued=True)
        return
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    if choice.get("never") is True or str(choice.get("not_before", "")) > today:
        return
    # Written before the question, so that a second editor does not ask as well.
    days = REMINDER_DAYS if server.client.shows_offers else LATER_DAYS
    if not await asyncio.to_thread(write_choice, _later(days)):
        return
    if server.client.shows_offers:
        if current := server.reporter.status.offer:
            server.reporter.update(offer=msgspec.structs.replace(current, is_new=True))
        return
    question = (
        f"dg-lsp: download the model {model.name} ({size(model.n_bytes)}, once)? It gives {model.promise}. It comes from "
        f"{model.places}, and only the file's known SHA-256 is trusted. It runs on this machine only. Until it is there, the "
        "small model that came with dg-lsp makes the suggestions."
    )
    answer = await server.ask(lsp.MessageType.Info, question, DOWNLOAD, LATER, NEVER)
    if answer == NEVER:
        await asyncio.to_thread(write_choice, {"never": True})
    elif answer == DOWNLOAD:
        await _accept(server, model)


async def execute(server: DgLanguageServer, choice: object) -> None:
    """Do what the user chose: `download` starts to pull the offered model, and `never` ends the offers."""
    if choice == "never":
        await asyncio.to_thread(write_choice, {"never": True})
    elif choice != "download":
        raise JsonRpcInvalidParams(f"unknown choice {choice!r}; use one of download, never")
    elif server.is_pulling:
        server.show_message("a model is being downloaded already")
    elif (model := laptop.offered(server.settings.model, server.card_bytes)) is None:
        server.show_message(f"no better model than {server.reporter.status.model} is offered here; to choose one: dg-lsp setup")
    else:
        server.is_pulling = True  # before the task begins, because the command may be sent twice
        server.spawn(_accept(server, model))


async def _accept(server: DgLanguageServer, model: LaptopModel) -> None:
    await asyncio.to_thread(write_choice, {**_later(), "accepted": model.name})
    await pull(server, model)


async def pull(server: DgLanguageServer, model: LaptopModel, *, is_continued: bool = False) -> None:
    """Pull a model in another process, with a progress bar, and use it when it is there.

    A pull that is continued from an earlier session says nothing if it fails, for example because there is no network.
    """
    server.is_pulling = True
    try:
        await _pull(server, model, is_continued=is_continued)
    finally:
        server.is_pulling = False


async def _pull(server: DgLanguageServer, model: LaptopModel, *, is_continued: bool) -> None:
    process: asyncio.subprocess.Process | None = None
    is_cancelled = False

    def cancel() -> None:
        nonlocal is_cancelled
        is_cancelled = True
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async with server.bar(f"Downloading {model.name}", cancel) as report:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(*PULL_COMMAND, model.name, "--json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            cwd=programs.FOLDER,
            env=programs.environment(**programs.keys(*programs.DOWNLOADS)),
        )
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async for line in process.stdout:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    said = json.loads(line)
                    # The bar's title names the model, and editors cut long texts.
                    report(str(said["text"]).removeprefix(f"downloading {model.name}: "), float(said["share"]))
            errors = (await process.stderr.read()).decode("utf-8", "replace").strip()
            code = await process.wait()
        finally:
            # When the editor ends, so does the download; the next session continues it.
            if process.returncode is None:
                cancel()
    if is_cancelled or not code:
        # Not accepted any more, so that a model that the user removes is not pulled again.
        await asyncio.to_thread(write_choice, _later())
    if is_cancelled:
        server.show_message(f"{model.name} was not downloaded; to continue: dg-lsp engine pull {model.name}")
    elif code:
        sentence = last_line(errors).removeprefix("dg-lsp engine: ") or f"{model.name} can't be pulled"
        log.warning("%s", sentence)
        if not is_continued:
            await server.tell(sentence)
    else:
        server.look_for_model()
        server.show_message(f"{model.name} is there and makes the suggestions from now on")


def choice_file() -> Path:
    import platformdirs

    return Path(platformdirs.user_state_dir("dg-lsp", appauthor=False)) / "pull-offer.json"


def read_choice() -> Mapping[str, Any]:
    """Return the user's choice: `never`, `not_before` a day, or the name of the model that was `accepted`."""
    try:
        values = json.loads(files.read_regular(choice_file(), MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def write_choice(choice: Mapping[str, Any]) -> bool:
    """Write the user's choice, whose `never` stays; return whether that was possible."""
    if read_choice().get("never") is True:
        choice = {**choice, "never": True}
    try:
        choice_file().parent.mkdir(parents=True, exist_ok=True)
        files.replace(choice_file(), json.dumps(choice).encode() + b"\n")
    except OSError as error:
        log.info("the choice about laptop models can't be stored: %s", error)
        return False
    return True


def _later(days: int = LATER_DAYS) -> dict[str, Any]:
    return {"not_before": (datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days)).isoformat()}
