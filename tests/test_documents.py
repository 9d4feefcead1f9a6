"""Every command in the README and in docs is run here, or is listed with the reason why it is not.

Pages in docs/decisions record what was run at the time; they are not read here.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from dg_lsp.cli import main as cli
from dg_lsp.wire import config, laptop
from tests.editors import machine
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = re.compile(r"(?:dg-lsp|python3?|make|pytest|pip|pipx|uv|ollama|llama-server|ray|vllm|sha256sum) \S")

# As documented, what is run instead of a placeholder, and the exit statuses that it may have.
RUN = (
    ("dg-lsp infill PATH…", "dg-lsp infill src/sums.py", (0, 1)),
    ("dg-lsp infill src/", "", (0, 1)),
    ("dg-lsp infill --all src/", "", (0, 1)),
    ("dg-lsp doctor", "", (0, 1)),
    ("dg-lsp doctor --model MODEL", "dg-lsp doctor --model embedded", (0, 1)),
    ("dg-lsp setup", "", (0, 1)),
    ("dg-lsp setup --json", "", (0,)),
    ("dg-lsp engine models", "", (0,)),
    ("dg-lsp engine status", "", (0,)),
    ("dg-lsp engine start", "", (0,)),
    ("dg-lsp engine stop", "", (0,)),
    ("dg-lsp engine start --port 0", "", (0,)),
    ("dg-lsp engine stop --now", "", (0,)),
    ("dg-lsp engine stop --now --all", "", (0,)),
    ("python benchmarks/everyday.py MODEL", f"{sys.executable} {ROOT}/benchmarks/everyday.py copy", (0,)),
)
# Run by other tests.
TESTED = {"pytest tests/engine/test_chat_servers.py": "tests/engine/test_chat_servers.py", "make test": "all of them"}
# Not run, with the reason above them. Of those that run dg-lsp, make or a benchmark, tests check that what they name exists.
NOT_RUN = [
    line
    for line in Path(__file__).with_name("commands.txt").read_text("utf-8").splitlines()[1:]
    if line and not line.startswith("# ")
]


def commands() -> dict[str, list[str]]:
    """Return the commands of each page, in shell blocks and in backquotes, without the comments behind them."""
    return {path.relative_to(ROOT).as_posix(): list(_commands(path.read_text("utf-8"))) for path in PAGES}


def _commands(text: str) -> Iterator[str]:
    for language, block in FENCE.findall(text):
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        if language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        if language in ("sh", "console"):
            yield from (re.sub(r"\s+# .*", "", line) for line in lines)
    yield from (each for each in re.findall(r"`([^`\n]+)`", FENCE.sub("", text)) if PROGRAMS.match(each))


def listed() -> set[str]:
    return {*TESTED, *NOT_RUN, *(documented for documented, _, _ in RUN)}


def test_every_command_is_run_or_listed() -> None:
    documented = {command for found in commands().values() for command in found}
    assert documented - listed() == set(), "not listed in this file, or in commands.txt"
    assert listed() - documented == set(), "no longer documented"


def test_links_lead_to_files() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\((?!\w+://)([^)#\s]+)", page.read_text("utf-8"))]
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_the_first_page_stays_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 80


def test_a_command_in_a_block_and_one_in_backquotes_are_found() -> None:
    text = "```sh\nmake a  # why\n```\n```console\n$ dg-lsp b \\\n  --c\nits output\n```\nRun `dg-lsp d`, not `d`.\n"
    assert list(_commands(text)) == ["make a", "dg-lsp b --c", "dg-lsp d"]


@pytest.mark.parametrize("command", sorted(command for command in listed() if "dg-lsp " in command))
def test_the_options_of_a_command_exist(command: str) -> None:
    for part in re.split(r" (?:--|\|) (?=dg-lsp )", command):
        words = shlex.split(part)
        if words[0] == "dg-lsp":
            parse(words[1:])


def test_an_option_that_does_not_exist_is_found() -> None:
    with pytest.raises(Exception, match="--colour"):
        parse(["infill", "--colour", "src"])


def parse(words: list[str]) -> None:
    """Parse the words as the command line does, but check no value. Raises an exception for an unknown option or command."""
    command: Any = typer.main.get_command(cli.app)
    context = command.make_context("dg-lsp", [], resilient_parsing=True)
    while hasattr(command, "resolve_command") and words and not words[0].startswith("-"):
        _, command, words = command.resolve_command(context, words)
        context = command.make_context(command.name, [], parent=context, resilient_parsing=True)
    context.resilient_parsing = False
    command.make_parser(context).parse_args(words)


@pytest.mark.parametrize("command", sorted(command for command in listed() if re.match(r"make|python \w+/|pytest", command)))
def test_the_targets_and_files_of_a_command_exist(command: str) -> None:
    program, name = command.split()[:2]
    if program == "make":
        assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    else:
        assert (ROOT / name).exists()


@pytest.fixture
def environment() -> Iterator[Mapping[str, str]]:
    # Not below pytest's own folder, whose path is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="dg-") as folder:
        source = Path(folder) / "src" / "sums.py"
        source.parent.mkdir()
        source.write_text('def add(a, b):\n    """Return the sum of a and b."""\n    ...\n')
        yield {**machine.environment(Path(folder)), config.FILE_VARIABLE: os.devnull, laptop.NO_PULL_VARIABLE: "1"}
        machine.engine({**os.environ, **machine.environment(Path(folder))}, "stop", "--now", "--all")


@pytest.mark.slow
def test_documented_commands_run(environment: Mapping[str, str]) -> None:
    # In one test, because an engine that one of them starts is there for the next.
    for documented, instead, statuses in RUN:
        words = shlex.split(instead or documented)
        command = [sys.executable, "-m", "dg_lsp", *words[1:]] if words[0] == "dg-lsp" else words
        process = subprocess.run(
            command, cwd=environment["HOME"], env=dict(environment), capture_output=True, text=True, timeout=PATIENCE_S,
            check=False,
        )  # fmt: skip
        assert process.returncode in statuses, (documented, process.stdout + process.stderr)
        assert process.stdout or process.stderr, documented
        assert "Traceback" not in process.stderr, documented
