"""Fill requests with a published model that fills masks: one gap for each candidate, ranked by its own log-probabilities."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.common import generation, loading, profile_file
from dg_lsp.engine.common.generation import UNSCORED_ORDER, RequestInputs, Work
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
from dg_lsp.engine.common.task import OnProgress
from dg_lsp.engine.diffusion.canvas import n_tokens, seed
from dg_lsp.engine.diffusion.generation import MAX_ROWS
from dg_lsp.engine.diffusion.masked.unmasking import Gap, MaskTokens, Profile, Unmasker, published
from dg_lsp.engine.model import fit
from dg_lsp.engine.model.llama import Llama
from dg_lsp.engine.model.vocabulary import Vocabulary


class MaskedFiller(LocalFiller):
    """A loaded model of masks that fills requests; raises ValueError if its vocabulary lacks a token of its profile.

    Several holes are filled in sequence.
    """

    loaded: Loaded[MaskedLlama, Profile]
    layout: Layout

    def __init__(self, loaded: Loaded[MaskedLlama, Profile], *, clock: Callable[[], float] = time.perf_counter) -> None:
        inputs = Layout(loaded.profile, loaded.vocabulary)
        super().__init__(loaded, inputs, loaded.profile.canvas_tokens, clock)

    def generation(self, request: InfillRequest, timing: Timing) -> Generation:
        prompt = self.layout.lay_out(request)
        return Generation(RequestInputs(request, prompt, self.loaded, self.calibrations.current()), timing)


class Generation(generation.Generation):
    """The texts of one gap while they are written. They rank by a mean: deleted tokens have no log-probability."""

    order = UNSCORED_ORDER

    def __init__(self, inputs: RequestInputs, timing: Timing) -> None:
        super().__init__(inputs, timing)
        self.prompt: Prompt = inputs.prompt
        self.loaded: Loaded[MaskedLlama, Profile] = inputs.loaded
        self.request = inputs.request
        self.proposers = (("denoise", Generation.propose),)

    def score(self) -> Work:
        """Add the features of the texts: nothing but the tokens that the model wrote has a log-probability."""
        describer = Describer(self.request, needed=self.inputs.needed, n_context=len(self.prompt.left))
        self.proposals = describer.described(self.proposals)
        yield

    def gap_lengths(self) -> tuple[int, ...]:
        """Return the gap lengths to try: the profile's lengths that fit the canvas."""
        profile, longest = self.loaded.profile, self.loaded.profile.canvas_tokens - len(self.prompt.right)
        lengths = profile.block_gaps if self.request.extent == "block" else profile.line_gaps
        return tuple(length for length in lengths if length <= longest) or (max(longest, 1),)

    def tokens(self) -> MaskTokens:
        vocabulary, settings, delete = self.loaded.vocabulary, self.loaded.profile.unmasking, self.prompt.delete
        mask, expand = vocabulary.id(settings.mask), vocabulary.id(settings.expand)
        assert mask is not None
        banned = tuple({*self.inputs.control, mask} - {expand, delete})
        return MaskTokens(mask, expand, delete, banned, lambda ids: next_after_typed(vocabulary, self.prompt.heal, ids))

    def propose(self) -> Work:
        """Propose the text of one gap for each requested candidate, at least one for each length."""
        left, right = self.prompt.left, self.prompt.right
        passes, settings, lengths = self.loaded.passes, self.loaded.profile.unmasking, self.gap_lengths()
        pace, budget, tokens = self.timing.pace, self.timing.budget, self.tokens()

        def predict(ids: Sequence[int], places: Sequence[int]) -> Tensor:
            text = [*left, *ids, *right]
            with pace.measuring("step", len(text)):
                hidden = passes.read(torch.tensor(text, device=self.loaded.device))
                return passes.logits(hidden[[max(len(left) + place - 1, 0) for place in places]])

        def is_last(n_positions: int) -> bool:
            n_units = budget.units(pace.expected_ms("step", len(left) + n_positions + len(right)))
            return n_units is not None and n_units < 2

        for number in range(min(max(len(lengths), self.request.budget.candidates), MAX_ROWS)):
            length = lengths[number % len(lengths)]
            if self.proposals and is_last(length):
                return
            gap = Gap([tokens.mask] * length, [0.0] * length)
            noise = torch.Generator().manual_seed(seed(self.request, number))
            unmasker = Unmasker(predict, tokens, settings, noise, is_last)
            for _ in unmasker.steps(gap, self.request.budget.steps or settings.steps):
                self.n_steps += 1
                yield
            self._add(gap, tokens.mask)

    def _add(self, gap: Gap, mask: int) -> None:
        """Propose the text of a gap without its masks, unless it says nothing or not what is typed."""
        vocabulary, heal = self.loaded.vocabulary, self.prompt.heal
        written = [pair for pair in zip(gap.ids, gap.logps, strict=True) if pair[0] != mask]
        ids = [token for token, _ in written]
        text = self.inputs.bounds.of_canvas(self.inputs.text_of(ids), is_held=bool(self.prompt.right))
        if not self.inputs.says_nothing(text) and vocabulary.bytes_of(ids).startswith(heal):
            n_own = n_tokens(vocabulary, ids, len(heal) + len(text.encode()))
            logps = tuple(logp for _, logp in written[:n_own])
            self.proposals.append(Proposal(text, "noise", logps, logps))


class MaskedLlama(Llama):
    """The pass of one loaded model with the weights of a Qwen2 model. Position i predicts token i + 1."""

    def read(self, ids: Tensor) -> Tensor:
        """Return the last hidden states [C, H] of a text [C]."""
        with torch.no_grad():
            return self._pass(ids[None], torch.arange(len(ids), device=ids.device)[None], None, None)[0][0]


def load(opened: Checkpoint, dtype: str, on_progress: OnProgress) -> Loaded[MaskedLlama, Profile]:
    """Load and return the model of a checkpoint; raises LoadError and the errors of `common.loading.reported`."""
    default = published(opened.name, opened.model_type, opened.vocabulary)
    profile = profile_file.load(opened.profile_folder, Profile, default)
    use = fit.Use(profile.prefix_tokens + profile.suffix_tokens, profile.canvas_tokens)
    return loading.load_llama(opened, MaskedLlama, profile, use, dtype, on_progress)


@dataclass(frozen=True, slots=True)
class Prompt:
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

    def __init__(self, profile: Profile, vocabulary: Vocabulary) -> None:
        self.profile, self.vocabulary, own = profile, vocabulary, profile.unmasking
        names = (own.start, own.delete, own.mask, own.expand)
        self.before, self.after, *_ = (required_ids(vocabulary, (name,) if name else ()) for name in names)

    def lay_out(self, request: InfillRequest) -> Prompt:
        # These models learnt to fill whole lines after a line end, and their indentation is part of that.
        left = before_last_word(self.vocabulary, request, keeps_lines=True)
        suffix, is_end = suffix_ids(self.vocabulary, request.suffix, self.profile.suffix_tokens)
        if not is_end:
            suffix = whole_lines(self.vocabulary, suffix, len(suffix), is_end=False) or suffix
        right, delete = (*suffix, *(self.after if is_end else ())), next(iter(self.after), None)
        limit = self.profile.prefix_tokens
        prefix = truncated(self.vocabulary, self.vocabulary.encode(recent(left.text, limit)), limit)
        return Prompt((*self.before, *prefix), right, left.heal, delete)
