"""The settings for one DiffusionGemma checkpoint: its layout, token budgets, sampler settings and calibration.

The default is the profile of Google's instruct model. Knows nothing of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from dg_lsp.core.calibration import Calibration
from dg_lsp.engine.common import profile_file

LayoutName = Literal["infill-trained", "instruct"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings of the denoising loop. The defaults are those of Google's 26B checkpoint (its generation config).

    Temperatures run from `t_max` at the first step to `t_min` at the last. `entropy_bound` and `stop_entropy` are in
    nats. `line_steps` and `block_steps` bound a row's steps.
    """

    line_steps: int = 12
    block_steps: int = 24
    t_min: float = 0.4
    t_max: float = 0.8
    entropy_bound: float = 0.1
    stop_entropy: float = 0.02
    conditioning_tokens: int = 64  # the number of tokens in a position's self-conditioning
    delete_entropy: float = 0.05  # a delete token below this entropy twice in a row leaves the canvas


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings for one checkpoint, one per entry of its file. Lengths are in tokens."""

    layout: LayoutName = "instruct"
    prefix_tokens: int = 6144
    suffix_tokens: int = 1024
    related_tokens: int = 2048
    held_tokens: int = 24
    canvas_tokens: int = 256
    line_gaps: tuple[int, ...] = (6, 10, 16, 24, 32)
    block_gaps: tuple[int, ...] = (16, 32, 64, 96, 128)
    gaps_per_canvas: int = 4
    # Per gap length, for a hole within a line and for lines; 0: only if there are fewer drafts than requested candidates.
    line_noise_rows: int = 1
    block_noise_rows: int = 1
    copy_rows: int = 2
    causal_rows: int = 1
    branches: int = 0  # of a causal draft within a line: others that differ from it first in one token
    file_weight: float = 0.0  # the weight of the file's own repetitions beside the causal model; 0: not used
    file_half_at: float = 4.0  # the match length, in tokens, at which they have half of that weight
    sampling: Sampling = field(default_factory=Sampling)
    calibration: Calibration | None = None  # None: its confidence was never measured

    @property
    def is_instruct(self) -> bool:
        """Whether canvases write lines after the hole's too, and correct drafts. An infill-trained model has learnt neither."""
        return self.layout == "instruct"


def load_profile(folder: Path) -> Profile:
    """Return the profile of a checkpoint's folder, or that of Google's instruct model if it has none.

    Raises ValueError with a sentence if the file exists but this version can't read it.
    """
    return profile_file.load(folder, parse, Profile())


def parse(settings: dict[str, Any]) -> Profile:
    """Return the profile in a JSON object; raise ValueError or TypeError if it contains something unknown."""
    values = profile_file.values_of(Profile, settings, layouts=get_args(LayoutName))
    if "sampling" in values:
        values["sampling"] = Sampling(**values["sampling"])
    return Profile(**values)
