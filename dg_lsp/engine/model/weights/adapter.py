"""Read a LoRA adapter's folder, and add its weights to a loaded model.

An adapter is never merged: it has separate weights for each of the two passes, which share the model's weights. Knows PEFT
and files. Knows nothing of training.
"""

from __future__ import annotations

import warnings
from importlib import util
from pathlib import Path
from typing import Any

from dg_lsp.wire.extras import install_command

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

# Attention, the dense feed-forward and self-conditioning. The experts' banks are parameters, not modules.
MODULES = (
    r"model\.(encoder\.language_model|decoder)\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"
    r"|model\.decoder\.self_conditioning\.\w+_proj"
)
BANKS = ["experts.gate_up_proj", "experts.down_proj"]


class AdapterError(Exception):
    """An adapter can't be used; the message is a sentence."""


def base_of(folder: Path, values: dict[str, Any]) -> str:
    """Return the name of the model that an adapter belongs to; raise AdapterError if the folder does not name it."""
    base = values.get("base_model_name_or_path")
    if values.get("peft_type") != "LORA" or not isinstance(base, str) or not base:
        raise AdapterError(f"{CONFIG} of {folder} does not describe a LoRA adapter of a model")
    return base


def attach(model: Any, folder: Path, device: str) -> Any:
    """Add the folder's adapter to the model, and return the model. Raises AdapterError."""
    _need_peft()
    if not (folder / WEIGHTS).is_file():
        raise AdapterError(f"{folder} has no {WEIGHTS}; only safetensors adapters are supported")
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the two libraries warn about each other
            # PEFT reports weights that the file lacks only as a warning.
            warnings.filterwarnings("error", message="Found missing adapter keys")
            PeftModel.from_pretrained(model, str(folder), is_trainable=False, torch_device=device, local_files_only=True)
    except Exception as error:  # the library may raise anything for an invalid file
        first = str(error).strip().split("\n")[0]
        raise AdapterError(f"the adapter in {folder} does not fit its model: {first}") from error
    return model.requires_grad_(False).eval()


def new(model: Any, *, rank: int, experts: bool) -> Any:
    """Return PEFT's wrapper of a model with a new adapter; only its weights are trainable. Raises AdapterError."""
    _need_peft()
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=MODULES, target_parameters=BANKS if experts else None, lora_dropout=0.0
    )
    with warnings.catch_warnings():
        # The libraries warn about each other, and about shared weights, which matter only when an adapter is merged.
        warnings.simplefilter("ignore")
        return get_peft_model(model, settings)


def n_parameters(model: Any) -> int:
    """Return the number of trainable weights."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _need_peft() -> None:
    if util.find_spec("peft") is None:
        raise AdapterError(f"adapters need peft, which is not installed; install it with: {install_command('tune')}")
