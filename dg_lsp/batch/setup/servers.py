"""Ask the model servers that run on this machine which models they have.

Sends no code and no key, and follows no redirect. What answers on a port may be anything, so whatever has another shape
than a model server's answer is no server.
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
class Place:
    """Where a server of some kind may be."""

    kind: Kind
    url: str


PLACES = (
    Place("ollama", USUAL_URLS["ollama"]),
    Place("llama", USUAL_URLS["llama"]),
    # Where llama.cpp's own presets for code models are.
    Place("llama", "http://127.0.0.1:8012"),
    Place("vllm", "http://127.0.0.1:8000"),
    # The default ports of LM Studio and of SGLang.
    Place("chat", "http://127.0.0.1:1234"),
    Place("chat", "http://127.0.0.1:30000"),
)


@dataclass(frozen=True, slots=True)
class Model:
    """A model of a server: whether it can fill in the middle, where the server tells, and its size in bytes."""

    name: str
    fills: bool = True
    size: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answered, and its models."""

    place: Place
    models: tuple[Model, ...] = ()


async def look(places: Sequence[Place] = PLACES) -> tuple[Server, ...]:
    """Return the servers that answer, in the order of the places."""
    # Without the proxy of the environment: these are on this machine, or named by the user.
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as client:
        seen = await asyncio.gather(*(_look(client, place) for place in places))
    return tuple(server for server in seen if server is not None)


async def _look(client: httpx.AsyncClient, place: Place) -> Server | None:
    asking = {"ollama": _ollama, "llama": _llama, "vllm": _vllm, "chat": _chat}[place.kind]
    try:
        async with asyncio.timeout(4 * PATIENCE_S):
            return await asking(client, place)
    # Nothing answers there, or something else does.
    except (
        httpx.HTTPError,
        httpx.InvalidURL,
        TimeoutError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ):
        return None


async def _ollama(client: httpx.AsyncClient, place: Place) -> Server:
    listed = await _json(client, "GET", f"{place.url}/api/tags")
    models = [(entry["name"], entry.get("size", 0)) for entry in listed["models"]]
    named = [(name, size) for name, size in models if _is_name(name)][:MAX_MODELS]
    fills = await asyncio.gather(*(_inserts(client, place, name) for name, _ in named))
    return Server(
        place,
        tuple(
            Model(name, can, size if isinstance(size, int) and size > 0 else 0)
            for (name, size), can in zip(named, fills, strict=True)
        ),
    )


async def _inserts(client: httpx.AsyncClient, place: Place, name: str) -> bool:
    """Return whether Ollama says that a model can fill in the middle; one that can't is refused by it later."""
    try:
        shown = await _json(client, "POST", f"{place.url}/api/show", {"model": name})
        return "insert" in shown["capabilities"]
    except (httpx.HTTPError, ValueError, TypeError, LookupError):
        return False


async def _llama(client: httpx.AsyncClient, place: Place) -> Server:
    entries = await _entries(client, place, "llamacpp")
    # It has one model, whose name is a path at times; /infill does not ask for it.
    return Server(place, tuple(Model(str(entry["id"]).rsplit("/", 1)[-1]) for entry in entries[:1]))


async def _vllm(client: httpx.AsyncClient, place: Place) -> Server:
    entries = await _entries(client, place, "vllm")
    # Its completions take no suffix: only what the server denoises can be held on both sides.
    return Server(place, tuple(Model(entry["id"], "diffusion" in entry["id"].casefold()) for entry in entries[:MAX_MODELS]))


async def _chat(client: httpx.AsyncClient, place: Place) -> Server:
    entries = await _entries(client, place)
    # LM Studio lists the models for embeddings too, which can't chat.
    names = [entry["id"] for entry in entries if "embed" not in entry["id"].casefold()]
    return Server(place, tuple(Model(name) for name in names[:MAX_MODELS]))


async def _entries(client: httpx.AsyncClient, place: Place, owner: str = "") -> list[dict[str, Any]]:
    """Return the models of `/v1/models`, those of the owner if one is given; raise ValueError if there are none."""
    listed = await _json(client, "GET", f"{place.url}/v1/models")
    entries = [
        entry for entry in listed["data"] if (not owner or entry.get("owned_by") == owner) and _is_name(entry["id"].lstrip("/"))
    ]
    if not entries:
        raise ValueError(f"no server of {owner}" if owner else "the server lists no model")
    return entries


async def _json(client: httpx.AsyncClient, method: str, url: str, body: object = None) -> Any:
    """Return the answer as JSON; raise an HTTP error or ValueError, also for an answer that is too long."""
    async with client.stream(method, url, json=body) as response:
        if response.status_code != httpx.codes.OK:
            raise ValueError(f"status {response.status_code}")
        data = bytearray()
        async for part in response.aiter_bytes():
            data += part
            if len(data) > MAX_BYTES:
                raise ValueError("the answer is too long")
    return json.loads(data)


def _is_name(name: object) -> bool:
    """Return whether it can be a model's name: it is printed, and written into a file."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None
