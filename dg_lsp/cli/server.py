"""The command line of `dg-lsp serve`; `server.start` implements it."""

from __future__ import annotations

from typing import Annotated

import typer

from dg_lsp.cli.command_group import command_group
from dg_lsp.server import start

app = command_group()


@app.command()
def serve(
    stdio: Annotated[bool, typer.Option("--stdio", help="Use standard input and output; this is the default.")] = False,
    tcp: Annotated[str, typer.Option(metavar="HOST:PORT", help="Listen for one client at this address instead.")] = "",
    log: Annotated[
        str, typer.Option(metavar="LEVEL", help="Log level on standard error: debug, info, warning or error.")
    ] = "warning",
    engine: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", hidden=True)] = "",
) -> None:
    """Run the language server; editors start this command. Exits with 0 after the editor's shutdown request, else with 1."""
    start.serve(stdio=stdio, tcp=tcp, log=log, engine=engine)
