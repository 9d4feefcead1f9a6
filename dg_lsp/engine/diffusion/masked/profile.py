"""The settings for one published model that fills masks: its token budgets, its authors' sampling, and its calibration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dg_lsp.core.calibration import Calibration
from dg_lsp.engine.common import profile_file

if TYPE_CHECKING:  # the tokenizer's package is not needed to read a profile
    from dg_lsp.engine.common.loading import Checkpoint
    from dg_lsp.engine.model.vocabulary import Vocabulary

LAYOUT = "masked"


@dataclass(frozen=True, slots=True)
class Unmasking:
    """How a published model fills masks, with its authors' settings (docs/decisions/0025).

    With the order "entropy", each pass writes the mask of lowest entropy. With "remasking", each pass writes all masks, and
    masks the least likely tokens again. The others are names of tokens, "" for none: `mask` stands for an open position,
    `start` comes before a text, `expand` makes a mask two masks, and `delete` removes it and those after it. It also ends a
    text. A gap has at most `most_tokens`, and is expanded at most as many times. `steps` is the maximum number of passes.
    """

    order: Literal["entropy", "remasking"]
    mask: str
    temperature: float
    top_p: float
    steps: int
    start: str = ""
    expand: str = ""
    delete: str = ""
    most_tokens: int = 64


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings for one checkpoint, one per entry of its file. Lengths are in tokens.

    DreamOn was trained on texts of at most 1,024 tokens. Nothing is cached, so each pass reads all of them again.
    """

    unmasking: Unmasking
    line_gaps: tuple[int, ...]
    block_gaps: tuple[int, ...]
    prefix_tokens: int = 768
    suffix_tokens: int = 192
    canvas_tokens: int = 320  # the right side and a gap
    layout: Literal["masked"] = "masked"
    calibration: Calibration | None = None  # None: its confidence was never measured


OPEN_DCODER = Profile(
    Unmasking("remasking", "<M>", temperature=0.6, top_p=0.95, steps=64), line_gaps=(4, 8, 16), block_gaps=(16, 32, 64)
)
DREAMON = Profile(
    Unmasking(
        "entropy", "<|mask|>", temperature=0.2, top_p=0.9, steps=256,
        start="<|beginoftext|>", expand="<|expand|>", delete="<|endoftext|>",
    ),
    line_gaps=(64,),  # its authors' longest start is their best: deleting takes fewer passes than expanding
    block_gaps=(64,),
)  # fmt: skip


def published(name: str, model_type: str, vocabulary: Vocabulary) -> Profile | None:
    """Return the profile of a published model that fills masks, or None for any other model.

    Open-dCoder's configuration is that of a Qwen2 model, and only its mask token tells it apart. Raises ProfileError for a
    model of the kind that is not supported.
    """
    if model_type == "Dream":
        if vocabulary.id("<|expand|>") is None:
            raise profile_file.ProfileError(
                f"{name} is a Dream model that can't change a gap's length; of these, dg-lsp only uses DreamOn"
            )
        return DREAMON
    return OPEN_DCODER if model_type == "qwen2" and vocabulary.id("<M>") in vocabulary.special else None


def is_masked(opened: Checkpoint) -> bool:
    """Return whether a checkpoint fills masks, by what it is or by its profile; raises ProfileError if that can't be read."""
    is_published = published(opened.name, opened.model_type, opened.vocabulary) is not None
    return is_published or (profile_file.settings_in(opened.profile_folder) or {}).get("layout") == LAYOUT


def load_profile(folder: Path, default: Profile | None) -> Profile:
    """Return the profile of a checkpoint's folder, or the default; raise ProfileError if there is neither."""
    loaded = profile_file.load(folder, parse, default)
    if loaded is None:
        raise profile_file.ProfileError(f"{folder} has no profile, which a model that fills masks needs")
    return loaded


def parse(settings: dict[str, Any]) -> Profile:
    """Return the profile in a JSON object; raise ValueError or TypeError if it contains something unknown."""
    values = profile_file.values_of(Profile, settings, layouts=(LAYOUT,))
    if missing := {"unmasking", "line_gaps", "block_gaps"} - values.keys():
        raise ValueError(f"the layout {LAYOUT!r} needs the setting {min(missing)!r}")
    return Profile(**values | {"unmasking": Unmasking(**values["unmasking"])})
