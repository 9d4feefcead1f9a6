"""Detect this machine's processor cores, memory and GPUs, and offer the models that fit it, with their costs.

A model is usable now or after some commands. `detect` queries the operating system and loads no library; unknown facts are
left out. The rest is pure.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dg_lsp.batch.setup.servers import Endpoint, Kind, Server
from dg_lsp.core.wording import size
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.fit import Precision
from dg_lsp.engine.model.fit import machine as fit_machine
from dg_lsp.engine.model.fit.choice import NAMES as BITS
from dg_lsp.engine.model.fit.geometry import of_config
from dg_lsp.engine.model.fit.needs import QUANTISED
from dg_lsp.wire import laptop
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

    def to_json(self) -> dict[str, Any]:
        """Return the offer as `--json` prints it."""
        return {name.removeprefix("is_"): value for name, value in asdict(self).items()}


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
    fitting = [model for model in laptop_models if model.fits(machine.memory)]
    pulled, others = (list(_laptop(fitting, is_pulled=is_pulled)) for is_pulled in (True, False))
    embedded = Offer(EMBEDDED, "the small model that comes with dg-lsp", HERE, "about 500 MB of memory, on the processor")
    ready = [*_running(servers), *pulled, embedded, *_remote(keys)]
    every = [*ready, *others, *_after_commands(machine, servers, programs)]
    best = _recommended(ready)
    best = others[0] if others and best.model == EMBEDDED else best
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


def _recommended(every: Sequence[Offer]) -> Offer:
    """Return the offer to recommend among those that are ready: a model that runs on this machine, at no further cost.

    A chat model is never recommended, because it writes more than the hole needs and is slow while typing.
    """
    local = [offer for offer in every if offer.is_ready and offer.where == HERE and not offer.model.startswith("chat:")]
    diffusing = [offer for offer in local if offer.model.startswith("vllm:")]
    return next(iter((*diffusing, *(offer for offer in local if offer.model != EMBEDDED), *local)))


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


def _laptop(models: Sequence[LaptopModel], *, is_pulled: bool) -> Iterator[Offer]:
    for model in models:
        if model.is_pulled == is_pulled:
            cost = f"{size(model.memory_bytes)} of memory, on the processor"
            download = "" if is_pulled else f", and {size(model.n_bytes)} to download once"
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
