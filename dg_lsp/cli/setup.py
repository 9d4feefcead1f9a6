"""`dg-lsp setup`: let the user choose a model, install what it lacks, try it on a sample, and write it into the configuration.

Editors use the same command with `--json` for their own pickers.
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
from dg_lsp.cli.offers import KINDS, Machine, Offer, Server
from dg_lsp.cli.pull import pull_first
from dg_lsp.client.engine import connect_options
from dg_lsp.client.port import EngineError
from dg_lsp.core.wording import size
from dg_lsp.engine.common import calibration_store
from dg_lsp.engine.model.pull import PullError
from dg_lsp.wire import config, extras, files, laptop, model_names, programs, schema
from dg_lsp.wire.config import MAX_BYTES
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
    server: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND=URL", help="Look for a server here: ollama, llama, vllm or chat. Repeatable."),
    ] = None,
    is_tried: Annotated[bool, typer.Option("--try/--no-try", help="Fill a sample with the chosen model.")] = True,
) -> None:
    """Inspect this machine, offer the models that fit, and write the choice into your configuration file.

    A laptop model that is not there yet is pulled when it is chosen. If torch is missing, it is installed first, in its CPU
    build if there is no NVIDIA GPU.
    Looks for a GPU, for Ollama, llama.cpp, vLLM and chat servers (LM Studio, SGLang), and for API keys in the environment.
    This sends no code and no key.
    Exits with 1 if the chosen model does not respond, and writes nothing then.
    """
    path = config.sources()[0][0]
    named = [_place(option) for option in server or ()]
    if yes:
        config.check_model(yes)
    machine = offers.detect()
    usual = [(kind, url) for kind, row in KINDS.items() if kind not in dict(named) for url in row.urls]
    answers = asyncio.run(offers.look([*named, *usual]))
    for (_, url), answer in zip(named, answers, strict=False):
        if isinstance(answer, str):
            print_message(f"{url} {answer}")
    running = tuple(answer for answer in answers if isinstance(answer, Server))
    shares = calibration_store.shares().items()
    quality = {name: f"{right:.0%} of {n} answers on your code were right" for name, (right, n) in shares}
    models = [model for model in laptop.MODELS if model.is_pulled or laptop.may_pull()]
    choices = offers.offers(machine, running, os.environ, quality, models)
    if not as_json and not yes:
        _show(machine, running, choices)
    # The configuration applies in every folder, so a relative path must be resolved.
    chosen = str(model_names.folder_of(yes) or yes) if yes or as_json else _ask_choice(choices)
    trial = None
    if chosen:
        prepare(path, chosen)  # a file that can't be written is reported before the test, which may take long
        _provide(chosen, may_ask=not yes, is_quiet=as_json)
        trial = _try(chosen, is_quiet=as_json) if is_tried else None
    is_written = bool(chosen) and not isinstance(trial, str)
    if is_written:
        write_model(path, chosen)
    if as_json:
        typer.echo(json.dumps(_report(path, machine, choices, chosen, trial, is_written=is_written), indent=2))
    elif chosen:
        _print_result(path, chosen, trial)
    raise typer.Exit(int(bool(chosen) and not is_written))


def _place(option: str) -> tuple[str, str]:
    """Return the kind and the URL of a server that the user names."""
    kind, _, url = option.partition("=")
    # Without a kind, the address stands before the first "=".
    if any(model_names.has_password(f"vllm:{part}") for part in (option, kind, url)):
        raise SetupError(f"--server {config.NO_PASSWORD}")
    if kind not in KINDS or model_names.address_of(url) is None:
        raise SetupError(f"--server {option} must be KIND=URL, where KIND is {', '.join(KINDS)}")
    return kind, url.rstrip("/")


def _report(
    path: Path, machine: Machine, choices: Sequence[Offer], chosen: str, trial: Trial | str | None, *, is_written: bool
) -> dict[str, Any]:
    """Return the object of `--json`: the machine, the user's file, the model before, the offers, and what was chosen."""
    gpus = [[gpu.name, gpu.memory] for gpu in machine.gpus]
    report = {
        "version": VERSION,
        "machine": {"cores": machine.cores, "memory": machine.memory, "gpus": gpus},
        "file": str(path),
        "model": laptop.resolve(_current()),
        "offers": [{name.removeprefix("is_"): value for name, value in asdict(offer).items()} for offer in choices],
    }
    if not chosen:
        return report
    tried: dict[str, Any] | None = None
    if isinstance(trial, str):
        tried = {"diff": "", "confidence": "", "ms": 0, "problem": trial}
    elif trial:
        tried = {"diff": trial.diff, "confidence": trial.confidence, "ms": round(trial.ms), "problem": ""}
    overruled = _overruled(chosen) if is_written else ""
    return {**report, "written": chosen if is_written else "", "overruled": overruled, "trial": tried}


def _show(machine: Machine, running: Sequence[Server], choices: Sequence[Offer]) -> None:
    gpus = ", ".join(f"{gpu.name} with {size(gpu.memory)}" for gpu in machine.gpus) or "no GPU"
    names = ", ".join(f"{KINDS[server.kind].name} at {server.url}" for server in running) or "none"
    current = _current()
    meaning = "" if laptop.resolve(current) == current else f", which means {laptop.resolve(current)} now"
    lines = [
        f"This machine: {machine.cores} cores, {size(machine.memory)} of memory, {gpus}.",
        f"Running model servers: {names}.",
        f"Current model: {current}{meaning}.",
        "",
    ]
    for number, offer in enumerate(choices, 1):
        is_pulled_when_chosen = laptop.by_name(offer.model) is not None
        later = "downloaded when chosen" if is_pulled_when_chosen else "after these commands"
        state = "recommended" if offer.is_recommended else "" if offer.is_ready else later
        lines.append(f"{number}. {offer.title}{f' ({state})' if state else ''}")
        lines.append(f"   {offer.where}; {offer.cost}; {offer.quality}")
        lines += [f"     {command}" for command in offer.commands if not is_pulled_when_chosen]
    for line in lines:
        typer.echo(visible_line(line))


def _ask_choice(choices: Sequence[Offer]) -> str:
    """Return the model that the user chooses; "" for none."""
    if not can_ask():
        print_message("choose with --yes MODEL, or run this in a terminal")
        return ""
    best = next(number for number, offer in enumerate(choices, 1) if offer.is_recommended)
    while True:
        answer = ask(f"\nWhich one? 1 to {len(choices)}, or q", end="q", default=str(best)).strip()
        if answer.lower() in ("q", "quit"):
            return ""
        if not answer.isdecimal() or not 1 <= int(answer) <= len(choices):
            print_message(f"answer with a number from 1 to {len(choices)}, or q")
            continue
        offer = choices[int(answer) - 1]
        if offer.is_ready or laptop.by_name(offer.model) is not None:
            return offer.model
        typer.echo("Run these commands first; the last one chooses the model:")
        for command in offer.commands:
            typer.echo(visible_line(f"  {command}"))


def can_ask() -> bool:
    """Return whether a user can answer questions: standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def ask(question: str, *, end: str, default: str | None = None) -> str:
    """Return the user's answer; `end` if standard input ends, as after Ctrl-D. Raises KeyboardInterrupt on Ctrl-C."""
    suffix = f" [{default}]: " if default else ": "
    typer.echo(question + suffix, nl=False, err=True)
    try:
        answer = input()
    except EOFError:
        typer.echo("", err=True)
        return end
    except UnicodeDecodeError:
        return ""
    return answer or default or ""


def _current() -> str:
    return config.read(config.workspace_of(Path.cwd()))[0].settings.model


def _overruled(chosen: str) -> str:
    """Return why another model than the chosen one is used in this folder, or ""."""
    current = _current()
    if current == str(model_names.folder_of(chosen) or chosen):
        return ""
    source = "DG_LSP_MODEL" if os.environ.get("DG_LSP_MODEL") else config.WORKSPACE_FILE
    return f"{source} sets {current}, which overrides it here"


def _try(model: str, *, is_quiet: bool) -> Trial | str:
    """Return the result of a sample fill with the model, or why it can't be used."""
    if not is_quiet:
        typer.echo(visible_line(f"Testing {laptop.resolve(model)}; the first load of a model takes a while."))
    try:
        return asyncio.run(doctor.trial(connect_options(config.read(None)[0], model=model, interactive=False)))
    except EngineError as error:
        return str(error)


def _print_result(path: Path, chosen: str, trial: Trial | str | None) -> None:
    if isinstance(trial, str):
        print_message(trial)
        print_message(f"{path} is unchanged; to choose {chosen} without a test, add --no-try")
        return
    typer.echo(f"{path} now sets engine.model = {json.dumps(chosen)}; editors use it within two seconds.")
    if chosen == AUTO and laptop.resolve(chosen) == EMBEDDED:
        typer.echo(f"That is the {EMBEDDED} model, until you pull a laptop model: dg-lsp engine pull")
    typer.echo(visible_line(f"An editor that is not set up yet needs this command: {shutil.which('dg-lsp') or 'dg-lsp'} serve"))
    if overruled := _overruled(chosen):
        typer.echo(visible_line(f"But {overruled}."))
    if trial is None:
        return
    seconds = f"{trial.ms / 1000:.1f} s"
    if trial.diff:
        typer.echo(f"\nA sample, filled in {seconds} ({trial.confidence}), and a line of it in {trial.line_ms:.0f} ms:\n")
        typer.echo(visible(trial.diff))
    else:
        why = trial.confidence or "there was no answer"
        typer.echo(visible_line(f"A sample was not filled, after {seconds}: {why}."))


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
    names, by_hand = finding.facts["absent"], finding.facts["command"]
    remote = doctor.remote_install_commands(chosen, names)
    is_cpu = extras.has_useless_cuda() and not remote
    needed = f": {_CPU_SIZE}, in torch's CPU build because no NVIDIA GPU was found" if is_cpu else ""
    if not is_cpu and not remote and sys.platform == "linux":
        needed = f": {_CUDA_SIZE}"
    print_message(f"{laptop.resolve(chosen)} needs {', '.join(names)}. Not installed yet{needed}")
    is_refused = may_ask and ask("Install it now? y or n", end="n", default="y").lower() not in ("y", "yes")
    if is_refused or not laptop.may_pull():
        raise SetupError(f"nothing was changed; to install it yourself: {by_hand}")
    if is_cpu:
        by_hand += f"; or, with {_CUDA_SIZE}: {extras.install_command('engine', any_torch=True)}"
    install(remote or extras.install_commands(*extras.requirements("engine")), names, by_hand)


def install(commands: Sequence[Sequence[str]], names: Sequence[str], by_hand: str) -> None:
    """Run an installer's commands and show each line; raise SetupError, with the commands for the user, if one fails."""
    advice = f"install it with: {by_hand}; then run `dg-lsp setup` again"
    for command in commands:
        lines = []
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
                    lines.append(line.strip())
                    typer.echo(visible_line(line.rstrip()), err=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise SetupError(f"{error.filename} can't be run: {reason}; {advice}") from error
        if process.returncode:
            last = next(filter(None, reversed(lines)), f"exit status {process.returncode}")
            # The command that failed is no advice.
            if extras.CPU_TORCH in command or "--torch-backend" in command:
                raise SetupError(
                    f"torch's CPU build ({extras.CPU_TORCH}) could not be installed: neither the configured index nor "
                    f"{extras.CPU_INDEX} gave it ({last}). Add an index that has it to pip's extra-index-url, or install the "
                    f"build with CUDA, {_CUDA_SIZE}: {extras.install_command('engine', any_torch=True)}; then run "
                    "`dg-lsp setup` again"
                )
            raise SetupError(f"{', '.join(names)} could not be installed: {last}; {advice}")


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
    try:
        old = files.read_regular(Path(os.path.realpath(path)), MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        old = ""
    except UnicodeDecodeError as error:
        raise SetupError(f"{path} is not UTF-8; fix or remove it") from error
    except OSError as error:
        raise SetupError(f"{path} can't be read: {error.strerror or error}") from error
    new = with_model(old, model, str(path))
    try:
        Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"{path} can't be written: {error.strerror or error}") from error
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
        engine = document.get("engine")
        if engine is None:
            table = tomlkit.table()
            table["model"] = model
            if document:
                document.add(tomlkit.nl())
            document["engine"] = table
        else:
            engine["model"] = model
        new = tomlkit.dumps(document)
        after = tomllib.loads(new)
    except (TOMLKitError, tomllib.TOMLDecodeError, TypeError, ValueError, RecursionError) as error:
        raise SetupError(f'{name} can\'t be changed: {error}. Fix it, or set engine.model = "{model}" by hand') from error
    values, _ = schema.parse({key: value for key, value in after.items() if key != "keys"})
    # Only one key may set it.
    if values.get("model") != model or [schema.squeezed(key) for key, _ in schema.flat(after)].count("engine.model") != 1:
        raise SetupError(f'{name} sets the model in an unusual way; set engine.model = "{model}" there by hand')
    return mark + new
