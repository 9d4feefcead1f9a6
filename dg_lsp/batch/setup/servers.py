"""Query the model servers on this machine for their models.

This module sends no code and no key, and follows no redirect. Any program may listen on a port, so a server counts only if
its answer has the expected shape.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from dg_lsp.wire.model_names import USUAL_URLS

PATIENCE_S = 2.0
MAX_MODELS = 20
MAX_BYTES = 4 << 20
Kind = Literal["ollama", "llama", "vllm", "chat"]
KINDS: tuple[Kind, ...] = ("ollama", "llama", "vllm", "chat")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A URL where a server of this kind may be."""

    kind: Kind
    url: str


ENDPOINTS = (
    Endpoint("ollama", USUAL_URLS["ollama"]),
    Endpoint("llama", USUAL_URLS["llama"]),
    # The port of llama.cpp's presets for code models.
    Endpoint("llama", "http://127.0.0.1:8012"),
    Endpoint("vllm", "http://127.0.0.1:8000"),
    # The default ports of LM Studio and of SGLang.
    Endpoint("chat", "http://127.0.0.1:1234"),
    Endpoint("chat", "http://127.0.0.1:30000"),
)


@dataclass(frozen=True, slots=True)
class Model:
    """A server's model: whether it can fill in the middle, as far as the server reports it, and its size in bytes."""

    name: str
    fills: bool = True
    size: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server and its models."""

    endpoint: Endpoint
    models: tuple[Model, ...] = ()


async def look(endpoints: Sequence[Endpoint] = ENDPOINTS) -> tuple[Server | str, ...]:
    """Return the running server at each endpoint, or why there is none, as a sentence about its URL."""
    # Without the environment's proxy: these servers are on this machine, or named by the user.
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as client:
        return tuple(await asyncio.gather(*(_query(client, endpoint) for endpoint in endpoints)))


async def _query(client: httpx.AsyncClient, endpoint: Endpoint) -> Server | str:
    try:
        async with asyncio.timeout(4 * PATIENCE_S):
            return await (_ollama if endpoint.kind == "ollama" else _listed)(client, endpoint)
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            kind = endpoint.kind if endpoint.kind in ("vllm", "chat") else f"fim:{endpoint.kind}"
            return f"requires an API key, which setup does not send; name its model: --yes '{kind}:{endpoint.url}#MODEL'"
        return f"answered with status {status}"
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
        return "does not respond"
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return "answers as a server of another kind, or has no model"


async def _ollama(client: httpx.AsyncClient, endpoint: Endpoint) -> Server:
    answer = await _json(client, "GET", f"{endpoint.url}/api/tags")
    models = [(entry["name"], entry.get("size", 0)) for entry in answer["models"]]
    valid_models = [(name, size) for name, size in models if _is_name(name)][:MAX_MODELS]
    fills = await asyncio.gather(*(_inserts(client, endpoint, name) for name, _ in valid_models))
    return Server(
        endpoint,
        tuple(
            Model(name, can, size if isinstance(size, int) and size > 0 else 0)
            for (name, size), can in zip(valid_models, fills, strict=True)
        ),
    )


async def _inserts(client: httpx.AsyncClient, endpoint: Endpoint, name: str) -> bool:
    """Return whether Ollama reports that a model can fill in the middle; it refuses requests for other models."""
    try:
        answer = await _json(client, "POST", f"{endpoint.url}/api/show", {"model": name})
        return "insert" in answer["capabilities"]
    except (httpx.HTTPError, ValueError, TypeError, LookupError):
        return False


async def _listed(client: httpx.AsyncClient, endpoint: Endpoint) -> Server:
    """Return the server with the models of `/v1/models`; raise ValueError if it is of another kind or lists none."""
    owner = {"llama": "llamacpp", "vllm": "vllm"}.get(endpoint.kind)
    answer = await _json(client, "GET", f"{endpoint.url}/v1/models")
    entries = [entry for entry in answer["data"] if owner is None or entry.get("owned_by") == owner]
    names = [entry["id"] for entry in entries if _is_name(entry["id"].lstrip("/"))]
    if not names:
        raise ValueError(f"not a server of {owner}" if owner else "the server lists no model")
    if endpoint.kind == "llama":
        # It has one model. The name may be a path, and /infill does not need it.
        return Server(endpoint, (Model(names[0].rsplit("/", 1)[-1]),))
    if endpoint.kind == "chat":
        # LM Studio also lists embedding models, which can't chat.
        return Server(endpoint, tuple([Model(name) for name in names if "embed" not in name.casefold()][:MAX_MODELS]))
    # vLLM's completions accept no suffix, so only diffusion models can fill in the middle.
    return Server(endpoint, tuple(Model(name, "diffusion" in name.casefold()) for name in names[:MAX_MODELS]))


async def _json(client: httpx.AsyncClient, method: str, url: str, body: object = None) -> Any:
    """Return the parsed JSON answer; raise httpx.HTTPError or ValueError, also if the answer is too long."""
    async with client.stream(method, url, json=body) as response:
        if response.status_code != httpx.codes.OK:
            raise httpx.HTTPStatusError("not 200", request=response.request, response=response)
        data = bytearray()
        async for part in response.aiter_bytes():
            data += part
            if len(data) > MAX_BYTES:
                raise ValueError("the answer is too long")
    return json.loads(data)


def _is_name(name: object) -> bool:
    """Return whether the value is a safe model name, because it is printed and written into a file."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None
