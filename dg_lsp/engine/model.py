"""Load a checkpoint: weights, tokenizer, profile.

The model is transformers' `DiffusionGemmaForBlockDiffusion`, from a local folder or a hub id, safetensors only, never
remote code. Knows files. Knows nothing of requests.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from dg_lsp.engine import checkpoint, profile
from dg_lsp.engine.passes import Passes
from dg_lsp.engine.profile import Profile
from dg_lsp.engine.task import Say
from dg_lsp.engine.vocabulary import Vocabulary
from dg_lsp.wire.model_names import folder_of

EMBEDDED = "embedded"
SMALL = 20_000_000  # parameters below which bf16 gains nothing on a CPU
CHOSEN = "it was asked for"
FINGERPRINT_BYTES = 1 << 16


class LoadError(Exception):
    """A model can't be loaded; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to run, and what belongs to it. `why` says why it runs so: the ends of sentences, by name."""

    name: str
    passes: Passes
    vocabulary: Vocabulary
    profile: Profile
    device: str
    dtype: str
    revision: str = ""
    threads: int = 0
    why: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""  # other weights have another one


def load(
    name: str = EMBEDDED,
    *,
    device: str = "auto",
    threads: int = 0,
    revision: str = "",
    dtype: str = "",
    say: Say = lambda _text, _share: None,
) -> Loaded:
    """Return the model called `name`: "embedded", a folder, or a hub id, of a `revision` where one is named.

    `say` hears what is being done and how much of it is done. Raises LoadError with a sentence.
    """
    why: dict[str, str] = {}
    device, why["device"] = _device(device)
    say("finding the checkpoint", 0.0)
    folder = find(name, revision)
    if threads or device == "cpu":
        threads, why["threads"] = (threads, CHOSEN) if threads else _threads(folder)
        torch.set_num_threads(threads)
    say("reading the tokenizer", 0.1)
    try:
        vocabulary, loaded_profile = Vocabulary.from_file(folder / "tokenizer.json"), profile.load(folder)
    except Exception as error:
        raise LoadError(f"{folder} holds no tokenizer and profile that can be read: {error}") from error
    say("reading the weights", 0.2)
    try:
        from transformers import DiffusionGemmaForBlockDiffusion
        from transformers.utils import logging

        logging.disable_progress_bar()  # the engine says itself how far it is

        wide, why["dtype"] = (_named_dtype(dtype), CHOSEN) if dtype else _dtype(folder, device)
        config = checkpoint.configuration(folder)
        checkpoint.check(folder, config)
        model: Any = DiffusionGemmaForBlockDiffusion.from_pretrained(
            str(folder),
            config=config,
            dtype=wide,
            # Only what the library computes itself; `passes` brings its own for what the engine does.
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
        )
        model = model.eval().requires_grad_(False).to(device)
    except LoadError:
        raise
    except checkpoint.CheckpointError as error:
        raise LoadError(str(error)) from error
    except Exception as error:
        raise LoadError(f"{name} can't be loaded as a DiffusionGemma checkpoint: {error}") from error
    say("ready", 1.0)
    width = str(wide).removeprefix("torch.")
    return Loaded(name, Passes(model), vocabulary, loaded_profile, device, width, revision, threads, why, _fingerprint(folder))


def find(name: str, revision: str = "") -> Path:
    """Return the folder of a model; a hub id is fetched when the network allows. Raises LoadError."""
    if name == EMBEDDED:
        folder = Path(str(resources.files("dg_lsp.models"))) / EMBEDDED
        if not (folder / "config.json").exists():
            raise LoadError("this installation has no embedded model; give one with --model FOLDER_OR_HUB_ID")
        return folder
    try:
        folder = Path(name).expanduser()
    except RuntimeError as error:
        raise LoadError(f"there is no model folder {name}: nobody of that name is known here") from error
    # Never what merely has the name of a hub id, in whatever folder the command was started.
    if folder_of(name) is not None and folder.is_dir():
        return folder
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise LoadError(
            f"there is no model folder {name}; give a folder as a path (./NAME), a hub id (OWNER/NAME), or {EMBEDDED}"
        )
    try:
        from huggingface_hub import snapshot_download

        return Path(
            snapshot_download(name, revision=revision or None, allow_patterns=["*.json", "*.safetensors", "tokenizer*"])
        )
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        raise LoadError(f"{name} can't be fetched from the hub ({first}); write a folder as a path: ./{name}") from error


def _fingerprint(folder: Path) -> str:
    """Return what tells these weights from others: the size of each file, and what it begins and ends with."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as opened:
            digest.update(opened.read(FINGERPRINT_BYTES))
            opened.seek(max(0, size - FINGERPRINT_BYTES))
            digest.update(opened.read(FINGERPRINT_BYTES))
    return digest.hexdigest()[:16]


def _device(name: str) -> tuple[str, str]:
    """Return the device, and why."""
    if name != "auto":
        if name.startswith("cuda") and not torch.cuda.is_available():
            raise LoadError("no CUDA device is to be had here; use --device cpu, or auto")
        return name, CHOSEN
    if torch.cuda.is_available():
        return "cuda", f"there is one: {torch.cuda.get_device_name()}"
    if torch.backends.mps.is_available():
        return "mps", "this Mac has one"
    return "cpu", "torch finds neither a CUDA nor an MPS device"


def _named_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise LoadError(f"there is no dtype {name!r}; float32, bfloat16 and float16 are usual ones")
    return dtype


def _threads(folder: Path) -> tuple[int, str]:
    """Return how many threads a model wants on this machine's CPU, and why.

    Half of the cores, as an editor and its other servers need the rest: threads that wait for each other lose far more
    than they gain when one of them has to wait for a core. A small model gains nothing beyond two.
    """
    n_cores = os.cpu_count() or 2
    half = max(1, n_cores // 2)
    why = f"half of the {n_cores} cores, as an editor needs the rest"
    if _n_parameters(folder) < SMALL and half > 2:
        return 2, f"{why}, and a small model gains nothing beyond 2"
    return half, why


def _n_parameters(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) // 2


def _dtype(folder: Path, device: str) -> tuple[torch.dtype, str]:
    """Return the dtype, and why: bf16 on a GPU; on a CPU where the processor multiplies it and the model is not small.

    Decided by what the processor can do, not by timing: the same machine must give the same text twice.
    """
    if device != "cpu":
        return torch.bfloat16, "a GPU computes it fastest, and the weights are published in it"
    if _n_parameters(folder) <= SMALL:
        return torch.float32, "on a CPU a small model gains nothing from less"
    if torch.cpu._is_avx512_bf16_supported():  # no public name for it yet
        return torch.bfloat16, "this processor multiplies it"
    return torch.float32, "this processor does not multiply bfloat16"
