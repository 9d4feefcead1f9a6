"""`dg-lsp setup`: let the user choose a model, install what it lacks, write it into the configuration, and try it on a sample.

Editors use the same command with `--json` for their own pickers.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from dg_lsp.cli import completions, doctor, offers, progress, sample
from dg_lsp.cli.command_group import command_group, print_message, reports
from dg_lsp.cli.doctor import Finding
from dg_lsp.cli.offers import HERE, NAMES, Endpoint, Key, Machine, Offer, Server
from dg_lsp.cli.pull import pull_first
from dg_lsp.cli.sample import Trial
from dg_lsp.cli.terminal import ask, can_ask
from dg_lsp.client.engine import connect_options
from dg_lsp.client.port import EngineError
from dg_lsp.core.wording import size
from dg_lsp.engine.backends.fim import DIALECTS
from dg_lsp.engine.common import calibration_store
from dg_lsp.engine.model.pull import PullError
from dg_lsp.wire import config, extras, files, laptop, model_names, programs, schema
from dg_lsp.wire.config import MAX_BYTES
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.settings import AUTO, EMBEDDED
from dg_lsp.wire.visible import visible, visible_line

VERSION = 1
"""The version of `--json`; incremented by incompatible changes."""

MEASURED_LINGER_S = 10.0

app = command_group()


class SetupError(Exception):
    """The setup can't go on. The message says why and what to do."""


# Long, because a third of it declares the options.
@app.command()
@reports(SetupError, PullError, config.ConfigError)
def setup(
    yes: Annotated[
        str, typer.Option(metavar="MODEL", help="Choose this model without asking.", autocompletion=completions.model)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one object without asking; --yes chooses.")] = False,
    server: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND=URL", help="Look for a server here: ollama, llama, vllm or chat. Repeatable."),
    ] = None,
    trial: Annotated[bool, typer.Option("--try/--no-try", help="Fill a sample with the chosen model.")] = True,
    measure: Annotated[
        bool | None,
        typer.Option("--measure/--no-measure", help="Time a sample line and block with each local model that is ready. [auto]"),
    ] = None,
) -> None:
    """Inspect this machine, offer the models that fit, and write the choice into your configuration file.

    A laptop model that is not there yet is pulled when it is chosen. If torch is missing, it is installed first, in its CPU
    build if there is no NVIDIA GPU.
    Looks for a GPU, for Ollama, llama.cpp, vLLM and chat servers (LM Studio, SGLang), and for API keys in the environment.
    This sends no code and no key.
    Exits with 1 if the chosen model does not respond, and writes nothing then.
    """
    path = config.sources()[0][0]
    endpoints = _endpoints(server or ())
    chosen = yes
    if yes:
        config.check_model(yes)
        # The configuration applies in every folder, so a relative path must be resolved.
        chosen = str(model_names.folder_of(yes) or yes)
    this_machine = offers.detect()
    answers = asyncio.run(offers.look(endpoints))
    running = tuple(answer for answer in answers if isinstance(answer, Server))
    for endpoint, answer in zip(endpoints[: len(server or ())], answers, strict=False):
        if isinstance(answer, str):
            print_message(f"{endpoint.url} {answer}")
    candidates = [model for model in laptop.MODELS if model.is_pulled or laptop.may_pull()]
    programs = [name for name in ("ollama", "llama-server") if shutil.which(name)]
    measured = {
        name: f"{right:.0%} of {n} answers on your code were right" for name, (right, n) in calibration_store.shares().items()
    }
    choices = offers.offers(this_machine, running, _keys(), measured, programs, candidates)
    if measure or (measure is None and can_ask() and not as_json and not chosen and not doctor.engine_packages().advice):
        choices = _with_speeds(choices)
    if not as_json and not chosen:
        _show(this_machine, running, choices)
        chosen = _ask_choice(choices)
    if chosen:
        prepare(path, chosen)  # a file that can't be written is reported before the test, which may take long
        for finding in doctor.before_use(chosen):
            if finding.remedy == "install":
                _install(chosen, finding, may_ask=not yes)
            elif finding.remedy == "pull":
                with contextlib.nullcontext(lambda _text, _share: None) if as_json else progress.shares() as show:
                    pull_first(tuple(model for model in laptop.MODELS if model.name == chosen), show)
    trial_result = _try_model(chosen, quiet=as_json) if chosen and trial else None
    is_written = bool(chosen) and not (trial_result and trial_result.problem)
    if is_written:
        write_model(path, chosen)
    if as_json:
        report = _report(path, this_machine, choices)
        if chosen:
            trial_facts = {**asdict(trial_result), "ms": round(trial_result.ms)} if trial_result else None
            overruled = _overruled(chosen) if is_written else ""
            report |= {"written": chosen if is_written else "", "overruled": overruled, "trial": trial_facts}
        typer.echo(json.dumps(report, indent=2))
    elif chosen:
        _print_result(path, chosen, trial_result)
    raise typer.Exit(int(bool(chosen) and not is_written))


def _endpoints(options: Sequence[str]) -> tuple[Endpoint, ...]:
    """Return where to look for servers: the named endpoints, and the default ones of all other kinds."""
    named_endpoints = []
    for each in options:
        kind, _, url = each.partition("=")
        # Without a kind, the address stands before the first "=".
        if any(model_names.has_password(f"vllm:{part}") for part in (each, kind, url)):
            raise SetupError(f"--server {config.NO_PASSWORD}")
        if kind not in offers.KINDS or model_names.address_of(url) is None:
            raise SetupError(f"--server {each} must be KIND=URL, where KIND is {', '.join(offers.KINDS)}")
        named_endpoints.append(Endpoint(next(each for each in offers.KINDS if each == kind), url.rstrip("/")))
    kinds = {endpoint.kind for endpoint in named_endpoints}
    return (*named_endpoints, *(endpoint for endpoint in offers.ENDPOINTS if endpoint.kind not in kinds))


def _report(path: Path, this_machine: Machine, choices: Sequence[Offer]) -> dict[str, Any]:
    """Return the object of `--json` before a choice: the machine, the user's file, the current model and the offers."""
    gpus = [[gpu.name, gpu.memory] for gpu in this_machine.gpus]
    about = {"cores": this_machine.cores, "memory": this_machine.memory, "gpus": gpus}
    offers = [{name.removeprefix("is_"): value for name, value in asdict(offer).items()} for offer in choices]
    return {"version": VERSION, "machine": about, "file": str(path), "model": laptop.resolve(_current()), "offers": offers}


def _keys() -> tuple[Key, ...]:
    """Return the services whose key is in the environment."""
    return tuple(
        Key(dialect.name, dialect.variable, address.name, dialect.caps.needs_model and not dialect.model)
        for dialect in DIALECTS
        if dialect.variable
        and os.environ.get(dialect.variable, "").strip()
        and (address := model_names.address_of(dialect.url)) is not None
    )


def _with_speeds(choices: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return the offers with the measured speed of those that are ready on this machine."""
    configured, measured = config.read(None)[0], list(choices)
    for number, offer in enumerate(choices):
        if offer.is_ready and offer.where == HERE:
            print_message(f"measuring {laptop.resolve(offer.model)}")
            options = connect_options(configured, model=offer.model)
            try:
                # An engine that is not chosen ends soon.
                ending_soon = replace(options, settings=replace(options.settings, exit_after_s=MEASURED_LINGER_S))
                line_ms, block_ms = asyncio.run(sample.measure(ending_soon))
                measured[number] = replace(offer, speed=f"{line_ms:.0f} ms for a line, {block_ms:.0f} ms for a block")
            except EngineError as error:
                measured[number] = replace(offer, speed=f"not usable now: {error}")
    return tuple(measured)


def _install(chosen: str, finding: Finding, *, may_ask: bool) -> None:
    """Install the packages that a model lacks; raise SetupError if they stay missing."""
    is_remote = chosen.startswith("vllm:")
    needed_size = _CUDA_SIZE if sys.platform == "linux" and not is_remote else ""
    if extras.has_useless_cuda() and not is_remote:
        needed_size = f"{_CPU_SIZE}, in torch's CPU build because no NVIDIA GPU was found"
    absent = finding.facts["absent"]
    commands = doctor.remote_install_commands(absent) if is_remote else None
    by_hand = " && ".join(map(shlex.join, commands)) if commands else install_command("engine")
    names = ", ".join(absent)
    print_message(f"{laptop.resolve(chosen)} needs {names}. Not installed yet{f': {needed_size}' if needed_size else ''}")
    refused = not laptop.may_pull() or (
        may_ask and ask("Install it now? y or n", end="n", default="y").lower() not in ("y", "yes")
    )
    if refused:
        raise SetupError(f"nothing was changed; to install it yourself: {by_hand}")

    def show_line(line: str) -> None:
        typer.echo(visible_line(line), err=True)

    if commands:
        _run(
            commands, f"{names} could not be installed", f"install it with: {by_hand}; then run `dg-lsp setup` again", show_line
        )
    else:
        install_packages(absent, show_line)


def _show(machine: Machine, running: Sequence[Server], choices: Sequence[Offer]) -> None:
    gpus = ", ".join(f"{gpu.name} with {size(gpu.memory)}" for gpu in machine.gpus) or "no GPU"
    typer.echo(f"This machine: {machine.cores} cores, {size(machine.memory)} of memory, {visible_line(gpus)}.")
    names = ", ".join(f"{NAMES[server.endpoint.kind]} at {server.endpoint.url}" for server in running) or "none"
    typer.echo(f"Running model servers: {visible_line(names)}.")
    configured = _current()
    used = laptop.resolve(configured)
    typer.echo(visible_line(f"Current model: {configured}{'' if used == configured else f', which means {used} now'}.") + "\n")
    for number, offer in enumerate(choices, 1):
        later = "downloaded when chosen" if laptop.by_name(offer.model) else "after these commands"
        state = "recommended" if offer.is_recommended else "" if offer.is_ready else later
        typer.echo(visible_line(f"{number}. {offer.title}{f' ({state})' if state else ''}"))
        speed = f"{offer.speed}; " if offer.speed else ""
        typer.echo(visible_line(f"   {offer.where}; {offer.cost}; {speed}{offer.quality}"))
        for command in offer.commands if laptop.by_name(offer.model) is None else ():
            typer.echo(visible_line(f"     {command}"))


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
        if answer.isdecimal() and 1 <= int(answer) <= len(choices):
            offer = choices[int(answer) - 1]
            if offer.is_ready or laptop.by_name(offer.model) is not None:
                return offer.model
            typer.echo("Run these commands first; the last one chooses the model:")
            for command in offer.commands:
                typer.echo(visible_line(f"  {command}"))
        else:
            print_message(f"answer with a number from 1 to {len(choices)}, or q")


def _current() -> str:
    return config.read(config.workspace_of(Path.cwd()))[0].settings.model


def _overruled(chosen: str) -> str:
    """Return why another model than the chosen one is used in this folder, or ""."""
    current = _current()
    if current == (str(model_names.folder_of(chosen) or chosen)):
        return ""
    source = "DG_LSP_MODEL" if os.environ.get("DG_LSP_MODEL") else config.WORKSPACE_FILE
    return f"{source} sets {current}, which overrides it here"


def _try_model(model: str, *, quiet: bool) -> Trial:
    """Return the result of a sample fill with the model."""
    if not quiet:
        typer.echo(visible_line(f"Testing {laptop.resolve(model)}; the first load of a model takes a while."))
    try:
        return asyncio.run(sample.trial(connect_options(config.read(None)[0], model=model)))
    except EngineError as error:
        return Trial(problem=str(error))


def _print_result(path: Path, chosen: str, trial_result: Trial | None) -> None:
    if trial_result and trial_result.problem:
        print_message(trial_result.problem)
        print_message(f"{path} is unchanged; to choose {chosen} without a test, add --no-try")
        return
    typer.echo(f"{path} now sets engine.model = {json.dumps(chosen)}; editors use it within two seconds.")
    if chosen == AUTO and laptop.resolve(chosen) == EMBEDDED:
        typer.echo(f"That is the {EMBEDDED} model, until you pull a laptop model: dg-lsp engine pull")
    if overruled := _overruled(chosen):
        typer.echo(visible_line(f"But {overruled}."))
    if trial_result is None:
        return
    seconds = f"{trial_result.ms / 1000:.1f} s"
    if trial_result.diff:
        typer.echo(f"\nA sample, filled in {seconds} ({trial_result.confidence}):\n")
        typer.echo(visible(trial_result.diff))
    else:
        typer.echo(
            visible_line(f"A sample was not filled, after {seconds}: {trial_result.confidence or 'there was no answer'}.")
        )


# --- Install torch and transformers, in the smallest build that fits this machine


# Measured on Linux, x86_64; docs/measurements.md has the commands.
_CPU_SIZE = "about 250 MB to download and 1.2 GB on the disk"
_CUDA_SIZE = "about 5 GB on the disk"


def install_packages(names: Sequence[str], show: Callable[[str], object]) -> None:
    """Install the engine's packages, of which `names` are missing; `show` each line. Raises SetupError if that fails."""
    needed = extras.requirements("engine")
    if not needed:
        raise SetupError(f"{', '.join(names)} is not installed; {_by_hand()}")
    _run(extras.install_commands(*needed), "torch could not be installed", _by_hand(), show)


def _run(commands: Sequence[Sequence[str]], problem: str, advice: str, show: Callable[[str], object]) -> None:
    """Run an installer's commands and `show` each line. Raises SetupError if one fails."""
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
                    show(line.rstrip())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise SetupError(f"{error.filename} can't be run: {reason}; {advice}") from error
        if process.returncode:
            last = next(filter(None, reversed(lines)), f"exit status {process.returncode}")
            is_cpu = extras.CPU_TORCH in command or "--torch-backend" in command
            raise SetupError(_without_cpu_build(lines, last) if is_cpu else f"{problem}: {last}; {advice}")


def _by_hand() -> str:
    """Return what else installs the packages, as the end of a sentence."""
    other = ""
    if extras.has_useless_cuda():
        other = f"; or, with {_CUDA_SIZE}: {extras.install_command('engine', any_torch=True)}"
    return f"install it with: {extras.install_command('engine')}{other}; then run `dg-lsp setup` again"


def _without_cpu_build(lines: Sequence[str], last: str) -> str:
    """Return why torch's CPU build was not installed, and the ways out. The command that failed is not one of them."""
    host = urlsplit(extras.CPU_INDEX).netloc.partition(":")[0]
    is_cut_off = any(host in line and ("connection broken" in line or "fetch" in line.lower()) for line in lines)
    reason = (
        f"{extras.CPU_INDEX} can't be reached, and no other index that is configured has it"
        if is_cut_off
        else f"neither the configured index nor {extras.CPU_INDEX} gave it ({last})"
    )
    return (
        f"torch's CPU build ({extras.CPU_TORCH}) could not be installed: {reason}. Add an index that has it to pip's "
        f"extra-index-url, or install the build with CUDA, {_CUDA_SIZE}: "
        f"{extras.install_command('engine', any_torch=True)}; then run `dg-lsp setup` again"
    )


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
        before = tomllib.loads(body)
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
    values, _ = schema.parse(copy.deepcopy({key: value for key, value in after.items() if key != "keys"}))
    model_keys = [key for key, _ in schema.flat(after) if schema.squeezed(key) == "engine.model"]
    # Only the model may differ, and only one key may set it.
    if values.get("model") != model or len(model_keys) != 1 or _rest(before) != _rest(after):
        raise SetupError(f'{name} sets the model in an unusual way; set engine.model = "{model}" there by hand')
    return mark + new


def _rest(values: dict[str, Any]) -> dict[str, Any]:
    rest = copy.deepcopy(values)
    if isinstance(rest.get("engine"), dict):
        rest["engine"].pop("model", None)
        if not rest["engine"]:
            del rest["engine"]
    return rest
