"""`python -m dg_lsp` and `dg-lsp`: what editors start goes right to the server, all else to the command line.

The command line's libraries take a tenth of a second to import, in which an editor would wait.
"""

import os
import sys

from dg_lsp import INTERRUPTED, is_interrupt
from dg_lsp.wire import programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

PLAIN = (["serve"], ["serve", "--stdio"])
PLATFORM = "dg-lsp: Windows is not supported. Run dg-lsp in WSL; Linux and macOS are supported."


def main() -> None:
    """Run what the arguments say and end the process with its exit code."""
    if sys.platform == "win32":
        sys.exit(PLATFORM)
    programs.ignore_current_folder()
    _open_closed_streams()
    try:
        if sys.argv[1:] in PLAIN:
            _serve()
        else:
            from dg_lsp.cli import main as cli

            cli.main()
    except KeyboardInterrupt:
        # typer handles Ctrl-C only while a command runs, not while modules are imported or the shell's completion runs.
        _interrupted()
    except Exception as error:
        if not is_interrupt(error):
            raise
        _interrupted()


def _open_closed_streams() -> None:
    """Open the null device as each standard stream that is closed, as by `2>&-` in a shell.

    Otherwise `sys.stderr` would be None, and the next file or socket would get the stream's number and other output.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- a descriptor that stays open
    if sys.stdout is None:
        sys.stdout = open(1, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _interrupted() -> "NoReturn":
    print("dg-lsp: interrupted", file=sys.stderr)
    sys.exit(INTERRUPTED)


def _serve() -> None:
    from dg_lsp.server import start

    try:
        start.serve()
    except Exception as error:
        from dg_lsp.cli import main as cli

        cli.fail(error)


if __name__ == "__main__":
    main()
