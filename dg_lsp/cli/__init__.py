"""The `dg-lsp` command: one module for each subcommand, and what they share. Only this package imports typer and rich."""
