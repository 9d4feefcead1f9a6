"""The commands `dg-lsp engine pull` and `dg-lsp engine models`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dg_lsp.cli import progress
from dg_lsp.cli.command_group import fail
from dg_lsp.cli.from_options import complete_model
from dg_lsp.core.wording import size
from dg_lsp.engine.model.fit import machine
from dg_lsp.engine.model.pull import PullError
from dg_lsp.wire import config, laptop, model_names
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.laptop import LaptopModel
from dg_lsp.wire.settings import AUTO, EMBEDDED
from dg_lsp.wire.visible import visible_line

OnProgress = Callable[[str, float], None]
_fail = partial(fail, who="dg-lsp engine")


def _names() -> str:
    return ", ".join(model.name for model in laptop.MODELS)


def pull(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help=f"A laptop model ({_names()}), auto for the first that can be downloaded unless one is pulled, or a hub "
            "id (OWNER/NAME); default: the configured model, or auto if that can't be fetched.",
            autocompletion=complete_model,
        ),
    ] = "",
    revision: Annotated[str, typer.Option(help="Revision of a hub model.")] = "",
    file: Annotated[Path | None, typer.Option("--from", help="Take a laptop model from this GGUF file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", hidden=True, help="Print the progress as JSON objects.")] = False,
) -> None:
    """Fetch a model ahead of its first use. What is there is not fetched again, and what was begun is continued."""
    source = context.get_parameter_source("model")
    if source is not None and source.name == "DEFAULT_MAP" and laptop.by_name(model) is None and not _is_on_hub(model):
        model = AUTO
    if model in ("", AUTO):
        laptop_models = laptop.suitable(machine.usable_card())
        laptop_models += tuple(each for each in laptop.MODELS if each.is_pulled and each not in laptop_models)
    else:
        laptop_models = tuple(each for each in laptop.MODELS if each.name == model)
    if not laptop_models and file is not None:
        _fail(f"--from is for a laptop model ({_names()})")
    try:
        with progress.shares() if not as_json else contextlib.nullcontext(_print_json) as on_progress:
            name, folder = (
                pull_first(laptop_models, on_progress, file)
                if laptop_models
                else (model, _from_hub(model, revision, on_progress))
            )
    except PullError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("stopped; the same command continues where it was", code=130)
    if not as_json:
        typer.echo(visible_line(f"{name} is in {folder}"))
        if (used := config.read()[0].model()) != name:
            typer.echo(visible_line(f"the model in use is {used}; to use {name}: dg-lsp setup --yes {name}"))


def models(
    remove: Annotated[str, typer.Option("--remove", metavar="NAME", help="Remove a pulled model from the disk.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")] = False,
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
    used = config.read()[0].model()
    rows = [(model.name, model.n_bytes, model.is_pulled, _gives(model)) for model in laptop.MODELS]
    rows.append((EMBEDDED, 0, True, laptop.EMBEDDED_GIVES))
    if as_json:
        facts = [
            {"name": name, "bytes": n_bytes, "pulled": is_pulled, "used": name == used, "gives": gives}
            for name, n_bytes, is_pulled, gives in rows
        ]
        return typer.echo(json.dumps(facts, indent=2))
    if all(name != used for name, *_ in rows):
        rows.append((used, 0, True, "the configured model"))
    for name, n_bytes, is_pulled, gives in rows:
        state = "in use" if name == used else "not in use" if is_pulled else f"{size(n_bytes)} to pull"
        typer.echo(visible_line(f"{name:20} {state:16} {gives}"))
    return None


def _gives(model: LaptopModel) -> str:
    older = model.is_pulled and not model.is_current
    return f"{model.gives} (better ones after: dg-lsp engine pull {model.name})" if older else model.gives


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


def _print_json(text: str, share: float) -> None:
    typer.echo(json.dumps({"text": text, "share": share}))
    sys.stdout.flush()


def _from_hub(model: str, revision: str, on_progress: OnProgress) -> Path:
    from dg_lsp.engine.model.weights import fetch

    if not _is_on_hub(model):
        raise PullError(f"{model} can't be fetched; give a laptop model ({_names()}) or a hub id (OWNER/NAME)")
    try:
        return fetch.snapshot(model, revision, on_progress)
    except fetch.FetchError as error:
        raise PullError(str(error)) from error


def _is_on_hub(model: str) -> bool:
    """Return whether the name has the form of a hub id."""
    elsewhere = model_names.is_remote(model) or model_names.folder_of(model) is not None
    return not elsewhere and model.count("/") == 1
