"""What editors start imports no command line, and nothing that only an engine's client needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.editor import ROOT
from tests.patience import PATIENCE_S

NOT_YET = ("typer", "rich", "httpx", "pathspec", "urllib.request", "dg_lsp.batch", "tree_sitter_python")


@pytest.mark.parametrize("arguments", [("serve",), ("serve", "--stdio")])
def test_the_server_starts_with_no_more_than_it_needs(arguments: tuple[str, ...]) -> None:
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "dg_lsp", *arguments],
        input=b"",
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
    )
    imports = {
        line.rpartition("|")[2].strip() for line in process.stderr.decode().splitlines() if line.startswith("import time")
    }
    assert process.returncode == 1  # the editor left without a word
    assert "dg_lsp.server.session" in imports
    assert not imports.intersection(NOT_YET)


BLOCKED = """
import asyncio, os, sys
from dg_lsp.server import session

class Blocked(session.DgLanguageServer):
    def look_at_files(self):
        sys.stdin.buffer.readline()  # blocks the event loop until the test has seen where
        self.protocol.ended()

session.BLOCKED_S, session.CHECK_EVERY_S = 0.1, 0.01
reader, _ = map(os.fdopen, os.pipe(), ("rb", "wb"))
asyncio.run(Blocked().serve(reader, sys.stdout.buffer))
os._exit(0)
"""


@pytest.mark.e2e
def test_a_blocked_event_loop_writes_where_it_is_into_the_log() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BLOCKED], cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        seen = next(line for line in process.stderr if "in look_at_files" in line)
        process.stdin.write("\n")
        process.stdin.close()
        assert "line" in seen
        assert process.wait(PATIENCE_S) == 0
