"""The routes asked of an engine process with the embedded model: what other clients get parses."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e import positions
from tests.engine.engine_kit import Running, home, running
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


@pytest.fixture(scope="module")
def embedded() -> Iterator[Running]:
    options = ("--port=0", "--threads=1")
    with pytest.MonkeyPatch.context() as patch, home(patch), running(*options, model="embedded", filler="") as engine:
        yield engine


def check(infilled: str) -> None:
    """The infill is some text, and the file with it is Python, which it is not without."""
    with pytest.raises(SyntaxError):
        ast.parse(PREFIX + SUFFIX)
    assert infilled.strip()
    ast.parse(PREFIX + infilled + SUFFIX)


@pytest.mark.e2e
def test_code_from_the_llama_route_parses(embedded: Running) -> None:
    fields = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "prompt": "", "n_predict": 64, "input_extra": []}
    key = f"Authorization: Bearer {embedded.state.token}"
    command = ["curl", "--silent", "--fail", "--header", key, "--header", "Content-Type: application/json"]
    command += ["--data", json.dumps(fields), f"{embedded.info()['url']}/infill"]
    process = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S)
    answer = json.loads(process.stdout)
    assert answer["stop"] is True
    check(answer["content"])


@pytest.mark.slow
def test_fills_of_held_out_files_add_no_syntax_error(embedded: Running) -> None:
    """As it is in an editor, where a request declares its language."""
    n_texts = 0
    with httpx.Client(base_url=embedded.http.base_url, headers=embedded.http.headers, timeout=PATIENCE_S) as http:
        for position in positions.positions(30, seed=7):
            if not position.path.endswith(".py"):
                continue
            before = f"# language: python\n{position.before}"
            fields = {"prompt": before, "suffix": position.after, "n": 3}
            choices = http.post("/v1/completions", json=fields).raise_for_status().json()["choices"]
            texts = [choice["text"] for choice in choices if choice["text"]]
            fields = {"input_prefix": before, "input_suffix": position.after}
            content = http.post("/infill", json=fields).raise_for_status().json()["content"]
            assert content == choices[0]["text"]
            assert [text for text in texts if "syntax" in positions.faults(position, text)] == []
            n_texts += len(texts)
    assert n_texts > 10
