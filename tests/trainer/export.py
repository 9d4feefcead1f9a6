"""Write a trained model as a checkpoint that transformers can load unchanged.

This module knows the state that the loop writes, and nothing of training.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from dg_lsp.engine.model import before_torch  # noqa: F401 -- before torch

# isort: split
import torch
from transformers.utils import logging

from dg_lsp.engine.model.profile import DRAFTS_FIRST, FILE, Profile, Sampling, dump
from tests.trainer.shape import Shape, build, resume

# The profile for a model trained by `train.objective`. Its limits are those of the training.
PROFILE = Profile(
    layout="infill-trained",
    prefix_tokens=496,
    suffix_tokens=96,
    held_tokens=24,
    canvas_tokens=96,
    line_gaps=(24,),
    block_gaps=(48,),
    gaps_per_canvas=1,
    line_noise_rows=0,
    copy_rows=3,
    causal_rows=3,
    branches=6,
    # The model accepts held suffixes of any length, never writes past an answer, and computes a causal token cheaply.
    refine_steps=0,
    line_ends=False,
    line=DRAFTS_FIRST,
    block=DRAFTS_FIRST,
    max_canvases=1,
    file_weight=0.9,
    file_half_at=8.0,
    # More steps or more conditioning take time and change no chosen answer; the model card's ablation has the figures.
    sampling=Sampling(line_steps=4, block_steps=8, conditioning_tokens=16),
)


def export(run: Path, folder: Path, shape: Shape, *, profile: Profile = PROFILE, averaged: bool = True) -> None:
    """Write the config, bf16 weights, tokenizer and profile of the run's latest state into `folder`.

    The weights are the averaged ones, which are better; with `averaged` false they are those of the last step.

    Raises EvalError if the state belongs to a model of another shape.
    """
    logging.disable_progress_bar()
    model: Any = build(shape)
    averages = resume(model, run / "state.pt")["average"]  # loads the last step's weights into the model
    if not averaged:
        averages = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in averages:
                parameter.copy_(averages[name])
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder, safe_serialization=True)
    shutil.copyfile(run / "tokenizer.json", folder / "tokenizer.json")
    (folder / FILE).write_text(dump(profile), encoding="utf-8")
