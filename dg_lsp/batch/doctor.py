"""`dg-lsp doctor`: look at what dg-lsp needs, and say in plain words what is missing and what to do about it.

Starts nothing and imports nothing of weight: whether torch is there can be seen without loading it.
"""

from __future__ import annotations

import os
import platform
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources, util
from pathlib import Path

import typer

from dg_lsp import __version__
from dg_lsp.core import languages
from dg_lsp.core.languages import Language

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
    yield runtime_folder(_runtime())
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


def runtime_folder(folder: Path) -> Finding:
    """Return whether the engine's socket would lie where only this user gets at it."""
    try:
        info = folder.lstat()
    except FileNotFoundError:
        return Finding("runtime folder", f"{folder} will be made when an engine starts")
    except OSError as error:
        return Finding("runtime folder", f"{folder} can't be looked at: {error.strerror}", "Set DG_LSP_RUNTIME_DIR to another.")
    if not stat.S_ISDIR(info.st_mode):
        return Finding("runtime folder", f"{folder} is no folder", "Remove it, or set DG_LSP_RUNTIME_DIR to another.")
    if hasattr(os, "getuid") and info.st_uid != os.getuid():
        return Finding("runtime folder", f"{folder} belongs to another user", "Set DG_LSP_RUNTIME_DIR to one of your own.")
    if os.name == "posix" and stat.S_IMODE(info.st_mode) & 0o077:
        mode = f"{stat.S_IMODE(info.st_mode):04o}"
        return Finding("runtime folder", f"{folder} has mode {mode}: others may get at it", f"chmod 700 {folder}")
    return Finding("runtime folder", f"{folder}, for this user alone")


def _runtime() -> Path:
    import platformdirs

    return Path(os.environ.get("DG_LSP_RUNTIME_DIR") or platformdirs.user_runtime_dir("dg-lsp", appauthor=False))


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
