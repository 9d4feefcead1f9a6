"""The documentation names exactly the fields of the report and the options of the command."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from typer.main import get_command

from dg_lsp.batch.report import ReportRow
from dg_lsp.cli import main as cli
from tests.batch.test_batch_commands import report

TEXT = (Path(__file__).parents[2] / "docs" / "infill.md").read_text()


def test_every_field_of_a_hole_is_documented() -> None:
    table = TEXT.partition("| `holes[]` |")[2].partition("\n\n")[0]
    names = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1] if line else "")]
    assert names == [field.name for field in dataclasses.fields(ReportRow)]


def test_every_field_of_the_summary_is_documented(stubbed: Path) -> None:
    sentence = re.search(r"^`summary` has (.*)$", TEXT, re.MULTILINE)
    assert sentence
    assert set(re.findall(r"`(\w+)`", sentence[1])) == report("a.py")["summary"].keys()


def test_every_option_that_is_documented_exists() -> None:
    infill = get_command(cli.app).commands["infill"]  # type: ignore[attr-defined]
    options = {name for parameter in infill.params for name in parameter.opts}
    assert set(re.findall(r"(?<=`)--[a-z-]+", TEXT)) - {"--junit-xml"} <= options
