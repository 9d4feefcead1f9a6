"""`dg-lsp doctor`: check the installation, and say what is missing and how to fix it.

Times and memory come from the engine, which is started for that unless `--no-sample` is given: it fills our own sample.
"""

from __future__ import annotations

import asyncio
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from dg_lsp import __version__
from dg_lsp.cli import checks, completions, sample
from dg_lsp.cli.checks import Finding
from dg_lsp.cli.command_group import command_group
from dg_lsp.client.engine import connect_options
from dg_lsp.client.port import EngineError
from dg_lsp.wire import config, model_names
from dg_lsp.wire.visible import visible_message

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
    yield checks.engine_packages(model)
    yield checks.grammars()
    yield checks.model_files(Path(str(resources.files("dg_lsp.models"))) / "embedded")
    yield checks.configuration(root, problems)
    folder = checks.runtime_folder()
    yield folder
    if folder.advice:
        return
    running = checks.running_engines()
    yield running
    name = str(model_names.folder_of(model) or model)
    is_loaded = any(each.get("model") == name and each.get("state") == "ready" for each in running.facts.get("engines", ()))
    # A loaded model has its memory already, so it is not compared with the free memory.
    if not model_names.is_remote(model) and not is_loaded:
        room = checks.what_fits(model, configured.settings.device, configured.settings.dtype)
        yield room
        if room.advice:  # the engine would refuse to load it
            return
    if not with_sample:
        yield Finding("model", f"{model}, on device {configured.settings.device}; for the reasons, run without --no-sample")
        return
    try:
        join_ms, info, fresh, typed = asyncio.run(sample.take(connect_options(configured, model=model)))
    except EngineError as error:
        yield Finding(
            "model", f"{model} does not respond", f"{checks.ended(error)} More is in the engine's log: dg-lsp engine logs"
        )
        return
    yield checks.running_model(info, join_ms)
    yield checks.memory(info)
    yield checks.fill_times("a fill in a new file", fresh)
    yield checks.fill_times("a fill one character later", typed)
