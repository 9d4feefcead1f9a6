"""Fill requests with published models of masks, Open-dCoder and DreamOn, with the settings of their profiles.

Every pass reads the whole text in both directions. Each candidate is the text of one gap, ranked by its own log-probabilities.
The gap starts as masks. In Open-dCoder's order (P2: `_mdm_sample` of
github.com/pengzhangzhi/Open-dLLM), each step draws a token for every place of the gap, writes those of the masks, and masks
again the places with the lowest probabilities; their number falls evenly to zero. In DreamOn's order (arXiv 2602.01326,
`eval/generator.py` of github.com/DreamLM/DreamOn), each step draws a token for every mask, and writes the one of the mask
with the lowest entropy: `expand` makes it two masks, and `delete` removes it with all masks after it.

Both draw from the likeliest tokens at the profile's temperature that reach its `top_p`. Position i predicts token i + 1.
dg-lsp adds only the tokens that may not be written, what is already typed and a gap must begin with, and an early end
before a deadline.
`tests/engine/reference_published.py` states both algorithms plainly; a test checks that they write the same tokens. Knows
passes and token ids.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from dg_lsp.core.calibration import Calibration
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.common import answering, loading
from dg_lsp.engine.common.answering import UNSCORED_ORDER
from dg_lsp.engine.common.drafts import Allowed, anything
from dg_lsp.engine.common.inputs import MAX_ROWS, RequestInputs
from dg_lsp.engine.common.layout import (
    before_last_word,
    next_after_typed,
    recent,
    required_ids,
    suffix_ids,
    truncated,
    whole_lines,
)
from dg_lsp.engine.common.loading import Checkpoint, Loaded
from dg_lsp.engine.common.local import LocalFiller
from dg_lsp.engine.common.pace import Timing
from dg_lsp.engine.common.rank import Describer, Proposal
from dg_lsp.engine.common.task import Answering, OnProgress, Progress
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.llama import Llama
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.engine.model.weights import checkpoint
from dg_lsp.engine.model.weights.checkpoint import CheckpointError

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
class MaskedProfile:
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


OPEN_DCODER = MaskedProfile(
    Unmasking("remasking", "<M>", temperature=0.6, top_p=0.95, steps=64), line_gaps=(4, 8, 16), block_gaps=(16, 32, 64)
)
DREAMON = MaskedProfile(
    Unmasking(
        "entropy", "<|mask|>", temperature=0.2, top_p=0.9, steps=256,
        start="<|beginoftext|>", expand="<|expand|>", delete="<|endoftext|>",
    ),
    line_gaps=(64,),  # its authors' longest start is their best: deleting takes fewer passes than expanding
    block_gaps=(64,),
)  # fmt: skip


def published(name: str, model_type: str, vocabulary: Vocabulary) -> MaskedProfile | None:
    """Return the profile of a published model that fills masks, or None for any other model.

    Open-dCoder's configuration is that of a Qwen2 model, and only its mask token tells it apart. Raises CheckpointError for a
    model of the kind that is not supported.
    """
    if model_type == "Dream":
        if vocabulary.id("<|expand|>") is None:
            raise CheckpointError(
                f"{name} is a Dream model that can't change a gap's length; of these, dg-lsp only uses DreamOn"
            )
        return DREAMON
    return OPEN_DCODER if model_type == "qwen2" and vocabulary.id("<M>") in vocabulary.special else None


def is_masked(opened: Checkpoint) -> bool:
    """Return whether a checkpoint fills masks, by what it is or by its profile; raise CheckpointError if that can't be read."""
    is_published = published(opened.name, opened.model_type, opened.vocabulary) is not None
    return is_published or (checkpoint.profile_settings(opened.profile_folder) or {}).get("layout") == LAYOUT


LIKELIEST = 256  # tokens that are sorted first; they nearly always reach `top_p`
LEAST = 1e-10  # added to a probability in an entropy, as in the published code

# Returns the logits [M, V] of some places of a gap with these tokens.
Predict = Callable[[Sequence[int], Sequence[int]], Tensor]


@dataclass(frozen=True, slots=True)
class MaskTokens:
    """The ids for a gap. `banned` ones are never written, and after the tokens before the first mask, only `allowed` ones."""

    mask: int
    expand: int | None = None
    delete: int | None = None
    banned: tuple[int, ...] = ()
    allowed: Allowed = anything


@dataclass(slots=True)
class Gap:
    """The tokens of a gap, and the log-probability of each when it was written, 0 for a mask."""

    ids: list[int]
    logps: list[float]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn for M places: tokens, their probabilities and entropies among the likeliest, and log-probabilities."""

    ids: list[int]
    chances: list[float]
    entropies: list[float]
    logps: list[float]


@dataclass(frozen=True, slots=True)
class Unmasker:
    """Writes gaps of masks. If `is_last` is true for a gap of this length, no time is left, and the pass writes all masks."""

    predict: Predict
    tokens: MaskTokens
    settings: Unmasking
    noise: torch.Generator
    is_last: Callable[[int], bool] = lambda _n_positions: False

    def steps(self, gap: Gap, most: int) -> Iterator[None]:
        """Write a gap in at most `most` passes, and yield after each."""
        return self._remasking(gap, most) if self.settings.order == "remasking" else self._by_entropy(gap, most)

    def _remasking(self, gap: Gap, most: int) -> Iterator[None]:
        """Write a gap in Open-dCoder's order, in as many steps as it has tokens at most."""
        places, mask = range(len(gap.ids)), self.tokens.mask
        n_steps = min(most, len(places))
        for step in range(1, n_steps + 1):
            n_masked = 0 if self.is_last(len(places)) else len(places) * (n_steps - step) // n_steps
            drawn = self._draw(gap, places)
            masked = set(sorted(places, key=lambda place: drawn.chances[place])[:n_masked])
            for place in places:
                if place in masked:
                    gap.ids[place], gap.logps[place] = mask, 0.0
                elif gap.ids[place] == mask:
                    gap.ids[place], gap.logps[place] = drawn.ids[place], drawn.logps[place]
            yield
            if not n_masked:
                return

    def _by_entropy(self, gap: Gap, most: int) -> Iterator[None]:
        tokens, longest, n_expanded = self.tokens, self.settings.most_tokens, 0
        for _ in range(most):
            masks = [place for place, token in enumerate(gap.ids) if token == tokens.mask]
            if not masks:
                return
            is_last = self.is_last(len(gap.ids))
            drawn = self._draw(gap, masks, may_expand=not is_last and len(gap.ids) < longest and n_expanded < longest)
            for index in range(len(masks)) if is_last else [drawn.entropies.index(min(drawn.entropies))]:
                place, token = masks[index], drawn.ids[index]
                if token == tokens.expand:
                    gap.ids[place : place + 1], gap.logps[place : place + 1] = [tokens.mask] * 2, [0.0] * 2
                    n_expanded += 1
                elif token == tokens.delete:
                    kept = [at for at, other in enumerate(gap.ids) if at < place or other != tokens.mask]
                    gap.ids, gap.logps = [gap.ids[at] for at in kept], [gap.logps[at] for at in kept]
                    break
                else:
                    gap.ids[place], gap.logps[place] = token, drawn.logps[index]
            yield

    def _draw(self, gap: Gap, places: Sequence[int], *, may_expand: bool = False) -> Drawn:
        """Draw a token for each of M places; at the temperature 0, the likeliest."""
        settings, logits = self.settings, self._limited(gap, places, may_expand=may_expand)
        chances = (logits / (settings.temperature or 1.0)).softmax(-1)
        top, ids = chances.topk(min(LIKELIEST, chances.shape[-1]), -1)
        if bool((top.sum(-1) <= settings.top_p).any()):
            top, ids = chances.sort(-1, descending=True)
        before = torch.cat([torch.zeros_like(top[:, :1]), top.cumsum(-1)[:, :-1]], -1)
        top = top.where(before <= settings.top_p, 0.0)
        top = top / top.sum(-1, keepdim=True)
        total = top.cumsum(-1)
        draws = torch.rand(len(top), generator=self.noise).to(top) * (settings.temperature > 0)
        picked = (total <= draws[:, None] * total[:, -1:]).sum(-1, keepdim=True).clamp(max=top.shape[-1] - 1)
        drawn = ids.gather(-1, picked)
        return Drawn(
            drawn[:, 0].tolist(),
            top.gather(-1, picked)[:, 0].tolist(),
            (-(top * (top + LEAST).log()).sum(-1)).tolist(),
            logits.log_softmax(-1).gather(-1, drawn)[:, 0].tolist(),
        )

    def _limited(self, gap: Gap, places: Sequence[int], *, may_expand: bool) -> Tensor:
        """Return the logits [M, V] of places without the tokens that may not be written there."""
        tokens, logits = self.tokens, self.predict(gap.ids, places)
        expand = [] if tokens.expand is None else [tokens.expand]
        banned = [*tokens.banned, *([] if may_expand else expand)]
        logits = logits.index_fill(1, torch.tensor(banned, dtype=torch.long, device=logits.device), -torch.inf)
        first = gap.ids.index(tokens.mask) if tokens.mask in gap.ids else -1
        if first >= 0 and (allowed := tokens.allowed(gap.ids[:first])):
            others = torch.full_like(logits[0], -torch.inf)
            others[[*allowed, *expand]] = 0.0
            # Where every token would be banned, an answer that does not fit what is typed is dropped instead.
            if bool((limited := logits[list(places).index(first)] + others).isfinite().any()):
                logits[list(places).index(first)] = limited
        return logits


# --- Requests


class MaskedFiller(LocalFiller):
    """A loaded model of masks that fills requests; raises ValueError if its vocabulary lacks a token of its profile.

    Several holes are filled in sequence.
    """

    loaded: Loaded[Llama, MaskedProfile]
    layout: Layout

    def __init__(self, loaded: Loaded[Llama, MaskedProfile], *, clock: Callable[[], float] = time.perf_counter) -> None:
        inputs = Layout(loaded.profile, loaded.vocabulary)
        super().__init__(loaded, inputs, loaded.profile.canvas_tokens, clock)

    def inputs(self, request: InfillRequest, left_ms: float = math.inf) -> RequestInputs:
        """Return a request with one hole as the inputs of its gap."""
        inputs = RequestInputs(request, self.layout.lay_out(request), self.loaded, self.calibrations.current())
        inputs.longest_gap = self.loaded.profile.canvas_tokens - len(inputs.prompt.right)
        inputs.order = UNSCORED_ORDER  # by a mean: deleted tokens have no log-probability
        return inputs

    def answer(self, inputs: RequestInputs, timing: Timing) -> Answering:
        return answer(inputs, timing)


def answer(inputs: RequestInputs, timing: Timing) -> Answering:
    """Answer a request with one hole: the text of one gap for each requested candidate, at least one for each length."""
    loaded: Loaded[Llama, MaskedProfile] = inputs.loaded
    settings, lengths, tokens, proposals, n_steps = (
        loaded.profile.unmasking,
        inputs.gap_lengths(),
        mask_tokens(inputs),
        list[Proposal](),
        0,
    )
    predict, is_last = _predict(inputs, timing), partial(_is_last, inputs, timing)
    so_far = Progress(
        lambda: tuple(proposal.text for proposal in proposals[:1]), lambda: answering.unscored(inputs, proposals), proposals
    )
    timing.switch("denoise")
    for number in range(min(max(len(lengths), inputs.request.budget.candidates), MAX_ROWS)):
        length = lengths[number % len(lengths)]
        if proposals and is_last(length):
            break
        gap = Gap([tokens.mask] * length, [0.0] * length)
        noise = torch.Generator().manual_seed(inputs.seed(number))
        for _ in Unmasker(predict, tokens, settings, noise, is_last).steps(gap, inputs.request.budget.steps or settings.steps):
            n_steps += 1
            yield so_far
        if (proposal := proposed(inputs, gap, tokens.mask)) is not None:
            proposals.append(proposal)
    timing.switch("score")
    # Nothing but the tokens that the model wrote has a log-probability.
    proposals[:] = Describer(inputs.request, len(inputs.prompt.left)).described(proposals)
    if proposals:
        yield so_far
    return answering.ranked(inputs, proposals, n_steps)


def mask_tokens(inputs: RequestInputs) -> MaskTokens:
    """Return the ids for the gap of a request."""
    vocabulary, settings, prompt = inputs.vocabulary, inputs.loaded.profile.unmasking, inputs.prompt
    mask, expand = vocabulary.id(settings.mask), vocabulary.id(settings.expand)
    assert mask is not None
    banned = tuple({*inputs.control, mask} - {expand, prompt.delete})
    return MaskTokens(mask, expand, prompt.delete, banned, lambda ids: next_after_typed(vocabulary, prompt.heal, ids))


def _predict(inputs: RequestInputs, timing: Timing) -> Predict:
    left, right, passes, pace = inputs.prompt.left, inputs.prompt.right, inputs.loaded.passes, timing.pace

    def predict(ids: Sequence[int], places: Sequence[int]) -> Tensor:
        text = [*left, *ids, *right]
        with pace.measuring("step", len(text)):
            hidden = passes.read_both_ways(torch.tensor(text, device=inputs.loaded.device))
            logits: Tensor = passes.logits(hidden[[max(len(left) + place - 1, 0) for place in places]])
        return logits

    return predict


def _is_last(inputs: RequestInputs, timing: Timing, n_positions: int) -> bool:
    """Return whether the time left is enough for one pass over a gap of this length, and not for two."""
    n_text = len(inputs.prompt.left) + n_positions + len(inputs.prompt.right)
    n_units = timing.units(timing.pace.expected_ms("step", n_text))
    return n_units is not None and n_units < 2


def proposed(inputs: RequestInputs, gap: Gap, mask: int) -> Proposal | None:
    """Return the text of a gap without its masks; None if it says nothing or not what is typed."""
    vocabulary, heal = inputs.vocabulary, inputs.prompt.heal
    written = [pair for pair in zip(gap.ids, gap.logps, strict=True) if pair[0] != mask]
    ids = [token for token, _ in written]
    text = inputs.bounds.of_canvas(inputs.text_of(ids), is_held=bool(inputs.prompt.right))
    if inputs.says_nothing(text) or not vocabulary.bytes_of(ids).startswith(heal):
        return None
    logps = tuple(logp for _, logp in written[: vocabulary.n_tokens(ids, len(heal) + len(text.encode()))])
    return Proposal(text, "noise", logps, logps)


def load(opened: Checkpoint, dtype: str, on_progress: OnProgress) -> Loaded[Llama, MaskedProfile]:
    """Load and return the model of a checkpoint; raises LoadError and the errors of `common.loading.reported`."""
    default = published(opened.name, opened.model_type, opened.vocabulary)
    profile = checkpoint.load_profile(opened.profile_folder, MaskedProfile, default)
    use = fit.Use(profile.prefix_tokens + profile.suffix_tokens, profile.canvas_tokens)
    return loading.load_llama(opened, profile, use, dtype, on_progress)


@dataclass(frozen=True, slots=True)
class MaskedPrompt:
    """A request as tokens: those left and right of the gap, with the token before a text and the one after it.

    `heal` are the prefix's last bytes, removed from `left`; the gap starts with them, with any tokens. `delete` is the token
    that ends a text, and shrinks a gap; None if the checkpoint has none.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    heal: bytes = b""
    delete: int | None = None
    ids: tuple[int, ...] = ()  # nothing is encoded before


class Layout:
    """Lays out requests with one hole; raises ValueError if the vocabulary lacks a token of the profile."""

    def __init__(self, profile: MaskedProfile, vocabulary: Vocabulary) -> None:
        self.profile, self.vocabulary, own = profile, vocabulary, profile.unmasking
        names = (own.start, own.delete, own.mask, own.expand)
        self.before, self.after, *_ = (required_ids(vocabulary, (name,) if name else ()) for name in names)

    def lay_out(self, request: InfillRequest) -> MaskedPrompt:
        # These models learnt to fill whole lines after a line end, and their indentation is part of that.
        left = before_last_word(self.vocabulary, request, keeps_lines=True)
        suffix, is_end = suffix_ids(self.vocabulary, request.suffix, self.profile.suffix_tokens)
        if not is_end:
            suffix = whole_lines(self.vocabulary, suffix, len(suffix), is_end=False) or suffix
        right, delete = (*suffix, *(self.after if is_end else ())), next(iter(self.after), None)
        limit = self.profile.prefix_tokens
        prefix = truncated(self.vocabulary, self.vocabulary.encode(recent(left.text, limit)), limit)
        return MaskedPrompt((*self.before, *prefix), right, left.heal, delete)
