"""The settings for one causal checkpoint: its layout, token budgets and calibration. Knows nothing of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from dg_lsp.core.calibration import Calibration
from dg_lsp.engine.common import profile_file

LayoutName = Literal["left", "fim"]


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings for one checkpoint, one per entry of its file. Lengths are in tokens.

    The defaults suit pretrained models, with fill-in-the-middle tokens ("fim") or without ("left").
    """

    layout: LayoutName
    prefix_tokens: int = 768
    suffix_tokens: int = 64  # that the layout "fim" reads
    related_tokens: int = 192
    held_tokens: int = 8  # of the suffix, that answers are scored with; more make the ranking no better, and slower
    follow_tokens: int = 16  # of the suffix, read after the likeliest answers if the model read the suffix before them
    line_tokens: int = 32  # the longest draft within a line
    block_tokens: int = 96  # and of several lines
    copy_rows: int = 3
    branches: int = 3  # of a draft: others that differ from it first in one token
    calibration: Calibration | None = None  # None: its confidence was never measured
    draft_calibration: Calibration | None = None  # of the first draft by its own tokens, before anything else is known
    # The first draft is sure from this log-probability on, or if it is so many nats likelier than the start of any branch.
    sure_logp: float = -0.6
    sure_margin: float = 1.0


def load_profile(folder: Path, *, fills_in: bool) -> Profile:
    """Return the profile of a checkpoint's folder; the default depends on whether it has fill-in-the-middle tokens.

    Raises ValueError with a sentence if the file exists but this version can't read it.
    """
    return profile_file.load(folder, parse, Profile("fim" if fills_in else "left"))


def parse(settings: dict[str, Any]) -> Profile:
    """Return the profile in a JSON object; raise ValueError or TypeError if it contains something unknown."""
    return Profile(**profile_file.values_of(Profile, settings, layouts=get_args(LayoutName)))
