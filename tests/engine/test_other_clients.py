"""Requests as other programs really send them, and what those programs need of an answer to take it.

Written down while the programs ran against an engine: llama.vim and minuet-ai.nvim in Neovim, and the packages of Continue.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dg_lsp.engine.backends import fim
from dg_lsp.engine.serve import compat
from dg_lsp.wire.messages import Fields, parse
from tests.engine.engine_kit import Running, home, running

# What llama.vim looks for before it reads an answer: no space behind the colon.
LLAMA_VIM_TAKES = re.compile(r'^\s*\{.*"content"\s*:"', re.DOTALL)
TIMINGS = [f"timings/{which}_{what}" for which in ("prompt", "predicted") for what in ("n", "ms", "per_token_ms", "per_second")]
RING = {"text": "def total(prices):\n    return 0\n", "time": [412, 731_902_114], "filename": "money.py"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as monkeypatch, home(monkeypatch), running("--port=0") as process:
        yield process


def scripted(text: str) -> str:
    """A prefix that makes the toy model write this text."""
    return json.dumps({"text": text}) + "\n"


def llama_vim(prefix: str, prompt: str = "", **more: object) -> dict[str, object]:
    """What llama.vim sends as one types."""
    fields: dict[str, object] = {
        "id_slot": 0,
        "input_prefix": prefix,
        "input_suffix": "\n\n\ndef other():\n    return 1\n",
        "input_extra": [RING],
        "prompt": prompt,
        "n_predict": 128,
        "stop": [],
        "n_indent": 8,
        "top_k": 40,
        "top_p": 0.9,
        "samplers": ["top_k", "top_p", "infill"],
        "stream": False,
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 250,
        "response_fields": ["content", *TIMINGS, "truncated", "tokens_cached"],
        "model": "",
    }
    return fields | more


def test_llama_vim_gets_the_answer_and_the_timings_it_shows(engine: Running) -> None:
    response = engine.http.post("/infill", json=llama_vim(scripted("price = 1")))
    assert response.status_code == 200
    assert LLAMA_VIM_TAKES.match(response.text), response.text
    answer = response.json()
    assert answer["content"] == "price = 1"
    assert set(answer) == {"content", *TIMINGS, "truncated", "tokens_cached"}
    assert all(isinstance(answer[name], int | float) for name in TIMINGS)


def test_llama_vim_warms_the_cache_without_an_answer(engine: Running) -> None:
    ahead = llama_vim("", n_predict=0, samplers=[], temperature=0.0, response_fields=[""], input_suffix="")
    ahead |= {"t_max_prompt_ms": 1, "t_max_predict_ms": 1}
    response = engine.http.post("/infill", json=ahead)
    assert (response.status_code, response.json()) == (200, {})


def streamed(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream as clients read them: each line by itself, up to the mark at the end."""
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.split("\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def continues(stop: list[str] | None = None, suffix: str = "\n    return result\n") -> dict[str, object]:
    """What Continue's package sends for a completion, with each of its providers that send a suffix."""
    fields = {"model": "embedded", "prompt": scripted("x = 1\n\ny = 2"), "suffix": suffix, "stream": True}
    return {**fields, "max_tokens": 256, "temperature": 0.01, **({} if stop is None else {"stop": stop})}


def test_continue_reads_completions_with_its_provider_inception(engine: Running) -> None:
    response = engine.http.post("/v1/completions", json=continues(["\n\n", "\n \n"], suffix="\nz = 3\n"))
    assert [event["choices"][0]["text"] for event in streamed(response)] == ["x = 1"]


def test_continues_marker_for_no_suffix_is_an_empty_suffix() -> None:
    with_marker, empty = (compat.from_openai(Fields(continues(suffix=suffix))).ask.request for suffix in ("<|endoftext|>", ""))
    assert with_marker == empty
    assert with_marker.extent == "block"


@pytest.mark.parametrize("name", ["openai", "llama"])
@pytest.mark.e2e
def test_an_engine_can_serve_another_engine(engine: Running, name: str) -> None:
    [dialect] = [dialect for dialect in fim.DIALECTS if dialect.name == name]
    question = fim.Query("embedded", scripted("x = 1"), "\ny = 2\n", 64)
    response = engine.http.post(dialect.path, json=dialect.build(question))
    assert response.status_code == 200, response.text
    assert [candidate.text for candidate in dialect.parse(parse(response.content))] == ["x = 1"]


# What Zed's provider `open_ai_compatible_api` sends as stops with every prompt, whatever its format.
ZED_STOPS = [
    *("<|endoftext|>", "<|file_separator|>", "<|fim_pad|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    *("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<PRE>", "<SUF>", "<MID>", "[PREFIX]", "[SUFFIX]"),
]
ZED_FORMATS = {
    "qwen": "<|fim_prefix|>{0}<|fim_suffix|>{1}<|fim_middle|>",
    "star_coder": "<fim_prefix>{0}<fim_suffix>{1}<fim_middle>",
    "code_llama": "<PRE> {0} <SUF>{1} <MID>",
    "deepseek_coder": "<｜fim▁begin｜>{0}<｜fim▁hole｜>{1}<｜fim▁end｜>",
    "codestral": "[SUFFIX]{1}[PREFIX]{0}",
    "glm": "<|code_prefix|>{0}<|code_suffix|>{1}<|code_middle|>",
}


@pytest.mark.parametrize("name", ZED_FORMATS)
def test_zed_gets_the_text_between_its_markers(engine: Running, name: str) -> None:
    prompt = ZED_FORMATS[name].format(scripted("price = 1"), "\n\n\ndef other():\n    return 1\n")
    body = {"model": "dg-lsp", "prompt": prompt, "max_tokens": 64, "stop": ZED_STOPS}
    response = engine.http.post("/v1/completions", json=body)
    assert response.status_code == 200
    answer = response.json()
    assert answer["choices"][0]["text"] == "price = 1"
    # Zed can't read an answer without these.
    assert isinstance(answer["id"], str)
    assert {"object", "created", "model", "usage"} <= answer.keys()


def test_markers_decide_what_the_model_reads() -> None:
    marked = ZED_FORMATS["qwen"].format("a = ", "\nb = 2\n")
    request = compat.from_openai(Fields({"prompt": marked, "stop": ZED_STOPS})).ask.request
    assert (request.prefix, request.suffix) == ("a = ", "\nb = 2\n")
    # With a suffix of its own, a prompt is text.
    request = compat.from_openai(Fields({"prompt": marked, "suffix": "\n"})).ask.request
    assert (request.prefix, request.suffix) == (marked, "\n")
    named = compat.from_openai(Fields({"prompt": f"<|file_sep|>a.go\n{marked}"})).ask.request
    assert (named.path, named.language) == ("a.go", "go")
