"""How one checkpoint wants to be used: its layout, budgets, sampler settings and calibration.

Read from `dg_lsp.json` in the checkpoint's folder; a checkpoint without one is taken for Google's instruct model.
Knows nothing of tensors.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from dg_lsp.engine import calibration_store
from dg_lsp.engine.calibration import Calibration

FILE = "dg_lsp.json"


@dataclass(frozen=True, slots=True)
class Sampling:
    """The denoising loop's settings; defaults are the checkpoint's of Google (generation config of the 26B).

    Temperatures run from `t_max` at the first step to `t_min` at the last. `entropy_bound` and `stop_entropy` are in
    nats. `line_steps` and `block_steps` bound a row's steps.
    """

    line_steps: int = 12
    block_steps: int = 24
    t_min: float = 0.4
    t_max: float = 0.8
    entropy_bound: float = 0.1
    stop_entropy: float = 0.02
    conditioning_tokens: int = 64  # how many tokens a position's self-conditioning keeps
    delete_entropy: float = 0.05  # a delete token surer than this, twice in a row, leaves the canvas


@dataclass(frozen=True, slots=True)
class Profile:
    """One checkpoint's needs. Lengths are tokens."""

    layout: Literal["infill-trained", "instruct"] = "instruct"
    prefix_tokens: int = 6144
    suffix_tokens: int = 1024
    related_tokens: int = 2048
    held_tokens: int = 24
    canvas_tokens: int = 256
    line_gaps: tuple[int, ...] = (6, 10, 16, 24, 32)
    block_gaps: tuple[int, ...] = (16, 32, 64, 96, 128)
    gaps_per_canvas: int = 4
    noise_rows: int = 1
    copy_rows: int = 2
    causal_rows: int = 1
    file_weight: float = 0.0  # how much the file's own repetitions count beside the causal model; 0: not at all
    file_half_at: float = 4.0  # the match length, in tokens, at which they count half of that
    file_chars: int = 12_000  # how much of the file on each side is looked through
    refine_steps: int = 0  # steps in which the canvas may correct a draft; 0 leaves drafts as they are
    sampling: Sampling = field(default_factory=Sampling)
    calibration: Calibration | None = None  # None: nobody has measured how often its candidates are right


def load(folder: Path) -> Profile:
    """Return the profile of a checkpoint's folder.

    Raises ValueError, with a sentence, when the file is there but says something this version can't read.
    """
    path = folder / FILE
    if not path.exists():
        return Profile()
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a profile that this version reads: {error}") from error


def parse(stated: dict[str, Any]) -> Profile:
    """Return the profile that a JSON object states; raise ValueError or TypeError when it states something unknown."""
    known = {item.name for item in fields(Profile)}
    if unknown := set(stated) - known:
        raise ValueError(f"unknown setting {sorted(unknown)[0]!r}")
    if stated.get("layout", "instruct") not in ("infill-trained", "instruct"):
        raise ValueError(f"unknown layout {stated['layout']!r}")
    values = dict(stated)
    for name in ("line_gaps", "block_gaps"):
        if name in values:
            values[name] = tuple(values[name])
    if "sampling" in values:
        values["sampling"] = Sampling(**values["sampling"])
    if values.get("calibration") is not None:
        values["calibration"] = calibration_store.parse(values["calibration"])
    return Profile(**values)


def as_instruct(profile: Profile) -> Profile:
    """Return the profile of the same model used in the instruct layout.

    That layout writes the window twice, in the question and, its last lines, in the answer: a third of the budget is
    left for each. It has no delete token, so the lengths of gaps are those of a profile that was made for it.
    """
    plain, most = Profile(), max(profile.block_gaps)
    return replace(
        profile,
        layout="instruct",
        prefix_tokens=profile.prefix_tokens // 3,
        suffix_tokens=profile.suffix_tokens // 2,
        held_tokens=min(profile.held_tokens, 16),
        line_gaps=tuple(gap for gap in plain.line_gaps if gap <= most),
        block_gaps=tuple(gap for gap in plain.block_gaps if gap <= most),
    )


def dump(profile: Profile) -> str:
    """Return the profile as the text of its file."""
    calibration = None if profile.calibration is None else calibration_store.as_object(profile.calibration)
    return json.dumps(asdict(replace(profile, calibration=None)) | {"calibration": calibration}, indent=2) + "\n"
