"""The settings for one checkpoint: its layout, token budgets, sampler settings and calibration.

They are in `dg_lsp.json` in the checkpoint's folder. The default is the profile of Google's instruct model. Knows the file's
format. Knows nothing of tensors.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from dg_lsp.core.calibration import Calibration
from dg_lsp.engine import calibration_store
from dg_lsp.wire import files

if TYPE_CHECKING:  # a remote model needs its profile, but no tokenizer's package
    from dg_lsp.engine.model.vocabulary import Vocabulary

FILE = "dg_lsp.json"
LayoutName = Literal["infill-trained", "instruct", "left", "fim", "masked"]
LAYOUTS: tuple[str, ...] = get_args(LayoutName)
MAX_BYTES = 1 << 20
# Defaults of infill-trained profiles without these settings: such checkpoints were trained before the settings existed.
# A proposer proposes nothing where it does not apply, as `search` with a delete token.
DRAFTS_FIRST = ("copy", "search", "causal", "canvas")  # where a causal token is cheap compared with a canvas step
CANVAS_FIRST = ("copy", "search", "canvas", "causal", "repair", "several_canvases")
MASKED_ONLY = ("masked",)  # a model that only fills masks can neither draft nor score in order
PROPOSERS = frozenset({*DRAFTS_FIRST, *CANVAS_FIRST, *MASKED_ONLY})  # those of `decode.filler.PROPOSERS`
TRAINED = {"refine_steps": 0, "line_ends": False, "line": DRAFTS_FIRST, "block": DRAFTS_FIRST, "max_canvases": 1}


PRETRAINED: dict[str, Any] = {
    "prefix_tokens": 768,
    "suffix_tokens": 64,
    "related_tokens": 192,
    "held_tokens": 8,  # more of them make the ranking no better, and the scoring slower
    "follow_tokens": 16,
    "canvas_tokens": 128,
    "line_gaps": (32,),
    "block_gaps": (96,),
    "gaps_per_canvas": 1,
    "line_noise_rows": 0,
    "block_noise_rows": 0,
    "copy_rows": 3,
    "causal_rows": 1,
    "branches": 3,
    "file_weight": 0.0,  # it knows what names mean, and mixing in repetitions changed no answer
    "refine_steps": 0,
    "line": ("copy", "causal"),
    "block": ("copy", "causal"),
    "max_canvases": 1,
}
"""The settings of a pretrained causal model without a profile of its own."""

MASKED: dict[str, Any] = {
    "layout": "masked",
    # DreamOn was trained on texts of at most 1,024 tokens. Nothing is cached, so each pass reads all of them again.
    "prefix_tokens": 768,
    "suffix_tokens": 192,
    "related_tokens": 0,
    "held_tokens": 0,
    "canvas_tokens": 320,  # the right side and a gap
    "gaps_per_canvas": 1,
    "refine_steps": 0,
    "line": MASKED_ONLY,
    "block": MASKED_ONLY,
    "max_canvases": 1,
}
"""The settings of a model that fills masks and reads the whole text in both directions."""


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
    file_weight: float = 0.0  # the weight of the file's own repetitions beside the causal model; 0: they are only read ahead
    file_half_at: float = 4.0  # the match length, in tokens, at which they have half of that weight
    file_chars: int = 12_000  # the characters on each side of the hole that are searched for repetitions
    refine_steps: int = 4  # steps in which the canvas may correct a draft; 0: drafts stay unchanged
    right_tokens: int = 0  # of the suffix, which the model's canvas adapter reads before an answer is drafted
    follow_tokens: int = 0  # of the suffix, read after the likeliest answers if the model read the suffix before them
    line_ends: bool = True  # the held suffix ends at a line end, and a hole at a line's end may write the line end
    line: tuple[str, ...] = CANVAS_FIRST  # the proposers of a hole within a line, in their order
    block: tuple[str, ...] = CANVAS_FIRST  # those of a hole that may take several lines
    max_canvases: int = 4  # the most canvases, one after another, for one answer
    sampling: Sampling = field(default_factory=Sampling)
    unmasking: Unmasking | None = None  # of the layout "masked", which needs it
    calibration: Calibration | None = None  # None: its confidence was never measured


def load_profile(folder: Path, default: Profile | None = None) -> Profile:
    """Return the profile of a checkpoint's folder, or the default, which is that of Google's instruct model if not given.

    Raises ValueError with a sentence if the file exists but this version can't read it.
    """
    path = folder / FILE
    if not path.exists():
        return default or Profile()
    try:
        return parse(json.loads(files.read_regular(path.resolve(), MAX_BYTES)))
    except (files.NotRegularError, files.TooLargeError) as error:
        raise ValueError(f"{path} {error}") from error
    except OSError as error:
        raise ValueError(f"{path} can't be read: {(error.strerror or str(error)).lower()}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a profile that this version can read: {error}") from error


def parse(settings: dict[str, Any]) -> Profile:
    """Return the profile in a JSON object; raise ValueError or TypeError if it contains something unknown."""
    names = {item.name for item in fields(Profile)}
    if unknown := set(settings) - names:
        raise ValueError(f"unknown setting {sorted(unknown)[0]!r}")
    if settings.get("layout", "instruct") not in LAYOUTS:
        raise ValueError(f"unknown layout {settings['layout']!r}")
    for kind in ("line", "block"):
        if unknown := set(settings.get(kind, ())) - PROPOSERS:
            raise ValueError(f"unknown proposer {sorted(unknown)[0]!r} in {kind}; known ones: {', '.join(sorted(PROPOSERS))}")
    defaults = {"infill-trained": TRAINED, "left": PRETRAINED, "fim": PRETRAINED, "masked": MASKED}
    values = {**defaults.get(settings.get("layout", ""), {}), **settings}
    for name in ("line_gaps", "block_gaps", "line", "block"):
        if name in values:
            values[name] = tuple(values[name])
    if "sampling" in values:
        values["sampling"] = Sampling(**values["sampling"])
    if values.get("unmasking") is not None:
        values["unmasking"] = Unmasking(**values["unmasking"])
    uses = {name for kind in ("line", "block") for name in values.get(kind, CANVAS_FIRST)}
    is_masked = [values.get("layout") == "masked", values.get("unmasking") is not None, uses == {"masked"}, "masked" in uses]
    if any(is_masked) and not all(is_masked):
        raise ValueError("the layout 'masked', its setting 'unmasking' and its only proposer 'masked' belong together")
    if values.get("calibration") is not None:
        values["calibration"] = calibration_store.parse(values["calibration"])
    return Profile(**values)


def pretrained(*, fills_in: bool) -> Profile:
    """Return the profile of a causal model that was not trained for dg-lsp, with or without fill-in-the-middle tokens."""
    return Profile(layout="fim" if fills_in else "left", **PRETRAINED)


OPEN_DCODER = Profile(
    **MASKED,
    line_gaps=(4, 8, 16),
    block_gaps=(16, 32, 64),
    unmasking=Unmasking("remasking", "<M>", temperature=0.6, top_p=0.95, steps=64),
)
DREAMON = Profile(
    **MASKED,
    line_gaps=(64,),  # its authors' longest start is their best: deleting takes fewer passes than expanding
    block_gaps=(64,),
    unmasking=Unmasking(
        "entropy",
        "<|mask|>",
        temperature=0.2,
        top_p=0.9,
        steps=256,
        start="<|beginoftext|>",
        expand="<|expand|>",
        delete="<|endoftext|>",
    ),
)


def published(name: str, model_type: str, vocabulary: Vocabulary) -> Profile | None:
    """Return the profile of a published model that fills masks, or None for any other model.

    Open-dCoder's configuration is that of a Qwen2 model, and only its mask token tells it apart. Raises ValueError with a
    sentence for a model of the kind that is not supported.
    """
    if model_type == "Dream":
        if vocabulary.id("<|expand|>") is None:
            raise ValueError(f"{name} is a Dream model that can't change a gap's length; of these, dg-lsp only uses DreamOn")
        return DREAMON
    return OPEN_DCODER if model_type == "qwen2" and vocabulary.id("<M>") in vocabulary.special else None


def dump(profile: Profile) -> str:
    """Return the profile as the text of its file."""
    calibration = None if profile.calibration is None else calibration_store.as_object(profile.calibration)
    return json.dumps(asdict(replace(profile, calibration=None)) | {"calibration": calibration}, indent=2) + "\n"
