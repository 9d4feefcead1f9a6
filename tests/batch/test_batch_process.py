"""The command as a process: exit statuses, pipes, signals and imports."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dg_lsp import OUT_OF_MEMORY
from tests.batch.conftest import STUB
from tests.patience import PATIENCE_S
from tests.processes import is_gone

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]

# The real command with an engine that answers at once, or never.
SCRIPTED = """
import asyncio, sys
from pathlib import Path
from dg_lsp.cli import main as cli
from dg_lsp.__main__ import main
from tests.batch.engines import connecting
from tests.fakes import Filling

class Endless:
    async def fill(self, request):
        print("asked", file=sys.stderr, flush=True)
        await asyncio.Event().wait()

class Crashing:
    async def fill(self, request):
        raise RuntimeError("secret code")

engine = {"fills": Filling("return 1"), "endless": Endless(), "crashes": Crashing()}[sys.argv.pop(1)]
app = cli.app
cli.app = lambda **given: app(obj=connecting(engine), **given)
main()
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **more}


def handling(*numbers: signal.Signals) -> Callable[[], None]:
    """Return what makes a new process end on these signals.

    A shell's background jobs ignore SIGINT, and under nohup SIGHUP. Processes started by the tests would inherit this.
    """

    def handle() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)

    return handle


def start(engine: str, *args: str, cwd: Path, hangs_on: bool = False, **more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SCRIPTED, engine, "infill", *args]
    handled_signals = (signal.SIGINT,) if hangs_on else (signal.SIGINT, signal.SIGHUP)
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=handling(*handled_signals),
    )


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out.decode(), err.decode()


def ran(*arguments: str | Path, cwd: Path = ROOT, **more: Any) -> subprocess.CompletedProcess[str]:
    """Return a process of this Python that has ended."""
    options = {"env": environment(), "text": True, "timeout": PATIENCE_S, "check": False, **more}
    if "stdout" not in options:
        options["capture_output"] = True
    return subprocess.run([sys.executable, *arguments], cwd=cwd, **options)


def python(code: str) -> str:
    process = ran("-c", code)
    assert process.returncode == 0, process
    return process.stdout.strip()


@pytest.mark.smoke
def test_a_pipe_gets_the_diff_and_no_progress_bar(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(STUB)
    code, out, err = finish(start("fills", ".", cwd=tmp_path))
    assert code == 0
    assert out.startswith("--- a/a.py\n")
    assert "\x1b" not in out + err
    # A line when it starts, and the summary.
    assert err.count("\n") == 2


def on_a_terminal(folder: Path, **more: str) -> bytes:
    """Return what `dg-lsp infill .` prints on a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SCRIPTED, "fills", "infill", "."]
    more = {"TERM": "xterm", "COLUMNS": "100", **more}
    with subprocess.Popen(command, cwd=folder, env=environment(**more), stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        output = b""
        # When the other end of a terminal is closed, Linux raises an error; other systems return an empty read.
        with contextlib.suppress(OSError):
            while data := os.read(ours, 65536):
                output += data
        os.close(ours)
        assert process.wait(timeout=PATIENCE_S) == 0
    return output


@pytest.mark.parametrize(
    "more", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": ""}], ids=["colours", "none", "dumb", "no terminal"]
)
def test_a_terminal_gets_a_bar_and_colours_and_no_orders_from_a_file(tmp_path: Path, more: dict[str, str]) -> None:
    """The lines around a hole would set the clipboard, hide what follows, and reverse it."""
    orders = "\x1b]52;c;cm0gLXJm\x07 \x1b[8m \u202e \x9b2J"
    (tmp_path / "a.py").write_bytes(STUB.replace("Do.", f"Do. X = '{orders}'").replace("\n", "\r\n").encode())
    output = on_a_terminal(tmp_path, **more).decode()
    line = next(line for line in output.split("\n") if "X = '" in line)
    assert "\\x1b]52;c;cm0gLXJm\\x07 \\x1b[8m \\u202e \\x9b2J'" in line
    assert not any(order in output for order in ("\x1b]52", "\x1b[8m", "\u202e", "\x9b"))
    assert "return 1\\r" not in output
    assert ("━" in output) is (more.get("TERM") != "dumb")
    assert ("\x1b[32m+    return 1" in output) is not bool(more)


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(STUB)
    process = start("fills", ".", cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (1, 141)
    assert b"Traceback" not in err
    assert b"Exception" not in err


def test_an_interrupted_run_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(STUB)
    process = start("endless", ".", cwd=tmp_path)
    assert process.stderr is not None
    assert [process.stderr.readline() for _ in range(2)] == [b"dg-lsp: filling\n", b"asked\n"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_fails_nothing(tmp_path: Path, closed: str) -> None:
    (tmp_path / "a.py").write_text(STUB)
    command = [sys.executable, "-c", SCRIPTED, "fills", "infill", "--all", "--write", "."]
    process = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *command],
        cwd=tmp_path,
        env=environment(XDG_STATE_HOME=str(tmp_path / "logs")),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert process.returncode == 0, process
    assert "return 1" in (tmp_path / "a.py").read_text()
    assert not (tmp_path / "logs").exists()


# The command as installed, which gets Ctrl-C once, when it imports a certain module.
INTERRUPTED_IMPORT = """
import os, signal, sys
from dg_lsp.__main__ import main

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

module = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupting())
main()
"""


COMPLETION = {"_DG_LSP_COMPLETE": "complete_bash", "COMP_WORDS": "dg-lsp engine ", "COMP_CWORD": "2"}


@pytest.mark.parametrize(
    ("module", "arguments", "variables"),
    [
        ("dg_lsp.cli.infill", ("infill", "."), {}),
        ("dg_lsp.cli.engine", (), COMPLETION),
        ("dg_lsp.server.start", ("serve",), {}),
        # torch imports numpy, and would turn Ctrl-C into a warning.
        ("numpy", ("bench", "fixtures/eval/heldout.jsonl.gz"), {}),
        ("numpy", ("calibrate", "--holes", "40", "--repo", "dg_lsp/infill"), {}),
    ],
)
def test_ctrl_c_shows_no_traceback_before_a_command_runs(
    module: str, arguments: tuple[str, ...], variables: dict[str, str]
) -> None:
    process = ran(
        *("-c", INTERRUPTED_IMPORT, module, *arguments),
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        preexec_fn=handling(signal.SIGINT),
    )
    # `calibrate` says first what it begins.
    stderr = process.stderr.removeprefix("dg-lsp: filling\n")
    assert (process.returncode, process.stdout, stderr) == (130, "", "dg-lsp: interrupted\n")


# The command as installed, with this many bytes more than the interpreter and the module that starts.
SHORT_OF_MEMORY = """
import resource, sys
from dg_lsp import __main__
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + int(sys.argv.pop(1)),) * 2)
__main__.main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit a process's memory")
@pytest.mark.parametrize("command", ["--version", "doctor", "infill .", "serve", "bench a.jsonl"])
def test_too_little_memory_shows_one_sentence_and_no_traceback(command: str) -> None:
    for n_bytes in (1 << 20, 2 << 20, 5 << 20, 9 << 20):
        process = ran("-c", SHORT_OF_MEMORY, str(n_bytes), *command.split(), stdin=subprocess.DEVNULL)
        assert (process.returncode, process.stdout, process.stderr) == (2, "", f"dg-lsp: {OUT_OF_MEMORY}\n"), n_bytes


WRAPPED = """
import sys
from dg_lsp import __main__
from dg_lsp.cli import main as cli
def app(**options):
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as interrupt:
        raise RuntimeError("Error calling __set_name__") from interrupt
if sys.argv[1] == "command":
    cli.app = app
else:
    cli.main = app
sys.argv[1:] = ["infill"]
__main__.main()
"""


@pytest.mark.parametrize("where", ["command", "import"])
def test_ctrl_c_that_a_library_wraps_shows_no_traceback(where: str) -> None:
    process = ran("-c", WRAPPED, where, env=None)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "dg-lsp: interrupted\n")


def test_ctrl_c_ends_the_server_without_a_traceback() -> None:
    message = b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"capabilities": {}}}'
    command = [sys.executable, "-m", "dg_lsp", "serve"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=handling(signal.SIGINT),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(message), message))
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 130
    assert b"Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_check_and_removes_the_copies(tmp_path: Path, number: signal.Signals) -> None:
    for name in ("project", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "project" / "a.py").write_text(STUB)
    os.mkfifo(tmp_path / "started")
    command = f"echo $$ > {tmp_path / 'started'}; exec sleep 1000"
    process = start("fills", "a.py", "--check", command, cwd=tmp_path / "project", TMPDIR=str(tmp_path / "tmp"))
    check = int((tmp_path / "started").read_text())
    process.send_signal(number)
    if number == signal.SIGINT:  # again while the run is ending
        while not is_gone(check):
            pass
        process.send_signal(number)
    code, out, err = finish(process)
    said = "dg-lsp: interrupted\n" * (number == signal.SIGINT)
    assert (code, out, err) == (128 + number, "", f"dg-lsp: filling\n{said}")
    assert (tmp_path / "project" / "a.py").read_text() == STUB
    assert list((tmp_path / "tmp").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(check, 0)


def test_a_run_in_the_background_outlives_its_terminal(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.py").write_text(STUB)
    os.mkfifo(tmp_path / "started")
    os.mkfifo(tmp_path / "go")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    command = f"cd {tmp_path}; test -e went || {{ echo > started; cat go > went; }}"
    try:
        process = start("fills", "a.py", "--check", command, cwd=tmp_path / "project", hangs_on=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    (tmp_path / "started").read_text()
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go").write_text("")
    assert finish(process)[0] == 0


@pytest.mark.parametrize("arguments", [["--version"], ["doctor", "--no-sample"]])
def test_a_full_disk_is_not_an_internal_error(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "a.py").write_text(STUB)
    with Path("/dev/full").open("wb") as full:
        own = environment(DG_LSP_RUNTIME_DIR=str(tmp_path / "run"), XDG_STATE_HOME=str(tmp_path / "state"))
        completed = ran("-m", "dg_lsp", *arguments, cwd=tmp_path, env=own, stdout=full, stderr=subprocess.PIPE)
    assert completed.returncode == 2
    assert completed.stderr == "dg-lsp: the output can't be written: No space left on device\n"
    assert not (tmp_path / "state").exists()


@pytest.mark.smoke
def test_an_internal_error_is_one_sentence_and_a_log(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(STUB)
    code, _, err = finish(start("crashes", ".", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "state"), HOME=str(tmp_path)))
    assert code == 2
    assert err.startswith("dg-lsp: filling\ndg-lsp: stopped because of an internal error, RuntimeError; the details are in ")
    assert err.count("\n") == 2
    log = Path(err.rsplit(" ", 1)[1].strip())
    assert "RuntimeError" in log.read_text()


@pytest.mark.smoke
def test_help_and_version_import_nothing_slow() -> None:
    code = """
import sys
from dg_lsp.cli import main as cli
sys.argv = ["dg-lsp", *{args!r}]
try:
    cli.main()
except SystemExit as end:
    assert not end.code, end.code
heavy = {{"httpx", "pygls", "lsprotocol", "torch", "numpy", "transformers", "starlette", "uvicorn"}}
print("heavy:", sorted(heavy & set(sys.modules)))
"""
    for args in (["infill", "--help"], ["--help"], ["--version"]):
        assert python(code.format(args=args)).endswith("heavy: []"), args
