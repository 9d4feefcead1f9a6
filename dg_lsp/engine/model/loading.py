"""Load a checkpoint: weights, tokenizer, profile.

A model is transformers' `DiffusionGemmaForBlockDiffusion`, or a Llama or Qwen2 model (`llama`), from a local folder or a
hub id, with safetensors only and without remote code.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, cast

from dg_lsp.engine.model import before_torch  # noqa: F401 -- before torch

# isort: split
import torch

from dg_lsp.engine.model import fit, int8, packed, products, profile, room
from dg_lsp.engine.model.family import Family
from dg_lsp.engine.model.fit import machine
from dg_lsp.engine.model.fit.choice import CHOSEN, SMALL
from dg_lsp.engine.model.fit.geometry import LLAMA_TYPES, llama_sizes
from dg_lsp.engine.model.fit.needs import QUANTISED, Precision
from dg_lsp.engine.model.llama import LlamaPasses
from dg_lsp.engine.model.passes import Passes
from dg_lsp.engine.model.profile import Profile
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.engine.model.weights import (
    canvas_adapter,
    chat_template,
    checkpoint,
    dense,
    fetch,
    llama_files,
    reading,
)
from dg_lsp.engine.model.weights.progress import Meter
from dg_lsp.engine.task import OnProgress, UserError
from dg_lsp.wire import files, laptop
from dg_lsp.wire.model_names import folder_of
from dg_lsp.wire.settings import DEVICES

log = logging.getLogger("dg_lsp.engine")

EMBEDDED = "embedded"
FINGERPRINT_BYTES = 1 << 16
# The reasons for the precision of a Llama or Qwen2 model that the user did not select.
LLAMA_WHY: dict[str, str] = {
    "int8": products.EXPLAINED["int8"],
    "bfloat16": "this device has instructions for it",
    "float32": "this processor has neither 8-bit nor bfloat16 instructions",
}


class LoadError(UserError):
    """A model can't be loaded; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model with its vocabulary and profile. `why` gives the reasons for `device`, `dtype` and `threads`."""

    name: str
    passes: Family
    vocabulary: Vocabulary
    profile: Profile
    device: str
    dtype: str
    revision: str = ""
    threads: int = 0
    why: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""  # identifies the weights

    @property
    def diffusion(self) -> Passes:
        """The passes of a DiffusionGemma model; raises LoadError for another family."""
        if not isinstance(self.passes, Passes):
            raise LoadError(f"{self.name} is not a DiffusionGemma model, which this needs")
        return self.passes

    @property
    def products_dtype(self) -> str:
        """The precision of the layers' products with the weights, which may be narrower than that of the weights."""
        if isinstance(self.passes, packed.PackedPasses):
            return "bfloat16" if self.passes.kind == "onednn-bf16" else "float32"
        if self.dtype == "int8":
            return "int8"
        return str(reading.wide_dtype(cast("Precision", self.dtype))).removeprefix("torch.")


def load_model(
    name: str = EMBEDDED,
    *,
    device: str = "auto",
    threads: int = 0,
    revision: str = "",
    dtype: str = "",
    on_progress: OnProgress = lambda _text, _share: None,
) -> Loaded:
    """Load and return the model `name`: "embedded", a folder, or a hub id with an optional `revision`.

    `on_progress` receives the progress: a message and a fraction. Raises LoadError with a sentence.
    """
    why: dict[str, str] = {}
    name = laptop.resolve(name)
    device, why["device"] = _device(device)
    on_progress("finding the checkpoint", 0.0)
    try:
        folder = find(name, revision, on_progress=lambda text, share: on_progress(text, share / 2))
        values = checkpoint.stated_values(folder)
        shape = fit.of_config(values)
        if threads or device == "cpu":
            threads, why["threads"] = (threads, CHOSEN) if threads else _threads(shape)
            torch.set_num_threads(threads)
        on_progress("reading the tokenizer", 0.5)
        vocabulary, is_llama = _vocabulary(folder), values["model_type"] in LLAMA_TYPES
        loaded_profile = _profile(name, folder, values["model_type"], vocabulary)
        if loaded_profile.layout == "instruct" and (warning := chat_template.warning(folder)):
            log.warning("%s", warning)
        choice = _choice(name, folder, values, shape, loaded_profile, device, dtype)
        why["dtype"] = choice.why
        if is_llama:
            adapter_file = _with_profile(name, folder) / canvas_adapter.FILE
            if loaded_profile.right_tokens and not adapter_file.exists():
                raise LoadError(f"the profile of {name} needs a canvas adapter, but there is no {adapter_file}")
            passes: Family = _llama(folder, adapter_file, values, device, choice.precision, vocabulary, on_progress)
            if not dtype:
                why["dtype"] = LLAMA_WHY[choice.precision]
        else:
            passes, explained = _diffusion(name, folder, device, dtype, choice.precision, on_progress)
            why["dtype"] += explained
    except (checkpoint.CheckpointError, fit.GeometryError, fit.NoRoomError, reading.ReadError) as error:
        raise LoadError(str(error)) from error
    except OSError as error:
        # Such as a folder without permission; the libraries' own errors are handled where they are called.
        raise LoadError(f"{error.filename or name} can't be read: {(error.strerror or str(error)).lower()}") from error
    on_progress("ready", 1.0)
    return Loaded(
        name, passes, vocabulary, loaded_profile, device, choice.precision, revision, threads, why, _fingerprint(folder)
    )


def _choice(
    name: str, folder: Path, values: Mapping[str, Any], shape: fit.Geometry, own: Profile, device: str, asked: str
) -> fit.Choice:
    """Return the precision for a model with this profile; raise LoadError if its family can't have the requested one."""
    if asked and asked not in fit.PRECISIONS:
        raise LoadError(f"unknown dtype {asked!r}; choose {', '.join(fit.PRECISIONS[:-1])} or {fit.PRECISIONS[-1]}")
    is_llama, stored = values["model_type"] in LLAMA_TYPES, ""
    if own.unmasking and not is_llama:
        raise LoadError(f"the profile of {name} is one for a model that fills masks, which a {values['model_type']} is not")
    if is_llama:
        asked = _llama_dtype(asked, device, name)
    elif asked == "int8":
        raise LoadError(f"{name} can't be loaded at int8; choose fp8 or int4")
    else:
        stored = checkpoint.stored_precision(folder, values)
    use = fit.Use(own.prefix_tokens + own.suffix_tokens, own.canvas_tokens)
    facts = fit.Machine(
        kind=device.partition(":")[0],
        free=room.free_bytes(device),
        name=torch.cuda.get_device_name(device) if device.startswith("cuda") else "",
        multiplies_bf16=torch.cpu._is_avx512_bf16_supported(),  # no public name for it yet
        installed=machine.installed(),
    )
    return fit.choose(name, shape, facts, asked=asked, stored=stored, use=use)


def _diffusion(
    name: str,
    folder: Path,
    device: str,
    dtype: str,
    precision: Precision,
    on_progress: OnProgress,
) -> tuple[Passes, str]:
    """Return the passes of a DiffusionGemma folder, and an addition to the reason for the precision."""
    # Load the embedded weights without transformers, because its import takes longer than the rest of the start.
    is_plain = name == EMBEDDED and device == "cpu"
    model = dense.load_dense(folder, reading.wide_dtype(precision)) if is_plain else None
    if model is None:
        model = _with_weights(folder, device, precision, on_progress)
    if not packed.suits(model):
        return Passes(model), ""
    kind = products.best_kind(in_16_bits=dtype != "float32")
    return packed.PackedPasses(model, kind), f"; {products.EXPLAINED[kind]}"


def _llama(
    folder: Path,
    adapter_file: Path,
    values: Mapping[str, Any],
    device: str,
    precision: Precision,
    vocabulary: Vocabulary,
    on_progress: OnProgress,
) -> LlamaPasses:
    """Return the passes of a Llama or Qwen2 folder. The folder is validated before anything is allocated."""
    sizes = llama_sizes(values)
    if vocabulary.size > sizes.vocabulary:
        raise LoadError(f"the tokenizer of {folder} has {vocabulary.size} tokens, more than the model's {sizes.vocabulary}")
    stored = llama_files.check(folder, sizes, in_int8=llama_files.is_quantised(folder, values))
    meter = Meter("reading the weights", sum(one.n_bytes for one in stored.values()), on_progress, low=0.5)
    dtype = None if precision == "int8" else reading.wide_dtype(precision)
    kind: products.Kind = "int8"
    if dtype is not None:
        is_on_cpu = device == "cpu" and dtype != torch.float16
        kind = products.best_kind(in_16_bits=dtype != torch.float32) if is_on_cpu else "plain"
    weights = llama_files.Weights(stored, device, dtype, meter)
    tensors = None
    if adapter_file.exists():
        own = checkpoint.own_file(adapter_file.parent, adapter_file.name)
        found = canvas_adapter.read(own, sizes, canvas_adapter.base_hash(weights))
        if found.facts.get("order") == "fim":
            raise LoadError(f"{own} is not an adapter for a canvas, but for the weights (`dg-lsp train fim`); remove it")
        tensors = {name: tensor.to(device) for name, tensor in found.tensors.items()}
    return LlamaPasses(sizes, weights, kind, tensors)


def _llama_dtype(asked: str, device: str, name: str) -> str:
    """Return the precision of a Llama or Qwen2 model: the user's choice, or the fastest of the device."""
    if asked in QUANTISED:
        raise LoadError(f"{name} can't be loaded at {asked}; choose int8, bfloat16 or float32")
    if asked == "int8" and (device != "cpu" or not int8.is_supported()):
        where = "this processor has no instructions for it" if device == "cpu" else f"{device} does not compute in int8"
        raise LoadError(f"{name} can't be loaded at int8, because {where}; choose bfloat16 or float32")
    if asked or device != "cpu":
        return asked or "bfloat16"
    if int8.is_supported():
        return "int8"
    return "bfloat16" if products.best_kind() == "onednn-bf16" else "float32"


def _with_weights(folder: Path, device: str, precision: Precision, on_progress: OnProgress) -> Any:
    """Return the folder's model with its weights on a device. The folder is validated before anything is allocated."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # the engine reports the progress itself
    model, listed = checkpoint.check(folder, checkpoint.configuration(folder))
    meter = Meter("reading the weights", listed.n_bytes, on_progress, low=0.5)
    dtype = reading.wide_dtype(precision)
    model.config.dtype = model.config.text_config.dtype = dtype
    try:
        reading.fill(model, listed, device, precision, dtype, meter)
    except torch.OutOfMemoryError as error:
        raise LoadError(
            f"{device} ran out of memory while the weights were read, though enough was free before; "
            "close other programs that use it, or choose a smaller model"
        ) from error
    except reading.ReadError:
        raise
    except Exception as error:  # the libraries may raise anything for values that they have not checked
        raise LoadError(f"{folder} can't be loaded as a DiffusionGemma checkpoint: {error}") from error
    return model.eval()


def _vocabulary(folder: Path) -> Vocabulary:
    try:
        if not (folder / "tokenizer.json").exists() and (folder / "merges.txt").exists():
            return Vocabulary.from_qwen2_parts(folder)
        return Vocabulary.from_file(folder / "tokenizer.json")
    except PermissionError:
        raise
    except Exception as error:
        raise LoadError(f"{folder} has no tokenizer that can be read: {error}") from error


def _with_profile(name: str, folder: Path) -> Path:
    """Return the folder that has the model's profile: that of this package for a laptop model, so that it is never outdated."""
    own = Path(str(resources.files("dg_lsp.models"))) / name
    return own if laptop.by_name(name) is not None and (own / profile.FILE).exists() else folder


def _profile(name: str, folder: Path, model_type: str, vocabulary: Vocabulary) -> Profile:
    """Return the model's profile; without one, that of the published or pretrained model that it is, if it is one."""
    try:
        default = profile.published(name, model_type, vocabulary)
        if default is None and model_type in LLAMA_TYPES:
            default = profile.pretrained(fills_in=vocabulary.fim_tokens is not None)
        return profile.load_profile(_with_profile(name, folder), default)
    except ValueError as error:
        raise LoadError(str(error)) from error


def find(name: str, revision: str = "", *, on_progress: OnProgress = lambda _text, _share: None) -> Path:
    """Return the folder of a model; fetch a hub id, or use its cached files offline. Raises LoadError.

    `on_progress` receives the progress.
    """
    if name == EMBEDDED:
        folder = Path(str(resources.files("dg_lsp.models"))) / EMBEDDED
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
    # A folder in the working directory that has the name of a hub id must never shadow it.
    if folder_of(name) is not None and folder.is_dir():
        if not os.access(folder, os.R_OK | os.X_OK):
            raise LoadError(f"{folder} can't be read: permission denied")
        return folder
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise LoadError(
            f"there is no model folder {name}; give a folder as a path (./NAME), a hub id (OWNER/NAME), or {EMBEDDED}"
        )
    try:
        return fetch.snapshot(name, revision, on_progress)
    except fetch.FetchError as error:
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
    """Return the device, and the reason for it."""
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


def _threads(shape: fit.Geometry) -> tuple[int, str]:
    """Return the number of CPU threads for a model on this machine, and the reason.

    It is half of the cores, because an editor and its other servers need the rest. With more threads, each pass waits for
    the thread that has to share its core, and loses more than it gains. A small model gains nothing beyond two threads.
    """
    n_cores = os.cpu_count() or 2
    half = max(1, n_cores // 2)
    why = f"half of the {n_cores} cores, because an editor needs the rest"
    if shape.n_weights < SMALL and half > 2:
        return 2, f"{why}, and a small model gains nothing beyond 2"
    return half, why
