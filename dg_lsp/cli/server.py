"""The command lines of `dg-lsp serve` and `dg-lsp stats`; `start` and `stats` implement them."""

from __future__ import annotations

import datetime
import json
from typing import Annotated

import typer

from dg_lsp.cli import completions
from dg_lsp.cli.command_group import command_group
from dg_lsp.server import start, stats

app, stats_app = command_group(), command_group()


@app.command()
def serve(
    stdio: Annotated[bool, typer.Option("--stdio", help="Use standard input and output; this is the default.")] = False,
    tcp: Annotated[str, typer.Option(metavar="HOST:PORT", help="Listen for one client at this address instead.")] = "",
    log: Annotated[
        str,
        typer.Option(
            metavar="LEVEL",
            help="Log level on standard error: debug, info, warning or error.",
            autocompletion=completions.one_of(lambda: start.LEVELS),
        ),
    ] = "warning",
    engine: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", hidden=True)] = "",
) -> None:
    """Run the language server; editors start this command. Exits with 0 after the editor's shutdown request, else with 1."""
    start.serve(stdio=stdio, tcp=tcp, log=log, engine=engine)


@stats_app.command()
def show(
    days: Annotated[int, typer.Option(min=1, max=stats.MAX_DAYS, help="Number of days, including today.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how many suggestions were shown and accepted, and how long answers took. These numbers never leave this machine."""
    folder, today = stats.default_folder(), datetime.datetime.now(datetime.UTC).date()
    stats.prune(folder, today)
    counts = stats.load_counts(folder, today - datetime.timedelta(days=days - 1))
    if as_json:
        latencies = {"p50": counts.quantile_ms(0.5), "p95": counts.quantile_ms(0.95)}
        typer.echo(json.dumps({"days": days, "counts": dict(sorted(counts.numbers.items())), "latencyMs": latencies}, indent=2))
    else:
        typer.echo(stats.report(counts))
