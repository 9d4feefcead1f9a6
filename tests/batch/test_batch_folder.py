"""A folder of real files with removed bodies, filled by an engine that often writes invalid code."""

from __future__ import annotations

import ast
import json
import random
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dg_lsp.cli import main as cli
from dg_lsp.core.values import InfillRequest
from tests.batch.engines import connecting
from tests.fakes import Filling

N_FILES = 60
SOURCES = ("pytest", "rich", "typer", "hypothesis", "pygments")
NONSENSE = (
    "return 1", "return (", "x = '''", "):", "pass", "", "if x:", "return [\n", "def g(:\n    y", "}", "for", "\\",
    "return 1 2", "\t\treturn 3", "@", "...", '"""', "return None\n\n\ndef more():\n    return 2", "#",
    "é = 1\nreturn é", "else:\n    return",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Real files in which every second function with a docstring has no body."""
    n_made = 0
    for package in SOURCES:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        for path in sorted(Path(spec.origin).parent.rglob("*.py")):
            if n_made < N_FILES and 500 < path.stat().st_size < 40_000 and (text := _stubbed(path.read_text("utf-8"))):
                (tmp_path / f"{package}_{n_made}.py").write_text(text, "utf-8")
                n_made += 1
    assert n_made == N_FILES
    return tmp_path


@pytest.mark.slow
def test_every_file_parses_afterwards_and_every_hole_is_accounted_for(folder: Path) -> None:
    rng = random.Random(0)

    def nonsense(request: InfillRequest) -> tuple[str, ...]:
        return tuple(rng.choice(NONSENSE) for _ in request.holes)

    before = {path: path.read_text("utf-8") for path in folder.iterdir()}
    n_stubs = sum(text.count("raise NotImplementedError  # stub") for text in before.values())
    engine = Filling(nonsense, nonsense)
    result = CliRunner().invoke(cli.app, ["infill", str(folder), "--write", "--json", "--all"], obj=connecting(engine))
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    rows = [row for row in report["holes"] if row["kind"] == "body"]
    assert len(rows) >= n_stubs > N_FILES
    assert {row["status"] for row in rows} == {"filled", "failed"}
    assert all(row["reason"] for row in rows if row["status"] == "failed")
    for path in before:
        ast.parse(path.read_text("utf-8"), str(path))


def _stubbed(text: str) -> str:
    """Return the text with bodies removed; "" if it has none."""
    lines = text.split("\n")
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    documented = [node for node in functions if len(node.body) > 1 and ast.get_docstring(node) and "NotImpl" not in text]
    for node in sorted(documented, key=lambda node: -node.lineno)[::2]:
        first, last = node.body[1], node.body[-1]
        if any(inner is not node and node.lineno <= inner.lineno <= (node.end_lineno or 0) for inner in functions):
            continue
        assert last.end_lineno is not None
        lines[first.lineno - 1 : last.end_lineno] = [" " * first.col_offset + "raise NotImplementedError  # stub"]
    return "\n".join(lines) if "# stub" in "\n".join(lines) else ""
