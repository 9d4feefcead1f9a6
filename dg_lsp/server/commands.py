"""`dg-lsp serve`, as a command with options; what it does is `start`'s."""

from __future__ import annotations

from typing import Annotated

import typer

from dg_lsp.server import start

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def serve(
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Speak over standard input and output, as without any option.")
    ] = False,
    tcp: Annotated[str, typer.Option(metavar="HOST:PORT", help="Wait for one client at this address instead.")] = "",
    log: Annotated[
        str, typer.Option(metavar="LEVEL", help="What to write to standard error: debug, info, warning, error.")
    ] = "warning",
    engine: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", hidden=True)] = "",
) -> None:
    """Run the language server. Editors start this; ends with 0 when the editor asked for the end, else with 1."""
    start.serve(stdio=stdio, tcp=tcp, log=log, engine=engine)
