"""A run that is killed hard at each of its steps on the disk: each file is whole, old or new, and the next run ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.batch.test_batch_process import environment

pytestmark = pytest.mark.slow

STUB = 'def f():\n    """Do."""\n    ...\n'
# Each attempt is a fork of one process that has imported everything. It is killed at its Nth step (before the system opens,
# moves, removes or changes a file below the folder, before what was written is put on the disk, and in the middle of a line of
# the journal), or by the system in the middle of the write that makes any file longer than a limit.
KILLED = """
import json, os, resource, signal, sys
from pathlib import Path
from dg_lsp.cli import main as cli
from dg_lsp.batch import check, api, journal, keep, plan, report, scratch, write
from tests.batch.engines import connecting
from tests.fakes import Filling

root, stub, arguments = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
CHANGES = {"os.rename", "os.remove", "os.chmod", "os.chown", "os.setxattr", "tempfile.mkstemp", "os.mkdir"}

def start(at):
    n = 0

    def step():
        nonlocal n
        n += 1
        if n == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event, details):
        is_write = event == "open" and isinstance(details[2], int) and details[2] & (os.O_WRONLY | os.O_RDWR)
        if (is_write or event in CHANGES) and str(root) in str(details):
            step()

    def half(handle, data, write=os.write):
        if b"key" in data:
            if n + 1 == at:
                write(handle, data[: len(data) // 2])
            step()
        return write(handle, data)

    def durable(handle, fsync=os.fsync):
        step()
        fsync(handle)

    sys.addaudithook(audit)
    os.write, os.fsync = half, durable
    app = cli.app
    cli.app = lambda **given: app(obj=connecting(Filling(lambda request: ("return 1",) * len(request.holes))), **given)
    os.chdir(root / "project")
    sys.argv = ["dg-lsp", *arguments]
    cli.main()

def attempt(at=0, limit=None):
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            start(at)
        except SystemExit as error:
            os._exit(error.code or 0)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def texts():
    return {path.name: path.read_text() for path in (root / "project").glob("*.py")}

def killed(**how):
    for name in ("a.py", "b.py"):
        (root / "project" / name).write_text(stub)
    (root / "journal").unlink(missing_ok=True)
    code, left = attempt(**how), texts()
    print(json.dumps([code, left, attempt(), texts()]))
    return code

for limit in (1, 30, *range(100, 800, 100)):
    if not killed(limit=limit):
        break
at = 1
while killed(at=at) == -signal.SIGKILL:
    at += 1
"""


@pytest.mark.parametrize("extra", [[], ["--resume", "JOURNAL"]], ids=["write", "journal"])
def test_a_run_killed_at_any_step_leaves_whole_files_and_the_next_one_ends(tmp_path: Path, extra: list[str]) -> None:
    (tmp_path / "project").mkdir()
    journal = str(tmp_path / "journal")
    arguments = ["infill", ".", "--all", "--write", *(each.replace("JOURNAL", journal) for each in extra)]
    command = [sys.executable, "-c", KILLED, str(tmp_path), STUB, *arguments]
    process = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    attempts = [json.loads(line) for line in process.stdout.splitlines()]
    assert attempts, process.stderr
    filled_texts = attempts[-1][3]
    assert len(filled_texts) == 2
    assert STUB not in filled_texts.values()
    for code, texts_left, next_code, final_texts in attempts:
        assert code in (0, 2, -signal.SIGXFSZ, -signal.SIGKILL)
        assert {name: text in (STUB, filled_texts[name]) for name, text in texts_left.items()} == {"a.py": True, "b.py": True}
        assert (next_code, final_texts) == (0, filled_texts)
    codes = [code for code, _, _, _ in attempts]
    assert codes.count(0) == 2
    # A limit within the new text ends the run; one within a line of the journal is a full disk, which it reports.
    assert codes.count(-signal.SIGXFSZ) >= 2
    assert (2 in codes) == bool(extra)
    # Both files are opened, filled, put on the disk, made like the old one and moved.
    assert codes.count(-signal.SIGKILL) >= 2 * 4
