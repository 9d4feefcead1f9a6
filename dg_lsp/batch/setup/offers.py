"""Turn what a machine has into offers: models that can be used now or after a command, with what they cost. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dg_lsp.batch.setup.machine import Machine
from dg_lsp.batch.setup.servers import Kind, Place, Server
from dg_lsp.wire.model_names import USUAL_URLS
from dg_lsp.wire.settings import EMBEDDED

GIB = 1 << 30
DIFFUSION = "google/diffusiongemma-26B-A4B-it"
DIFFUSION_BYTES = 60 * GIB
"""What the weights of `DIFFUSION` and a few canvases take."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A small model that fills in the middle: what it is called in Ollama and in llama.cpp, and the memory that it takes."""

    ollama: str
    llama: str
    memory: int


PRESETS = (
    Preset("qwen2.5-coder:7b-base", "--fim-qwen-7b-default", 7 * GIB),
    Preset("qwen2.5-coder:3b-base", "--fim-qwen-3b-default", 4 * GIB),
    Preset("qwen2.5-coder:1.5b-base", "--fim-qwen-1.5b-default", 2 * GIB),
)


@dataclass(frozen=True, slots=True)
class Key:
    """A service whose API key is in the environment: its dialect, the variable and the service's host."""

    dialect: str
    variable: str
    host: str
    needs_model: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """A model to choose: what `engine.model` would say, where code goes, what it costs and how good it is.

    `is_ready` says that it can be used now; otherwise `commands` come first.
    """

    model: str
    title: str
    where: str
    cost: str
    quality: str = ""
    is_ready: bool = True
    is_recommended: bool = False
    commands: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the offer as `--json` prints it."""
        return {
            "model": self.model,
            "title": self.title,
            "where": self.where,
            "cost": self.cost,
            "quality": self.quality,
            "ready": self.is_ready,
            "recommended": self.is_recommended,
            "commands": list(self.commands),
        }


HERE = "on this machine"
NAMES: Mapping[Kind, str] = {"ollama": "Ollama", "llama": "llama.cpp", "vllm": "vLLM", "chat": "a chat server"}
"""Each kind of server, as users know it."""


def offers(
    machine: Machine,
    servers: Sequence[Server],
    keys: Sequence[Key],
    measured: Mapping[str, str],
    programs: Collection[str] = (),
) -> tuple[Offer, ...]:
    """Return what can be chosen, what is ready first; one of them is recommended.

    `measured` says how good a model was on the user's code, `programs` names those of `ollama` and `llama-server` that are
    installed.
    """
    every = [*_running(servers), *_embedded(machine), *_remote(keys), *_after_commands(machine, servers, programs)]
    best = _recommended(every)
    return tuple(
        Offer(
            offer.model,
            offer.title,
            offer.where,
            offer.cost,
            measured.get(offer.model) or f"not measured; dg-lsp calibrate --model '{offer.model}' does",
            offer.is_ready,
            offer is best,
            offer.commands,
        )
        for offer in every
    )


def _recommended(every: Sequence[Offer]) -> Offer:
    """Return the offer that suits most people: what runs here already, and costs nothing more.

    A chat model is left to the user: it writes more than the hole needs, which is slow while typing.
    """
    local = [offer for offer in every if offer.is_ready and offer.where == HERE and not offer.model.startswith("chat:")]
    diffusing = [offer for offer in local if offer.model.startswith("vllm:")]
    return next(iter((*diffusing, *(offer for offer in local if offer.model != EMBEDDED), *local)))


def _running(servers: Sequence[Server]) -> Iterator[Offer]:
    for server in servers:
        for model in server.models:
            if not model.fills:
                continue
            cost = f"{size(model.size)} of memory" if model.size else "the memory that it has already"
            if server.place.kind == "chat":
                cost += ", slower than a model that fills in the middle"
            where = HERE if _is_here(server.place) else f"on {server.place.url}"
            yield Offer(_name(server.place, model.name), f"{model.name} in {NAMES[server.place.kind]}", where, cost)


def _name(place: Place, model: str) -> str:
    if place.kind in ("vllm", "chat"):
        return f"{place.kind}:{place.url}#{model}"
    url = "" if place.url == USUAL_URLS[place.kind] else f":{place.url}"
    return f"fim:{place.kind}{url}" if place.kind == "llama" else f"fim:{place.kind}{url}#{model}"


def _embedded(machine: Machine) -> Iterator[Offer]:
    yield Offer(EMBEDDED, "the small model that comes with dg-lsp", HERE, "about 500 MB of memory, on the processor")


def _remote(keys: Sequence[Key]) -> Iterator[Offer]:
    for key in keys:
        if not key.needs_model:
            yield Offer(
                f"fim:{key.dialect}",
                f"{key.host}, with the key in {key.variable}",
                f"at {key.host}, which is sent the code around the cursor",
                "billed by the request; the key's account pays",
            )


def _after_commands(machine: Machine, servers: Sequence[Server], programs: Collection[str]) -> Iterator[Offer]:
    """Yield what fits this machine, and takes commands first."""
    has = {model.name for server in servers for model in server.models}
    if machine.gpu_memory >= DIFFUSION_BYTES:
        yield Offer(
            DIFFUSION,
            "DiffusionGemma on this machine's GPU",
            HERE,
            f"{size(DIFFUSION_BYTES)} of the GPU's memory, and about as much to download",
            is_ready=False,
            commands=(f"dg-lsp engine pull {DIFFUSION}", f"dg-lsp setup --yes {DIFFUSION}"),
        )
    # A third of the memory is left to everything else; on a processor a larger model is too slow to type with.
    room = machine.gpu_memory or min(machine.memory * 2 // 3, 4 * GIB)
    preset = next((preset for preset in PRESETS if preset.memory <= room), None)
    if preset is None:
        return
    cost = f"{size(preset.memory)} of memory, and about as much to download"
    if preset.ollama not in has:
        start = () if any(server.place.kind == "ollama" for server in servers) else ("ollama serve",)
        install = () if start == () or "ollama" in programs else ("install Ollama (ollama.com)",)
        model = f"fim:ollama#{preset.ollama}"
        commands = (*install, *start, f"ollama pull {preset.ollama}", f"dg-lsp setup --yes '{model}'")
        yield Offer(model, f"{preset.ollama} in Ollama", HERE, cost, is_ready=False, commands=commands)
    if not any(server.place.kind == "llama" for server in servers):
        # Its presets choose the port.
        model = "fim:llama:http://127.0.0.1:8012"
        install = () if "llama-server" in programs else ("install llama.cpp (github.com/ggml-org/llama.cpp)",)
        commands = (*install, f"llama-server {preset.llama}", f"dg-lsp setup --yes {model}")
        yield Offer(model, f"Qwen 2.5 Coder in llama.cpp ({preset.llama})", HERE, cost, is_ready=False, commands=commands)


def _is_here(place: Place) -> bool:
    return place.url.partition("//")[2].startswith(("127.0.0.1", "localhost", "[::1]"))


def size(n_bytes: int) -> str:
    """Return a size for people: `4.4 GiB`."""
    return f"{n_bytes / GIB:.1f} GiB" if n_bytes >= GIB else f"{n_bytes >> 20} MiB"
