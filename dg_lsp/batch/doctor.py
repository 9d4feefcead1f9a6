"""`dg-lsp doctor`: look at what dg-lsp needs, and say in plain words what is missing and what to do about it.

Imports nothing of weight: whether torch is there can be seen without loading it, and what a model needs and takes is asked
of the engine, which is started for that unless told otherwise.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata, resources, util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dg_lsp import ENGINE_INSTALL, __version__
from dg_lsp.core import languages
from dg_lsp.core.languages import Language
from dg_lsp.engine.entry import ENGINE_COMMAND
from dg_lsp.wire import config, meeting, model_names
from dg_lsp.wire.config import Config
from dg_lsp.wire.fields import Fields, WireError
from dg_lsp.wire.meeting import MeetingError
from dg_lsp.wire.settings import DEFAULTS
from dg_lsp.wire.visible import visible

if TYPE_CHECKING:
    from dg_lsp.batch.sample import Fill, Sample
    from dg_lsp.wire.inspection import EngineReport

ENGINE_NEEDS = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
VLLM_NEEDS = ("tokenizers",)
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json")
SCARCE_BYTES = 1 << 30
"""Less free memory than this, and an engine with a model of any use may not get what it needs."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `advice` says what to do, and is empty where all is well; `facts` are for programs."""

    what: str
    state: str
    advice: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


def doctor(
    model: Annotated[
        str, typer.Option(metavar="ID_OR_PATH", help="Look at this model instead of the one that is configured.")
    ] = "",
    sample: Annotated[bool, typer.Option(help="Ask the engine for a sample fill; starts the engine if need be.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object: whether all is well, and each finding.")] = False,
) -> None:
    """Say what is installed, where the model runs, how fast it fills, what is missing, and what to do about it.

    Ends with 1 when something is wrong.
    """
    found: list[Finding] = []
    for finding in findings(model, with_sample=sample):
        found.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        rows = [{**asdict(finding), "ok": not finding.advice} for finding in found]
        typer.echo(json.dumps({"ok": all(row["ok"] for row in rows), "findings": rows}, indent=2))
    raise typer.Exit(int(any(finding.advice for finding in found)))


def _show(finding: Finding) -> None:
    typer.echo(visible(f"{'no' if finding.advice else 'ok'}  {finding.what}: {finding.state}"))
    if finding.advice:
        typer.echo(visible(f"    {finding.advice}"))


def findings(model: str = "", *, with_sample: bool = False, workspace: Path | None = None) -> Iterator[Finding]:
    """Yield what was found, one thing at a time; `model` is looked at instead of the configured one."""
    from dg_lsp.infill.config import workspace_of

    root = workspace or workspace_of(Path.cwd())
    configured, problems = config.read(root)
    model = model or configured.settings.model
    yield Finding("dg-lsp", f"{__version__} on {platform.system()} {platform.machine()}", facts={"version": __version__})
    yield _python()
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
    # What it holds already can't be free as well.
    if not model_names.is_remote(model) and not _is_loaded(model, running):
        room = what_fits(model, configured)
        yield room
        if room.advice:  # the engine would refuse it as well
            return
    if with_sample:
        yield from _sampled(configured, model)
    else:
        yield Finding(
            "model", f"{model}, on device {configured.settings.device}; the engine says where and why: leave out --no-sample"
        )


def what_fits(model: str, configured: Config) -> Finding:
    """Return how much memory a model needs and in which precision it fits here; nothing is loaded for that."""
    from dg_lsp.batch import doctor_fit

    return Finding("what fits", *doctor_fit.look(model, configured.settings.device, configured.settings.dtype))


def _python() -> Finding:
    return Finding("Python", f"{platform.python_version()} at {sys.executable}")


def engine_packages(needs: tuple[str, ...] = ENGINE_NEEDS, *, remote: bool = False) -> Finding:
    """Return which of the engine's packages can be imported, without importing them; a `remote` model needs none."""
    absent = [name for name in needs if util.find_spec(name) is None]
    if absent and remote:
        return Finding("engine", f"{', '.join(absent)} not installed; the chosen model runs elsewhere and needs none of it")
    if absent:
        return Finding("engine", f"{', '.join(absent)} not installed", f"{ENGINE_INSTALL} brings them.")
    versions = {name: _version(name) for name in needs}
    return Finding("engine", ", ".join(f"{name} {version}" for name, version in versions.items()), facts=versions)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a part of Python, or a folder on its path
        return "of unknown version"


def model_files(folder: Path) -> Finding:
    """Return whether the embedded model is whole."""
    absent = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if absent:
        advice = "Install dg-lsp anew, or name another model with --model."
        return Finding("embedded model", f"{', '.join(absent)} missing in {folder}", advice)
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return Finding("embedded model", f"{size / 1e6:.1f} MB in {folder}")


def configuration(root: Path, problems: tuple[str, ...]) -> Finding:
    """Return which files were read for a workspace and which variables count, and what is wrong in them."""
    files = {str(path): path.is_file() for path, _ in config.sources(root)}
    variables = [name for name in config.VARIABLES if os.environ.get(name)]
    told = [f"{path} {'read' if there else 'is not there'}" for path, there in files.items()]
    if variables:
        told.append(f"{', '.join(variables)} {'counts' if len(variables) == 1 else 'count'} before them")
    # Names alone: one of the variables holds a key.
    facts = {"files": files, "variables": variables, "problems": list(problems)}
    advice = f"Fix or remove it. {' '.join(problems)}" if problems else ""
    return Finding("configuration", "; ".join(told), advice, facts)


def runtime_folder() -> Finding:
    """Return whether engines have a folder that only this user gets at; it is made where it is absent."""
    try:
        return Finding("runtime folder", f"{meeting.runtime_dir()}, for this user alone")
    except MeetingError as error:
        return Finding("runtime folder", "engines can't be met there", _ended(error))


def running_engines() -> Finding:
    """Return which engines run now, and how they are."""
    from dg_lsp.wire.inspection import inspect_engine

    try:
        seen = [inspect_engine(place) for place in meeting.all_engine_files()]
    except MeetingError as error:
        return Finding("running engines", "none that could be asked", _ended(error))
    answering = [each for each in seen if each.info is not None]
    silent = [each.state.pid for each in seen if each.info is None and each.state and meeting.alive(each.state.pid)]
    facts = {"engines": [dict(info.values) for info in map(_info, answering)]}
    try:
        state = "; ".join(map(_running, answering)) or "none; the first request starts one"
        failed = [info.text("message", "") for info in map(_info, answering) if info.text("state", "") == "failed"]
    except WireError as error:
        advice = f"{_ended(f'What it says is not as expected: {error}')} Start it anew: dg-lsp engine stop --now --all"
        return Finding("running engines", "one can't be understood", advice, facts)
    if silent:
        pids = ", ".join(map(str, silent))
        return Finding("running engines", state, f"Process {pids} does not answer; end it with: kill -9 {pids}", facts)
    advice = f"{_ended('; '.join(failed))} What led to it: dg-lsp engine logs" if failed else ""
    return Finding("running engines", state, advice, facts)


def _is_loaded(model: str, running: Finding) -> bool:
    """Return whether an engine has the model in memory."""
    engines = running.facts.get("engines")
    place = str(model_names.folder_of(model) or model)
    return isinstance(engines, list) and any(
        engine.get("model") == place and engine.get("state") == "ready" for engine in engines
    )


def _info(seen: EngineReport) -> Fields:
    assert seen.info is not None
    return seen.info


def _running(seen: EngineReport) -> str:
    info = _info(seen)
    n_users = info.integer("leases", 0)
    users = f"{n_users} {'user' if n_users == 1 else 'users'}"
    rss = info.inner("memory").integer("rss_bytes", 0)
    version = info.text("version", "")
    other = "" if version == __version__ else f", dg-lsp {version}"
    return (
        f"{info.text('model', '?')} (process {info.integer('pid', 0)}{other}, {info.text('state', '?')}, {users}, {_size(rss)})"
    )


def _sampled(configured: Config, model: str) -> Iterator[Finding]:
    """Yield what the engine says and does."""
    from dg_lsp.batch import sample
    from dg_lsp.infill.config import connect_options
    from dg_lsp.infill.port import EngineError

    try:
        taken = asyncio.run(sample.take(connect_options(configured, command=ENGINE_COMMAND, model=model)))
    except EngineError as error:
        yield Finding("model", f"{model} does not answer", f"{_ended(error)} More is in the engine's log: dg-lsp engine logs")
        return
    yield _model(taken)
    yield _memory(taken.info)
    yield _filled("a fill in a new file", taken.fresh)
    yield _filled("a fill one character later", taken.typed)


def _model(taken: Sample) -> Finding:
    info = taken.info
    why = info.get("why")
    reasons: Mapping[str, object] = why if isinstance(why, Mapping) else {}

    def because(name: str, value: str) -> str:
        return f"{value} ({reasons[name]})" if reasons.get(name) else value

    parts = [f"{info.get('model')} runs on {because('device', str(info.get('device')))}"]
    if info.get("dtype"):
        parts.append(f"in {because('dtype', str(info['dtype']))}")
    if threads := info.get("threads"):
        parts.append(f"with {because('threads', f'{threads} threads' if threads != 1 else '1 thread')}")
    parts.append(f"joined in {taken.join_ms / 1000:.1f} s, process {info.get('pid')}")
    facts = {"join_ms": round(taken.join_ms, 1), "info": dict(info)}
    return Finding("model", ", ".join(parts), facts=facts)


def _memory(info: Mapping[str, object]) -> Finding:
    told = info.get("memory")
    memory: Mapping[str, object] = told if isinstance(told, Mapping) else {}
    sizes = {name: value for name, value in memory.items() if isinstance(value, int)}
    parts = [f"the engine has {_size(sizes.get('rss_bytes', 0))}"]
    if "free_bytes" in sizes:
        parts.append(f"{_size(sizes['free_bytes'])} are free on this machine")
    on_host = str(info.get("device")) in ("cpu", "mps")
    if "device_bytes" in sizes and not on_host:
        parts.append(f"the model has {_size(sizes['device_bytes'])} on {info.get('device')}")
    if "device_free_bytes" in sizes and not on_host:
        parts.append(f"{_size(sizes['device_free_bytes'])} are free there")
    free = [sizes[name] for name in ("free_bytes", "device_free_bytes") if name in sizes]
    advice = ""
    if free and min(free) < SCARCE_BYTES:
        advice = "Memory is scarce: end what you do not need, or choose a smaller model (engine.model in the configuration)."
    return Finding("memory", ", ".join(parts), advice, sizes)


def _filled(what: str, fill: Fill) -> Finding:
    stages = ", ".join(f"{name} {ms:.0f}" for name, ms in fill.stages.items())
    cache = fill.done.cache
    state = f"{fill.ms:.0f} ms: {stages}; {fill.done.steps} steps, {cache.reused} of {cache.tokens} tokens known before"
    facts = {
        "ms": round(fill.ms, 1),
        "stages": {name: round(ms, 1) for name, ms in fill.stages.items()},
        "steps": fill.done.steps,
    }
    advice = ""
    if fill.ms > DEFAULTS.deadline:
        advice = (
            "Editors give up before that. Choose a smaller model or a faster device (engine.model, engine.device), give it "
            "more threads (engine.threads), or have editors wait longer (completion.deadline)."
        )
    return Finding(what, state, advice, facts)


def _ended(sentence: object) -> str:
    text = str(sentence).rstrip()
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1024**3:.1f} GiB" if n_bytes >= 1024**3 else f"{n_bytes / 1024**2:.0f} MiB"


def _grammars() -> Finding:
    problems = [problem for language in languages.TABLE if (problem := _grammar_problem(language))]
    if problems:
        return Finding("grammars", "; ".join(problems), "Install dg-lsp anew, so that grammars and queries fit each other.")
    found = (dist.name for dist in metadata.distributions() if (dist.name or "").startswith("tree-sitter"))
    versions = {name: _version(name) for name in sorted(found)}
    told = ", ".join(f"{name.removeprefix('tree-sitter-')} {version}" for name, version in versions.items())
    return Finding("grammars", f"{len(languages.TABLE)} languages; {told}", facts=versions)


def _grammar_problem(language: Language) -> str:
    try:
        languages.query(language)
    # A query that does not fit its grammar fails with tree-sitter's own error, and is no reason to stop looking.
    except Exception as error:
        return f"{language.name} ({error})"
    return ""
