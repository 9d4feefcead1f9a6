"""The routes asked of an engine process with the embedded model: what other clients get parses, and cancelled work stops."""

from __future__ import annotations

import ast
import asyncio
import json
import random
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import openai
import pytest

from dg_lsp.core import guess
from dg_lsp.core.values import Budget, Hole, InfillRequest, Span
from dg_lsp.wire import messages
from dg_lsp.wire.messages import Ask
from tests.e2e import positions
from tests.engine import journalled_filler
from tests.engine.engine_kit import Running, home, running, wait_until
from tests.patience import PATIENCE_S

PREFIX = '''"""Money."""


def total(prices):
    result = 0
    for price in prices:
        result += price
    return result


def mean(prices):
    result = 0
    for price in prices:
        result += '''
SUFFIX = "\n    return result / len(prices)\n"


@dataclass
class Embedded:
    """The engine, and where its steps are written down."""

    engine: Running
    journal: Path


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    journal = tmp_path_factory.mktemp("journal") / "steps"
    with pytest.MonkeyPatch.context() as monkeypatch, home(monkeypatch):
        monkeypatch.setenv(journalled_filler.VARIABLE, str(journal))
        with running("--port=0", "--threads=1", filler=f"{journalled_filler.__name__}:load") as engine:
            yield Embedded(engine, journal)


def check(infilled: str) -> None:
    """The infill is some text, and the file with it is Python, which it is not without."""
    with pytest.raises(SyntaxError):
        ast.parse(PREFIX + SUFFIX)
    assert infilled.strip()
    ast.parse(PREFIX + infilled + SUFFIX)


@pytest.mark.slow
def test_code_from_the_openai_package_parses(embedded: Embedded) -> None:
    url = embedded.engine.info()["url"]
    with openai.OpenAI(base_url=f"{url}/v1", api_key=embedded.engine.state.token, max_retries=0) as client:
        completion = client.completions.create(model="embedded", prompt=PREFIX, suffix=SUFFIX, n=2, logprobs=1)
        check(completion.choices[0].text)
        streamed = client.completions.create(model="embedded", prompt=PREFIX, suffix=SUFFIX, stream=True)
        check("".join(choice.text for chunk in streamed for choice in chunk.choices))


def test_code_from_the_llama_route_parses(embedded: Embedded) -> None:
    fields = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "prompt": "", "n_predict": 64, "input_extra": []}
    key = f"Authorization: Bearer {embedded.engine.state.token}"
    command = ["curl", "--silent", "--fail", "--header", key, "--header", "Content-Type: application/json"]
    command += ["--data", json.dumps(fields), f"{embedded.engine.info()['url']}/infill"]
    process = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S)
    answer = json.loads(process.stdout)
    assert answer["stop"] is True
    check(answer["content"])


@pytest.mark.slow
def test_fills_of_held_out_files_add_no_syntax_error(embedded: Embedded) -> None:
    """As it is in an editor, though these requests do not say that it is Python."""
    n_texts = 0
    transport = httpx.HTTPTransport(uds=embedded.engine.state.address)
    headers = {"Authorization": f"Bearer {embedded.engine.state.token}"}
    with httpx.Client(transport=transport, base_url="http://localhost", headers=headers, timeout=PATIENCE_S) as http:
        for position in positions.positions(60, seed=7):
            if guess.language(position.before, position.after) != "python":
                continue
            fields = {"prompt": position.before, "suffix": position.after, "n": 3}
            choices = http.post("/v1/completions", json=fields).raise_for_status().json()["choices"]
            texts = [choice["text"] for choice in choices if choice["text"]]
            fields = {"input_prefix": position.before, "input_suffix": position.after}
            content = http.post("/infill", json=fields).raise_for_status().json()["content"]
            assert content == choices[0]["text"]
            assert [text for text in texts if "syntax" in positions.faults(position, text)] == []
            n_texts += len(texts)
    assert n_texts > 20


@dataclass
class Outcome:
    """When each request's connection had been closed by its client, in nanoseconds, and how many were answered before."""

    closed: dict[int, int] = field(default_factory=dict)
    n_answered: int = 0


async def cancel_many(engine: Running, numbers: range, rng: random.Random, at_once: int = 2) -> Outcome:
    """Ask for each number, which is the request's seed, and close the response after a random time.

    That is at most as long as an answer takes on this machine, so that many are cancelled while they are worked on.
    """
    outcome, slots = Outcome(), asyncio.Semaphore(at_once)
    transport = httpx.AsyncHTTPTransport(uds=engine.state.address)
    headers = {"Authorization": f"Bearer {engine.state.token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers, timeout=PATIENCE_S) as http:

        async def ask(number: int) -> None:
            # A few documents, as one has open, each with its own prefix in the cache.
            hole = Hole(Span(0, 0), "cursor", block=number % 2 == 0)
            budget = Budget(candidates=1 + number % 3)
            request = InfillRequest(f"# {number % 4}\n{PREFIX}", SUFFIX, (hole,), budget=budget, seed=number)
            async with http.stream("POST", "/v1/infill", json=messages.encode_ask(Ask(request))) as response:
                async for _ in response.aiter_bytes():
                    pass

        async def one(number: int, delay_s: float) -> None:
            async with slots:
                try:
                    await asyncio.wait_for(ask(number), delay_s)
                    outcome.n_answered += 1
                except TimeoutError:
                    outcome.closed[number] = time.monotonic_ns()

        took = []
        for number in range(20_000, 20_006):
            began = time.monotonic()
            await ask(number)
            took.append(time.monotonic() - began)
        await asyncio.gather(*(one(number, rng.uniform(0, statistics.median(took))) for number in numbers))
    return outcome


def kept(engine: Running) -> tuple[int, int, int]:
    """The engine's memory in bytes, its open files and its threads."""
    memory = engine.info()["memory"]
    assert isinstance(memory, dict)
    proc = Path(f"/proc/{engine.process.pid}")
    return int(memory["rss_bytes"]), len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir()))


def is_idle(engine: Running) -> bool:
    return (engine.info()["running"], engine.info()["waiting"]) == (0, 0)


def steps_and_cancels(journal: Path) -> tuple[dict[int, list[int]], dict[int, int]]:
    """When the steps of each request began, and when the engine heard that a request is wanted no more."""
    steps: dict[int, list[int]] = {}
    cancels: dict[int, int] = {}
    for line in journal.read_text().splitlines():
        number, what, at = line.split()
        if what == "step":
            steps.setdefault(int(number), []).append(int(at))
        else:
            cancels[int(number)] = int(at)
    return steps, cancels


@pytest.mark.slow
def test_a_thousand_closed_responses_cancel_their_work_within_a_step(embedded: Embedded) -> None:
    engine, rng = embedded.engine, random.Random(5)
    asyncio.run(cancel_many(engine, range(10_000, 10_600), rng))  # until its caches and its allocator have what they want
    wait_until(lambda: is_idle(engine))
    memory, n_files, n_threads = kept(engine)
    outcome = asyncio.run(cancel_many(engine, range(1000), rng))
    wait_until(lambda: is_idle(engine))
    assert len(outcome.closed) + outcome.n_answered == 1000
    steps, cancels = steps_and_cancels(embedded.journal)
    interrupted = [number for number in outcome.closed if number in steps]
    assert len(interrupted) > 300, "many of these requests were to be cancelled in the midst of their work"
    after_cancel = [sum(at > cancels[number] for at in steps[number]) for number in interrupted]
    assert set(after_cancel) <= {0, 1}
    # Until the engine hears that a connection is closed, a busy machine may let another step begin, but not as a rule.
    after_close = [sum(at > outcome.closed[number] for at in steps[number]) for number in interrupted]
    assert sum(after_close) <= len(interrupted)
    memory_now, *others = kept(engine)
    assert memory_now <= 1.05 * memory
    assert others == [n_files, n_threads]
