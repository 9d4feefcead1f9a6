"""`dg-lsp doctor`: check the installation, and say what is missing and how to fix it.

`dg-lsp setup` repairs two of the findings: it installs missing packages, and pulls a laptop model. Torch is not imported here:
what the engine alone knows, it states when `sample` asks it. It is started for that unless `--no-sample` is given.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata, resources, util
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dg_lsp import __version__
from dg_lsp.cli import completions, sample
from dg_lsp.cli.command_group import command_group
from dg_lsp.cli.engine import line_of
from dg_lsp.cli.sample import FillTime
from dg_lsp.client.engine import connect_options
from dg_lsp.client.port import EngineError
from dg_lsp.core import languages
from dg_lsp.core.wording import counted, size
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.fit import machine
from dg_lsp.engine.model.weights import fetch
from dg_lsp.wire import config, discovery, extras, laptop, model_names
from dg_lsp.wire.discovery import DiscoveryError, inspect_engine
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.laptop import LaptopModel
from dg_lsp.wire.messages import WireError
from dg_lsp.wire.settings import DEFAULTS, EMBEDDED
from dg_lsp.wire.visible import visible_message

ENGINE_NEEDS = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
VLLM_NEEDS = ("tokenizers",)
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json")
SCARCE_BYTES = 1 << 30
"""With less free memory than this, an engine with a useful model may run out of memory."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `advice` says what to do and is empty if the check passed; `facts` are for programs.

    `remedy` is what `dg-lsp setup` does about it: it installs packages, or pulls a laptop model. Others have none.
    """

    what: str
    state: str
    advice: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    remedy: Literal["", "install", "pull"] = ""


app = command_group()


@app.command()
def doctor(
    model: Annotated[str, completions.model_option("Check this model instead of the configured one.")] = "",
    is_sampled: Annotated[
        bool, typer.Option("--sample/--no-sample", help="Request a sample fill, which starts the engine if needed.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one object: whether all checks passed, and each finding.")
    ] = False,
) -> None:
    """Show what is installed, where the model runs, how fast it fills, what is missing, and how to fix it.

    Exits with 1 if a check fails.
    """
    all_findings: list[Finding] = []
    for finding in findings(model, with_sample=is_sampled):
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
    yield engine_packages(model)
    yield grammars()
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
        room = what_fits(model, configured.settings.device, configured.settings.dtype)
        yield room
        if room.advice:  # the engine would refuse to load it
            return
    if not with_sample:
        yield Finding("model", f"{model}, on device {configured.settings.device}; for the reasons, run without --no-sample")
        return
    try:
        join_ms, info, fresh, typed = asyncio.run(sample.take(connect_options(configured, model=model)))
    except EngineError as error:
        yield Finding("model", f"{model} does not respond", f"{ended(error)} More is in the engine's log: dg-lsp engine logs")
        return
    yield running_model(info, join_ms)
    yield memory(info)
    yield fill_times("a fill in a new file", fresh)
    yield fill_times("a fill one character later", typed)


# --- Each check


def before_use(model: str) -> Iterator[Finding]:
    """Yield the findings whose remedy setup carries out before a model is tried."""
    yield engine_packages(model)
    if laptop.by_name(model) is not None:
        yield what_fits(model, DEFAULTS.device)


def absent(names: tuple[str, ...]) -> list[str]:
    """Return the packages that this environment lacks, without importing them."""
    return [name for name in names if util.find_spec(name) is None]


def engine_packages(model: str = EMBEDDED) -> Finding:
    """Return which of the packages that the model's engine needs are installed; most remote models need none."""
    is_vllm = model.startswith("vllm:")
    needs = VLLM_NEEDS if is_vllm else ENGINE_NEEDS
    if lacking := absent(needs):
        state = f"{', '.join(lacking)} not installed"
        if model.startswith(("fim:", "chat:")):
            return Finding("engine", f"{state}; the chosen model is remote and does not need them")
        command = " && ".join(map(shlex.join, remote_install_commands(lacking))) if is_vllm else install_command("engine")
        return Finding("engine", state, f"To install them: {command}", {"absent": lacking}, "install")
    versions = {name: _version(name) for name in needs}
    return Finding("engine", ", ".join(f"{name} {version}" for name, version in versions.items()), facts=versions)


def remote_install_commands(names: Sequence[str]) -> list[list[str]]:
    """Return the commands that install only these packages of the engine, in the versions that dg-lsp requires; no torch."""
    required = {re.split(r"[^\w.-]", line)[0]: line for line in extras.requirements("engine")}
    return extras.install_commands(*(required.get(name, name) for name in names), any_torch=True)


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
        return Finding("runtime folder", "engines can't use it", ended(error))
    blocked = [str(log) for log in logs if log.is_symlink() or not log.is_file() or not os.access(log, os.W_OK)]
    if blocked:
        return Finding("runtime folder", f"engines can't write their logs in {folder}", f"Remove {' and '.join(blocked)}.")
    return Finding("runtime folder", f"{folder}, private to this user")


def running_engines() -> Finding:
    """Return the running engines and their states."""
    try:
        reports = [inspect_engine(files) for files in discovery.all_engine_files()]
    except DiscoveryError as error:
        return Finding("running engines", "they can't be queried", ended(error))
    responding = [(each, each.info) for each in reports if each.info is not None]
    silent = [each.state.pid for each in reports if each.info is None and each.state and discovery.alive(each.state.pid)]
    facts = {"engines": [dict(info.values) for _, info in responding]}
    try:
        state = "; ".join(line_of(each) for each, _ in responding) or "none; the first request starts one"
        errors = [info.text("message", "") for _, info in responding if info.text("state", "") == "failed"]
    except WireError as error:
        advice = f"{ended(f'Its answer is malformed: {error}')} To restart it, run: dg-lsp engine stop --now --all"
        return Finding("running engines", "an answer can't be parsed", advice, facts)
    if silent:
        pids = ", ".join(map(str, silent))
        return Finding("running engines", state, f"Process {pids} does not respond; end it with: kill -9 {pids}", facts)
    advice = f"{ended('; '.join(errors))} More is in the engine's log: dg-lsp engine logs" if errors else ""
    return Finding("running engines", state, advice, facts)


def running_model(info: Mapping[str, object], join_ms: float) -> Finding:
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


def memory(info: Mapping[str, object]) -> Finding:
    stated = info.get("memory")
    sizes = {name: value for name, value in stated.items() if isinstance(value, int)} if isinstance(stated, Mapping) else {}
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


def fill_times(what: str, fill: FillTime) -> Finding:
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


def ended(sentence: object) -> str:
    text = str(sentence).rstrip()
    return text if text.endswith((".", "?", "!")) else f"{text}."


def grammars() -> Finding:
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


def what_fits(model: str, device: str, dtype: str = "") -> Finding:
    """Return what a model needs and whether it fits, with the sizes in bytes."""
    host = machine.of_device(device)
    if (known := laptop.by_name(model)) is not None:
        return _laptop(known, host)
    unknown = "unknown, as its configuration can't be read"
    try:
        values = _config_values(model)
        geometry = fit.of_config(values)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return Finding("what fits", unknown, f"{error.filename or model}: {reason}. Name a model's folder.")
    except (fetch.FetchError, fit.GeometryError, ValueError) as error:
        return Finding("what fits", unknown, f"{model}: {error}.")
    sizes = {precision: fit.needs(geometry, precision) for precision in fit.PRECISIONS}
    listed = ", ".join(f"{size(sizes[precision].total)} at {name}" for precision, name in LISTED)
    sentence = f"{model} needs {listed}; {_free(host)}"
    parts = ("weights", "workspace", "cache", "rows", "total")
    facts: dict[str, object] = {
        "free_bytes": host.free,
        "device": host.kind,
        "bytes": {name: {part: getattr(one, part) for part in parts} for name, one in sizes.items()},
    }
    stored = "fp8" if "quantization_config" in values else ""
    try:
        choice = fit.choose(model, geometry, host, asked="" if dtype == "auto" else dtype, stored=stored)
    except fit.NoRoomError as error:
        return Finding("what fits", sentence, str(error), facts)
    state = f"{sentence}: it runs in {choice.precision} ({choice.why})"
    return Finding("what fits", state, facts={**facts, "dtype": choice.precision})


def _laptop(model: LaptopModel, host: fit.Machine) -> Finding:
    """Return what a laptop model needs: on a processor in the precision that it multiplies in, on a GPU in 16 or 8 bits."""
    if host.kind == "cpu":
        own = machine.laptop_precision()
        precision: str = own or "int8"
        needed = {precision: model.memory_bytes + (WIDTHS[precision] - 1) * model.n_weights}
        state = f"{model.name} needs {size(needed[precision])} of memory, {KEPT[own]}"
        advice = "Close other programs, or choose a smaller model."
    else:
        needed, precision = {"bfloat16": model.card_bytes}, "bfloat16"
        state = f"{model.name} needs {size(model.card_bytes)} in 16 bits"
        if host.kind == "cuda":  # the others do not compute in 8 bits
            needed["int8"] = model.narrow_card_bytes
            state += f" or {size(model.narrow_card_bytes)} in 8"
            precision = "int8" if host.free is not None and host.free < model.card_bytes else precision
        advice = "Free the GPU, choose a smaller model, or set engine.device = cpu."
    is_short = host.free is not None and host.free < needed[precision]
    if host.kind != "cpu" or (model.is_pulled and is_short):
        state += f"; {_free(host)}"
    sizes = {name: {"total": n_bytes} for name, n_bytes in needed.items()}
    facts = {"device": host.kind, "bytes": sizes, "dtype": precision, "free_bytes": host.free}
    if not model.is_pulled:
        return Finding(
            "what fits", f"{state}, and is not pulled", f"Get it with: dg-lsp engine pull {model.name}", facts, "pull"
        )
    return Finding("what fits", state, advice if is_short else "", facts)


def _free(host: fit.Machine) -> str:
    return f"{'unknown' if host.free is None else size(host.free)} free on {host.label}"


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
