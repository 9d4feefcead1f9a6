"""Detect this machine's processor cores, memory and GPUs, look for model servers on it, and offer the models that fit.

A model is usable now or after some commands. `detect` queries the operating system and loads no library; unknown facts are
left out. `look` queries servers for their models: it sends no code and no key, and follows no redirect. Any program may listen
on a port, so a server counts only if its answer has the expected shape. The rest is pure.
"""

from __future__ import annotations

import asyncio
import json
import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import httpx

from dg_lsp.core.wording import size
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.fit import Precision
from dg_lsp.engine.model.fit import machine as fit_machine
from dg_lsp.engine.model.fit.choice import NAMES as BITS
from dg_lsp.engine.model.fit.geometry import of_config
from dg_lsp.engine.model.fit.needs import QUANTISED
from dg_lsp.wire import laptop, network
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.laptop import LaptopModel
from dg_lsp.wire.model_names import USUAL_URLS, address_of
from dg_lsp.wire.settings import AUTO, EMBEDDED


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU and its memory in bytes. Only on NVIDIA's do weights in 8 or 4 bits run."""

    name: str
    memory: int
    is_nvidia: bool = True


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores, bytes of memory, GPUs, and the quantised precisions that this installation can load.

    `is_shared`: the GPU uses the machine's memory, as on Apple machines.
    """

    cores: int
    memory: int
    gpus: tuple[Gpu, ...] = ()
    is_shared: bool = False
    installed: tuple[Precision, ...] = ("fp8", "int4")

    @property
    def largest_gpu(self) -> Gpu | None:
        """The GPU with the most memory, which limits one model."""
        return max(self.gpus, key=lambda gpu: gpu.memory, default=None)

    @property
    def card(self) -> int:
        """The memory in bytes of the largest GPU that a laptop model can use, NVIDIA's or Apple's; 0 for none."""
        return max((gpu.memory for gpu in self.gpus if gpu.is_nvidia or self.is_shared), default=0)


def detect(drm: Path = Path("/sys/class/drm")) -> Machine:
    """Return the description of this machine."""
    memory = laptop.machine_memory()
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        # Apple's GPU may use about two thirds of the machine's memory.
        return Machine(fit_machine.n_cores(), memory, (Gpu("Apple GPU", memory * 2 // 3, is_nvidia=False),), is_shared=True)
    cards = (Gpu(card.name, card.total) for card in fit_machine.nvidia())
    return Machine(fit_machine.n_cores(), memory, (*cards, *amd(drm)), installed=fit_machine.installed())


def amd(drm: Path) -> tuple[Gpu, ...]:
    """Return the AMD GPUs that Linux reports."""
    gpus = []
    for card in sorted(drm.glob("card[0-9]*")):
        try:
            memory = int((card / "device" / "mem_info_vram_total").read_text("ascii"))
        except (OSError, ValueError):
            continue
        gpus.append(Gpu("AMD GPU", memory, is_nvidia=False))
    return tuple(gpus)


# --- The model servers


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
    return tuple(await asyncio.gather(*map(_query, endpoints)))


async def _query(endpoint: Endpoint) -> Server | str:
    try:
        route = network.route_to(httpx.URL(endpoint.url))
        own = httpx.AsyncClient(timeout=PATIENCE_S, verify=route.tls, proxy=route.proxy, trust_env=False)
        async with asyncio.timeout(4 * PATIENCE_S), own as client:
            return await (_ollama if endpoint.kind == "ollama" else _listed)(client, endpoint)
    except network.NetworkError as error:
        return f"can't be asked: {error}"
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


# --- The offers

GIB = 1 << 30
DIFFUSION = "google/diffusiongemma-26B-A4B-it"
DOWNLOAD_BYTES = 51_600_000_000  # its files, also if the weights are quantised after that
CONTEXT_BYTES = 600_000_000  # what CUDA uses on a GPU before anything is loaded
PUBLISHED = of_config(
    {
        "canvas_length": 256,
        "text_config": {
            "num_hidden_layers": 30, "hidden_size": 2816, "intermediate_size": 2112, "moe_intermediate_size": 704,
            "num_experts": 128, "top_k_experts": 8, "num_attention_heads": 16, "num_key_value_heads": 8,
            "num_global_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512, "vocab_size": 262_144,
            "sliding_window": 1024, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
        },
    }
)  # fmt: skip
"""The sizes of the published model, from its `config.json`."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A fill-in-the-middle model: its names in Ollama and in llama.cpp, and the memory that it needs in each.

    Ollama's files have 4 bits for a weight. llama.cpp's for the largest model have 8.
    """

    ollama: str
    llama: str
    memory: int
    llama_memory: int


PRESETS = (
    Preset("qwen3-coder:30b", "--fim-qwen-30b-default", 20 * GIB, 36 * GIB),
    Preset("qwen2.5-coder:7b-base", "--fim-qwen-7b-default", 7 * GIB, 7 * GIB),
    Preset("qwen2.5-coder:3b-base", "--fim-qwen-3b-default", 4 * GIB, 4 * GIB),
    Preset("qwen2.5-coder:1.5b-base", "--fim-qwen-1.5b-default", 2 * GIB, 2 * GIB),
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
    """A model to choose: its value for `engine.model`, where it runs, its cost, its quality and its speed, if measured.

    The value of the embedded model is `auto` while no laptop model is pulled, because it means the same then.
    `is_ready`: it can be used now. Otherwise the user must run `commands` first.
    """

    model: str
    title: str
    where: str
    cost: str
    quality: str = ""
    is_ready: bool = True
    is_recommended: bool = False
    commands: tuple[str, ...] = ()
    speed: str = ""


HERE = "on this machine"
NAMES: Mapping[Kind, str] = {"ollama": "Ollama", "llama": "llama.cpp", "vllm": "vLLM", "chat": "a chat server"}
"""The names of the kinds of servers that users see."""
# Comments, so that pasted lines do no harm.
IN_ANOTHER_TERMINAL = "# in another terminal, because it runs until you stop it:"
IN_THIS_TERMINAL = "# then in this terminal:"


def offers(
    machine: Machine,
    servers: Sequence[Server],
    keys: Sequence[Key],
    quality_by_model: Mapping[str, str],
    programs: Collection[str] = (),
    laptop_models: Sequence[LaptopModel] = (),
) -> tuple[Offer, ...]:
    """Return the offers, ready ones first; exactly one is recommended.

    `laptop_models` are those that are pulled or may be, best first.
    `quality_by_model` has the results of `dg-lsp calibrate`. `programs` has `ollama` and `llama-server` if they are installed.
    """
    card, may_narrow = machine.card, not machine.is_shared
    fitting = [model for model in laptop_models if model.fits(machine.memory, card, may_narrow=may_narrow)]
    # What was pulled is listed on any machine, after what suits this one.
    listed = [*fitting, *(model for model in laptop_models if model.is_pulled and model not in fitting)]
    pulled, others = (list(_laptop(listed, card, may_narrow=may_narrow, is_pulled=is_pulled)) for is_pulled in (True, False))
    embedded = Offer(EMBEDDED, "the small model that comes with dg-lsp", HERE, "about 500 MB of memory, on the processor")
    ready = [*_running(servers), *pulled, embedded, *_remote(keys)]
    every = [*ready, *others, *_after_commands(machine, servers, programs)]
    # To recommend: a model that runs on this machine, at no further cost. A chat model is never recommended, because it writes
    # more than the hole needs and is slow while typing.
    unfit = [model.name for model in listed if model not in fitting]
    here = [offer for offer in ready if offer.is_ready and offer.where == HERE and offer.model not in unfit]
    local = [offer for offer in here if not offer.model.startswith("chat:")]
    diffusing = [offer for offer in local if offer.model.startswith("vllm:")]
    best = next(iter((*diffusing, *(offer for offer in local if offer.model != EMBEDDED), *local)))
    # A GPU with room for a larger model than the pulled one is worth the download.
    missing = next((model for model in fitting if not model.is_pulled), None)
    is_small = best.model in [model.name for model in fitting if not model.needs_card]
    if others and (best.model == EMBEDDED or (is_small and missing is not None and missing.needs_card)):
        best = others[0]
    measure = "quality on your code not measured; to measure it: dg-lsp calibrate --model"
    # Where nothing better is there, `auto` means the embedded model now, and a model that is pulled later.
    is_auto = not any(model.is_pulled for model in laptop_models)
    return tuple(
        replace(
            offer,
            model=AUTO if offer.model == EMBEDDED and is_auto else offer.model,
            quality=quality_by_model.get(offer.model) or f"{measure} '{offer.model}'",
            is_recommended=offer is best,
        )
        for offer in every
    )


def _running(servers: Sequence[Server]) -> Iterator[Offer]:
    for server in servers:
        for model in server.models:
            if not model.fills:
                continue
            cost = f"{size(model.size)} of memory" if model.size else "no more memory than the server already uses"
            if server.endpoint.kind == "chat":
                cost += ", slower than a model that fills in the middle"
            where = HERE if _is_here(server.endpoint) else f"on {server.endpoint.url}"
            yield Offer(_name(server.endpoint, model.name), f"{model.name} in {NAMES[server.endpoint.kind]}", where, cost)


def _name(endpoint: Endpoint, model: str) -> str:
    if endpoint.kind in ("vllm", "chat"):
        return f"{endpoint.kind}:{endpoint.url}#{model}"
    url = "" if endpoint.url == USUAL_URLS[endpoint.kind] else f":{endpoint.url}"
    return f"fim:{endpoint.kind}{url}" if endpoint.kind == "llama" else f"fim:{endpoint.kind}{url}#{model}"


def _laptop(models: Sequence[LaptopModel], card: int, *, may_narrow: bool, is_pulled: bool) -> Iterator[Offer]:
    for model in models:
        if model.is_pulled == is_pulled:
            where = (
                f"{size(model.bytes_on(card, may_narrow=may_narrow))} of the GPU's"
                if card
                else f"{size(model.memory_bytes)} of"
            )
            cost = f"{where} memory{'' if card else ', on the processor'}"
            source = f"{model.places}; only its known SHA-256 is trusted"
            download = "" if is_pulled else f", and {size(model.n_bytes)} to download once, from {source}"
            commands = () if is_pulled else (f"dg-lsp setup --yes {model.name}",)
            yield Offer(model.name, f"{model.name}: {model.gives}", HERE, cost + download, "", is_pulled, commands=commands)


def _remote(keys: Sequence[Key]) -> Iterator[Offer]:
    for key in keys:
        if not key.needs_model:
            yield Offer(
                f"fim:{key.dialect}",
                f"{key.host}, with the key in {key.variable}",
                f"at {key.host}, which receives the code around the cursor",
                "each request is billed to the key's account",
            )


def _after_commands(machine: Machine, servers: Sequence[Server], programs: Collection[str]) -> Iterator[Offer]:
    """Yield the models that fit this machine after some commands."""
    has = {model.name for server in servers for model in server.models}
    yield from _diffusion(machine)
    # A third of the memory is left for other programs. Without a GPU, larger models are too slow for suggestions.
    gpu_memory = machine.largest_gpu.memory if machine.largest_gpu else 0
    room = gpu_memory or min(machine.memory * 2 // 3, 4 * GIB)
    preset = next((preset for preset in PRESETS if preset.memory <= room), None)
    if preset is None:
        return
    cost = "{} of memory, and about as much to download".format
    if preset.ollama not in has:
        usual = Endpoint("ollama", USUAL_URLS["ollama"])
        running = next(
            (server.endpoint for server in servers if server.endpoint.kind == "ollama" and _is_here(server.endpoint)), None
        )
        start = () if running else (IN_ANOTHER_TERMINAL, "ollama serve", IN_THIS_TERMINAL)
        install = () if running or "ollama" in programs else ("# install Ollama (ollama.com)",)
        model = _name(running or usual, preset.ollama)
        # Ollama's own command reads the address of a server on an unusual port from the environment.
        host = "" if running in (None, usual) else f"OLLAMA_HOST={running.url} "
        commands = (*install, *start, f"{host}ollama pull {preset.ollama}", f"dg-lsp setup --yes '{model}'")
        yield Offer(model, f"{preset.ollama} in Ollama", HERE, cost(size(preset.memory)), is_ready=False, commands=commands)
    preset = next((preset for preset in PRESETS if preset.llama_memory <= room), preset)
    if not any(server.endpoint.kind == "llama" for server in servers):
        # The port of llama.cpp's presets.
        model = "fim:llama:http://127.0.0.1:8012"
        install = () if "llama-server" in programs else ("# install llama.cpp (github.com/ggml-org/llama.cpp)",)
        start = (IN_ANOTHER_TERMINAL, f"llama-server {preset.llama}", IN_THIS_TERMINAL)
        commands = (*install, *start, f"dg-lsp setup --yes {model}")
        yield Offer(
            model,
            f"Qwen Coder in llama.cpp ({preset.llama})",
            HERE,
            cost(size(preset.llama_memory)),
            is_ready=False,
            commands=commands,
        )


def _diffusion(machine: Machine) -> Iterator[Offer]:
    """Yield DiffusionGemma if it fits on the largest GPU, in the precision that `engine.dtype = "auto"` then chooses."""
    gpu = machine.largest_gpu
    if gpu is None:
        return
    free = gpu.memory if machine.is_shared else gpu.memory - CONTEXT_BYTES
    host = fit.Machine("mps" if machine.is_shared else "cuda", free, gpu.name, installed=QUANTISED if gpu.is_nvidia else ())
    try:
        choice = fit.choose(DIFFUSION, PUBLISHED, host)
    except fit.NoRoomError:
        return
    precision = choice.precision
    install = (install_command("quant"),) if precision in QUANTISED and precision not in machine.installed else ()
    yield Offer(
        DIFFUSION,
        f"DiffusionGemma on this machine's GPU, in {BITS[precision]} ({precision})",
        HERE,
        f"{size(choice.needs.total)} of the GPU's memory, and {size(DOWNLOAD_BYTES)} to download",
        is_ready=False,
        commands=(*install, f"dg-lsp engine pull {DIFFUSION}", f"dg-lsp setup --yes {DIFFUSION}"),
    )


def _is_here(endpoint: Endpoint) -> bool:
    address = address_of(endpoint.url)
    return address is not None and address.is_here
