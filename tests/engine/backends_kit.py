"""Servers for the tests of remote backends: real HTTP on loopback, and a vLLM that judges requests as the real one does.

`DG_LSP_VLLM_PATH`, a Python path with vLLM's unpacked wheel and what its protocol module imports, makes vLLM's own code
the judge as well: pip install --no-deps --target FOLDER vllm msgspec cbor2 …, until `vllm.sampling_params` can be imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dg_lsp.core.values import Budget, Hole, InfillRequest, Span
from dg_lsp.engine.model.vocabulary import Vocabulary
from tests.engine.engine_kit import wait_until

Handler = Callable[[Request], Awaitable[Response]]
# Given a request's body, what the server makes of it, or the sentence of its refusal.
Judge = Callable[[dict[str, Any]], "dict[str, Any] | str"]

LINE = Hole(Span(0, 0), "cursor")
BODY = Hole(Span(0, 0), "body", indent="    ", extent="block")


class _Server:
    """A server in a thread, whose routes can be replaced; ending one takes uvicorn two tenths of a second."""

    def __init__(self) -> None:
        self.app = Starlette()
        config = uvicorn.Config(self.app, port=0, log_config=None, lifespan="off", ws="none")
        server = uvicorn.Server(config)
        threading.Thread(target=server.run, daemon=True).start()
        wait_until(lambda: server.started)
        [listener] = server.servers
        self.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


_IDLE: list[_Server] = []


@contextlib.contextmanager
def serving(routes: Mapping[str, Handler]) -> Iterator[str]:
    """The URL of a server on this machine, whose routes are methods and paths, as in "POST /infill"."""
    server = _IDLE.pop() if _IDLE else _Server()
    server.app.router.routes = [
        Route(key.partition(" ")[2], handler, methods=[key.partition(" ")[0]]) for key, handler in routes.items()
    ]
    try:
        yield server.url
    finally:
        server.app.router.routes = []
        _IDLE.append(server)


@dataclass
class Recorder:
    """A server that answers each POST with the next of its answers, the last one forever, and remembers what it was asked.

    An answer is a body, a status with one, or a response. A request counts as `dropped` when its asker hung up before the
    answer; `hold` keeps answers back until it is set.
    """

    answers: Sequence[Any]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    dropped: int = 0
    hold: threading.Event | None = None
    most_at_once: int = 0
    _now: int = 0

    async def answer(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        answer = self.answers[min(len(self.bodies), len(self.answers)) - 1]
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            while self.hold is not None and not self.hold.is_set():
                if await request.is_disconnected():
                    self.dropped += 1
                    return Response()
                await asyncio.sleep(0.005)
        finally:
            self._now -= 1
        if isinstance(answer, Response):
            return answer
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        if isinstance(body, bytes):
            return Response(body, status)
        return JSONResponse(body, status)


def request(prefix: str, suffix: str, *holes: Hole, n: int = 1, ms: int = 0, **more: Any) -> InfillRequest:
    return InfillRequest(prefix, suffix, holes or (LINE,), budget=Budget(ms=ms, candidates=n), **more)


@dataclass
class StandIn:
    """A vLLM whose model knows the answer: it writes it surely where it fits the gap, and doubtfully where it does not.

    `old` knows nothing of canvases, `heedless` writes what it likes where tokens are held.
    """

    vocabulary: Vocabulary
    judge: Judge
    answers: Sequence[str] = ("x + y",)
    canvas: int = 64
    version: str = "0.33.0"
    name: str = "tiny-diffusion"
    root: str = ""
    max_model_len: int = 4096
    max_rows: int = 0  # what --max-num-seqs says; 0: started without --enable-scale-out, and so not told
    key: str = ""
    old: bool = False
    heedless: bool = False
    tokens: list[int] | None = None  # what /tokenize answers instead
    asked: list[dict[str, Any]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def routes(self) -> dict[str, Handler]:
        return {
            "GET /version": self._version,
            "GET /v1/models": self._models,
            "POST /tokenize": self._tokenize,
            "POST /v1/completions": self._completions,
            "POST /inference/v1/generate": self._generate,
        }

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": self.version})

    async def _models(self, request: Request) -> Response:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": "Unauthorized"}, 401)
        card = {"id": self.name, "object": "model", "root": self.root or self.name, "max_model_len": self.max_model_len}
        return JSONResponse({"object": "list", "data": [card]})

    async def _tokenize(self, request: Request) -> Response:
        body = await request.json()
        ids = self.vocabulary.encode(body["prompt"]) if self.tokens is None else self.tokens
        return JSONResponse({"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids})

    async def _generate(self, request: Request) -> Response:
        n = (await request.json())["sampling_params"]["n"]
        if not self.max_rows:
            message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
            return JSONResponse({"error": {"message": message, "type": "PermissionDeniedError", "code": 403}}, 403)
        assert n > self.max_rows, "vLLM would do work for this"
        message = f"sampling_params.n must be at most the server's max_num_seqs ({self.max_rows}), got {n}."
        return JSONResponse({"error": {"message": message, "type": "BadRequestError", "code": 400}}, 400)

    async def _completions(self, request: Request) -> Response:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": "Unauthorized"}, 401)
        body = await request.json()
        if body.get("model") != self.name:
            message = f"The model `{body.get('model')}` does not exist."
            return JSONResponse({"error": {"message": message, "type": "NotFoundError", "code": 404}}, 404)
        verdict = body if self.old else self.judge({**body, "served_canvas": self.canvas, "vocabulary": self.vocabulary.size})
        if isinstance(verdict, dict) and len(body["prompt"]) + verdict.get("max_tokens", 16) > self.max_model_len:
            verdict = f"This model's maximum context length is {self.max_model_len} tokens."
        if isinstance(verdict, str):
            self.refused.append(verdict)
            return JSONResponse({"error": {"message": verdict, "type": "BadRequestError", "code": 400}}, 400)
        if "diffusion_pinned" in body.get("vllm_xargs", {}):
            self.asked.append(body)
        ids, logprobs = self._write(verdict, body.get("vllm_xargs", {}))
        choice = {
            "index": 0,
            "text": self.vocabulary.decode(ids),
            "finish_reason": "length",
            "token_ids": ids if body.get("return_token_ids") else None,
            "logprobs": {"tokens": [f"token_id:{token}" for token in ids], "token_logprobs": logprobs, "text_offset": []},
        }
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        return JSONResponse({"id": "1", "object": "text_completion", "choices": [choice], "usage": usage})

    def _write(self, parameters: dict[str, Any], xargs: dict[str, Any]) -> tuple[list[int], list[float]]:
        """What is read at each position, and how surely."""
        some = self.vocabulary.encode("a")[0]
        if self.old or "diffusion_seed_canvas" not in xargs:
            return [some] * parameters["max_tokens"], [-1.0] * parameters["max_tokens"]
        seed, pinned = xargs["diffusion_seed_canvas"], set(xargs["diffusion_pinned"])
        ids, logprobs = ([some] * len(seed) if self.heedless else list(seed)), [-0.01] * len(seed)
        free = [place for place in range(len(seed)) if place not in pinned]
        runs = [place for place in free if place - 1 in pinned or place == 0]
        for number, start in enumerate(runs):
            end = next(place for place in range(start, len(seed) + 1) if place not in free)
            answer = self.vocabulary.encode(self.answers[number % len(self.answers)])
            fits = len(answer) == end - start
            for offset, place in enumerate(range(start, end)):
                ids[place] = answer[offset] if offset < len(answer) else some
                logprobs[place] = -0.02 if fits else -1.5
            if not fits:  # what follows reads otherwise behind the wrong answer
                for place in range(end, min(end + 2, len(seed))):
                    ids[place] = some
        return ids[: parameters["max_tokens"]], logprobs[: parameters["max_tokens"]]


def rules(body: dict[str, Any]) -> dict[str, Any] | str:
    """vLLM's rules for diffusion requests as they are known, in our words."""
    canvas, size = body["served_canvas"], body["vocabulary"]
    if body.get("suffix"):
        return "suffix is only supported for models with FIM completion rendering"
    unusual = ("min_p", "min_tokens", "logit_bias", "bad_words", "allowed_token_ids")
    if body.get("temperature", 1.0) != 1.0 or body.get("seed") is not None or any(body.get(name) for name in unusual):
        return "The temperature, min_p, seed, … sampling parameters are not yet supported with diffusion models."
    if body.get("response_format") or body.get("structured_outputs"):
        return "Structured outputs are not yet supported for diffusion language models."
    if not isinstance(body.get("prompt"), list) or not all(isinstance(token, int) and token >= 0 for token in body["prompt"]):
        return "prompt must be token ids here"
    xargs = body.get("vllm_xargs") or {}
    for value in xargs.values():
        if not isinstance(value, (str, int, float, list)):
            return "vllm_xargs holds texts, numbers and lists of them"
    width = xargs.get("diffusion_canvas_length")
    if width is not None and not (_is_whole(width) and 0 < width <= canvas):
        return "diffusion_canvas_length must be a positive integer no larger than the served canvas."
    expected = width or canvas
    seed = xargs.get("diffusion_seed_canvas")
    if seed is not None:
        if not all(_is_whole(token) for token in seed):
            return "diffusion_seed_canvas must be a list of token ids."
        if not all(0 <= token < size for token in seed):
            return f"diffusion_seed_canvas ids must be in [0, {size})."
        if len(seed) != expected:
            return f"diffusion_seed_canvas must hold exactly {expected} ids, got {len(seed)}."
    pinned = xargs.get("diffusion_pinned")
    if pinned is not None:
        if seed is None:
            return "diffusion_pinned needs a diffusion_seed_canvas to hold."
        if not all(_is_whole(place) and 0 <= place < expected for place in pinned):
            return "diffusion_pinned positions must lie inside the canvas."
    steps = xargs.get("diffusion_max_steps")
    if steps is not None and not (_is_whole(steps) and steps > 0):
        return "diffusion_max_steps must be a positive integer."
    if xargs.get("diffusion_read_only") not in (None, 0, 1):
        return "diffusion_read_only must be a boolean (or 0/1)."
    max_tokens = body.get("max_tokens") or 16
    return {"max_tokens": min(max_tokens, expected) if xargs.get("diffusion_read_only") else max_tokens}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Reads a body on each line and tells what vLLM itself makes of it.
OWN = """
import json, sys
from types import SimpleNamespace

from pydantic import ValidationError
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMError
from vllm.utils.diffusion import validate_diffusion_sampling_params

print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    body = json.loads(line)
    canvas, size = body.pop("served_canvas"), body.pop("vocabulary")
    try:
        request = CompletionRequest(**body)
        unknown = sorted(request.model_extra or {})
        params = request.to_sampling_params(request.max_tokens, {})
        params._validate_diffusion(SimpleNamespace(is_diffusion=True))
        validate_diffusion_sampling_params(params, canvas_length=canvas, vocab_size=size)
        made = {"max_tokens": params.max_tokens} if not unknown else f"unknown fields: {unknown}"
    except (VLLMError, ValidationError, ValueError) as error:
        made = str(error)
    print(json.dumps(made), flush=True)
"""


@contextlib.contextmanager
def own_judge() -> Iterator[Judge]:
    """vLLM's own code as the judge, in a process of its own; the test is skipped where it is not at hand."""
    path = os.environ.get("DG_LSP_VLLM_PATH")
    if not path:
        pytest.skip("DG_LSP_VLLM_PATH names no vLLM")
    with subprocess.Popen(
        [sys.executable, "-c", OWN],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            first_line = _told(process.stdout)
            if first_line != "ready":
                process.kill()
                assert process.stderr is not None
                pytest.skip(f"vLLM can't be imported: {(process.stderr.read().strip().splitlines() or ['?'])[-1]}")

            def judge(body: dict[str, Any]) -> dict[str, Any] | str:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(json.dumps(body) + "\n")
                process.stdin.flush()
                verdict = _told(process.stdout)
                assert isinstance(verdict, (dict, str))
                return verdict

            yield judge
        finally:
            process.kill()


def _told(lines: Any) -> object:
    """The next line that is one of ours: vLLM logs to the same place."""
    for line in lines:
        with contextlib.suppress(ValueError):
            return json.loads(line)
    return None
