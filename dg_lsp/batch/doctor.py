"""`dg-lsp doctor`: look at what dg-lsp needs, and say in plain words what is missing and what to do about it.

Starts nothing and imports nothing of weight: whether torch is there can be seen without loading it.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources, util
from pathlib import Path

import typer

from dg_lsp import __version__
from dg_lsp.core import languages
from dg_lsp.core.languages import Language
from dg_lsp.wire import meeting
from dg_lsp.wire.meeting import MeetingError

ENGINE_NEEDS = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `advice` says what to do, and is empty where all is well."""

    what: str
    state: str
    advice: str = ""


def doctor() -> None:
    """Say what is installed, what is missing, and what to do about it. Ends with 1 when something is."""
    found = list(findings())
    for finding in found:
        typer.echo(f"{'no' if finding.advice else 'ok'}  {finding.what}: {finding.state}")
        if finding.advice:
            typer.echo(f"    {finding.advice}")
    raise typer.Exit(int(any(finding.advice for finding in found)))


def findings() -> Iterator[Finding]:
    """Yield what was found, one thing at a time."""
    yield Finding("dg-lsp", f"{__version__} on {platform.system()} {platform.machine()}")
    yield _python()
    yield engine_packages()
    yield model_files(Path(str(resources.files("dg_lsp.models"))) / "embedded")
    yield runtime_folder()
    yield running_engines()
    yield _grammars()


def _python() -> Finding:
    where = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < (3, 11):
        return Finding("Python", where, "The local engine needs Python 3.11 or later; remote ones do not.")
    return Finding("Python", where)


def engine_packages(needs: tuple[str, ...] = ENGINE_NEEDS) -> Finding:
    """Return whether the engine's packages can be imported, without importing them."""
    absent = [name for name in needs if util.find_spec(name) is None]
    if absent:
        return Finding("engine", f"{', '.join(absent)} not installed", "pip install 'dg-lsp[engine]' brings them.")
    return Finding("engine", f"{', '.join(needs)} are installed")


def model_files(folder: Path) -> Finding:
    """Return whether the embedded model is whole."""
    absent = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if absent:
        advice = "Install dg-lsp anew, or name another model with --model."
        return Finding("embedded model", f"{', '.join(absent)} missing in {folder}", advice)
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return Finding("embedded model", f"{size / 1e6:.1f} MB in {folder}")


def runtime_folder() -> Finding:
    """Return whether engines have a folder that only this user gets at; it is made where it is absent."""
    try:
        return Finding("runtime folder", f"{meeting.runtime_dir()}, for this user alone")
    except MeetingError as error:
        return Finding("runtime folder", "engines can't be met there", f"{error}.")


def running_engines() -> Finding:
    """Return which engines run now."""
    try:
        states = [state for place in meeting.places() if (state := meeting.read_state(place)) and meeting.alive(state.pid)]
    except MeetingError:
        return Finding("running engines", "none that could be found")
    if not states:
        return Finding("running engines", "none; the first request starts one")
    return Finding("running engines", ", ".join(f"{state.which.model} (process {state.pid})" for state in states))


def _grammars() -> Finding:
    problems = [problem for language in languages.TABLE if (problem := _grammar_problem(language))]
    if problems:
        return Finding("grammars", "; ".join(problems), "Install dg-lsp anew, so that grammars and queries fit each other.")
    return Finding("grammars", f"{len(languages.TABLE)} languages")


def _grammar_problem(language: Language) -> str:
    try:
        languages.query(language)
    # A query that does not fit its grammar fails with tree-sitter's own error, and is no reason to stop looking.
    except Exception as error:
        return f"{language.name} ({error})"
    return ""
