"""Write the block that an answer opens in the cursor's line, up to its end. Knows texts and drafts."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from itertools import accumulate

from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import Calibrated, Candidate, Ranked
from dg_lsp.engine.causal.layout import CausalInputs
from dg_lsp.engine.common import drafts
from dg_lsp.engine.common.drafts import CausalDraft, DraftSettings
from dg_lsp.engine.common.layout import next_after_typed
from dg_lsp.engine.common.pace import Timing
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.model.tree import Tree

MOST_TOKENS = 64  # of a block
LEAST_CHANCE = 0.4  # of its tokens: where they are less likely, the line alone ranks before it


def candidates(
    inputs: CausalInputs, tree: Tree, timing: Timing, ranked: Sequence[Candidate], evidence_for: Callable[[Proposal], Evidence]
) -> Generator[None, None, tuple[Candidate, ...]]:
    """Return the ranked candidates, and the first one with the block that it opens, before or after itself.

    It is as likely to be right as the line times the block's tokens.
    """
    may_open = bool(ranked) and inputs.bounds.may_open
    found = (yield from _written(inputs, tree, timing, ranked[0].texts[0])) if may_open else None
    if found is None:
        return tuple(ranked)
    proposal, chance = found
    line = ranked[0].confidence
    confidence = Calibrated(line.probability * chance) if isinstance(line, Calibrated) else line
    whole = replace(evidence_for(proposal).candidate, confidence=confidence)
    first = (whole, ranked[0]) if chance >= LEAST_CHANCE else (ranked[0], whole)
    return tuple(map(_at, range(len(ranked) + 1), (*first, *ranked[1:])))


def _at(rank: int, candidate: Candidate) -> Candidate:
    """Return a candidate at this rank, which is its confidence if it has no probability."""
    confidence = candidate.confidence
    return replace(candidate, confidence=Ranked(rank, confidence.doubted)) if isinstance(confidence, Ranked) else candidate


def _written(
    inputs: CausalInputs, tree: Tree, timing: Timing, text: str
) -> Generator[None, None, tuple[Proposal, float] | None]:
    """Return the line with the block that it opens, and the probability of the block's tokens; one unit of work is a pass.

    None if the line opens none, or if the block does not end within its tokens and the time left.
    """
    bounds = inputs.bounds
    if "\n" in text or bounds.block(text) is None:
        return None
    # The line end is a part of its first or last token, so the line's last token is written again.
    start, line = inputs.ids_of(text)[:-1], f"{inputs.typed}{text}\n".encode()
    start = start if len(start) > 1 else []

    def chance_of(draft: CausalDraft) -> float:
        ends = accumulate(len(inputs.vocabulary.pieces[token]) for token in draft.ids)
        n_line = next((n for n, end in enumerate(ends, 1) if end >= len(line)), len(draft.ids))
        return math.exp(sum(draft.logps[n_line:]))

    def is_over(ids: Sequence[int]) -> bool:
        return ids[-1] in inputs.ends or bounds.is_block_over(inputs.text_of(ids))

    settings = DraftSettings(
        rows=1,
        most=len(start) + MOST_TOKENS,
        allowed=lambda ids: next_after_typed(inputs.vocabulary, line, ids),
        banned=inputs.banned,
        stops=inputs.ends,
        is_over=is_over,
        is_incomplete=lambda ids: not bounds.is_whole(inputs.text_of(ids)),
        going_on=inputs.vocabulary.starting_with(b"\n"),
        ahead=inputs.ahead,
        start=start,
    )
    so_far = list[CausalDraft]()

    def needed_ms() -> float:
        # No time is enough for a block that has too low a probability to be the only answer.
        is_hopeless = inputs.request.budget.candidates == 1 and any(chance_of(draft) < LEAST_CHANCE for draft in so_far)
        return math.inf if is_hopeless else 0.0

    work = drafts.drafts(inputs.loaded.passes, tree, settings)
    found, _ = yield from drafts.finished(work, 1, timing, needed_ms, so_far)
    for draft in found:
        # A token that ends a line may contain its last text.
        last = [draft.stop] if draft.stop is not None and draft.stop not in inputs.ends else []
        reached = bounds.block(inputs.text_of([*draft.ids, *last]))
        if draft.stop is not None and reached is not None and bounds.is_whole(reached[0]):
            logps = tuple(draft.logps)
            return Proposal(reached[0], "causal", logps, logps), chance_of(draft)
    return None
