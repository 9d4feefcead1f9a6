"""`dg-lsp doctor`: check the installation, and say what is missing and how to fix it.

`dg-lsp setup` installs the packages that are missing here, and tries a model on the same sample, which takes the path of every
request; no file of the user is read or sent. Torch is not imported: what the engine alone knows, it states when asked. It is
started for that unless `--no-sample` is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata, util
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from dg_lsp import __version__
from dg_lsp.batch import report
from dg_lsp.cli.engine import line_of, silence
from dg_lsp.cli.options import command_group, model_option
from dg_lsp.client.engine import ConnectOptions, connect, connect_options
from dg_lsp.client.port import EngineError
from dg_lsp.core import confidence, languages
from dg_lsp.core.wording import counted, size
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.fit import machine
from dg_lsp.engine.model.weights import checkpoint, fetch
from dg_lsp.engine.model.weights.fetch import PullError
from dg_lsp.infill.api import Session
from dg_lsp.wire import config, discovery, extras, laptop, model_names, programs
from dg_lsp.wire.discovery import DiscoveryError, inspect_engine
from dg_lsp.wire.laptop import LaptopModel
from dg_lsp.wire.messages import WireError
from dg_lsp.wire.settings import AUTO, DEFAULTS, EMBEDDED
from dg_lsp.wire.visible import visible_message

ENGINE_NEEDS = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
VLLM_NEEDS = ("tokenizers",)
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json")
SCARCE_BYTES = 1 << 30
"""With less free memory than this, an engine with a useful model may run out of memory."""
IN_LOG = "More is in the engine's log: dg-lsp engine logs"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `advice` says what to do and is empty if the check passed."""

    what: str
    state: str
    advice: str = ""


app = command_group()


@app.command()
def doctor(
    model: Annotated[str, model_option("Check this model instead of the configured one.")] = "",
    is_sampled: Annotated[
        bool, typer.Option("--sample/--no-sample", help="Request a sample fill, which starts the engine if needed.")
    ] = True,
) -> None:
    """Show what is installed, where the model runs, how fast it fills, what is missing, and how to fix it.

    Exits with 1 if a check fails.
    """
    has_failed = False
    for finding in findings(model, with_sample=is_sampled):
        typer.echo(f"{'no' if finding.advice else 'ok'}  {finding.what}: {visible_message(finding.state)}")
        if finding.advice:
            typer.echo(f"    {visible_message(finding.advice)}")
            has_failed = True
    raise typer.Exit(int(has_failed))


def findings(model: str = "", *, with_sample: bool = False) -> Iterator[Finding]:
    """Yield the findings, one check at a time. `model` replaces the configured model."""
    root = config.workspace_of(Path(programs.here()))
    configured, problems = config.read(root)
    settings, model = configured.settings, configured.model(model)
    yield Finding("dg-lsp", f"{__version__} on {platform.system()} {platform.machine()}")
    yield Finding("Python", f"{platform.python_version()} at {sys.executable}")
    yield engine_packages(model)
    yield grammars()
    yield model_files(laptop.PACKAGED / EMBEDDED)
    yield configuration(root, problems)
    folder = runtime_folder()
    yield folder
    if folder.advice:
        return
    yield running_engines()
    is_loaded = False
    with contextlib.suppress(DiscoveryError, EngineError, WireError):
        info = inspect_engine(discovery.engine_files(connect_options(configured, model=model).engine_id)).info
        is_loaded = info is not None and info.text("state", "") == "ready"
    # A loaded model has its memory already, so it is not compared with the free memory.
    if not model_names.is_remote(model) and not is_loaded:
        room = what_fits(model, settings.device, settings.dtype)
        yield room
        if room.advice:  # the engine would refuse to load it
            return
    if settings.edit_model not in (AUTO, model) and not model_names.is_remote(settings.edit_model):
        yield replace(what_fits(laptop.resolve(settings.edit_model), settings.device, settings.dtype), what="next edits")
    if with_sample:
        yield from of_sample(model, trial(configured, model))
    else:
        yield Finding("model", f"{model}, on device {settings.device}; for the reasons, run without --no-sample")


# --- The installation


def lacking(model: str) -> tuple[list[str], list[list[str]]]:
    """Return the packages that the model's engine needs and this environment lacks, and the commands that install them."""
    # Without importing them. Most remote models need none.
    names = [name for name in _needs(model) if util.find_spec(name) is None]
    required = extras.requirements("engine")
    if model.startswith("vllm:"):  # nothing but these, so no torch
        by_name = {re.split(r"[^\w.-]", line)[0]: line for line in required}
        required = [by_name.get(name, name) for name in names]
    return names, extras.install_commands(*required) if names else []


def _needs(model: str) -> tuple[str, ...]:
    return () if model.startswith(("fim:", "chat:")) else VLLM_NEEDS if model.startswith("vllm:") else ENGINE_NEEDS


def engine_packages(model: str = EMBEDDED) -> Finding:
    """Return which of the packages that the model's engine needs are installed."""
    names, commands = lacking(model)
    if names:
        return Finding("engine", f"{', '.join(names)} not installed", f"To install them: {extras.in_shell(commands)}")
    return Finding("engine", _versions(_needs(model)) or "the chosen model is remote and needs no packages")


def _versions(packages: Sequence[str], prefix: str = "") -> str:
    versions = dict.fromkeys(packages, "of unknown version")  # part of Python, or a folder on its path
    for name in versions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return ", ".join(f"{name.removeprefix(prefix)} {version}" for name, version in versions.items())


def grammars() -> Finding:
    """Return the grammars, and which languages' queries do not match theirs."""
    problems = []
    for language in languages.TABLE:
        try:
            languages.query(language)
        # If a query does not match its grammar, tree-sitter raises various classes. The other grammars are still checked.
        except Exception as error:
            problems.append(f"{language.name} ({error})")
    if problems:
        return Finding("grammars", "; ".join(problems), "Reinstall dg-lsp, so that grammars and queries match.")
    packages = (dist.name for dist in metadata.distributions() if (dist.name or "").startswith("tree-sitter"))
    return Finding("grammars", f"{len(languages.TABLE)} languages; {_versions(sorted(packages), 'tree-sitter-')}")


def model_files(folder: Path) -> Finding:
    """Return whether the embedded model is complete."""
    if missing := [name for name in MODEL_FILES if not (folder / name).is_file()]:
        advice = "Reinstall dg-lsp, or choose another model with --model."
        return Finding("embedded model", f"{', '.join(missing)} missing in {folder}", advice)
    n_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return Finding("embedded model", f"{size(n_bytes)} in {folder}")


def configuration(root: Path, problems: tuple[str, ...]) -> Finding:
    """Return the configuration files and environment variables of a workspace, and the problems in them."""
    parts = [f"{path} {'was read' if path.is_file() else 'does not exist'}" for path, _ in config.sources(root)]
    # Only the names: one of the variables holds a key.
    if variables := [name for name in config.VARIABLES if os.environ.get(name)]:
        parts.append(f"{', '.join(variables)} {'overrides' if len(variables) == 1 else 'override'} them")
    return Finding("configuration", "; ".join(parts), f"Fix or remove it. {' '.join(problems)}" if problems else "")


# --- The engines


def runtime_folder() -> Finding:
    """Return whether engines have a private folder of this user, and can write their logs; it is created if missing."""
    try:
        folder = discovery.runtime_dir()
        logs = [files.log for files in discovery.all_engine_files() if os.path.lexists(files.log)]
    except DiscoveryError as error:
        return Finding("runtime folder", "engines can't use it", ended(error))
    blocked = [str(log) for log in logs if log.is_symlink() or not log.is_file() or not os.access(log, os.W_OK)]
    if blocked:
        return Finding("runtime folder", f"engines can't write their logs in {folder}", f"Remove {' and '.join(blocked)}.")
    return Finding("runtime folder", f"{folder}, private to this user")


def running_engines() -> Finding:
    """Return the running engines and their states."""
    what = "running engines"
    try:
        reports = [each for each in map(inspect_engine, discovery.all_engine_files()) if each.state is not None]
        lines = [line_of(each) for each in reports]
        problems = [silence(each.state) for each in reports if each.state and each.info is None]
        infos = [each.info for each in reports if each.info is not None]
        errors = [info.text("message", "") for info in infos if info.text("state", "") == "failed"]
    except DiscoveryError as error:
        return Finding(what, "they can't be queried", ended(error))
    except WireError as error:
        advice = f"{ended(f'Its answer is malformed: {error}')} To restart it, run: dg-lsp engine stop --now --all"
        return Finding(what, "an answer can't be parsed", advice)
    advice = " ".join(ended("; ".join(sentences)) for sentences in (problems, errors) if sentences)
    return Finding(what, "; ".join(lines) or "none; the first request starts one", f"{advice} {IN_LOG}" if errors else advice)


def ended(sentence: object) -> str:
    """Return the sentence with its full stop."""
    text = str(sentence).rstrip()
    return text if text.endswith((".", "?", "!")) else f"{text}."


# --- Whether a model fits on this machine, by its config.json alone

# In which precision a laptop model runs: its bytes for each weight, and why.
LAPTOP: dict[machine.LaptopPrecision | None, tuple[int, str]] = {
    "int8": (1, "in 8 bits"),
    "bfloat16": (2, "in 16 bits, because this processor has no instructions for 8-bit products"),
    "float32": (4, "in 32 bits, because this processor has no instructions for 8-bit or 16-bit products"),
    None: (1, "in 8 bits, and more on a processor without instructions for 8-bit products"),
}


def what_fits(model: str, device: str, dtype: str = "") -> Finding:
    """Return what a model needs, and whether it fits."""
    host = machine.of_device(device)
    if (known := laptop.by_name(model)) is not None:
        return _laptop(known, host)
    folder = laptop.PACKAGED / EMBEDDED if model == EMBEDDED else model_names.folder_of(model)
    kind = ""
    try:
        if folder is None:
            values = fetch.config_values(model)
        elif model_names.is_gguf(folder):
            from dg_lsp.engine.model.pull import file  # few models are such files

            values, n_bytes = file.config_values(folder), folder.stat().st_size
            kind = f" is a {values['model_type']} model of {size(n_bytes)}, which is converted on first use. It"
        else:
            values = checkpoint.read_json(folder, checkpoint.CONFIG)
        geometry = fit.of_config(values)
    except (checkpoint.CheckpointError, fit.GeometryError, ModuleNotFoundError, PullError) as error:
        sentence = ended(error) if isinstance(error, PullError) else f"{model}: {ended(error)}"
        return Finding("what fits", "unknown, as its configuration can't be read", sentence)
    wide, narrow, narrowest = (size(fit.needs(geometry, name).total) for name in ("bfloat16", "fp8", "int4"))
    state = f"{model}{kind} needs {wide} at 16 bits, {narrow} at 8, {narrowest} at 4; {_free(host)}"
    stored = "fp8" if "quantization_config" in values else ""
    asked, way = "" if dtype == "auto" else dtype, None
    if not asked and host.is_cpu and geometry.is_llama:
        way = machine.laptop_precision()
    try:
        choice = fit.choose(model, geometry, host, asked=asked or way or "", stored=stored)
    except fit.NoRoomError as error:
        return Finding("what fits", state, str(error))
    if way is not None:
        return Finding("what fits", f"{state}: it runs {LAPTOP[way][1]}, in {size(choice.needs.total)}")
    return Finding("what fits", f"{state}: it runs in {choice.precision} ({choice.why})")


def _laptop(model: LaptopModel, host: fit.Machine) -> Finding:
    """Return what a laptop model needs: on a processor in the precision that it multiplies in, on a GPU in 16 or 8 bits."""
    if host.kind == "cpu":
        width, why = LAPTOP[machine.laptop_precision()]
        needed = model.memory_bytes + (width - 1) * model.n_weights
        state = f"{model.name} needs {size(needed)} of memory, {why}"
        advice = "Close other programs, or choose a smaller model."
    else:
        needed = model.card_bytes
        state = f"{model.name} needs {size(needed)} in 16 bits"
        if host.kind == "cuda":  # the others do not compute in 8 bits
            needed = model.narrow_card_bytes
            state += f" or {size(needed)} in 8"
        advice = "Free the GPU, choose a smaller model, or set engine.device = cpu."
    is_short = host.free is not None and host.free < needed
    if host.kind != "cpu" or (model.is_pulled and is_short):
        state += f"; {_free(host)}"
    if not model.is_pulled:
        return Finding("what fits", f"{state}, and is not pulled", f"Get it with: dg-lsp engine pull {model.name}")
    return Finding("what fits", state, advice if is_short else "")


def _free(host: fit.Machine) -> str:
    return f"{'unknown' if host.free is None else size(host.free)} free on {host.label}"


# --- A sample, filled by the model

# Another class shows what belongs into the body, so that small models can fill it.
SAMPLE = """\
class Rectangle:
    def __init__(self, width, height):
        self.width = width
        self.height = height

    def area(self):
        return self.width * self.height


class Window:
    def __init__(self, width, height):
        self.width = width
        self.height = height

    def area(self):
        ...


window = Window(3, 4)
print(window.area())
"""
LINE = "return self.wid"
"""The start of the body's line, for a fill within a line."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The fill of the sample's body: the diff, "" if there is none, the confidence in words or why there is none.

    `ms` and `line_ms` are the times of the body in a new file, and of its line after that; `info` is how the engine describes
    itself, and `joined_ms` how long connecting took. `problem` says why the model can't be used, "" if it can.
    """

    diff: str = ""
    confidence: str = ""
    ms: float = 0
    line_ms: float = 0
    joined_ms: float = 0
    info: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


def trial(configured: config.Config, model: str) -> Trial:
    """Let the model fill the sample, and start its engine if needed."""
    try:
        return asyncio.run(_trial(connect_options(configured, model=model, interactive=False)))
    except EngineError as error:
        return Trial(problem=str(error))


async def _trial(options: ConnectOptions) -> Trial:
    times = [time.perf_counter()]
    async with connect(options) as engine:
        times.append(time.perf_counter())
        session = Session(engine, candidates=1, deadline_ms=120_000)
        # The text is new each time, so that the first fill finds nothing in the cache.
        sample = f"# {time.time_ns()}\n{SAMPLE}"
        body = await session.fill_text(sample, path="shapes.py", kinds=("bodies",))
        times.append(time.perf_counter())
        line = sample.replace("...", LINE)
        await session.fill_at(line, line.index(f"{LINE}\n") + len(LINE), path="shapes.py")
        times.append(time.perf_counter())
        info = await engine.info()
    joined_ms, ms, line_ms = (1000 * (end - start) for start, end in pairwise(times))
    if (used := laptop.by_name(str(info["model"]))) is not None and info["device"] == "cpu":
        laptop.note(used.name, laptop.Times(line_ms, ms))
    words = confidence.words(body.fills[0].confidence) if body.fills else "; ".join(body.reasons)
    return Trial(report.unified("shapes.py", sample, body.text), words, ms, line_ms, joined_ms, info)


def of_sample(model: str, result: Trial) -> Iterator[Finding]:
    """Yield how the model's engine describes itself and why it runs so, what it and the model use, and its times."""
    if result.problem:
        yield Finding("model", f"{model} does not respond", f"{ended(result.problem)} {IN_LOG}")
        return
    info, why, memory = result.info, result.info.get("why") or {}, result.info.get("memory") or {}
    n_threads = counted(info["threads"], "thread") if info.get("threads") else ""
    said = [
        f"{word} {value} ({why[name]})" if why.get(name) else f"{word} {value}"
        for word, name, value in (
            ("on", "device", info["device"]),
            ("in", "dtype", info["dtype"]),
            ("with", "threads", n_threads),
        )
        if value
    ]
    said.append(f"connected in {result.joined_ms / 1000:.1f} s")
    is_other = info["version"] != discovery.current_build()
    other = f" of dg-lsp {info['version']}, which is replaced when no client uses it" if is_other else ""
    yield Finding("model", f"{info['model']} runs {', '.join(said)}, process {info['pid']}{other}")

    sizes = {name: value for name, value in memory.items() if isinstance(value, int)}
    uses = {"rss_bytes": "the engine uses {}", "free_bytes": "{} free on this machine"}
    if info["device"] not in ("cpu", "mps"):
        uses |= {"device_bytes": f"the model uses {{}} on {info['device']}", "device_free_bytes": "{} free there"}
    is_low = any(sizes.get(name, SCARCE_BYTES) < SCARCE_BYTES for name in ("free_bytes", "device_free_bytes"))
    advice = "Memory is low: close other programs, or choose a smaller model (engine.model in the configuration)."
    state = ", ".join(words.format(size(sizes[name])) for name, words in uses.items() if name in sizes)
    yield Finding("memory", state, advice if is_low else "")

    # Only the line counts, because it is what is suggested while typing.
    state = f"{result.ms:.0f} ms for a body in a new file, then {result.line_ms:.0f} ms for a line"
    advice = (
        "A line takes longer than the deadline for suggestions. Choose a smaller model or a faster device (engine.model, "
        "engine.device), use more threads (engine.threads), or raise the deadline (completion.deadline)."
    )
    yield Finding("a sample", state, advice if result.line_ms > DEFAULTS.deadline else "")
    if info["device"] == "cpu" and (used := laptop.by_name(info["model"])) is not None:
        yield from _larger(used)


def _larger(used: LaptopModel) -> Iterator[Finding]:
    """Yield what the next larger laptop model takes on this machine's processor, unless it is pulled."""
    larger = next((each for each in reversed(laptop.MODELS) if each.n_weights > used.n_weights), None)
    if larger is not None and larger.speed and not larger.is_pulled:
        fits = larger.fits(laptop.machine_memory())
        way = f"to get it: dg-lsp engine pull {larger.name}" if fits else "too slow or too large for this machine"
        yield Finding("a larger model", f"{larger.name}: {larger.speed}; {size(larger.n_bytes)} to download; {way}")
