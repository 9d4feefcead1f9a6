"""`python -m dg_lsp` and `dg-lsp`: what editors start goes right to the server, all else to the command line.

The command line's libraries take a tenth of a second to import, in which an editor would wait.
"""

import sys

PLAIN = (["serve"], ["serve", "--stdio"])
PLATFORM = "dg-lsp: Windows is not supported. Run dg-lsp in WSL; Linux and macOS are supported."


def main() -> None:
    """Run what the arguments say and end the process with its exit code."""
    if sys.platform == "win32":
        sys.exit(PLATFORM)
    if sys.argv[1:] not in PLAIN:
        from dg_lsp import cli

        cli.main()
        return
    from dg_lsp.server import start

    try:
        start.serve()
    except Exception as error:
        from dg_lsp import cli

        cli.fail(error)


if __name__ == "__main__":
    main()
