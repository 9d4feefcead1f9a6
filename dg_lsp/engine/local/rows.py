"""The rows of a canvas: which are denoised, and what a denoised row comes to.

A row starts from noise or from a draft. Knows fills, gap lengths and readings. Knows nothing of tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dg_lsp.core.values import Candidate, RowKind
from dg_lsp.engine import layout
from dg_lsp.engine.calibration import Evidence
from dg_lsp.engine.denoise import Reading, Row, TokenLimits
from dg_lsp.engine.local.fill import Fill
from dg_lsp.engine.local.resources import MAX_ROWS
from dg_lsp.engine.rank import RowResult

LARGEST_SEED = 2**63 - 1
DRAFT_LENGTHS = (8, 16)  # gap lengths for drafts, besides the profile's
N_LENGTHS = 2  # how many gap lengths are worked on to the end where a canvas can't shrink


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row to denoise, what it starts from, and which gap each of its positions belongs to (-1: held).

    `left` and `right` say how far a copied draft agrees with the text on both sides.
    """

    row: Row
    kind: RowKind
    gaps: tuple[int, ...]
    left: int = 0
    right: int = 0


def planned(fill: Fill, drafts: Sequence[RowResult]) -> list[PlannedRow]:
    """Return the rows to denoise: noise of each gap length, then drafts where the checkpoint corrects them."""
    rows = list(_noise_rows(fill, len(drafts)))
    return [*rows, *_draft_rows(fill, drafts, len(rows))]


def token_limits(fill: Fill) -> TokenLimits:
    """Return which tokens the gaps may hold."""
    return TokenLimits(fill.tokens.regular, fill.banned_tokens(), fill.first_tokens(), fill.delete)


def _noise_rows(fill: Fill, n_drafts: int) -> Iterator[PlannedRow]:
    if not fill.switches.noise and fill.n_holes == 1:
        return
    sampling, budget, lengths = fill.profile.sampling, fill.request.budget, fill.gap_lengths()
    steps = budget.steps or (sampling.block_steps if fill.is_block else sampling.line_steps)
    n_rounds = max(1, min(max(fill.profile.noise_rows, budget.candidates - n_drafts), MAX_ROWS // len(lengths)))
    for number, (round_number, length) in enumerate(itertools.product(range(n_rounds), lengths)):
        ids, gaps = _canvas(fill, [[]] * fill.n_holes, length)
        free = tuple(gap >= 0 for gap in gaps)
        yield PlannedRow(Row(ids, free, steps, _seed(fill, number), greedy=round_number == 0), "noise", gaps)


def _draft_rows(fill: Fill, drafts: Sequence[RowResult], first_number: int) -> Iterator[PlannedRow]:
    """Yield a row for each distinct draft, with room for the canvas to make it longer."""
    if not fill.profile.refine_steps:
        return
    number = first_number
    for draft in {draft.text: draft for draft in reversed(drafts)}.values():
        draft_ids = fill.vocabulary.encode(fill.heal_text + draft.text)
        length = next((gap for gap in sorted({*DRAFT_LENGTHS, *fill.gap_lengths()}) if gap > len(draft_ids)), 0)
        if fill.sheet.delete is None:
            length = len(draft_ids)
        if not length:
            continue
        ids, gaps = _canvas(fill, [draft_ids], length)
        free = tuple(gap >= 0 for gap in gaps)
        row = Row(ids, free, fill.profile.refine_steps, _seed(fill, number), draft=True)
        yield PlannedRow(row, draft.row, gaps, draft.left, draft.right)
        number += 1


def _seed(fill: Fill, number: int) -> int:
    return (fill.request.seed * 1000 + number) & LARGEST_SEED


def _canvas(fill: Fill, drafts: Sequence[Sequence[int]], length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a canvas's ids, drafts padded with deletes, and the gap that each position belongs to (-1: held)."""
    sheet = fill.sheet
    padding = sheet.delete if sheet.delete is not None else fill.tokens.regular[0]
    ids: list[int] = []
    gaps: list[int] = []
    for index, draft in enumerate(drafts):
        ids += [*draft, *[padding] * length][:length]
        gaps += [index] * length
        if index < len(sheet.between):
            ids += sheet.between[index]
            gaps += [-1] * len(sheet.between[index])
    tail = sheet.tail if fill.switches.held_suffix else ()
    return (*ids, *tail), (*gaps, *[-1] * len(tail))


def texts(fill: Fill, planned_row: PlannedRow, reading: Reading) -> tuple[str, ...]:
    """Return the text of each hole as a row reads now."""
    gaps = planned_row.gaps
    by_gap = [
        [token for place, token in zip(reading.places, reading.ids, strict=True) if gaps[place] == gap]
        for gap in range(fill.n_holes)
    ]
    return tuple(layout.answer(fill.vocabulary, ids, fill.sheet.heal if gap == 0 else b"") for gap, ids in enumerate(by_gap))


def result(fill: Fill, planned_row: PlannedRow, reading: Reading) -> RowResult:
    """Return what the row of a single hole came to; its text is still to be scored."""
    [text] = texts(fill, planned_row, reading)
    return RowResult(text, planned_row.kind, entropy=reading.entropy, left=planned_row.left, right=planned_row.right)


def evidence(fill: Fill, planned_row: PlannedRow, reading: Reading, steps: int) -> Evidence:
    """Return the row of several holes as a candidate; `order` is the mean probability of its tokens, and no more than that."""
    by_gap = tuple(_chances(planned_row, reading, gap) for gap in range(fill.n_holes))
    chances = _gap_chances(planned_row, reading)
    candidate = Candidate(texts(fill, planned_row, reading), confidences=by_gap, row=planned_row.kind, steps=steps)
    return Evidence(candidate, sum(chances) / max(len(chances), 1), {})


def unlikely(planned_rows: Sequence[PlannedRow], readings: Sequence[Reading]) -> list[int]:
    """Return which noise rows to drop: all but those of the two gap lengths whose first tokens are surest for their length.

    For checkpoints without a delete token (CAL, arXiv 2602.00476).
    """
    excesses: dict[int, list[float]] = {}
    for planned_row, reading in zip(planned_rows, readings, strict=True):
        if planned_row.kind == "noise":
            chances = _gap_chances(planned_row, reading)
            mean = sum(chances) / max(len(chances), 1)
            excesses.setdefault(len(chances), []).append(mean - layout.expected_confidence(len(chances)))
    means = {length: sum(values) / len(values) for length, values in excesses.items()}
    likely_lengths = sorted(means, key=lambda length: -means[length])[:N_LENGTHS]
    return [
        index
        for index, planned_row in enumerate(planned_rows)
        if planned_row.kind == "noise" and sum(gap >= 0 for gap in planned_row.gaps) not in likely_lengths
    ]


def _gap_chances(planned_row: PlannedRow, reading: Reading) -> list[float]:
    return [chance for place, chance in zip(reading.places, reading.chances, strict=True) if planned_row.gaps[place] >= 0]


def _chances(planned_row: PlannedRow, reading: Reading, gap: int) -> tuple[float, ...]:
    return tuple(
        chance for place, chance in zip(reading.places, reading.chances, strict=True) if planned_row.gaps[place] == gap
    )
