"""`python -m dg_lsp` and `dg-lsp`: what editors start goes right to the server, all else to the command line.

The command line's libraries take a tenth of a second to import, in which an editor would wait.
"""

import os
import sys

from dg_lsp import INTERRUPTED, OUT_OF_MEMORY, is_interrupt, is_out_of_memory

PLAIN = (["serve"], ["serve", "--stdio"])
PLATFORM = "dg-lsp: Windows is not supported. Run dg-lsp in WSL; Linux and macOS are supported."


def main() -> None:
    """Run what the arguments say and end the process with its exit code."""
    if sys.platform == "win32":
        sys.exit(PLATFORM)
    try:
        _run()
    # typer handles Ctrl-C only while a command runs, not while modules are imported or the shell's completion runs.
    except (Exception, KeyboardInterrupt) as error:
        if is_interrupt(error):
            message, status = "interrupted", INTERRUPTED
        elif is_out_of_memory(error):
            message, status = OUT_OF_MEMORY, 2
        else:
            message, status = _about(error), 2
    else:
        return
    # Here, where the failed frames have freed their memory.
    print(f"dg-lsp: {message}", file=sys.stderr)
    sys.exit(status)


def _about(error: BaseException) -> str:
    """Return the sentence about an unexpected error; lack of memory shows as others too, and then there is none for this."""
    try:
        from dg_lsp.cli import main as cli

        return cli.about(error)
    except Exception as another:
        if not is_out_of_memory(another):
            raise
        return OUT_OF_MEMORY


def _run() -> None:
    # Inside a function, because each import may fail for lack of memory.
    from dg_lsp.wire import programs

    programs.ignore_current_folder()
    _open_closed_streams()
    if sys.argv[1:] in PLAIN:
        from dg_lsp.server import start

        start.serve()
    else:
        from dg_lsp.cli import main as cli

        cli.main()


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


if __name__ == "__main__":
    main()
