"""`dg-lsp setup`: let the user choose a model, install what it lacks, try it on a sample, and write it into the configuration.

The machine and its model servers become offers. What an installation lacks is known to `doctor`. Editors use the same command
with `--json` for their own pickers.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from dg_lsp.cli import doctor, progress
from dg_lsp.cli.doctor import Trial
from dg_lsp.cli.engine import pull_first
from dg_lsp.cli.options import command_group, complete_model, fail, print_message, reports
from dg_lsp.core.wording import size
from dg_lsp.engine.backends.fim import DIALECTS
from dg_lsp.engine.backends.http_client import Call, RemoteError, ServerAddress, ServerClient, outcome_of
from dg_lsp.engine.common import calibration_store
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.fit import NAMES as BITS
from dg_lsp.engine.model.fit import QUANTISED, Precision, of_config
from dg_lsp.engine.model.fit import machine as fit_machine
from dg_lsp.engine.model.weights.fetch import PullError
from dg_lsp.wire import config, extras, files, laptop, model_names, programs
from dg_lsp.wire.config import ConfigError
from dg_lsp.wire.laptop import LaptopModel
from dg_lsp.wire.messages import Fields, WireError
from dg_lsp.wire.model_names import USUAL_URLS, address_of
from dg_lsp.wire.settings import AUTO, EMBEDDED
from dg_lsp.wire.visible import visible, visible_line

VERSION = 1
"""The version of `--json`; incremented by incompatible changes."""

app = command_group()


@app.command()
@reports(PullError, ConfigError)
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
    hardware = detect()
    shares = calibration_store.shares().items()
    quality = {name: f"{right:.0%} of {n} answers on your code were right" for name, (right, n) in shares}
    models = [model for model in laptop.MODELS if model.is_pulled or laptop.may_pull()]
    choices = offers(hardware, running(), os.environ, quality, models)
    current = _current()
    if not as_json and not yes:
        gpus = ", ".join(f"{gpu.name} with {size(gpu.memory)}" for gpu in hardware.gpus) or "no GPU"
        meaning = laptop.resolve(current)
        _show(
            f"This machine: {hardware.cores} cores, {size(hardware.memory)} of memory, {gpus}.",
            f"Current model: {current}{'' if meaning == current else f', which means {meaning} now'}.",
            "",
            *(line for number, offer in enumerate(choices, 1) for line in _lines(number, offer)),
        )
    # The configuration applies in every folder, so a relative path must be resolved.
    chosen = model_names.full(yes) if yes or as_json else _ask_choice(choices)
    trial = None
    if chosen:
        prepare(path, chosen)  # a file that can't be written is reported before the test, which may take long
        _install(chosen, may_ask=not yes)
        if (known := laptop.by_name(chosen)) is not None and not known.is_pulled:
            with contextlib.nullcontext(lambda _text, _share: None) if as_json else progress.shares() as on_progress:
                pull_first((known,), on_progress)
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
            "machine": {"cores": hardware.cores, "memory": hardware.memory, "gpus": [gpu[:2] for gpu in hardware.gpus]},
            "file": str(path),
            "model": laptop.resolve(current),
            "offers": [{name.removeprefix("is_"): value for name, value in asdict(offer).items()} for offer in choices],
        }
        if chosen:
            tried = trial and {
                "diff": trial.diff,
                "confidence": trial.confidence,
                "ms": round(trial.ms),
                "problem": trial.problem,
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
    return config.read(config.workspace_of(Path(programs.here())))[0].settings.model


def _overruled(chosen: str) -> str:
    """Return why another model than the chosen one is used in this folder, or ""."""
    current = _current()
    if current == model_names.full(chosen):
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


# --- What this machine offers: its own models, which model servers run on it, and the services whose key the user has

HERE = "on this machine"


@dataclass(frozen=True, slots=True)
class Offer:
    """A model to choose: its value for `engine.model`, where it runs, its cost and its quality.

    The value of the embedded model is `auto` while no laptop model is pulled, because it means the same then.
    `is_ready`: it can be used now. Otherwise the user must run `commands` first.
    """

    model: str
    title: str
    where: str
    cost: str
    quality: str = ""
    is_ready: bool = True
    is_recommended: bool = False
    commands: tuple[str, ...] = ()


class Gpu(NamedTuple):
    """A GPU, and its memory in bytes; Apple's is the machine's. Only on NVIDIA's do weights in 8 or 4 bits run."""

    name: str
    memory: int
    maker: Literal["NVIDIA", "AMD", "Apple"] = "NVIDIA"


@dataclass(frozen=True, slots=True)
class Hardware:
    """Cores, bytes of memory, GPUs, and the quantised precisions that this installation can load.

    `card` has the bytes of the largest GPU that a laptop model can use, NVIDIA's or Apple's; 0 for none.
    """

    cores: int
    memory: int
    gpus: tuple[Gpu, ...] = ()
    card: int = 0
    installed: tuple[Precision, ...] = QUANTISED


def detect(drm: Path = Path("/sys/class/drm")) -> Hardware:
    """Return the description of this machine."""
    cores, memory, card = fit_machine.n_cores(), laptop.machine_memory(), fit_machine.usable_card()
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return Hardware(cores, memory, (Gpu("Apple GPU", card, "Apple"),), card)
    gpus = [Gpu(each.name, each.total) for each in fit_machine.nvidia()]
    for file in sorted(drm.glob("card[0-9]*/device/mem_info_vram_total")):
        with contextlib.suppress(OSError, ValueError):
            gpus.append(Gpu("AMD GPU", int(file.read_text("ascii")), "AMD"))
    return Hardware(cores, memory, tuple(gpus), card, fit_machine.installed())


# --- The model servers on this machine that fill in the middle. Any other is chosen by its name.

PLACES = (
    ("ollama", USUAL_URLS["ollama"]),
    ("llama", USUAL_URLS["llama"]),
    ("llama", "http://127.0.0.1:8012"),  # the port of llama.cpp's presets for code models
)
PATIENCE_S = 2.0
MAX_MODELS = 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
"""A safe name of a model, because it is printed and written into a file."""


def running() -> list[Offer]:
    """Return the offers of the servers that run here."""
    with ThreadPoolExecutor() as threads:
        return [offer for offers in threads.map(_offers_at, *zip(*PLACES, strict=True)) for offer in offers]


def _offers_at(kind: str, url: str) -> list[Offer]:
    """Return the offers of the server at a URL; none for a server of another kind, or without a model that fills."""
    client = ServerClient(ServerAddress(url))
    try:
        if kind == "ollama":
            sizes = {each.text("name"): each.values.get("size") for each in _objects(client, "/api/tags", "models")}
            names = [name for name in sizes if _NAME.fullmatch(name)][:MAX_MODELS]
            # Ollama refuses requests to fill in the middle for models that do not report that they insert.
            shown = {name: client.send(Call("/api/show", {"model": name})) for name in names}
            ended = wait(shown.values(), PATIENCE_S).done
            answers = {name: outcome_of(future) for name, future in shown.items() if future in ended}
            return [served(kind, url, name, sizes[name]) for name, said in answers.items() if _inserts(said)]
        # It has one model, whose name may be a path.
        entries = _objects(client, "/v1/models", "data")
        names = [each.text("id").rpartition("/")[2] for each in entries if each.text("owned_by") == "llamacpp"]
        return [served(kind, url, name) for name in names[:1] if _NAME.fullmatch(name)]
    except (RemoteError, WireError, TimeoutError):
        return []
    finally:
        client.close()


def _inserts(said: Fields | Exception) -> bool:
    """Return whether a model's answer says that it fills in the middle; False for one that can't be read."""
    try:
        return isinstance(said, Fields) and "insert" in said.texts("capabilities", ())
    except WireError:
        return False


def _objects(client: ServerClient, path: str, name: str) -> tuple[Fields, ...]:
    return client.send(Call(path)).result(PATIENCE_S).objects(name)


def served(kind: str, url: str, model: str, n_bytes: object = None) -> Offer:
    """Return the offer of a running server's model; its bytes may be anything that the server stated."""
    cost = f"{size(n_bytes)} of memory" if isinstance(n_bytes, int) and n_bytes > 0 else "no more memory than the server uses"
    value = f"fim:{kind}" if url == USUAL_URLS[kind] else f"fim:{kind}:{url}"
    title = f"{model} in {'Ollama' if kind == 'ollama' else 'llama.cpp'}"
    return Offer(f"{value}#{model}" if kind == "ollama" else value, title, HERE, cost)


# --- The offers

DIFFUSION = "google/diffusiongemma-26B-A4B-it"
DOWNLOAD_BYTES = 51_600_000_000  # its files, also if the weights are quantised after that
CONTEXT_BYTES = 600_000_000  # what CUDA uses on a GPU before anything is loaded
PUBLISHED = of_config(json.loads((laptop.PACKAGED / "diffusiongemma.json").read_bytes()))
"""The sizes of the published model."""


def offers(
    hardware: Hardware,
    running: Sequence[Offer],
    environ: Mapping[str, str],
    quality_by_model: Mapping[str, str],
    laptop_models: Sequence[LaptopModel] = (),
) -> tuple[Offer, ...]:
    """Return the offers, ready ones first; exactly one is recommended.

    `running` are those of the servers. `laptop_models` are those that are pulled or may be, best first. `quality_by_model` has
    the results of `dg-lsp calibrate`, and `environ` the keys of services.
    """
    fitting = [each for each in laptop_models if each.fits(hardware.memory, hardware.card)]
    pulled = [each for each in laptop_models if each.is_pulled]
    missing = [each for each in fitting if not each.is_pulled]
    unfit = {each.name for each in pulled if each not in fitting}
    embedded = Offer(EMBEDDED, "the small model that comes with dg-lsp", HERE, "about 500 MB of memory, on the processor")
    # What was pulled is listed on any machine, after what suits this one.
    here = [_laptop(each, hardware) for each in sorted(pulled, key=lambda model: model.name in unfit)]
    ready = [*running, *here, embedded, *_remote(environ)]
    others = [_laptop(each, hardware) for each in missing]
    # To recommend: a model that runs on this machine, at no further cost.
    best = next(each for each in ready if each.where == HERE and each.model not in unfit)
    # A larger model than the pulled one is worth the download where it is quick.
    used = laptop.by_name(best.model)
    if others and (best.model == EMBEDDED or (used is not None and missing[0].n_weights > used.n_weights)):
        best = others[0]
    measure = "quality on your code not measured; to measure it: dg-lsp calibrate --model"
    return tuple(
        replace(
            offer,
            # While no model is pulled, `auto` means the embedded model now, and later the pulled one.
            model=AUTO if offer.model == EMBEDDED and not pulled else offer.model,
            quality=quality_by_model.get(offer.model) or f"{measure} '{offer.model}'",
            is_recommended=offer is best,
        )
        for offer in (*ready, *others, *_diffusion(hardware))
    )


def _laptop(model: LaptopModel, hardware: Hardware) -> Offer:
    cost = f"{size(model.memory_bytes)} of memory, on the processor"
    if hardware.card:
        cost = f"{size(model.bytes_on(hardware.card))} of the GPU's memory"
    elif model.speed:
        cost += f", {model.speed}"
    offer = Offer(model.name, f"{model.name}: {model.gives}", HERE, cost)
    if model.is_pulled:
        return offer
    cost += f", and {size(model.n_bytes)} to download once, from {model.places}; only its known SHA-256 is trusted"
    return replace(offer, cost=cost, is_ready=False, commands=(f"dg-lsp setup --yes {model.name}",))


def _remote(environ: Mapping[str, str]) -> Iterator[Offer]:
    """Yield the services whose key is in the environment and that need no name of a model."""
    for dialect in DIALECTS:
        address = address_of(dialect.url)
        has_key = dialect.variable and environ.get(dialect.variable, "").strip()
        if has_key and address is not None and (dialect.model or not dialect.needs_model):
            title = f"{address.name}, with the key in {dialect.variable}"
            where = f"at {address.name}, which receives the code around the cursor"
            yield Offer(f"fim:{dialect.name}", title, where, "each request is billed to the key's account")


def _diffusion(hardware: Hardware) -> Iterator[Offer]:
    """Yield DiffusionGemma if it fits on the largest GPU, in the precision that `engine.dtype = "auto"` then chooses."""
    gpu = max(hardware.gpus, key=lambda gpu: gpu.memory, default=None)
    if gpu is None:
        return
    kind, taken = ("mps", 0) if gpu.maker == "Apple" else ("cuda", CONTEXT_BYTES)
    host = fit.Machine(kind, gpu.memory - taken, gpu.name, installed=QUANTISED if gpu.maker == "NVIDIA" else ())
    try:
        choice = fit.choose(DIFFUSION, PUBLISHED, host)
    except fit.NoRoomError:
        return
    precision = choice.precision
    install = (extras.install_command("quant"),) if precision in QUANTISED and precision not in hardware.installed else ()
    title = f"DiffusionGemma on this machine's GPU, in {BITS[precision]} ({precision})"
    cost = f"{size(choice.needs.total)} of the GPU's memory, and {size(DOWNLOAD_BYTES)} to download"
    commands = (*install, f"dg-lsp engine pull {DIFFUSION}", f"dg-lsp setup --yes {DIFFUSION}")
    yield Offer(DIFFUSION, title, HERE, cost, is_ready=False, commands=commands)


# --- Install the packages that a model lacks, in the smallest build that fits this machine

# Measured on Linux, x86_64; docs/measurements.md has the commands.
_CPU_SIZE = "about 250 MB to download and 1.2 GB on the disk"
_CUDA_SIZE = "about 5 GB on the disk"


def _install(chosen: str, *, may_ask: bool) -> None:
    """Install the packages that a model lacks; end the command if something stays missing."""
    absent, commands = doctor.lacking(chosen)
    if not absent:
        return
    names, by_hand = ", ".join(absent), extras.in_shell(commands)
    needed, advice = f": {_CUDA_SIZE}" if "torch" in absent and sys.platform == "linux" else "", f"install it with: {by_hand}"
    if extras.CPU_TORCH in by_hand or "--torch-backend" in by_hand:
        needed = f": {_CPU_SIZE}, in torch's CPU build because no NVIDIA GPU was found"
        advice = (
            f"torch's CPU build ({extras.CPU_TORCH}) is in {extras.CPU_INDEX}, or in an index that you add to pip's "
            f"extra-index-url; the build with CUDA, {_CUDA_SIZE}: {extras.install_command('engine', any_torch=True)}"
        )
    print_message(f"{laptop.resolve(chosen)} needs {names}. Not installed yet{needed}")
    is_refused = may_ask and _ask("Install it now? y or n", "y") not in ("y", "yes")
    if is_refused or not laptop.may_pull():
        fail(f"nothing was changed; to install it yourself: {by_hand}")
    for command in commands:
        if problem := install(command):
            fail(f"{names} could not be installed: {problem}; {advice}; then run `dg-lsp setup` again")


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
            env=programs.environment(**programs.keys(*programs.DOWNLOADS)),
        ) as process:
            for line in process.stdout or ():
                last = line.strip() or last
                typer.echo(visible_line(line.rstrip()), err=True)
    except OSError as error:
        return f"{error.filename} can't be run: {(error.strerror or str(error)).lower()}"
    return (last or f"exit status {process.returncode}") if process.returncode else ""


# --- Write the model into the user's configuration file, and change nothing else in it


def write_model(path: Path, model: str) -> None:
    """Set `engine.model` in a file, created if missing; raise ConfigError if that fails."""
    new = prepare(path, model)
    try:
        files.write_output(path, new.encode(), new_mode=0o600)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror or error}") from error


def prepare(path: Path, model: str) -> str:
    """Return a file's text with another `engine.model`, and create the file's folder.

    Raises ConfigError if the file can't be read, changed or written.
    """
    real, doing, old = Path(os.path.realpath(path)), "read", ""
    try:
        with contextlib.suppress(FileNotFoundError):
            old = files.read_regular(real, config.MAX_BYTES).decode("utf-8")
        new, doing = with_model(old, model, str(path)), "written"
        real.parent.mkdir(parents=True, exist_ok=True)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8; fix or remove it") from error
    except OSError as error:
        raise ConfigError(f"{path} can't be {doing}: {error.strerror or error}") from error
    if problem := files.output_problem(path):
        raise ConfigError(f"{path} can't be written: {problem}")
    return new


def with_model(text: str, model: str, name: str) -> str:
    """Return a configuration file's text with another `engine.model`; raise ConfigError naming the file."""
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
        values = [value for key, value in config.flat(tomllib.loads(new)) if config.squeezed(key) == "engine.model"]
    except (TOMLKitError, tomllib.TOMLDecodeError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f'{name} can\'t be changed: {error}. Fix it, or set engine.model = "{model}" by hand') from error
    if values != [model]:  # only one key may set it
        raise ConfigError(f'{name} sets the model in an unusual way; set engine.model = "{model}" there by hand')
    return mark + new
