"""Which models suit this machine: what it has, which model servers run, and the offers that follow from both.

`detect` queries the operating system and loads no library; unknown facts are left out. `running` asks servers for their models:
it sends no code and no key, and follows no redirect. Any program may listen on a port, so a server counts only if its answer
has the shape of its kind. The rest is pure.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

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

HERE = "on this machine"


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


class Gpu(NamedTuple):
    """A GPU, and its memory in bytes; Apple's is the machine's. Only on NVIDIA's do weights in 8 or 4 bits run."""

    name: str
    memory: int
    maker: Literal["NVIDIA", "AMD", "Apple"] = "NVIDIA"


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores, bytes of memory, GPUs, and the quantised precisions that this installation can load.

    `card` has the bytes of the largest GPU that a laptop model can use, NVIDIA's or Apple's; 0 for none.
    """

    cores: int
    memory: int
    gpus: tuple[Gpu, ...] = ()
    card: int = 0
    installed: tuple[Precision, ...] = QUANTISED

    @property
    def may_narrow(self) -> bool:
        """Whether its GPU runs a laptop model in 8 bits."""
        return all(gpu.maker != "Apple" for gpu in self.gpus)


def detect(drm: Path = Path("/sys/class/drm")) -> Machine:
    """Return the description of this machine."""
    cores, memory, card = fit_machine.n_cores(), laptop.machine_memory(), fit_machine.usable_card()
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return Machine(cores, memory, (Gpu("Apple GPU", card, "Apple"),), card)
    gpus = [Gpu(each.name, each.total) for each in fit_machine.nvidia()]
    for file in sorted(drm.glob("card[0-9]*/device/mem_info_vram_total")):
        with contextlib.suppress(OSError, ValueError):
            gpus.append(Gpu("AMD GPU", int(file.read_text("ascii")), "AMD"))
    return Machine(cores, memory, tuple(gpus), card, fit_machine.installed())


# --- The model servers on this machine that fill in the middle. Any other is chosen by its name.

PLACES = (
    ("ollama", USUAL_URLS["ollama"]),
    ("llama", USUAL_URLS["llama"]),
    ("llama", "http://127.0.0.1:8012"),  # the port of llama.cpp's presets for code models
)
PATIENCE_S = 2.0
MAX_MODELS = 20
MAX_BYTES = 4 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
"""A safe name of a model, because it is printed and written into a file."""


async def running() -> list[Offer]:
    """Return the offers of the servers that run here."""
    async with httpx.AsyncClient(timeout=PATIENCE_S, verify=network.NO_TLS, trust_env=False) as client:
        found = await asyncio.gather(*(_offers_at(client, kind, url) for kind, url in PLACES))
    return [offer for offers in found for offer in offers]


async def _offers_at(client: httpx.AsyncClient, kind: str, url: str) -> list[Offer]:
    """Return the offers of the server at a URL; none for a server of another kind, or without a model that fills."""
    try:
        async with asyncio.timeout(4 * PATIENCE_S):
            if kind == "ollama":
                sizes = {each["name"]: each.get("size") for each in (await _json(client, f"{url}/api/tags"))["models"]}
                names = [name for name in sizes if _NAME.fullmatch(name)][:MAX_MODELS]
                inserts = await asyncio.gather(*(_inserts(client, url, name) for name in names))
                return [
                    served(kind, url, name, sizes[name]) for name, is_usable in zip(names, inserts, strict=True) if is_usable
                ]
            # It has one model, whose name may be a path.
            entries = (await _json(client, f"{url}/v1/models"))["data"]
            names = [each["id"].rpartition("/")[2] for each in entries if each["owned_by"] == "llamacpp"]
            return [served(kind, url, name) for name in names[:1] if _NAME.fullmatch(name)]
    except (httpx.HTTPError, TimeoutError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return []


async def _inserts(client: httpx.AsyncClient, url: str, model: str) -> bool:
    """Return whether Ollama reports that a model can fill in the middle; it refuses requests for other models."""
    with contextlib.suppress(httpx.HTTPError, ValueError, TypeError, LookupError):
        return "insert" in (await _json(client, f"{url}/api/show", {"model": model}))["capabilities"]
    return False


async def _json(client: httpx.AsyncClient, url: str, body: object = None) -> Any:
    """Return the parsed JSON answer; raise httpx.HTTPError or ValueError, also if the answer is too long."""
    async with client.stream("POST" if body else "GET", url, json=body) as response:
        if response.status_code != httpx.codes.OK:
            raise ValueError(f"status {response.status_code}")
        data = bytearray()
        async for part in response.aiter_bytes():
            data += part
            if len(data) > MAX_BYTES:
                raise ValueError("the answer is too long")
    return json.loads(data)


def served(kind: str, url: str, model: str, n_bytes: object = None) -> Offer:
    """Return the offer of a running server's model; its bytes may be anything that the server stated."""
    cost = f"{size(n_bytes)} of memory" if isinstance(n_bytes, int) and n_bytes > 0 else "no more memory than the server uses"
    value = f"fim:{kind}" if url == USUAL_URLS[kind] else f"fim:{kind}:{url}"
    title = f"{model} in {'Ollama' if kind == 'ollama' else 'llama.cpp'}"
    return Offer(f"{value}#{model}" if kind == "ollama" else value, title, HERE, cost)


# --- The offers

DIFFUSION = "google/diffusiongemma-26B-A4B-it"
DOWNLOAD_BYTES = 51_600_000_000  # its files, also if the weights are quantised after that
CONTEXT_BYTES = 600_000_000  # what CUDA uses on a GPU before anything is loaded
PUBLISHED = of_config(json.loads((Path(__file__).parents[1] / "models" / "diffusiongemma.json").read_bytes()))
"""The sizes of the published model."""


def offers(
    machine: Machine,
    running: Sequence[Offer],
    environ: Mapping[str, str],
    quality_by_model: Mapping[str, str],
    laptop_models: Sequence[LaptopModel] = (),
) -> tuple[Offer, ...]:
    """Return the offers, ready ones first; exactly one is recommended.

    `running` are those of the servers. `laptop_models` are those that are pulled or may be, best first. `quality_by_model` has
    the results of `dg-lsp calibrate`, and `environ` the keys of services.
    """
    fitting = [each for each in laptop_models if each.fits(machine.memory, machine.card, may_narrow=machine.may_narrow)]
    pulled = [each for each in laptop_models if each.is_pulled]
    missing = [each for each in fitting if not each.is_pulled]
    unfit = {each.name for each in pulled if each not in fitting}
    embedded = Offer(EMBEDDED, "the small model that comes with dg-lsp", HERE, "about 500 MB of memory, on the processor")
    # What was pulled is listed on any machine, after what suits this one.
    here = [_laptop(each, machine) for each in sorted(pulled, key=lambda model: model.name in unfit)]
    ready = [*running, *here, embedded, *_remote(environ)]
    others = [_laptop(each, machine) for each in missing]
    # To recommend: a model that runs on this machine, at no further cost.
    best = next(each for each in ready if each.where == HERE and each.model not in unfit)
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


def _laptop(model: LaptopModel, machine: Machine) -> Offer:
    cost = f"{size(model.memory_bytes)} of memory, on the processor"
    if machine.card:
        cost = f"{size(model.bytes_on(machine.card, may_narrow=machine.may_narrow))} of the GPU's memory"
    offer = Offer(model.name, f"{model.name}: {model.gives}", HERE, cost)
    if model.is_pulled:
        return offer
    cost += f", and {size(model.n_bytes)} to download once, from {model.places}; only its known SHA-256 is trusted"
    return replace(offer, cost=cost, is_ready=False, commands=(f"dg-lsp setup --yes {model.name}",))


def _remote(environ: Mapping[str, str]) -> Iterator[Offer]:
    """Yield the services whose key is in the environment and that need no name of a model."""
    for dialect in DIALECTS:
        address = address_of(dialect.url)
        has_key = dialect.variable and environ.get(dialect.variable, "").strip()
        if has_key and address is not None and (dialect.model or not dialect.caps.needs_model):
            title = f"{address.name}, with the key in {dialect.variable}"
            where = f"at {address.name}, which receives the code around the cursor"
            yield Offer(f"fim:{dialect.name}", title, where, "each request is billed to the key's account")


def _diffusion(machine: Machine) -> Iterator[Offer]:
    """Yield DiffusionGemma if it fits on the largest GPU, in the precision that `engine.dtype = "auto"` then chooses."""
    gpu = max(machine.gpus, key=lambda gpu: gpu.memory, default=None)
    if gpu is None:
        return
    kind, taken = ("mps", 0) if gpu.maker == "Apple" else ("cuda", CONTEXT_BYTES)
    host = fit.Machine(kind, gpu.memory - taken, gpu.name, installed=QUANTISED if gpu.maker == "NVIDIA" else ())
    try:
        choice = fit.choose(DIFFUSION, PUBLISHED, host)
    except fit.NoRoomError:
        return
    precision = choice.precision
    install = (install_command("quant"),) if precision in QUANTISED and precision not in machine.installed else ()
    title = f"DiffusionGemma on this machine's GPU, in {BITS[precision]} ({precision})"
    cost = f"{size(choice.needs.total)} of the GPU's memory, and {size(DOWNLOAD_BYTES)} to download"
    commands = (*install, f"dg-lsp engine pull {DIFFUSION}", f"dg-lsp setup --yes {DIFFUSION}")
    yield Offer(DIFFUSION, title, HERE, cost, is_ready=False, commands=commands)
