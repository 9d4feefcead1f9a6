"""What the server's own parts keep of documents that are closed: next to nothing."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dg_lsp.client.engine import ConnectOptions
from dg_lsp.core import holes
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.values import Budget, Calibrated, Candidate, Document
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import FileContext
from dg_lsp.server.completion import SuggestionRequest
from dg_lsp.wire.settings import Settings
from tests import naive
from tests.patience import PATIENCE_S, until
from tests.server.test_server_completion import Session

ROOT = Path(__file__).parents[2]
N_DOCUMENTS, N_LONG, LONG_CHARS, MOST_MB = 200, 3, 700_000, 10
FUNCTION = '''
def area_{name}(width: int, height: int) -> int:
    """Return the area of a rectangle, at least 1."""
    total = width * height
    if total < 1:
        total = {name}
    return total
'''
ANSWERS = ("width", "width * nothing_binds_this", "(width, height)", "other_name(total)")


def text_of(number: int, n_chars: int) -> tuple[str, int]:
    """Return a text that differs from all others, and a place in its middle where a value is missing."""
    functions = [FUNCTION.format(name=number * 10_000 + n) for n in range(max(1, n_chars // len(FUNCTION)))]
    functions[len(functions) // 2] = FUNCTION.format(name="middle").replace("return total", "return ")
    text = "".join(functions)
    return text, text.index("return \n") + len("return ")


def megabytes() -> float:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


async def edit_and_close(session: Session, number: int, n_chars: int) -> None:
    """Type and ask for suggestions in a document of its own, and close it."""
    uri, (text, at) = f"untitled:file{number}", text_of(number, n_chars)
    session.documents.open(uri, "python", 1, text)
    for version, key in enumerate("wi", start=2):
        before, place = text, (text.count("\n", 0, at), at - text.rfind("\n", 0, at) - 1)
        text, at = text[:at] + key + text[at:], at + 1
        session.documents.change(uri, version, [naive.edit(key, place, place)])
        session.completer.typed(uri, before, text)
        session.now += 1
        assert (await session.completer.complete(SuggestionRequest(uri, at, automatic=False))).suggestions
    if n_chars == LONG_CHARS:  # its outline is collected in a thread, which would hold its tree a little longer
        await until(lambda: session.completer._outlines.get(uri))
    session.documents.close(uri)
    session.completer.forget(uri)


async def in_a_server() -> float:
    session = Session(Settings(debounce=0, speculate=False, related_chars=0), asks_again=False)
    session.engine.use(ConnectOptions())
    await until(lambda: session.engine.state.name == "ready")
    session.held.text, session.held.others = ANSWERS[0], ANSWERS[1:]
    await edit_and_close(session, N_DOCUMENTS, LONG_CHARS)
    session.held.asked.clear()
    before = megabytes()
    for number in range(N_DOCUMENTS):
        await edit_and_close(session, number, LONG_CHARS if number < N_LONG else 4_000)
        session.held.asked.clear()
    after = megabytes()
    await session.completer.close()
    return after - before


async def in_a_batch() -> float:
    async def fill(number: int, n_chars: int) -> None:
        text, at = text_of(number, n_chars)
        document = Document(f"file:///nowhere/file{number}.py", "python", text)
        syntax = syntaxes.of(document)
        hole = holes.at_cursor(document, at, syntax)
        request = pipeline.to_request(document, (hole,), FileContext("a.py", budget=Budget(candidates=4)), syntax=syntax)
        candidates = [Candidate((answer,), Calibrated(0.5)) for answer in ANSWERS]
        answer = await pipeline.to_answer(request, candidates, document, syntax=syntax, is_file=True)
        assert answer.suggestions

    for number in range(N_LONG):
        await fill(N_DOCUMENTS + number, LONG_CHARS)
    before = megabytes()
    for number in range(N_DOCUMENTS):
        await fill(number, LONG_CHARS if number < N_LONG else 4_000)
    return megabytes() - before


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's count of a process's memory")
@pytest.mark.parametrize("where", ["in_a_server", "in_a_batch"])
def test_closed_documents_keep_no_memory(where: str) -> None:
    # In a process of its own. Python's own allocator would keep whole megabytes for single small objects.
    command, env = [sys.executable, "-m", "tests.server.test_server_memory", where], {**os.environ, "PYTHONMALLOC": "malloc"}
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert float(result.stdout) < MOST_MB


if __name__ == "__main__":
    print(asyncio.run(globals()[sys.argv[1]]()))
