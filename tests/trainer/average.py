"""Average the weights of several checkpoints of one run ("model soups", Wortsman et al. 2022, arXiv 2203.05482).

Milestones that branched off the same run at different times lie in one basin of the loss, so their mean is better than each
of them. Knows checkpoints. Knows nothing of training.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dg_lsp.engine.model import before_torch  # noqa: F401 -- before torch

# isort: split
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dg_lsp.engine.model.profile import FILE, dump, load_profile
from dg_lsp.evaluate.tasks import EvalError

WEIGHTS = "model.safetensors"
SAME = ("config.json", "tokenizer.json")  # what the checkpoints must have in common


def average(checkpoints: Sequence[Path], folder: Path) -> None:
    """Write a checkpoint with the mean weights of `checkpoints` into `folder`; one that is named twice counts twice.

    Its profile is that of the last one, without a calibration. Raises EvalError if the checkpoints don't belong together.
    """
    last = checkpoints[-1]
    for checkpoint in checkpoints:
        for name in (WEIGHTS, *SAME):
            if not (checkpoint / name).is_file():
                raise EvalError(f"{checkpoint} has no {name}; name folders that `python -m tests.trainer export` wrote")
    for checkpoint in checkpoints:
        for name in SAME:
            if (checkpoint / name).read_bytes() != (last / name).read_bytes():
                raise EvalError(f"{checkpoint} and {last} differ in {name}; average checkpoints of one run only")
    if folder.exists() and any(folder.resolve() == checkpoint.resolve() for checkpoint in checkpoints):
        raise EvalError(f"{folder} is one of the checkpoints; give another folder as --out")
    try:
        profile = replace(load_profile(last), calibration=None)
    except ValueError as error:
        raise EvalError(str(error)) from error
    means = _means([checkpoint / WEIGHTS for checkpoint in checkpoints])
    folder.mkdir(parents=True, exist_ok=True)
    for name in SAME:
        shutil.copyfile(last / name, folder / name)
    save_file(means, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / FILE).write_text(dump(profile), encoding="utf-8")


def _means(files: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of each weight, added up in float32, in the dtype of the first file."""
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for file in files:
        try:
            with safe_open(file, "pt") as weights:
                values = {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118 -- it is no mapping
        except SafetensorError as error:
            raise EvalError(f"{file} can't be read: {error}") from error
        if sums and _shapes(values) != _shapes(sums):
            raise EvalError(f"{file} does not have the same weights as {files[0]}; average checkpoints of one run only")
        for name, value in values.items():
            dtypes.setdefault(name, value.dtype)
            sums[name] = sums[name] + value.float() if name in sums else value.float()
    return {name: (total / len(files)).to(dtypes[name]) for name, total in sums.items()}


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in weights.items()}
