"""What the doctor sees, and what it advises."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dg_lsp import cli
from dg_lsp.batch import doctor


def test_a_package_that_is_missing_is_named_with_its_cure() -> None:
    finding = doctor.engine_packages(("sys", "no_such_package"))
    assert finding.state == "no_such_package not installed"
    assert "pip install 'dg-lsp[engine]'" in finding.advice
    assert doctor.engine_packages(("sys",)).advice == ""


def test_a_model_that_is_not_whole_is_told(tmp_path: Path) -> None:
    for name in doctor.MODEL_FILES[1:]:
        (tmp_path / name).write_bytes(b"x" * 1000)
    assert doctor.model_files(tmp_path).state == f"config.json missing in {tmp_path}"
    (tmp_path / "config.json").write_bytes(b"{}")
    assert doctor.model_files(tmp_path).advice == ""


def test_a_runtime_folder_that_others_can_enter_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DG_LSP_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o755)
    assert "chmod 700" in doctor.runtime_folder().advice
    tmp_path.chmod(0o700)
    assert doctor.runtime_folder().advice == ""
    assert doctor.running_engines().state == "none; the first request starts one"


def test_the_command_says_a_line_for_each_and_loads_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DG_LSP_RUNTIME_DIR", str(tmp_path / "run"))
    loaded = "torch" in sys.modules
    found = CliRunner().invoke(cli.app, ["doctor"])
    assert found.exit_code in (0, 1)
    for what in ("dg-lsp", "Python", "engine", "embedded model", "runtime folder", "running engines", "grammars: 14 languages"):
        assert f"  {what}" in found.stdout
    assert ("torch" in sys.modules) == loaded
