"""Lay a request out as tokens: the encoder's input, and the fixed tokens of the canvas.

The user's turn holds related files, the suffix and last the prefix. The model's turn starts with an empty
thought channel, a code fence and the last lines before the hole. So the canvas continues the code, and typing appends to
the encoded tokens. The turns are built from token ids, because a chat template would trim the text.

A canvas is `gap | fixed | gap | … | held head of the suffix`. The first gap may start inside a token. Its first token must
then start with the characters that are already typed (token healing, FIM-SE, arXiv 2405.17103). Knows nothing of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dg_lsp.core.calibration import Calibration
from dg_lsp.core.values import Hole, InfillRequest
from dg_lsp.engine.common import question
from dg_lsp.engine.common.layout import recent, required_ids, suffix_ids, truncated, whole_lines
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.engine.model.weights import checkpoint

LayoutName = Literal["instruct"]


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


@dataclass(frozen=True, slots=True)
class CanvasProfile:
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
    copy_rows: int = 2
    causal_rows: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    calibration: Calibration | None = None  # None: its confidence was never measured


def load_profile(folder: Path) -> CanvasProfile:
    """Return the profile of a checkpoint's folder, or that of Google's instruct model if it has none.

    Raises CheckpointError if the file exists but this version can't read it.
    """
    return checkpoint.load_profile(folder, CanvasProfile, CanvasProfile())


REPEATED_LINES = 8  # the model's turn repeats this many lines of the user's, and adds at most as many new ones


@dataclass(frozen=True, slots=True)
class CanvasPrompt:
    """A request as tokens: the `ids` that the encoder reads, the fixed ids between gaps, and the held ids after the last gap.

    `heal` are the prefix's last bytes, removed from the encoder's ids; the first gap's first token starts with them.
    `heal_ids` are their ids. `closing` are the tokens that end the model's turn. `tail` holds whole lines of the suffix's head.
    It ends with the tokens that end an answer only if the file ends there.
    """

    ids: tuple[int, ...]
    between: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...]
    heal: bytes = b""
    heal_ids: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()
    end: None = None  # no token ends a causal draft


def fits_one_canvas(request: InfillRequest, profile: CanvasProfile, vocabulary: Vocabulary, closing_tokens: int = 0) -> bool:
    """Return whether one canvas has room for the text between the holes and a smallest gap for each hole."""
    n_holes = len(request.holes)
    gaps = profile.block_gaps if request.extent == "block" else profile.line_gaps
    fixed = sum(len(vocabulary.encode(text)) for text in request.between) + profile.held_tokens + closing_tokens
    return n_holes <= profile.gaps_per_canvas and fixed + n_holes * min(gaps) <= profile.canvas_tokens


class Instruct:
    """The layout of `google/diffusiongemma-26B-A4B-it`: a user's turn and the start of the model's turn."""

    def __init__(self, profile: CanvasProfile, vocabulary: Vocabulary) -> None:
        self.profile, self.vocabulary = profile, vocabulary
        names = ("<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>")
        self.bos, self.eos, self.turn, self.end_turn, self.channel, self.end_channel = required_ids(vocabulary, names)

    def lay_out(self, request: InfillRequest) -> CanvasPrompt:
        encode, profile = self.vocabulary.encode, self.profile
        fence = question.fence_name(request)
        prefix, heal = _healed(self.vocabulary, request.prefix, request.holes[0], profile.prefix_tokens)
        suffix, is_end = suffix_ids(self.vocabulary, request.suffix, profile.suffix_tokens)
        # The user's turn grows by several lines at once, so that most keystrokes change only the end of the model's turn.
        lines = self.vocabulary.decode(prefix).split("\n")
        n_shown = (len(lines) - 1) // REPEATED_LINES * REPEATED_LINES
        before = "".join(f"{line}\n" for line in lines[:n_shown])
        related = question.related_files(request.related, fence, profile.related_tokens, lambda text: len(encode(text)))
        asked = question.ask(request, before, self.vocabulary.decode(suffix), related, fence)
        ids = [
            *(self.bos, self.turn, *encode(f"user\n{asked}")),
            *(self.end_turn, *encode("\n"), self.turn, *encode("model\n")),
            *(self.channel, *encode("thought\n"), self.end_channel, *encode(f"```{fence}\n")),
            *encode("\n".join(lines[max(0, n_shown - REPEATED_LINES) :])),
        ]
        tail = whole_lines(self.vocabulary, suffix, profile.held_tokens, is_end=is_end)
        if is_end and len(tail) == len(suffix):  # the suffix ends here, so the model's turn ends too
            closed = "```" if self.vocabulary.decode(tail).endswith("\n") else "\n```"
            tail = [*tail, *encode(closed), self.end_turn, self.eos]
        between = tuple(tuple(encode(text)) for text in request.between)
        heal_bytes = self.vocabulary.bytes_of(heal)
        return CanvasPrompt(tuple(ids), between, tuple(tail), heal_bytes, heal, closing=(self.end_turn, self.eos))


def _healed(vocabulary: Vocabulary, prefix: str, hole: Hole, limit: int) -> tuple[list[int], tuple[int, ...]]:
    """Return the prefix's ids, and apart from them its last one if more text may change it, which the canvas then rewrites."""
    ids, pieces = vocabulary.encode(recent(prefix, limit)), vocabulary.pieces
    heal: tuple[int, ...] = ()
    if ids and hole.kind in ("cursor", "selection", "error"):
        last, before = pieces[ids[-1]], pieces[ids[-2]] if len(ids) > 1 else b"\n"
        # No token can span the end of the ids after a line end or an indent.
        if not last.endswith(b"\n") and (last.strip() or not before.endswith(b"\n")):
            heal, ids = (ids[-1],), ids[:-1]
    return truncated(vocabulary, ids, limit), heal
