"""`dg-lsp doctor`: check the installation, and say what is missing and how to fix it.

It checks that torch is installed without importing it. Times and memory come from the engine, which is started for that
unless `--no-sample` is given: it fills our own sample, which takes the same path as every request. No file of the user is read
or sent. `dg-lsp setup` shows such a fill too.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata, resources, util
from pathlib import Path
from typing import Annotated, Any

import typer

from dg_lsp import __version__
from dg_lsp.batch import report
from dg_lsp.cli import completions
from dg_lsp.cli.command_group import command_group
from dg_lsp.core import confidence, holes, languages, syntax
from dg_lsp.core.values import Budget, Document, Hole, InfillRequest, Span
from dg_lsp.core.wording import counted, size
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.fit import machine
from dg_lsp.engine.model.weights import fetch
from dg_lsp.infill import client, pipeline
from dg_lsp.infill.client import ConnectOptions, ResidentEngine, connect_options
from dg_lsp.infill.pipeline import FileContext, InfillAnswer
from dg_lsp.infill.port import EngineError
from dg_lsp.wire import config, discovery, laptop, model_names
from dg_lsp.wire.discovery import DiscoveryError, inspect_engine
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.laptop import LaptopModel
from dg_lsp.wire.messages import Done, Fields, WireError
from dg_lsp.wire.settings import DEFAULTS, EMBEDDED
from dg_lsp.wire.visible import visible_message

ENGINE_NEEDS = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
VLLM_NEEDS = ("tokenizers",)
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json")
SCARCE_BYTES = 1 << 30
"""With less free memory than this, an engine with a useful model may run out of memory."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `advice` says what to do and is empty if the check passed; `facts` are for programs."""

    what: str
    state: str
    advice: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


app = command_group()


@app.command()
def doctor(
    model: Annotated[str, completions.model_option("Check this model instead of the configured one.")] = "",
    sample: Annotated[bool, typer.Option(help="Request a sample fill, which starts the engine if needed.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one object: whether all checks passed, and each finding.")
    ] = False,
) -> None:
    """Show what is installed, where the model runs, how fast it fills, what is missing, and how to fix it.

    Exits with 1 if a check fails.
    """
    all_findings: list[Finding] = []
    for finding in findings(model, with_sample=sample):
        all_findings.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        rows = [{**asdict(finding), "ok": not finding.advice} for finding in all_findings]
        typer.echo(json.dumps({"ok": all(row["ok"] for row in rows), "findings": rows}, indent=2))
    raise typer.Exit(int(any(finding.advice for finding in all_findings)))


def _show(finding: Finding) -> None:
    typer.echo(f"{'no' if finding.advice else 'ok'}  {finding.what}: {visible_message(finding.state)}")
    if finding.advice:
        typer.echo(f"    {visible_message(finding.advice)}")


def findings(model: str = "", *, with_sample: bool = False) -> Iterator[Finding]:
    """Yield the findings, one check at a time. `model` replaces the configured model."""
    root = config.workspace_of(Path.cwd())
    configured, problems = config.read(root)
    model = configured.model(model)
    yield Finding("dg-lsp", f"{__version__} on {platform.system()} {platform.machine()}", facts={"version": __version__})
    yield Finding("Python", f"{platform.python_version()} at {sys.executable}")
    yield engine_packages(VLLM_NEEDS if model.startswith("vllm:") else ENGINE_NEEDS, remote=model.startswith(("fim:", "chat:")))
    yield _grammars()
    yield model_files(Path(str(resources.files("dg_lsp.models"))) / "embedded")
    yield configuration(root, problems)
    folder = runtime_folder()
    yield folder
    if folder.advice:
        return
    running = running_engines()
    yield running
    name = str(model_names.folder_of(model) or model)
    is_loaded = any(each.get("model") == name and each.get("state") == "ready" for each in running.facts.get("engines", ()))
    # A loaded model has its memory already, so it is not compared with the free memory.
    if not model_names.is_remote(model) and not is_loaded:
        room = Finding("what fits", *check_fit(model, configured.settings.device, configured.settings.dtype))
        yield room
        if room.advice:  # the engine would refuse to load it
            return
    if not with_sample:
        yield Finding("model", f"{model}, on device {configured.settings.device}; for the reasons, run without --no-sample")
        return
    try:
        join_ms, info, fresh, typed = asyncio.run(take(connect_options(configured, model=model)))
    except EngineError as error:
        yield Finding("model", f"{model} does not respond", f"{_ended(error)} More is in the engine's log: dg-lsp engine logs")
        return
    yield _model(info, join_ms)
    yield _memory(info)
    yield _fill_times("a fill in a new file", fresh)
    yield _fill_times("a fill one character later", typed)


def engine_packages(needs: tuple[str, ...] = ENGINE_NEEDS, *, remote: bool = False) -> Finding:
    """Return which of the engine's packages are installed, without importing them; a `remote` model needs none."""
    absent = [name for name in needs if util.find_spec(name) is None]
    if absent and remote:
        return Finding("engine", f"{', '.join(absent)} not installed; the chosen model is remote and does not need them")
    if absent:
        return Finding("engine", f"{', '.join(absent)} not installed", f"To install them: {install_command('engine')}")
    versions = {name: _version(name) for name in needs}
    return Finding("engine", ", ".join(f"{name} {version}" for name, version in versions.items()), facts=versions)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # part of Python, or a folder on its path
        return "of unknown version"


def model_files(folder: Path) -> Finding:
    """Return whether the embedded model is complete."""
    absent = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if absent:
        advice = "Reinstall dg-lsp, or choose another model with --model."
        return Finding("embedded model", f"{', '.join(absent)} missing in {folder}", advice)
    n_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return Finding("embedded model", f"{size(n_bytes)} in {folder}")


def configuration(root: Path, problems: tuple[str, ...]) -> Finding:
    """Return the configuration files and environment variables of a workspace, and the problems in them."""
    files = {str(path): path.is_file() for path, _ in config.sources(root)}
    variables = [name for name in config.VARIABLES if os.environ.get(name)]
    sources = [f"{path} {'was read' if exists else 'does not exist'}" for path, exists in files.items()]
    if variables:
        sources.append(f"{', '.join(variables)} {'overrides' if len(variables) == 1 else 'override'} them")
    # Only the names: one of the variables holds a key.
    facts = {"files": files, "variables": variables, "problems": list(problems)}
    advice = f"Fix or remove it. {' '.join(problems)}" if problems else ""
    return Finding("configuration", "; ".join(sources), advice, facts)


def runtime_folder() -> Finding:
    """Return whether engines have a private folder of this user, and can write their logs; it is created if missing."""
    try:
        folder = discovery.runtime_dir()
        logs = [files.log for files in discovery.all_engine_files() if os.path.lexists(files.log)]
    except DiscoveryError as error:
        return Finding("runtime folder", "engines can't use it", _ended(error))
    blocked = [str(log) for log in logs if log.is_symlink() or not log.is_file() or not os.access(log, os.W_OK)]
    if blocked:
        return Finding("runtime folder", f"engines can't write their logs in {folder}", f"Remove {' and '.join(blocked)}.")
    return Finding("runtime folder", f"{folder}, private to this user")


def running_engines() -> Finding:
    """Return the running engines and their states."""
    try:
        reports = [inspect_engine(files) for files in discovery.all_engine_files()]
    except DiscoveryError as error:
        return Finding("running engines", "they can't be queried", _ended(error))
    responding = [each.info for each in reports if each.info is not None]
    silent = [each.state.pid for each in reports if each.info is None and each.state and discovery.alive(each.state.pid)]
    facts = {"engines": [dict(info.values) for info in responding]}
    try:
        state = "; ".join(map(_running, responding)) or "none; the first request starts one"
        errors = [info.text("message", "") for info in responding if info.text("state", "") == "failed"]
    except WireError as error:
        advice = f"{_ended(f'Its answer is malformed: {error}')} To restart it, run: dg-lsp engine stop --now --all"
        return Finding("running engines", "an answer can't be parsed", advice, facts)
    if silent:
        pids = ", ".join(map(str, silent))
        return Finding("running engines", state, f"Process {pids} does not respond; end it with: kill -9 {pids}", facts)
    advice = f"{_ended('; '.join(errors))} More is in the engine's log: dg-lsp engine logs" if errors else ""
    return Finding("running engines", state, advice, facts)


def _running(info: Fields) -> str:
    clients = counted(info.integer("leases", 0), "client")
    rss = info.inner("memory").integer("rss_bytes", 0)
    version = info.text("version", "")
    other = "" if version == discovery.current_build() else f", dg-lsp {version}"
    process = f"process {info.integer('pid', 0)}{other}"
    return f"{info.text('model', '?')} ({process}, {info.text('state', '?')}, {clients}, {size(rss)})"


def _model(info: Mapping[str, object], join_ms: float) -> Finding:
    why = info.get("why")
    reasons: Mapping[str, object] = why if isinstance(why, Mapping) else {}

    def because(name: str, value: str) -> str:
        return f"{value} ({reasons[name]})" if reasons.get(name) else value

    parts = [f"{info.get('model')} runs on {because('device', str(info.get('device')))}"]
    if info.get("dtype"):
        parts.append(f"in {because('dtype', str(info['dtype']))}")
    if isinstance(threads := info.get("threads"), int):
        parts.append(f"with {because('threads', counted(threads, 'thread'))}")
    version = info.get("version")
    other = f" of dg-lsp {version}, which is replaced when no client uses it" if version != discovery.current_build() else ""
    parts.append(f"connected in {join_ms / 1000:.1f} s, process {info.get('pid')}{other}")
    facts = {"join_ms": round(join_ms, 1), "info": dict(info)}
    return Finding("model", ", ".join(parts), facts=facts)


def _memory(info: Mapping[str, object]) -> Finding:
    value = info.get("memory")
    memory: Mapping[str, object] = value if isinstance(value, Mapping) else {}
    sizes = {name: value for name, value in memory.items() if isinstance(value, int)}
    parts = [f"the engine uses {size(sizes.get('rss_bytes', 0))}"]
    if "free_bytes" in sizes:
        parts.append(f"{size(sizes['free_bytes'])} free on this machine")
    on_host = str(info.get("device")) in ("cpu", "mps")
    if "device_bytes" in sizes and not on_host:
        parts.append(f"the model uses {size(sizes['device_bytes'])} on {info.get('device')}")
    if "device_free_bytes" in sizes and not on_host:
        parts.append(f"{size(sizes['device_free_bytes'])} free there")
    free = [sizes[name] for name in ("free_bytes", "device_free_bytes") if name in sizes]
    advice = ""
    if free and min(free) < SCARCE_BYTES:
        advice = "Memory is low: close other programs, or choose a smaller model (engine.model in the configuration)."
    return Finding("memory", ", ".join(parts), advice, sizes)


def _fill_times(what: str, fill: FillTime) -> Finding:
    known_ms = {name.removesuffix("_ms"): ms for name, ms in asdict(fill.done.timings).items()}
    # The rest is the way to the engine and back.
    stage_ms = {**known_ms, "elsewhere": max(0.0, fill.ms - sum(known_ms.values()))}
    stages = ", ".join(f"{name} {ms:.0f}" for name, ms in stage_ms.items())
    cache = fill.done.cache
    state = f"{fill.ms:.0f} ms: {stages}; {fill.done.steps} steps, {cache.reused} of {cache.tokens} tokens cached"
    facts = {
        "ms": round(fill.ms, 1),
        "stages": {name: round(ms, 1) for name, ms in stage_ms.items()},
        "steps": fill.done.steps,
    }
    advice = ""
    if fill.ms > DEFAULTS.deadline:
        advice = (
            "This is over the deadline for suggestions. Choose a smaller model or a faster device (engine.model, "
            "engine.device), use more threads (engine.threads), or raise the deadline (completion.deadline)."
        )
    return Finding(what, state, advice, facts)


def _ended(sentence: object) -> str:
    text = str(sentence).rstrip()
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _grammars() -> Finding:
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
    versions = {name: _version(name) for name in sorted(packages)}
    installed = ", ".join(f"{name.removeprefix('tree-sitter-')} {version}" for name, version in versions.items())
    return Finding("grammars", f"{len(languages.TABLE)} languages; {installed}", facts=versions)


# --- Our own sample


# Another class shows what belongs into the body, so that small models can fill it.
SAMPLE = """\
class Rectangle:
    def __init__(self, width, height):
        self.width = width
        self.height = height

    def area(self):
        return self.width * self.height

    def perimeter(self):
        return 2 * (self.width + self.height)


class Window:
    def __init__(self, width, height):
        self.width = width
        self.height = height

    def area(self):
        ...

    def perimeter(self):
        return 2 * (self.width + self.height)


window = Window(3, 4)
print(window.area(), window.perimeter())
"""
LINE = "return self.wid"
"""The start of the body's line, for a fill within a line."""
BUDGET = Budget(ms=120_000)


@dataclass(frozen=True, slots=True)
class FillTime:
    """The times of one fill: total milliseconds at the client, and the engine's report of each stage."""

    ms: float
    done: Done


@dataclass(frozen=True, slots=True)
class Trial:
    """A sample fill: the diff, the confidence in words, and milliseconds; or the problem."""

    diff: str = ""
    confidence: str = ""
    ms: float = 0.0
    problem: str = ""


async def take(options: ConnectOptions) -> tuple[float, Mapping[str, object], FillTime, FillTime]:
    """Return the milliseconds to connect, the engine's description of itself, and two fills; start the engine if needed.

    The first fill is in a new file. The second is after one more character, when the rest of the file is cached. Raises
    EngineError if there is no engine or no answer.
    """
    before, after = SAMPLE.split("...")
    # The text is new each time, so that the first fill finds nothing in the cache.
    prefix = f"# {time.time_ns()}\n{before}{LINE}"
    hole = Hole(Span(len(prefix), len(prefix)), "cursor", indent=" " * 8)
    request = InfillRequest(prefix, after, (hole,), language="python", path="sample.py", budget=BUDGET)
    began = time.perf_counter()
    async with client.connect(options) as engine:
        join_ms = 1000 * (time.perf_counter() - began)
        fresh = await _timed(engine, request)
        typed = await _timed(engine, replace(request, prefix=prefix + "t"))
        return join_ms, await engine.info(), fresh, typed


async def measure(options: ConnectOptions) -> tuple[float, float]:
    """Return the milliseconds of a line and of a block with a known prefix; raise EngineError if the engine fails."""
    taken_ms = []
    async with client.connect(options) as engine:
        for text in (SAMPLE.replace("...", LINE), SAMPLE):
            # The first request loads the model and encodes the prefix, as in an editor before the first key.
            for _ in range(2):
                _, ms = await _filled(engine, text)
            taken_ms.append(ms)
    return taken_ms[0], taken_ms[1]


async def trial(options: ConnectOptions) -> Trial:
    """Return the model's fill of the sample, and start the engine if needed; raise EngineError if it fails."""
    async with client.connect(options) as engine:
        answer, ms = await _filled(engine, SAMPLE)
    if not answer.suggestions:
        return Trial(confidence=answer.reason, ms=ms)
    best = answer.suggestions[0]
    return Trial(report.unified("shapes.py", SAMPLE, best.edits), confidence.words(best.candidate.confidence), ms)


async def _timed(engine: ResidentEngine, request: InfillRequest) -> FillTime:
    ends: list[Done] = []
    began = time.perf_counter()
    candidates = await engine.fill(request, on_done=ends.append)
    ms = 1000 * (time.perf_counter() - began)
    if not candidates:
        raise EngineError("the engine returned no answer to the sample")
    return FillTime(ms, ends[-1])


async def _filled(engine: ResidentEngine, text: str) -> tuple[InfillAnswer, float]:
    """Return the answer for the text's placeholder body, or else for its started line, and the milliseconds."""
    document = Document("sample:shapes.py", "python", text)
    tree = syntax.of(document)
    bodies = holes.in_document(document, tree, frozenset({"bodies"}))
    group = bodies or (holes.at_cursor(document, text.index(f"{LINE}\n") + len(LINE), tree),)
    began = time.perf_counter()
    answer = await pipeline.infill(
        engine, document, group, FileContext(budget=BUDGET, path="shapes.py"), syntax=tree, is_file=True
    )
    return answer, 1000 * (time.perf_counter() - began)


# --- Whether a model fits on this machine, by its config.json alone


MAX_BYTES = 1 << 20
WIDTHS = {"int8": 1, "bfloat16": 2, "float32": 4}
KEPT: dict[machine.LaptopPrecision | None, str] = {
    "int8": "in 8 bits",
    "bfloat16": "in 16 bits, because this processor has no instructions for 8-bit products",
    "float32": "in 32 bits, because this processor has no instructions for 8-bit or 16-bit products",
    None: "in 8 bits, and more on a processor without instructions for 8-bit products",
}
LISTED: tuple[tuple[fit.Precision, str], ...] = (("bfloat16", "16 bits"), ("fp8", "8"), ("int4", "4"))


def check_fit(model: str, device: str, dtype: str = "") -> tuple[str, str, dict[str, object]]:
    """Return a sentence on what a model needs and whether it fits, the advice if it does not, and the sizes in bytes."""
    if (known := laptop.by_name(model)) is not None:
        return _laptop(known, device)
    try:
        values = _config_values(model)
        geometry = fit.of_config(values)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return "unknown, as its configuration can't be read", f"{error.filename or model}: {reason}. Name a model's folder.", {}
    except (fetch.FetchError, fit.GeometryError, ValueError) as error:
        return "unknown, as its configuration can't be read", f"{model}: {error}.", {}
    host = machine.of_device(device)
    stored = "fp8" if "quantization_config" in values else ""
    sizes = {precision: fit.needs(geometry, precision) for precision in fit.PRECISIONS}
    listed = ", ".join(f"{size(sizes[precision].total)} at {name}" for precision, name in LISTED)
    free = "unknown" if host.free is None else size(host.free)
    sentence = f"{model} needs {listed}; {free} free on {host.label}"
    facts: dict[str, object] = {
        "free_bytes": host.free,
        "device": host.kind,
        "bytes": {
            name: {"weights": one.weights, "workspace": one.workspace, "cache": one.cache, "rows": one.rows, "total": one.total}
            for name, one in sizes.items()
        },
    }
    try:
        choice = fit.choose(model, geometry, host, asked="" if dtype == "auto" else dtype, stored=stored)
    except fit.NoRoomError as error:
        return sentence, str(error), facts
    return f"{sentence}: it runs in {choice.precision} ({choice.why})", "", {**facts, "dtype": choice.precision}


def _laptop(model: LaptopModel, device: str) -> tuple[str, str, dict[str, object]]:
    host = machine.of_device(device)
    if host.kind != "cpu":
        return _on_card(model, host)
    precision = machine.laptop_precision()
    needed = model.memory_bytes + (WIDTHS[precision or "int8"] - 1) * model.n_weights
    sentence = f"{model.name} needs {size(needed)} of memory, {KEPT[precision]}"
    facts: dict[str, object] = {
        "device": "cpu",
        "bytes": {precision or "int8": {"total": needed}},
        "dtype": precision or "int8",
    }
    if not model.is_pulled:
        return f"{sentence}, and is not pulled", f"Get it with: dg-lsp engine pull {model.name}", facts
    free = machine.of_device("cpu").free
    if free is not None and free < needed:
        advice = "Close other programs, or choose a smaller model."
        return f"{sentence}; {size(free)} free", advice, {**facts, "free_bytes": free}
    return sentence, "", facts


def _on_card(model: LaptopModel, host: fit.Machine) -> tuple[str, str, dict[str, object]]:
    free = "unknown" if host.free is None else size(host.free)
    precision, needed = "bfloat16", model.card_bytes
    sizes: dict[str, object] = {precision: {"total": needed}}
    sentence = f"{model.name} needs {size(needed)} in 16 bits"
    if host.kind == "cuda":  # the others do not compute in 8 bits
        sizes["int8"] = {"total": model.narrow_card_bytes}
        sentence += f" or {size(model.narrow_card_bytes)} in 8"
        if host.free is not None and host.free < needed:
            precision, needed = "int8", model.narrow_card_bytes
    sentence += f"; {free} free on {host.label}"
    facts: dict[str, object] = {"device": host.kind, "bytes": sizes, "dtype": precision, "free_bytes": host.free}
    if not model.is_pulled:
        return f"{sentence}, and is not pulled", f"Get it with: dg-lsp engine pull {model.name}", facts
    if host.free is not None and host.free < needed:
        return sentence, "Free the GPU, choose a smaller model, or set engine.device = cpu.", facts
    return sentence, "", facts


def _config_values(model: str) -> Mapping[str, Any]:
    folder = model_names.folder_of(model)
    if model == EMBEDDED:
        folder = Path(str(resources.files("dg_lsp.models"))) / EMBEDDED
    if folder is None:
        return fetch.config_values(model)
    file = folder / fetch.CONFIG
    if file.stat().st_size > MAX_BYTES:
        raise ValueError(f"{file} is too large for a configuration")
    values = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"{file} is not a JSON object")  # noqa: TRY004 -- handled like invalid JSON
    return values
