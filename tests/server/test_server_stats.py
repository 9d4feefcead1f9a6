"""Numbers of several servers and days, added up."""

from __future__ import annotations

import datetime
import json
from bisect import bisect_left
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dg_lsp.cli import server as commands
from dg_lsp.server import stats
from dg_lsp.server.stats import LATENCIES_MS, Counts, Statistics

DAY = datetime.date(2026, 3, 14)


def test_servers_and_days_add_up(tmp_path: Path) -> None:
    for _ in range(2):
        server = Statistics(tmp_path / "stats")
        server.counts.numbers["shown"] += 3
        server.counts.latencies[bisect_left(LATENCIES_MS, 80)] += 1
        server.write(DAY)
        server.counts.numbers["shown"] += 1
        server.write(DAY)
        server.counts.numbers["shown"] += 5
        server.write(DAY + datetime.timedelta(days=1))
        server.counts.numbers["shown"] += 7
        server.write(DAY + datetime.timedelta(days=1))
    assert len(list((tmp_path / "stats").iterdir())) == 4
    assert stats.load_counts(tmp_path / "stats", DAY).numbers["shown"] == 2 * (3 + 1 + 5 + 7)
    assert stats.load_counts(tmp_path / "stats", DAY + datetime.timedelta(days=1)).numbers["shown"] == 2 * 7
    assert stats.load_counts(tmp_path / "stats", DAY).latencies == {6: 2}


def test_broken_files_and_missing_folders_cost_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "2026-03-14-1-a.json").write_text("{")
    (tmp_path / "2026-03-14-1-b.json").write_text('{"counts": {"shown": 2}, "latencies": {}}')
    (tmp_path / "2026-03-14-1-c.json").write_text('{"counts": [], "latencies": {"x": 1}}')
    assert stats.load_counts(tmp_path, DAY).numbers["shown"] == 2
    assert not stats.load_counts(tmp_path / "nowhere", DAY).numbers
    statistics = Statistics(tmp_path / "2026-03-14-1-a.json" / "inside")
    statistics.counts.numbers["shown"] += 1
    statistics.write(DAY)


def test_old_statistics_are_deleted(tmp_path: Path) -> None:
    old = DAY - datetime.timedelta(days=stats.MAX_DAYS + 1)
    for day in (old, DAY):
        server = Statistics(tmp_path)
        server.counts.numbers["shown"] += 1
        server.write(day)
    stats.prune(tmp_path, DAY)
    assert [path.name[:10] for path in tmp_path.iterdir()] == [DAY.isoformat()]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 100), (0.95, 1000), (1.0, None)])
def test_quantiles_are_upper_ends_of_classes(share: float, expected: int | None) -> None:
    counts = Counts()
    for ms in [80] * 12 + [900] * 7 + [9000]:
        counts.latencies[bisect_left(LATENCIES_MS, ms)] += 1
    assert counts.quantile_ms(share) == expected
    assert Counts().quantile_ms(0.5) is None


def test_the_report_is_for_people(tmp_path: Path) -> None:
    counts = Counts()
    assert stats.report(counts) == "nothing has been counted yet"
    for name, n in {"shown": 10, "accepted": 4, "typed through": 3, "not: midWord": 2, "not: unsure": 5}.items():
        counts.numbers[name] += n
    counts.latencies[bisect_left(LATENCIES_MS, 120)] += 1
    report = stats.report(counts)
    assert "accepted               4 (40 %)" in report
    assert report.index("unsure") < report.index("midWord")
    assert "at most 200 ms" in report
    assert "on screen" not in report
    counts.numbers["on screen"] += 8
    assert "confirmed on screen    8 (80 %; only some editors report this)" in stats.report(counts)


def test_the_command_shows_the_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(stats.FOLDER_VARIABLE, str(tmp_path))
    assert CliRunner().invoke(commands.stats_app, []).stdout == "nothing has been counted yet\n"
    server = Statistics(tmp_path)
    server.counts.numbers["shown"] += 2
    server.write(datetime.datetime.now(datetime.UTC).date())
    result = CliRunner().invoke(commands.stats_app, ["--json", "--days", "1"])
    assert json.loads(result.stdout)["counts"] == {"shown": 2}
    assert result.exit_code == 0
