"""A repository that claims a standard module's name: its own module or an import of it never comes with a fill."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dg_lsp.cli import main as cli
from tests.batch.engines import Filling, connecting

HOLE = "def f(x):\n    ...\n"


@pytest.mark.parametrize(
    ("name", "text"), [("json.py", "raise SystemExit('run')\n"), ("other.py", "from evil import json\nprint(json.dumps(1))\n")]
)
def test_a_claimed_module_comes_with_no_fill_and_is_not_run(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "a.py").write_text(HOLE)
    monkeypatch.chdir(tmp_path)

    def patch() -> str:
        command = ["infill", "a.py", "--all"]
        return CliRunner().invoke(cli.app, command, obj=connecting(Filling("return json.dumps(x)"))).stdout

    assert "+import json" in patch(), "without the claim the module is imported"
    (tmp_path / name).write_text(text)
    assert "import" not in patch()
    assert "evil" not in patch()
