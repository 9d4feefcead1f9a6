"""The command line of `dg-lsp stats`, which shows the counts of suggestions on this machine."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from dg_lsp.server import stats
from dg_lsp.wire.command_group import command_group

app = command_group()


@app.command()
def show(
    days: Annotated[int, typer.Option(min=1, max=stats.MAX_DAYS, help="Number of days, including today.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how many suggestions were shown and accepted, and how long answers took. These numbers never leave this machine."""
    folder_name = os.environ.get(stats.FOLDER_VARIABLE)
    folder = Path(folder_name) if folder_name else stats.default_folder()
    today = datetime.datetime.now(datetime.UTC).date()
    stats.prune(folder, today)
    counts = stats.load_counts(folder, today - datetime.timedelta(days=days - 1))
    if as_json:
        latencies = {"p50": counts.quantile_ms(0.5), "p95": counts.quantile_ms(0.95)}
        typer.echo(json.dumps({"days": days, "counts": dict(sorted(counts.numbers.items())), "latencyMs": latencies}, indent=2))
    else:
        typer.echo(stats.report(counts))
