"""`dg-lsp setup`: let the user choose a model, install what it lacks, try it on a sample, and write it into the configuration.

The machine and its model servers become offers (`offers`). What the chosen one lacks are findings of `doctor`, each with its
remedy. Editors use the same command with `--json` for their own pickers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dg_lsp.cli import doctor, offers, progress
from dg_lsp.cli.command_group import command_group, print_message, reports
from dg_lsp.cli.doctor import Finding, Trial
from dg_lsp.cli.from_options import complete_model
from dg_lsp.cli.offers import Offer
from dg_lsp.cli.pull import pull_first
from dg_lsp.core.wording import size
from dg_lsp.engine.common import calibration_store
from dg_lsp.engine.model.pull import PullError
from dg_lsp.wire import config, extras, files, laptop, model_names, programs, schema
from dg_lsp.wire.settings import AUTO, EMBEDDED
from dg_lsp.wire.visible import visible, visible_line

VERSION = 1
"""The version of `--json`; incremented by incompatible changes."""

app = command_group()


class SetupError(Exception):
    """The setup can't go on. The message says why and what to do."""


@app.command()
@reports(SetupError, PullError, config.ConfigError)
def setup(
    yes: Annotated[
        str, typer.Option(metavar="MODEL", help="Choose this model without asking.", autocompletion=complete_model)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one object without asking; --yes chooses.")] = False,
    is_tried: Annotated[bool, typer.Option("--try/--no-try", help="Fill a sample with the chosen model.")] = True,
) -> None:
    """Inspect this machine, offer the models that fit, and write the choice into your configuration file.

    A laptop model that is not there yet is pulled when it is chosen. If torch is missing, it is installed first, in its CPU
    build if there is no NVIDIA GPU.
    Looks for a GPU, for Ollama and llama.cpp, and for API keys in the environment. This sends no code and no key. Any other
    server is chosen with --yes, such as vllm:URL or chat:URL#MODEL.
    Exits with 1 if the chosen model does not respond, and writes nothing then.
    """
    path = config.sources()[0][0]
    if yes:
        config.check_model(yes)
    machine = offers.detect()
    shares = calibration_store.shares().items()
    quality = {name: f"{right:.0%} of {n} answers on your code were right" for name, (right, n) in shares}
    models = [model for model in laptop.MODELS if model.is_pulled or laptop.may_pull()]
    choices = offers.offers(machine, asyncio.run(offers.running()), os.environ, quality, models)
    current = _current()
    if not as_json and not yes:
        gpus = ", ".join(f"{gpu.name} with {size(gpu.memory)}" for gpu in machine.gpus) or "no GPU"
        meaning = laptop.resolve(current)
        _show(
            f"This machine: {machine.cores} cores, {size(machine.memory)} of memory, {gpus}.",
            f"Current model: {current}{'' if meaning == current else f', which means {meaning} now'}.",
            "",
            *(line for number, offer in enumerate(choices, 1) for line in _lines(number, offer)),
        )
    # The configuration applies in every folder, so a relative path must be resolved.
    chosen = str(model_names.folder_of(yes) or yes) if yes or as_json else _ask_choice(choices)
    trial = None
    if chosen:
        prepare(path, chosen)  # a file that can't be written is reported before the test, which may take long
        _provide(chosen, may_ask=not yes, is_quiet=as_json)
        if is_tried:
            if not as_json:
                _show(f"Testing {laptop.resolve(chosen)}; the first load of a model takes a while.")
            trial = doctor.trial(config.read(None)[0], chosen)
    is_written = bool(chosen) and not (trial and trial.problem)
    if is_written:
        write_model(path, chosen)
    if as_json:
        report: dict[str, Any] = {
            "version": VERSION,
            "machine": {"cores": machine.cores, "memory": machine.memory, "gpus": [gpu[:2] for gpu in machine.gpus]},
            "file": str(path),
            "model": laptop.resolve(current),
            "offers": [{name.removeprefix("is_"): value for name, value in asdict(offer).items()} for offer in choices],
        }
        if chosen:
            tried = trial and {name: getattr(trial, name) for name in ("diff", "confidence", "problem")} | {
                "ms": round(trial.ms)
            }
            overruled = _overruled(chosen) if is_written else ""
            report |= {"written": chosen if is_written else "", "overruled": overruled, "trial": tried}
        typer.echo(json.dumps(report, indent=2))
    elif chosen:
        _print_result(path, chosen, trial)
    raise typer.Exit(int(bool(chosen) and not is_written))


def _show(*lines: str) -> None:
    for line in lines:
        typer.echo(visible_line(line))


def _lines(number: int, offer: Offer) -> list[str]:
    is_pulled_when_chosen = laptop.by_name(offer.model) is not None
    later = "downloaded when chosen" if is_pulled_when_chosen else "after these commands"
    state = "recommended" if offer.is_recommended else "" if offer.is_ready else later
    commands = [] if is_pulled_when_chosen else [f"     {command}" for command in offer.commands]
    title = f"{number}. {offer.title}{f' ({state})' if state else ''}"
    return [title, f"   {offer.where}; {offer.cost}; {offer.quality}", *commands]


def _ask_choice(choices: Sequence[Offer]) -> str:
    """Return the model that the user chooses; "" for none."""
    if sys.stdin is None or not sys.stdin.isatty():
        print_message("choose with --yes MODEL, or run this in a terminal")
        return ""
    best = next(number for number, offer in enumerate(choices, 1) if offer.is_recommended)
    while (answer := _ask(f"\nWhich one? 1 to {len(choices)}, or q", str(best))) not in ("", "q", "quit"):
        if not answer.isdecimal() or not 1 <= int(answer) <= len(choices):
            print_message(f"answer with a number from 1 to {len(choices)}, or q")
            continue
        offer = choices[int(answer) - 1]
        if offer.is_ready or laptop.by_name(offer.model) is not None:
            return offer.model
        _show("Run these commands first; the last one chooses the model:", *(f"  {command}" for command in offer.commands))
    return ""


def _ask(question: str, default: str) -> str:
    """Return the user's answer in lower case, or the default; "" if standard input ends, as after Ctrl-D, or is not text."""
    typer.echo(f"{question} [{default}]: ", nl=False, err=True)
    try:
        return input().strip().lower() or default
    except (EOFError, UnicodeDecodeError):
        typer.echo("", err=True)
        return ""


def _current() -> str:
    return config.read(config.workspace_of(Path.cwd()))[0].settings.model


def _overruled(chosen: str) -> str:
    """Return why another model than the chosen one is used in this folder, or ""."""
    current = _current()
    if current == str(model_names.folder_of(chosen) or chosen):
        return ""
    source = "DG_LSP_MODEL" if os.environ.get("DG_LSP_MODEL") else config.WORKSPACE_FILE
    return f"{source} sets {current}, which overrides it here"


def _print_result(path: Path, chosen: str, trial: Trial | None) -> None:
    if trial and trial.problem:
        print_message(trial.problem)
        print_message(f"{path} is unchanged; to choose {chosen} without a test, add --no-try")
        return
    typer.echo(f"{path} now sets engine.model = {json.dumps(chosen)}; editors use it within two seconds.")
    if chosen == AUTO and laptop.resolve(chosen) == EMBEDDED:
        _show(f"That is the {EMBEDDED} model, until you pull a laptop model: dg-lsp engine pull")
    _show(f"An editor that is not set up yet needs this command: {shutil.which('dg-lsp') or 'dg-lsp'} serve")
    if overruled := _overruled(chosen):
        _show(f"But {overruled}.")
    if trial and trial.diff:
        seconds = f"{trial.ms / 1000:.1f} s"
        typer.echo(f"\nA sample, filled in {seconds} ({trial.confidence}), and a line of it in {trial.line_ms:.0f} ms:\n")
        typer.echo(visible(trial.diff))
    elif trial:
        _show(f"A sample was not filled, after {trial.ms / 1000:.1f} s: {trial.confidence or 'there was no answer'}.")


# --- Get what a model lacks: packages, in the smallest build that fits this machine, and the model itself

# Measured on Linux, x86_64; docs/measurements.md has the commands.
_CPU_SIZE = "about 250 MB to download and 1.2 GB on the disk"
_CUDA_SIZE = "about 5 GB on the disk"


def _provide(chosen: str, *, may_ask: bool, is_quiet: bool) -> None:
    """Install the packages that a model lacks, and pull it; raise SetupError or PullError if something stays missing."""
    for finding in doctor.before_use(chosen):
        if finding.remedy == "install":
            _offer_install(chosen, finding, may_ask=may_ask)
        elif finding.remedy == "pull":
            with contextlib.nullcontext(lambda _text, _share: None) if is_quiet else progress.shares() as show:
                pull_first(tuple(model for model in laptop.MODELS if model.name == chosen), show)


def _offer_install(chosen: str, finding: Finding, *, may_ask: bool) -> None:
    names, commands, by_hand = (finding.facts[name] for name in ("absent", "commands", "command"))
    needed, advice = f": {_CUDA_SIZE}" if "torch" in names and sys.platform == "linux" else "", f"install it with: {by_hand}"
    if extras.CPU_TORCH in by_hand or "--torch-backend" in by_hand:
        needed = f": {_CPU_SIZE}, in torch's CPU build because no NVIDIA GPU was found"
        advice = (
            f"torch's CPU build ({extras.CPU_TORCH}) is in {extras.CPU_INDEX}, or in an index that you add to pip's "
            f"extra-index-url; the build with CUDA, {_CUDA_SIZE}: {extras.install_command('engine', any_torch=True)}"
        )
    print_message(f"{laptop.resolve(chosen)} needs {', '.join(names)}. Not installed yet{needed}")
    is_refused = may_ask and _ask("Install it now? y or n", "y") not in ("y", "yes")
    if is_refused or not laptop.may_pull():
        raise SetupError(f"nothing was changed; to install it yourself: {by_hand}")
    for command in commands:
        if problem := install(command):
            raise SetupError(f"{', '.join(names)} could not be installed: {problem}; {advice}; then run `dg-lsp setup` again")


def install(command: Sequence[str]) -> str:
    """Run an installer and show each line; return the last one if it fails, else ""."""
    last = ""
    try:
        with subprocess.Popen(  # noqa: S603  # pip or uv, with dg-lsp's own requirements
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=programs.FOLDER,
            env=programs.environment(),
        ) as process:
            for line in process.stdout or ():
                last = line.strip() or last
                typer.echo(visible_line(line.rstrip()), err=True)
    except OSError as error:
        return f"{error.filename} can't be run: {(error.strerror or str(error)).lower()}"
    return (last or f"exit status {process.returncode}") if process.returncode else ""


# --- Write the model into the user's configuration file, and change nothing else in it


def write_model(path: Path, model: str) -> None:
    """Set `engine.model` in a file, created if missing; raise SetupError if that fails."""
    new = prepare(path, model)
    try:
        files.write_output(path, new.encode(), new_mode=0o600)
    except OSError as error:
        raise SetupError(f"{path} can't be written: {error.strerror or error}") from error


def prepare(path: Path, model: str) -> str:
    """Return a file's text with another `engine.model`, and create the file's folder.

    Raises SetupError if the file can't be read, changed or written.
    """
    real, doing, old = Path(os.path.realpath(path)), "read", ""
    try:
        with contextlib.suppress(FileNotFoundError):
            old = files.read_regular(real, config.MAX_BYTES).decode("utf-8")
        new, doing = with_model(old, model, str(path)), "written"
        real.parent.mkdir(parents=True, exist_ok=True)
    except UnicodeDecodeError as error:
        raise SetupError(f"{path} is not UTF-8; fix or remove it") from error
    except OSError as error:
        raise SetupError(f"{path} can't be {doing}: {error.strerror or error}") from error
    if problem := files.output_problem(path):
        raise SetupError(f"{path} can't be written: {problem}")
    return new


def with_model(text: str, model: str, name: str) -> str:
    """Return a configuration file's text with another `engine.model`; raise SetupError naming the file."""
    import tomlkit  # imported here because it takes 60 ms
    from tomlkit.exceptions import TOMLKitError

    mark, body = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
    try:
        document: Any = tomlkit.parse(body)
        if "engine" not in document:
            if document:
                document.add(tomlkit.nl())
            document["engine"] = tomlkit.table()
        document["engine"]["model"] = model
        new = tomlkit.dumps(document)
        values = [value for key, value in schema.flat(tomllib.loads(new)) if schema.squeezed(key) == "engine.model"]
    except (TOMLKitError, tomllib.TOMLDecodeError, TypeError, ValueError, RecursionError) as error:
        raise SetupError(f'{name} can\'t be changed: {error}. Fix it, or set engine.model = "{model}" by hand') from error
    if values != [model]:  # only one key may set it
        raise SetupError(f'{name} sets the model in an unusual way; set engine.model = "{model}" there by hand')
    return mark + new
