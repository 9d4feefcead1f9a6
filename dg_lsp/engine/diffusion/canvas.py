"""Propose what canvases write: from noise, and from the texts so far.

A row starts from noise or from a draft. An answer that is longer than one canvas takes several: fill a canvas, commit and
encode its whole lines, and continue after them. DiffusionGemma writes any text this way (transformers 5.23,
`generation_diffusion_gemma.py`). Two things differ: the answer ends at the suffix or at the end of the model's turn, and each
committed part ends with a line end.

Knows canvas requests, gap lengths, denoisers and their readings. Knows nothing of how texts are ranked.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from dg_lsp.core import extent
from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import Candidate, RowKind
from dg_lsp.engine.common import layout
from dg_lsp.engine.common.inputs import MAX_ROWS
from dg_lsp.engine.common.pace import LEAST_STEPS
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.diffusion.denoise import Reading, Row, TokenLimits
from dg_lsp.engine.diffusion.generation import CanvasAnswer, CanvasRequest, Proposing, is_unclosed
from dg_lsp.engine.model.room import Room

REFINE_STEPS = 4  # in which a canvas may correct a draft
MAX_CANVASES = 4  # one after another, for one answer
DROPPING_STEP = 2  # gap lengths of low probability are dropped after this many steps
N_LENGTHS = 2  # this many gap lengths are denoised to the end
SURE = 0.5  # a token of a draft with a lower causal probability than this may be wrong


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


def propose(answer: CanvasAnswer) -> Proposing:
    """Propose the texts of canvases that start from noise, and of those that correct the texts so far."""
    canvas = answer.canvas
    lengths = canvas.gap_lengths() if answer.found_lengths is None else answer.found_lengths
    if not lengths:  # a search found that no canvas could write a better answer
        return
    if answer.proposals:  # a canvas keeps the tokens of a high causal probability
        answer.score()
        yield answer.progress()
    rows = planned(canvas, answer.proposals, lengths)
    if answer.timing.is_limited:
        left_ms = answer.timing.left_ms(answer.score_ms(sum(len(planned_row.row.ids) for planned_row in rows)))
        rows = affordable(canvas, rows, left_ms, answer.step_ms)
    yield from _denoised(answer, rows)


def several(answer: CanvasAnswer) -> Proposing:
    """Propose an answer of several canvases in sequence, if the suffix follows none of the proposals.

    That is for a single block.
    """
    canvas, timing = answer.canvas, answer.timing
    if canvas.n_holes > 1 or not canvas.is_block:
        return
    answer.score()
    yield None
    if not all(is_unclosed(canvas, proposal) for proposal in answer.proposals):
        return
    n_steps = timing.units(answer.step_ms(canvas.profile.canvas_tokens), answer.score_ms())
    if timing.is_limited and (n_steps is None or n_steps < LEAST_STEPS):
        return
    text = yield from written(answer)
    if text.strip():
        answer.proposals.append(Proposal(text, "noise"))


def _denoised(answer: CanvasAnswer, rows: Sequence[PlannedRow]) -> Proposing:
    canvas = answer.canvas
    if not rows:
        return
    limits = TokenLimits(canvas.vocabulary.regular, canvas.control, canvas.next_tokens(()))
    specs = [planned_row.row for planned_row in rows]
    denoiser = answer.denoiser(specs, limits)
    n_positions = sum(len(spec.ids) for spec in specs)
    running = list(range(len(rows)))  # those that are not dropped
    n_taken = 0

    def best_texts() -> tuple[str, ...]:
        readings = {index: denoiser.read(index) for index in running}
        best = min(readings, key=lambda index: readings[index].entropy)
        return texts(canvas, rows[best], readings[best])

    so_far = answer.progress(best_texts)
    while not answer.is_over(denoiser, n_positions):
        yield so_far if n_taken else None
        answer.take_step(denoiser, answer.kv)
        n_taken += 1
        if n_taken == DROPPING_STEP and answer.found_lengths is None:
            for index in hopeless(rows, [denoiser.read(index) for index in running]):
                denoiser.drop(index)
                running.remove(index)
    answer.n_steps += max(denoiser.canvas.steps)
    yield so_far if n_taken else None
    if not denoiser.begun:  # no time was left, so it still contains its start
        return
    for index in running:
        row, reading = rows[index], denoiser.read(index)
        if canvas.n_holes > 1:
            answer.joint.append(evidence(canvas, row, reading, denoiser.canvas.steps[index]))
            continue
        [text] = texts(canvas, row, reading)
        answer.proposals.append(Proposal(text, row.kind, entropy=reading.entropy, left=row.left, right=row.right))


def planned(canvas: CanvasRequest, drafts: Sequence[Proposal], lengths: Sequence[int]) -> list[PlannedRow]:
    """Return the rows to denoise: noise of each gap length, then drafts to correct.

    There is noise of each of the gap `lengths`, and again with other noise as far as more candidates are asked for.
    """
    n_corrected = len({draft.text for draft in drafts})
    n_rounds = max(1, min(canvas.request.budget.candidates - len(drafts), (MAX_ROWS - n_corrected) // len(lengths)))
    rows = list[PlannedRow]()
    for number, (round_number, length) in enumerate(itertools.product(range(n_rounds), lengths)):
        ids, gaps = _canvas(canvas, [[]] * canvas.n_holes, length)
        free = tuple(gap >= 0 for gap in gaps)
        row = Row(ids, free, canvas.n_steps, canvas.seed(number), greedy=round_number == 0)
        rows.append(PlannedRow(row, "noise", gaps))
    return [*rows, *corrected(canvas, drafts, len(rows))]


def affordable(
    canvas: CanvasRequest, rows: Sequence[PlannedRow], left_ms: float, step_ms: Callable[[int], float | None]
) -> list[PlannedRow]:
    """Return as many of the rows as can settle in the time left, at least one.

    `step_ms` returns the milliseconds of a step by its positions. Rows that only vary others are removed first, then drafts,
    then the widest rows. If no step was measured, all rows stay.
    """
    planned_rows = list(rows)
    while len(planned_rows) > 1:
        # The expected milliseconds until the rows settle, with hopeless lengths dropped on the way.
        width = max(len(planned_row.row.ids) for planned_row in planned_rows)
        n_steps = min(LEAST_STEPS, max(planned_row.row.steps for planned_row in planned_rows))
        n_before = min(DROPPING_STEP, n_steps)
        n_kept = min(len(planned_rows), N_LENGTHS + sum(planned_row.kind != "noise" for planned_row in planned_rows))
        before, behind = step_ms(len(planned_rows) * width), step_ms(n_kept * width)
        if before is None or behind is None or n_before * before + (n_steps - n_before) * behind <= left_ms:
            break
        noise = [planned_row for planned_row in planned_rows if planned_row.kind == "noise"]
        others = [row for row in noise if not row.row.greedy] or [row for row in planned_rows if row.kind != "noise"]
        planned_rows.remove(others[-1] if others else max(noise, key=lambda row: len(row.row.ids)))
    return planned_rows


def corrected(canvas: CanvasRequest, drafts: Sequence[Proposal], first_number: int) -> list[PlannedRow]:
    """Return a row that corrects each distinct draft, numbered from `first_number`.

    Tokens with a low causal probability start as noise, and the probabilities condition the first step.
    """
    planned_rows = list[PlannedRow]()
    for draft in {draft.text: draft for draft in reversed(drafts)}.values():
        draft_ids = canvas.vocabulary.encode(canvas.typed + draft.text)
        if not 0 < len(draft_ids) <= canvas.longest_gap:
            continue
        ids, gaps = _canvas(canvas, [draft_ids], len(draft_ids))
        free = tuple(gap >= 0 for gap in gaps)
        chances, noisy = tuple[float, ...](), tuple[bool, ...]()
        if len(draft.logps) == len(draft_ids):  # a pass has scored the draft
            own, rest = [min(1.0, math.exp(logp)) for logp in draft.logps], len(ids) - len(draft_ids)
            chances = (*own, *[0.0] * rest)
            noisy = (*(chance < SURE for chance in own), *[False] * rest)
        own_seed = canvas.seed(first_number + len(planned_rows))
        row = Row(ids, free, REFINE_STEPS, own_seed, True, True, chances, noisy)
        planned_rows.append(PlannedRow(row, draft.row, gaps, draft.left, draft.right))
    return planned_rows


def _canvas(canvas: CanvasRequest, drafts: Sequence[Sequence[int]], length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a canvas's ids, with drafts padded, and the gap of each position (-1: held)."""
    prompt, padding = canvas.prompt, canvas.vocabulary.regular[0]
    ids: list[int] = []
    gaps: list[int] = []
    for index, draft in enumerate(drafts):
        ids += [*draft, *[padding] * length][:length]
        gaps += [index] * length
        if index < len(prompt.between):
            ids += prompt.between[index]
            gaps += [-1] * len(prompt.between[index])
    return (*ids, *prompt.tail), (*gaps, *[-1] * len(prompt.tail))


def texts(canvas: CanvasRequest, planned_row: PlannedRow, reading: Reading) -> tuple[str, ...]:
    return tuple(text for text, _ in _parts(canvas, planned_row, reading))


def _parts(canvas: CanvasRequest, planned_row: PlannedRow, reading: Reading) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the text of each hole, with the canvas's probability of each of its tokens."""
    for gap in range(canvas.n_holes):
        places = [place for place, own in enumerate(planned_row.gaps) if own == gap]
        ids = [reading.ids[index] for index in places]
        heal = canvas.prompt.heal if gap == 0 else b""
        text = layout.answer(canvas.vocabulary, ids, heal)
        part = canvas.of_canvas(text, gap)
        if part != text:  # the text was truncated, so leave out the tokens after it
            places = places[: canvas.vocabulary.n_tokens(ids, len(heal) + len(part.encode()))]
        yield part, tuple(reading.chances[index] for index in places)


def evidence(canvas: CanvasRequest, planned_row: PlannedRow, reading: Reading, steps: int) -> Evidence:
    """Return the evidence of a row with several holes; its `order` is only the mean probability of its tokens."""
    parts = list(_parts(canvas, planned_row, reading))
    chances = [chance for _, by_token in parts for chance in by_token]
    candidate = Candidate(
        tuple(text for text, _ in parts),
        confidences=tuple(by_token for _, by_token in parts),
        row=planned_row.kind,
        steps=steps,
    )
    return Evidence(candidate, sum(chances) / max(len(chances), 1), {})


def hopeless(rows: Sequence[PlannedRow], readings: Sequence[Reading]) -> list[int]:
    """Return the indexes of the noise rows to drop: all except those of the two likeliest gap lengths.

    A length is likely if its tokens' mean probability exceeds the average for that length (CAL, arXiv 2602.00476, with the
    curve fitted there).
    """
    excesses: dict[int, list[float]] = {}
    for planned_row, reading in zip(rows, readings, strict=True):
        if planned_row.kind == "noise":
            chances = [chance for gap, chance in zip(planned_row.gaps, reading.chances, strict=True) if gap >= 0]
            n, mean = len(chances), sum(chances) / max(len(chances), 1)
            expected = math.exp(-1.77 * n) + 0.56 * math.exp(-0.06 * n) + 0.24
            excesses.setdefault(n, []).append(mean - expected)
    means = {length: sum(values) / len(values) for length, values in excesses.items()}
    likely_lengths = sorted(means, key=lambda length: -means[length])[:N_LENGTHS]
    return [
        index
        for index, planned_row in enumerate(rows)
        if planned_row.kind == "noise" and sum(gap >= 0 for gap in planned_row.gaps) not in likely_lengths
    ]


def written(answer: CanvasAnswer) -> Generator[None, None, str]:
    """Return the text that several canvases write in sequence, up to the suffix or the end of the model's turn."""
    canvas, seed, committed = answer.canvas, answer.canvas.seed(MAX_ROWS), list[int]()
    first, width = canvas.next_tokens(()), canvas.profile.canvas_tokens
    room = Room(canvas.loaded.passes, len(canvas.prompt.ids) + MAX_CANVASES * width)
    room.add(answer.kv)
    kv = room.kv
    banned = tuple(token for token in canvas.control if token not in canvas.prompt.closing)
    for number in range(MAX_CANVASES):  # without a held suffix
        row = Row((canvas.vocabulary.regular[0],) * width, (True,) * width, canvas.n_steps, seed + number)
        denoiser = answer.denoiser([row], TokenLimits(canvas.vocabulary.regular, banned, first))
        while not answer.is_over(denoiser):
            yield
            answer.take_step(denoiser, kv)
        ids = denoiser.read(0).ids
        end = next((index for index, token in enumerate(ids) if token in canvas.prompt.closing), None)
        whole = layout.answer(canvas.vocabulary, [*committed, *ids[:end]], canvas.prompt.heal)
        fence = re.search(r"^```", whole, re.MULTILINE)  # a code fence closes an answer
        text = extent.before_suffix(whole[: fence.start()].removesuffix("\n") if fence else whole, canvas.request.suffix)
        if end is not None or len(text) < len(whole) or number == MAX_CANVASES - 1:
            return text
        # Commit up to the last line end, or all if there is none.
        ends = [index + 1 for index, token in enumerate(ids) if canvas.vocabulary.pieces[token].endswith(b"\n")]
        part = ids[: ends[-1] if ends else len(ids)]
        room.read(part)
        kv = room.kv
        committed, first = [*committed, *part], ()
        yield
    return ""
