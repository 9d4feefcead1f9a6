"""Propose what canvases write: from noise, from the texts so far, and from the rest of an earlier answer.

Knows rows and denoisers. Knows nothing of how their starts were found.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence

from dg_lsp.engine.decode import scoring
from dg_lsp.engine.decode.canvas.denoise import Denoiser
from dg_lsp.engine.decode.filling import Filling, Item, Live, Proposing, Work
from dg_lsp.engine.decode.propose import copying, rows
from dg_lsp.engine.decode.propose.rows import PlannedRow
from dg_lsp.engine.decode.rank import Proposal
from dg_lsp.engine.decode.resources import MAX_ROWS


def propose(filling: Filling) -> Proposing:
    """Yield the texts of canvases that start from noise, and of those that correct the texts so far."""
    fill = filling.fill
    if filling.lengths == ():  # a search found that no canvas could write a better answer
        return
    yield from _scored_starts(filling)
    starts = [proposal for proposal in filling.proposals if proposal.row != "previous"]
    planned = rows.planned(fill, starts, filling.lengths)
    if filling.budget.is_limited:
        left_ms = filling.budget.left_ms(filling.score_ms(_n_positions(planned)))
        planned = rows.affordable(fill, planned, left_ms, filling.step_ms)
    yield from _denoised(filling, planned)


def repair(filling: Filling) -> Proposing:
    """Yield the texts of canvases that correct the causal drafts since the last canvas, if they say something new.

    The drafts of a search came before the canvas, which has corrected them.
    """
    if not filling.fill.profile.refine_steps or filling.lengths is not None:
        return
    since = max((index + 1 for index, each in enumerate(filling.proposals) if each.entropy is not None), default=0)
    known = {proposal.text for proposal in filling.proposals[:since]}
    yield from _scored_starts(filling)
    new = [each for each in filling.proposals[since:] if each.row == "causal" and each.text not in known]
    yield from _denoised(filling, rows.corrected(filling.fill, new, len(known)))


def previous(filling: Filling) -> Generator[Item, None, bool]:
    """Yield the rest of an earlier answer and its correction; return whether it is so sure that nothing else is needed.

    It is worth a row only if the canvas corrects it, because it is rarely right unchanged.
    """
    fill = filling.fill
    text = copying.rest_of_previous(fill) if fill.profile.refine_steps else ""
    if not text:
        return False
    yield Proposal(text, "previous")
    yield from _scored_starts(filling)
    own = [proposal for proposal in filling.proposals if proposal.row == "previous"]
    yield from _denoised(filling, rows.corrected(fill, own, MAX_ROWS + 1))
    yield from filling.score()
    return any(scoring.is_sure(fill, proposal) for proposal in filling.proposals if proposal.row == "previous")


def _scored_starts(filling: Filling) -> Work:
    """Score the texts that a canvas starts from: it keeps the tokens that have a high causal probability."""
    if filling.proposals and filling.fill.profile.refine_steps:
        yield from filling.score()


def _denoised(filling: Filling, planned_rows: Sequence[PlannedRow]) -> Proposing:
    """Denoise rows, and yield their texts, or their evidence if there are several holes."""
    fill = filling.fill
    if not planned_rows:
        return
    row_specs = [planned.row for planned in planned_rows]
    denoiser = Denoiser(row_specs, rows.token_limits(fill), fill.profile.sampling, fill.tokens.n_logits, fill.loaded.device)
    steps = filling.stepping(denoiser, filling.kv)
    dropped: set[int] = set()
    n_taken = 0
    while not filling.is_over(steps, _n_positions(planned_rows)):
        yield from steps.take_one()
        n_taken += 1
        if n_taken == 1:
            filling.live = Live(lambda: _best_texts(filling, denoiser, planned_rows, dropped), is_answer=True)
        if n_taken == rows.DROPPING_STEP and fill.sheet.delete is None and filling.lengths is None:
            _drop_unlikely(denoiser, planned_rows, dropped)
    denoiser.collect()
    filling.n_steps += max(denoiser.canvas.steps)
    steps.leave()
    yield None
    if not denoiser.begun:  # no time was left, so it still contains its start
        return
    for index, planned in enumerate(planned_rows):
        if index in dropped:
            continue
        reading = denoiser.read(index)
        if fill.n_holes == 1:
            yield rows.result(fill, planned, reading)
        else:
            yield rows.evidence(fill, planned, reading, denoiser.canvas.steps[index])


def _drop_unlikely(denoiser: Denoiser, planned_rows: Sequence[PlannedRow], dropped: set[int]) -> None:
    """Drop the rows of gap lengths that have become unlikely; their results are ignored."""
    for index in rows.unlikely(planned_rows, [denoiser.read(index) for index in range(len(planned_rows))]):
        denoiser.drop(index)
        dropped.add(index)


def _best_texts(
    filling: Filling, denoiser: Denoiser, planned_rows: Sequence[PlannedRow], dropped: Collection[int]
) -> tuple[str, ...]:
    """Return each hole's text in the row of lowest entropy."""
    readings = {index: denoiser.read(index) for index in range(len(planned_rows)) if index not in dropped}
    best = min(readings, key=lambda index: readings[index].entropy)
    return rows.texts(filling.fill, planned_rows[best], readings[best])


def _n_positions(planned_rows: Sequence[PlannedRow]) -> int:
    return sum(len(planned.row.ids) for planned in planned_rows)
