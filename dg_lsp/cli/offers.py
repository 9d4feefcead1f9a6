"""Which models suit this machine: what it has, which model servers run, and the offers that follow from both.

`detect` queries the operating system and loads no library; unknown facts are left out. `look` asks servers for their models:
it sends no code and no key, and follows no redirect. Any program may listen on a port, so a server counts only if its answer
has the shape of its kind. The rest is pure. An offer is data: what, where, at which cost, and the commands that it needs first.
"""

from __future__ import annotations

import asyncio
import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from dg_lsp.core.wording import size
from dg_lsp.engine.backends.fim import DIALECTS
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.fit import NAMES as BITS
from dg_lsp.engine.model.fit import QUANTISED, Precision
from dg_lsp.engine.model.fit import machine as fit_machine
from dg_lsp.engine.model.fit.geometry import of_config
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

    `card` has the bytes of the largest GPU that a laptop model can use, NVIDIA's or Apple's; 0 for none.
    `is_shared`: the GPU uses the machine's memory, as on Apple machines.
    """

    cores: int
    memory: int
    gpus: tuple[Gpu, ...] = ()
    card: int = 0
    is_shared: bool = False
    installed: tuple[Precision, ...] = ("fp8", "int4")

    @property
    def largest_gpu(self) -> Gpu | None:
        """The GPU with the most memory, which limits one model."""
        return max(self.gpus, key=lambda gpu: gpu.memory, default=None)


def detect(drm: Path = Path("/sys/class/drm")) -> Machine:
    """Return the description of this machine."""
    cores, memory, card = fit_machine.n_cores(), laptop.machine_memory(), fit_machine.usable_card()
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return Machine(cores, memory, (Gpu("Apple GPU", card, is_nvidia=False),), card, is_shared=True)
    cards = (Gpu(each.name, each.total) for each in fit_machine.nvidia())
    return Machine(cores, memory, (*cards, *amd(drm)), card, installed=fit_machine.installed())


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
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")


@dataclass(frozen=True, slots=True)
class Model:
    """A server's model that can be used, as far as the server reports it, and its size in bytes."""

    name: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server of a kind, and its models."""

    kind: str
    url: str
    models: tuple[Model, ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine."""
        address = address_of(self.url)
        return address is not None and address.is_here

    def choice(self, model: str = "MODEL") -> str:
        """Return the value of `engine.model` for one of its models."""
        if self.kind in ("vllm", "chat"):
            return f"{self.kind}:{self.url}#{model}"
        url = "" if self.url == USUAL_URLS[self.kind] else f":{self.url}"
        return f"fim:{self.kind}{url}" if self.kind == "llama" else f"fim:{self.kind}{url}#{model}"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of server: its name for users, its usual addresses, where it lists models, and how the answer is read.

    The function raises an error for the answer of another kind, or one without a model.
    """

    name: str
    urls: tuple[str, ...]
    path: str
    models: Callable[[Any], list[Model]]


def _of_ollama(answer: Any) -> list[Model]:
    rows = [(entry["name"], entry.get("size")) for entry in answer["models"]]
    return [Model(name, size if isinstance(size, int) and size > 0 else 0) for name, size in rows if _is_name(name)]


def _of_llama(answer: Any) -> list[Model]:
    # It has one model. The name may be a path, and /infill does not need it.
    return [Model(name.rpartition("/")[2]) for name in _listed(answer, "llamacpp")[:1]]


def _of_vllm(answer: Any) -> list[Model]:
    # vLLM's completions accept no suffix, so only diffusion models can fill in the middle.
    return [Model(name) for name in _listed(answer, "vllm") if "diffusion" in name.casefold()]


def _of_chat(answer: Any) -> list[Model]:
    # LM Studio also lists embedding models, which can't chat.
    return [Model(name) for name in _listed(answer, "") if "embed" not in name.casefold()]


def _listed(answer: Any, owner: str) -> list[str]:
    """Return the models of `/v1/models`; raise ValueError if there is none of this owner."""
    entries = [entry for entry in answer["data"] if not owner or entry.get("owned_by") == owner]
    names = [entry["id"] for entry in entries if _is_name(entry["id"].lstrip("/"))]
    if not names:
        raise ValueError("the server lists no model of its kind")
    return names


def _is_name(name: object) -> bool:
    """Return whether the value is a safe model name, because it is printed and written into a file."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


KINDS: Mapping[str, Kind] = {
    "ollama": Kind("Ollama", (USUAL_URLS["ollama"],), "/api/tags", _of_ollama),
    # The second is the port of llama.cpp's presets for code models.
    "llama": Kind("llama.cpp", (USUAL_URLS["llama"], "http://127.0.0.1:8012"), "/v1/models", _of_llama),
    "vllm": Kind("vLLM", ("http://127.0.0.1:8000",), "/v1/models", _of_vllm),
    # The ports of LM Studio and of SGLang.
    "chat": Kind("a chat server", ("http://127.0.0.1:1234", "http://127.0.0.1:30000"), "/v1/models", _of_chat),
}


async def look(places: Sequence[tuple[str, str]]) -> tuple[Server | str, ...]:
    """Return for each kind and URL the running server, or why there is none, as a sentence about the URL."""
    return tuple(await asyncio.gather(*(_query(Server(*place)) for place in places)))


async def _query(server: Server) -> Server | str:
    kind = KINDS[server.kind]
    try:
        route = network.route_to(httpx.URL(server.url))
        own = httpx.AsyncClient(timeout=PATIENCE_S, verify=route.tls, proxy=route.proxy, trust_env=False)
        async with asyncio.timeout(4 * PATIENCE_S), own as client:
            models = kind.models(await _json(client, "GET", server.url + kind.path))[:MAX_MODELS]
            if server.kind == "ollama":
                inserts = await asyncio.gather(*(_inserts(client, server.url, model.name) for model in models))
                models = [model for model, is_usable in zip(models, inserts, strict=True) if is_usable]
            return replace(server, models=tuple(models))
    except network.NetworkError as error:
        return f"can't be asked: {error}"
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            return f"requires an API key, which setup does not send; name its model: --yes '{server.choice()}'"
        return f"answered with status {status}"
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
        return "does not respond"
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return "answers as a server of another kind, or has no model"


async def _inserts(client: httpx.AsyncClient, url: str, model: str) -> bool:
    """Return whether Ollama reports that a model can fill in the middle; it refuses requests for other models."""
    try:
        return "insert" in (await _json(client, "POST", f"{url}/api/show", {"model": model}))["capabilities"]
    except (httpx.HTTPError, ValueError, TypeError, LookupError):
        return False


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


# --- The offers

GIB = 1 << 30
HERE = "on this machine"
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
class Offer:
    """A model to choose: its value for `engine.model`, where it runs, its cost and its quality.

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


def offers(
    machine: Machine,
    servers: Sequence[Server],
    environ: Mapping[str, str],
    quality_by_model: Mapping[str, str],
    laptop_models: Sequence[LaptopModel] = (),
) -> tuple[Offer, ...]:
    """Return the offers, ready ones first; exactly one is recommended.

    `laptop_models` are those that are pulled or may be, best first. `quality_by_model` has the results of `dg-lsp calibrate`,
    and `environ` the keys of services.
    """
    fitting = [each for each in laptop_models if each.fits(machine.memory, machine.card, may_narrow=not machine.is_shared)]
    pulled = [each for each in laptop_models if each.is_pulled]
    # What was pulled is listed on any machine, after what suits this one.
    ready_models = sorted(pulled, key=lambda model: model not in fitting)
    missing = [each for each in fitting if not each.is_pulled]
    embedded = Offer(EMBEDDED, "the small model that comes with dg-lsp", HERE, "about 500 MB of memory, on the processor")
    ready = [*_running(servers), *(_laptop(each, machine) for each in ready_models), embedded, *_remote(environ)]
    # To recommend: a model that runs on this machine, at no further cost. A chat model is never recommended, because it writes
    # more than the hole needs and is slow while typing.
    unfit = {model.name for model in pulled if model not in fitting}
    local = [each for each in ready if each.where == HERE and each.model not in unfit and not each.model.startswith("chat:")]
    best = min(local, key=lambda each: (not each.model.startswith("vllm:"), each.model == EMBEDDED))
    others = [_laptop(each, machine) for each in missing]
    # A GPU with room for a larger model than the pulled one is worth the download.
    is_small = best.model in [model.name for model in fitting if not model.needs_card]
    if others and (best.model == EMBEDDED or (is_small and missing[0].needs_card)):
        best = others[0]
    measure = "quality on your code not measured; to measure it: dg-lsp calibrate --model"
    return tuple(
        replace(
            offer,
            # While no model is pulled, `auto` means the embedded model now, and later the pulled one.
            model=AUTO if offer.model == EMBEDDED and not pulled else offer.model,
            quality=quality_by_model.get(offer.model) or f"{measure} '{offer.model}'",
            is_recommended=offer is best,
        )
        for offer in (*ready, *others, *_diffusion(machine))
    )


def _running(servers: Sequence[Server]) -> Iterator[Offer]:
    for server in servers:
        for model in server.models:
            cost = f"{size(model.size)} of memory" if model.size else "no more memory than the server already uses"
            if server.kind == "chat":
                cost += ", slower than a model that fills in the middle"
            where = HERE if server.is_here else f"on {server.url}"
            yield Offer(server.choice(model.name), f"{model.name} in {KINDS[server.kind].name}", where, cost)


def _laptop(model: LaptopModel, machine: Machine) -> Offer:
    title = f"{model.name}: {model.gives}"
    cost = f"{size(model.memory_bytes)} of memory, on the processor"
    if machine.card:
        cost = f"{size(model.bytes_on(machine.card, may_narrow=not machine.is_shared))} of the GPU's memory"
    if model.is_pulled:
        return Offer(model.name, title, HERE, cost)
    cost += f", and {size(model.n_bytes)} to download once, from {model.places}; only its known SHA-256 is trusted"
    return Offer(model.name, title, HERE, cost, is_ready=False, commands=(f"dg-lsp setup --yes {model.name}",))


def _remote(environ: Mapping[str, str]) -> Iterator[Offer]:
    """Yield the services whose key is in the environment and that need no name of a model."""
    for dialect in DIALECTS:
        address = address_of(dialect.url)
        has_key = dialect.variable and environ.get(dialect.variable, "").strip()
        if has_key and address is not None and (dialect.model or not dialect.caps.needs_model):
            yield Offer(
                f"fim:{dialect.name}",
                f"{address.name}, with the key in {dialect.variable}",
                f"at {address.name}, which receives the code around the cursor",
                "each request is billed to the key's account",
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
