"""Find and check a checkpoint before its weights are read: its folder, sizes, tokenizer, device and precision.

A model comes from this package, a local folder or a hub id, with safetensors only and without remote code. Each family reads
its own weights and profile.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from dg_lsp import is_out_of_memory
from dg_lsp.core import wording
from dg_lsp.engine.model import before_torch  # noqa: F401 -- before torch

# isort: split
import torch

from dg_lsp.engine.common.task import OnProgress, UserError
from dg_lsp.engine.model import cores, fit, matmul, memory
from dg_lsp.engine.model.cores import Cores
from dg_lsp.engine.model.fit import CHOSEN, LLAMA_TYPES, QUANTISED, SMALL, Precision, llama_sizes, machine
from dg_lsp.engine.model.llama import Llama
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.engine.model.weights import checkpoint, fetch, llama
from dg_lsp.engine.model.weights.fetch import Meter, PullError
from dg_lsp.wire import files, laptop
from dg_lsp.wire.model_names import folder_of, is_gguf, is_hub_id
from dg_lsp.wire.settings import DEVICES

EMBEDDED = "embedded"
FINGERPRINT_BYTES = 1 << 16
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# The reasons for a precision that the user did not select.
LLAMA_WHY: dict[str, str] = {
    "int8": matmul.EXPLAINED["int8"],
    "bfloat16": "this device has instructions for it",
    "float32": "this processor has neither 8-bit nor bfloat16 instructions",
}

# What a GPU that is too small, busy or broken raises while a model is loaded.
NO_ROOM = (fit.NoRoomError, torch.OutOfMemoryError, torch.AcceleratorError)

PassesT = TypeVar("PassesT")
ProfileT = TypeVar("ProfileT")


class LoadError(UserError):
    """A model can't be loaded; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's folder, and where and how it will run. `values` are those of its `config.json`; `why` gives reasons."""

    name: str
    folder: Path
    values: Mapping[str, Any]
    geometry: fit.Geometry
    vocabulary: Vocabulary
    device: str
    cores: Cores
    why: dict[str, str]

    @property
    def model_type(self) -> str:
        """The model's type, as its configuration states it."""
        return str(self.values["model_type"])

    @property
    def profile_folder(self) -> Path:
        """The folder that has the model's profile: that of this package for a laptop model, so that it is never outdated."""
        model = laptop.by_name(self.name)
        return model.profile_folder if model and (model.profile_folder / checkpoint.PROFILE).exists() else self.folder


@dataclass(frozen=True, slots=True)
class Loaded(Generic[PassesT, ProfileT]):
    """A loaded model with its vocabulary and profile. `why` gives the reasons for `device` and `dtype`.

    `fingerprint` identifies the weights.
    """

    name: str
    passes: PassesT
    vocabulary: Vocabulary
    profile: ProfileT
    device: str
    dtype: str
    cores: Cores = field(default_factory=lambda: Cores(1, follows=False))
    why: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""

    @classmethod
    def of(cls, checkpoint: Checkpoint, passes: PassesT, profile: ProfileT, dtype: str) -> Loaded[PassesT, ProfileT]:
        of, fingerprint = checkpoint, _fingerprint(checkpoint.folder)
        return cls(of.name, passes, of.vocabulary, profile, of.device, dtype, of.cores, of.why, fingerprint)


def wide_dtype(precision: Precision) -> torch.dtype:
    """Return the data type in which a model of this precision computes."""
    return DTYPES.get(precision, torch.bfloat16)


@contextlib.contextmanager
def reported(name: str) -> Iterator[None]:
    """Raise LoadError with a sentence for what may go wrong while a model is loaded."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        remedy = "close other programs that use it, or choose a smaller model"
        raise LoadError(f"the GPU ran out of memory while {name} was loaded; {remedy}") from error
    except torch.AcceleratorError as error:
        raise LoadError(f"{name} can't be loaded on the GPU: {wording.reason(error)}") from error
    except BaseException as error:
        # The libraries' own errors are handled where they are called, and there each looks like a damaged file.
        if is_out_of_memory(error):
            remedy = "close other programs, or choose a smaller model"
            raise LoadError(f"there is too little memory to load {name}; {remedy}") from error
        if isinstance(error, (checkpoint.CheckpointError, fit.GeometryError, fit.NoRoomError)):
            raise LoadError(str(error)) from error
        if not isinstance(error, OSError):
            raise
        raise LoadError(f"{error.filename or name} can't be read: {(error.strerror or str(error)).lower()}") from error


def open_checkpoint(name: str, *, device: str, threads: int, on_progress: OnProgress) -> Checkpoint:
    """Find the model `name` and return its checkpoint; `on_progress` receives the first half of the progress.

    Raises LoadError, and the errors of `reported`.
    """
    why: dict[str, str] = {}
    name = laptop.resolve(name)
    device, why["device"] = _device(device)
    set_up(device)
    on_progress("finding the checkpoint", 0.0)
    folder = find(name, on_progress=lambda text, share: on_progress(text, share / 2))
    values = checkpoint.stated_values(folder)
    shape = fit.of_config(values)
    # Each pass of a small model is so short that it gains nothing beyond two threads.
    most = min(machine.physical_cores(), 2 if shape.n_weights < SMALL else cores.MOST)
    used = Cores(most, threads, follows=device == "cpu")
    torch.set_num_threads(used.threads)
    on_progress("reading the tokenizer", 0.5)
    return Checkpoint(name, folder, values, shape, _vocabulary(folder), device, used, why)


def set_up(device: str) -> None:
    """Choose the implementations that torch uses on a device, for the whole process."""
    if device.startswith("cuda"):
        # cuDNN plans its attention again for each shape, and nearly every pass has another one: fills of a laptop model took
        # 743 ms with it and 236 ms without it on an H100.
        torch.backends.cuda.enable_cudnn_sdp(False)


def check_dtype(asked: str) -> None:
    if asked and asked not in fit.PRECISIONS:
        raise LoadError(f"unknown dtype {asked!r}; choose {', '.join(fit.PRECISIONS[:-1])} or {fit.PRECISIONS[-1]}")


def choose(opened: Checkpoint, use: fit.Use, *, asked: str = "", stored: str = "") -> fit.Choice:
    """Return the precision for a model that is used like this; raises fit.NoRoomError if no memory has room for it."""
    device = opened.device
    facts = fit.Machine(
        kind=device.partition(":")[0],
        free=memory.free_bytes(device),
        name=torch.cuda.get_device_name(device) if device.startswith("cuda") else "",
        multiplies_bf16=torch.cpu._is_avx512_bf16_supported(),  # no public name for it yet
        installed=machine.installed(),
    )
    return fit.choose(opened.name, opened.geometry, facts, asked=asked, stored=stored, use=use)


def load_llama(
    opened: Checkpoint, profile: ProfileT, use: fit.Use, dtype: str, on_progress: OnProgress
) -> Loaded[Llama, ProfileT]:
    """Return the loaded Llama or Qwen2 model of a folder, which is validated before anything is allocated.

    Raises LoadError and CheckpointError.
    """
    folder, device, values, vocabulary = opened.folder, opened.device, opened.values, opened.vocabulary
    is_llama = opened.model_type in LLAMA_TYPES
    choice = choose(opened, use, asked=_llama_dtype(dtype, device, opened.name, is_small=not is_llama))
    is_narrow = choice.precision == "int8" and device != "cpu"
    precision, opened.why["dtype"] = choice.precision, choice.why
    if is_llama and not (dtype or is_narrow):
        opened.why["dtype"] = LLAMA_WHY[precision]
    sizes = llama_sizes(values) if is_llama else fit.gemma_sizes(values)
    if vocabulary.size > sizes.vocabulary:
        raise LoadError(f"the tokenizer of {folder} has {vocabulary.size} tokens, more than the model's {sizes.vocabulary}")
    stored = llama.check(folder, sizes, in_int8=llama.is_quantised(folder, values))
    meter = Meter("reading the weights", sum(one.n_bytes for one in stored.values()), on_progress, low=0.5)
    wide = None if precision == "int8" else wide_dtype(precision)
    kind: matmul.Kind = "int8-weights" if is_narrow else "int8"
    if wide is not None:
        is_on_cpu = device == "cpu" and wide != torch.float16
        # A small model's weights are in 32 bits also where its products are not.
        in_16_bits = wide != torch.float32 or (not is_llama and not dtype)
        kind = matmul.best_kind(in_16_bits=in_16_bits) if is_on_cpu else "plain"
        opened.why["dtype"] += "" if is_llama else f"; {matmul.EXPLAINED[kind]}"
    return Loaded.of(opened, Llama(sizes, llama.Weights(stored, device, wide, meter), kind), profile, precision)


def _llama_dtype(asked: str, device: str, name: str, *, is_small: bool) -> str:
    """Return the precision: the user's choice, or the fastest of the device; "" for the widest that fits."""
    check_dtype(asked)
    if asked in QUANTISED:
        raise LoadError(f"{name} can't be loaded at {asked}; choose int8, bfloat16 or float32")
    is_cuda = device.startswith("cuda")
    if asked == "int8" and not is_cuda and (device != "cpu" or not matmul.int8_is_supported()):
        where = "this processor has no instructions for it" if device == "cpu" else f"{device} does not compute in int8"
        raise LoadError(f"{name} can't be loaded at int8, because {where}; choose bfloat16 or float32")
    if asked or is_cuda or is_small:
        return asked
    if device != "cpu":
        return "bfloat16"
    if matmul.int8_is_supported():
        return "int8"
    return "bfloat16" if matmul.best_kind() == "onednn-bf16" else "float32"


def _vocabulary(folder: Path) -> Vocabulary:
    try:
        if not (folder / "tokenizer.json").exists() and (folder / "merges.txt").exists():
            return Vocabulary.from_qwen2_parts(folder)
        return Vocabulary.from_file(folder / "tokenizer.json")
    except (PermissionError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic of the library, which is written in Rust, is no Exception
        raise LoadError(f"{folder} has no tokenizer that can be read: {wording.reason(error)}") from error


def find(name: str, *, on_progress: OnProgress = lambda _text, _share: None) -> Path:
    """Return the folder of a model; fetch a hub id, or use its cached files offline. Raises LoadError.

    `on_progress` receives the progress.
    """
    if name == EMBEDDED:
        folder = laptop.PACKAGED / EMBEDDED
        if not (folder / "config.json").exists():
            raise LoadError("this installation has no embedded model; give one with --model FOLDER_OR_HUB_ID")
        return folder
    if (model := laptop.by_name(name)) is not None:
        if not model.is_pulled:
            reason = files.folder_problem(model.folder) if model.folder.exists() else "was not pulled yet"
            raise LoadError(f"{name} {reason}; to get it: dg-lsp engine pull {name}")
        return model.folder
    try:
        folder = Path(name).expanduser()
    except RuntimeError as error:
        raise LoadError(f"there is no model folder {name}: there is no user of that name") from error
    if folder_of(name) is not None and is_gguf(folder) and folder.is_file():
        from dg_lsp.engine.model.pull import file  # few models are such files

        try:
            return file.folder_of(folder, on_progress)
        except PullError as error:
            raise LoadError(str(error)) from error
    # A folder in the working directory that has the name of a hub id must never shadow it.
    if folder_of(name) is not None and folder.is_dir():
        if not os.access(folder, os.R_OK | os.X_OK):
            raise LoadError(f"{folder} can't be read: permission denied")
        return folder
    if not is_hub_id(name):
        raise LoadError(
            f"there is no model folder {name}; give a folder as a path (./NAME), a hub id (OWNER/NAME), or {EMBEDDED}"
        )
    try:
        return fetch.snapshot(name, on_progress)
    except PullError as error:
        raise LoadError(str(error)) from error


def _fingerprint(folder: Path) -> str:
    """Return an id of the folder's weights: a hash of each file's name, size, start and end."""
    digest = hashlib.sha256()
    # Opening a pipe of that name would wait for a writer.
    for path in sorted(path for path in folder.glob("*.safetensors") if path.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as opened:
            digest.update(opened.read(FINGERPRINT_BYTES))
            opened.seek(max(0, size - FINGERPRINT_BYTES))
            digest.update(opened.read(FINGERPRINT_BYTES))
    return digest.hexdigest()[:16]


def _device(name: str) -> tuple[str, str]:
    if reason := machine.lost_gpu():
        if name not in ("auto", "cpu"):
            raise LoadError(f"{name} failed before, and this process can't use it any more ({reason}); restart the engine")
        return "cpu", f"the GPU failed before: {reason}"
    if name != "auto":
        kind = name.partition(":")[0]
        if kind not in DEVICES:
            raise LoadError(f"unknown device {name!r}; choose {', '.join(DEVICES[:-1])} or {DEVICES[-1]}")
        if (kind == "cuda" and not torch.cuda.is_available()) or (kind == "mps" and not torch.backends.mps.is_available()):
            raise LoadError(f"there is no {kind.upper()} device; use --device cpu, or auto")
        return name, CHOSEN
    if torch.cuda.is_available():
        return "cuda", f"this machine has one: {torch.cuda.get_device_name()}"
    if torch.backends.mps.is_available():
        return "mps", "this Mac has one"
    return "cpu", "torch finds neither a CUDA nor an MPS device"
