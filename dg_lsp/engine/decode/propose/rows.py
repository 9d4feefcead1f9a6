"""Plan the rows to denoise for a canvas, and turn each finished row into a result.

A row starts from noise or from a draft. Knows fills, gap lengths and readings. Knows nothing of tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import Candidate, RowKind
from dg_lsp.engine.decode import layout
from dg_lsp.engine.decode.canvas.denoise import Reading, Row, TokenLimits
from dg_lsp.engine.decode.fill import FillInput
from dg_lsp.engine.decode.pace import LEAST_STEPS
from dg_lsp.engine.decode.rank import Proposal
from dg_lsp.engine.decode.resources import MAX_ROWS
from dg_lsp.engine.decode.scoring import SURE

LARGEST_SEED = 2**63 - 1
DRAFT_LENGTHS = (8, 16)  # gap lengths for drafts, besides the profile's
DROPPING_STEP = 2  # without a delete token, unlikely gap lengths are dropped after this many steps
N_LENGTHS = 2  # without a delete token, this many gap lengths are denoised to the end


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row to denoise, its kind of start, and the gap of each of its positions (-1: held).

    `left` and `right` are the numbers of characters in which a copied draft's place agrees with the hole's.
    """

    row: Row
    kind: RowKind
    gaps: tuple[int, ...]
    left: int = 0
    right: int = 0


def planned(fill: FillInput, drafts: Sequence[Proposal], lengths: Sequence[int] | None = None) -> list[PlannedRow]:
    """Return the rows to denoise: noise of each gap length, then drafts if the checkpoint corrects them.

    `lengths` are the results of a length search. None means no search, and the profile's lengths are used.
    """
    n_corrected = len({draft.text for draft in drafts}) if fill.profile.refine_steps else 0
    gap_lengths = fill.gap_lengths() if lengths is None else lengths
    rows = list(_noise_rows(fill, len(drafts), gap_lengths, MAX_ROWS - n_corrected))
    return [*rows, *corrected(fill, drafts, len(rows))]


def affordable(
    fill: FillInput, planned_rows: Sequence[PlannedRow], left_ms: float, step_ms: Callable[[int], float | None]
) -> list[PlannedRow]:
    """Return as many of the rows as can settle in the time left, at least one.

    `step_ms` returns the milliseconds of a step by its positions. Rows that only vary others are removed first, then drafts,
    then the widest rows. If no step was measured, all rows stay.
    """
    planned = list(planned_rows)
    while len(planned) > 1:
        expected = _settling_ms(fill, planned, step_ms)
        if expected is None or expected <= left_ms:
            break
        noise = [row for row in planned if row.kind == "noise"]
        others = [row for row in noise if not row.row.greedy] or [row for row in planned if row.kind != "noise"]
        planned.remove(others[-1] if others else max(noise, key=lambda row: len(row.row.ids)))
    return planned


def _settling_ms(fill: FillInput, planned_rows: Sequence[PlannedRow], step_ms: Callable[[int], float | None]) -> float | None:
    """Return the expected milliseconds until the rows settle, with unlikely lengths dropped on the way."""
    width = max(len(planned.row.ids) for planned in planned_rows)
    n_rows, n_steps = len(planned_rows), min(LEAST_STEPS, max(planned.row.steps for planned in planned_rows))
    n_before = min(DROPPING_STEP, n_steps) if fill.sheet.delete is None else n_steps
    n_kept = min(n_rows, N_LENGTHS + sum(planned.kind != "noise" for planned in planned_rows))
    before, behind = step_ms(n_rows * width), step_ms(n_kept * width)
    return None if before is None or behind is None else n_before * before + (n_steps - n_before) * behind


def token_limits(fill: FillInput) -> TokenLimits:
    """Return the limits for the tokens of the gaps."""
    return TokenLimits(fill.tokens.regular, fill.banned_tokens(), fill.next_tokens(()), fill.delete)


def _noise_rows(fill: FillInput, n_drafts: int, lengths: Sequence[int], most: int) -> Iterator[PlannedRow]:
    """Yield rows of noise: at most `most`, but at least one per length unless the drafts suffice."""
    if not lengths or (not fill.switches.noise and fill.n_holes == 1):
        return
    sampling, budget = fill.profile.sampling, fill.request.budget
    steps = budget.steps or (sampling.block_steps if fill.is_block else sampling.line_steps)
    n_wanted = fill.profile.block_noise_rows if fill.is_block else fill.profile.line_noise_rows
    n_rounds = max(n_wanted, budget.candidates - n_drafts)
    if n_rounds < 1:
        return
    n_rounds = max(1, min(n_rounds, most // len(lengths)))
    for number, (round_number, length) in enumerate(itertools.product(range(n_rounds), lengths)):
        ids, gaps = _canvas(fill, [[]] * fill.n_holes, length)
        free = tuple(gap >= 0 for gap in gaps)
        yield PlannedRow(Row(ids, free, steps, seed(fill, number), greedy=round_number == 0), "noise", gaps)


def corrected(fill: FillInput, drafts: Sequence[Proposal], first_number: int) -> list[PlannedRow]:
    """Return a row that corrects each distinct draft, numbered from `first_number`; none if the checkpoint corrects no drafts.

    It has room to make the draft longer if the checkpoint has a delete token. Tokens with a low causal probability start as
    noise, and the probabilities condition the first step.
    """
    planned_rows = list[PlannedRow]()
    if not fill.profile.refine_steps:
        return planned_rows
    for draft in {draft.text: draft for draft in reversed(drafts)}.values():
        draft_ids = fill.vocabulary.encode(fill.heal_text + draft.text)
        length = next((gap for gap in sorted({*DRAFT_LENGTHS, *fill.gap_lengths()}) if gap > len(draft_ids)), 0)
        if fill.sheet.delete is None:
            length = len(draft_ids)
        if not length or length > fill.longest_gap:
            continue
        ids, gaps = _canvas(fill, [draft_ids], length)
        free = tuple(gap >= 0 for gap in gaps)
        chances, noisy = _doubts(draft, len(draft_ids), len(ids))
        own_seed = seed(fill, first_number + len(planned_rows))
        row = Row(ids, free, fill.profile.refine_steps, own_seed, True, True, chances, noisy)
        planned_rows.append(PlannedRow(row, draft.row, gaps, draft.left, draft.right))
    return planned_rows


def _doubts(draft: Proposal, n_draft: int, width: int) -> tuple[tuple[float, ...], tuple[bool, ...]]:
    """Return the causal probability of each position of a draft's canvas, and which positions start as noise.

    Both are empty if no pass has scored the draft.
    """
    if len(draft.tokens) != n_draft:
        return (), ()
    chances = [min(1.0, math.exp(logp)) for logp in draft.tokens]
    rest = width - n_draft
    return (*chances, *[0.0] * rest), (*(chance < SURE for chance in chances), *[False] * rest)


def seed(fill: FillInput, number: int) -> int:
    """Return the seed of a request's row from the row's number."""
    return (fill.request.seed * 1000 + number) & LARGEST_SEED


def _canvas(fill: FillInput, drafts: Sequence[Sequence[int]], length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a canvas's ids, with drafts padded by delete tokens, and the gap of each position (-1: held)."""
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
    tail = fill.tail
    return (*ids, *tail), (*gaps, *[-1] * len(tail))


def texts(fill: FillInput, planned_row: PlannedRow, reading: Reading) -> tuple[str, ...]:
    """Return each hole's text in a row's reading."""
    return tuple(text for text, _ in _parts(fill, planned_row, reading))


def _parts(fill: FillInput, planned_row: PlannedRow, reading: Reading) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the text of each hole, with the canvas's probability of each of its tokens."""
    for gap in range(fill.n_holes):
        places = [index for index, place in enumerate(reading.places) if planned_row.gaps[place] == gap]
        ids = [reading.ids[index] for index in places]
        heal = fill.sheet.heal if gap == 0 else b""
        text = layout.answer(fill.vocabulary, ids, heal)
        part = fill.of_canvas(text, gap)
        if part != text:  # the text was truncated, so leave out the tokens after it
            places = places[: n_tokens(fill, ids, len(heal) + len(part.encode()))]
        yield part, tuple(reading.chances[index] for index in places)


def n_tokens(fill: FillInput, ids: Sequence[int], n_bytes: int) -> int:
    """Return the number of tokens that the first `n_bytes` bytes of the ids' text come from."""
    ends = itertools.accumulate(len(fill.vocabulary.pieces[token]) for token in ids)
    return sum(1 for end in (0, *ends) if end < n_bytes)


def result(fill: FillInput, planned_row: PlannedRow, reading: Reading) -> Proposal:
    """Return the result of a single hole's row, not yet scored."""
    [text] = texts(fill, planned_row, reading)
    return Proposal(text, planned_row.kind, entropy=reading.entropy, left=planned_row.left, right=planned_row.right)


def evidence(fill: FillInput, planned_row: PlannedRow, reading: Reading, steps: int) -> Evidence:
    """Return the evidence of a row with several holes; its `order` is only the mean probability of its tokens."""
    parts = list(_parts(fill, planned_row, reading))
    chances = [chance for _, by_token in parts for chance in by_token]
    candidate = Candidate(
        tuple(text for text, _ in parts),
        confidences=tuple(by_token for _, by_token in parts),
        row=planned_row.kind,
        steps=steps,
    )
    return Evidence(candidate, sum(chances) / max(len(chances), 1), {})


def unlikely(planned_rows: Sequence[PlannedRow], readings: Sequence[Reading]) -> list[int]:
    """Return the indexes of the noise rows to drop: all except those of the two likeliest gap lengths.

    A length is likely if its tokens' mean probability exceeds the average for that length (CAL, arXiv 2602.00476). This is
    for checkpoints without a delete token.
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
