"""Propose what canvases write: from noise, and from the texts so far.

A row starts from noise or from a draft. An answer that is longer than one canvas takes several: fill a canvas, commit and
encode its whole lines, and continue after them. DiffusionGemma writes any text this way (transformers 5.23,
`generation_diffusion_gemma.py`). Two things differ: the answer ends at the suffix or at the end of the model's turn, and each
committed part ends with a line end.

For a checkpoint without a delete token, a search finds the gap lengths worth a canvas. An open canvas and causal passes find
where the answer may end (`decode.canvas.speculation`). The text that they verify is the greedy causal draft, so such a fill
needs no other draft. Knows fills, gap lengths, denoisers and their readings. Knows nothing of how texts are ranked.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import torch

from dg_lsp.core import repeats
from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import Candidate, RowKind
from dg_lsp.engine.decode import layout, scoring
from dg_lsp.engine.decode.canvas.denoise import Denoiser, Reading, Row, TokenLimits
from dg_lsp.engine.decode.canvas.speculation import CausalText, Gap, Speculate, Speculation
from dg_lsp.engine.decode.fill import FillInput
from dg_lsp.engine.decode.filling import MAX_ROWS, Filling, Live, Work
from dg_lsp.engine.decode.pace import LEAST_STEPS
from dg_lsp.engine.decode.rank import Proposal
from dg_lsp.engine.model.family import KV

LARGEST_SEED = 2**63 - 1
DRAFT_LENGTHS = (8, 16)  # gap lengths for drafts, besides the profile's
DROPPING_STEP = 2  # without a delete token, unlikely gap lengths are dropped after this many steps
N_LENGTHS = 2  # without a delete token, this many gap lengths are denoised to the end
SURE = 0.5  # a token of a draft with a lower causal probability than this may be wrong

READ_AHEAD = Speculate().look + 1  # the most tokens that one round of the search verifies
LINE_TOKENS = 64  # the longest answer within a line; a block may use the whole canvas

# Steps a denoiser on a prefix's keys and values until all its rows are finished.
Settle = Callable[[Denoiser, KV], Generator[None, None, None]]


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


def propose(filling: Filling) -> Work:
    """Propose the texts of canvases that start from noise, and of those that correct the texts so far."""
    fill = filling.fill
    if filling.lengths == ():  # a search found that no canvas could write a better answer
        return
    if filling.proposals and fill.profile.refine_steps:  # a canvas keeps the tokens of a high causal probability
        yield from filling.score()
    rows = planned(fill, filling.proposals, filling.lengths)
    if filling.budget.is_limited:
        left_ms = filling.budget.left_ms(filling.score_ms(sum(len(planned_row.row.ids) for planned_row in rows)))
        rows = affordable(fill, rows, left_ms, filling.step_ms)
    yield from _denoised(filling, rows)


def repair(filling: Filling) -> Work:
    """Propose the texts of canvases that correct the causal drafts since the last canvas, if they say something new.

    The drafts of a search came before the canvas, which has corrected them.
    """
    if not filling.fill.profile.refine_steps or filling.lengths is not None:
        return
    since = max((index + 1 for index, each in enumerate(filling.proposals) if each.entropy is not None), default=0)
    known = {proposal.text for proposal in filling.proposals[:since]}
    if filling.proposals:
        yield from filling.score()
    new = [each for each in filling.proposals[since:] if each.row == "causal" and each.text not in known]
    yield from _denoised(filling, corrected(filling.fill, new, len(known)))


def several(filling: Filling) -> Work:
    """Propose an answer of several canvases in sequence, if the suffix follows none of the proposals.

    That is for a single block without a fixed gap length.
    """
    fill, budget = filling.fill, filling.budget
    is_whole_block = fill.n_holes == 1 and fill.is_block and not fill.switches.gap
    if not is_whole_block or not fill.switches.noise or fill.profile.max_canvases < 2:
        return
    yield from filling.score()
    if not all(scoring.is_unclosed(fill, proposal) for proposal in filling.proposals):
        return
    n_steps = budget.units(filling.step_ms(fill.profile.canvas_tokens), filling.score_ms())
    if budget.is_limited and (n_steps is None or n_steps < LEAST_STEPS):
        return

    def settle(denoiser: Denoiser, kv: KV) -> Work:
        steps = filling.stepping(denoiser, kv)
        while not filling.is_over(steps):
            yield from steps.take_one()

    text = yield from written(fill, filling.kv, seed(fill, MAX_ROWS), settle)
    filling.leave()
    if text.strip():
        filling.proposals.append(Proposal(text, "noise"))


def _denoised(filling: Filling, rows: Sequence[PlannedRow]) -> Work:
    """Denoise rows, and propose their texts, or give their evidence if there are several holes."""
    fill = filling.fill
    if not rows:
        return
    limits = TokenLimits(fill.tokens.regular, fill.banned_tokens(), fill.next_tokens(()), fill.delete)
    specs = [planned_row.row for planned_row in rows]
    denoiser = Denoiser(specs, limits, fill.profile.sampling, fill.tokens.n_logits, fill.loaded.device)
    steps = filling.stepping(denoiser, filling.kv)
    n_positions = sum(len(spec.ids) for spec in specs)
    running = list(range(len(rows)))  # those that are not dropped
    n_taken = 0

    def best_texts() -> tuple[str, ...]:
        readings = {index: denoiser.read(index) for index in running}
        best = min(readings, key=lambda index: readings[index].entropy)
        return texts(fill, rows[best], readings[best])

    while not filling.is_over(steps, n_positions):
        yield from steps.take_one()
        n_taken += 1
        if n_taken == 1:
            filling.live = Live(best_texts, is_answer=True)
        if n_taken == DROPPING_STEP and fill.sheet.delete is None and filling.lengths is None:
            for index in unlikely(rows, [denoiser.read(index) for index in running]):
                denoiser.drop(index)
                running.remove(index)
    denoiser.collect()
    filling.n_steps += max(denoiser.canvas.steps)
    steps.leave()
    yield
    if not denoiser.begun:  # no time was left, so it still contains its start
        return
    for index in running:
        row, reading = rows[index], denoiser.read(index)
        if fill.n_holes > 1:
            filling.joint.append(evidence(fill, row, reading, denoiser.canvas.steps[index]))
            continue
        [text] = texts(fill, row, reading)
        filling.proposals.append(Proposal(text, row.kind, entropy=reading.entropy, left=row.left, right=row.right))


def planned(fill: FillInput, drafts: Sequence[Proposal], lengths: Sequence[int] | None = None) -> list[PlannedRow]:
    """Return the rows to denoise: noise of each gap length, then drafts if the checkpoint corrects them.

    `lengths` are the results of a length search. None means no search, and the profile's lengths are used. There is noise of
    each length unless the drafts suffice, and again with other noise as far as there is room.
    """
    n_corrected = len({draft.text for draft in drafts}) if fill.profile.refine_steps else 0
    lengths = fill.gap_lengths() if lengths is None else lengths
    n_wanted = fill.profile.block_noise_rows if fill.is_block else fill.profile.line_noise_rows
    n_rounds = max(n_wanted, fill.request.budget.candidates - len(drafts))
    if not lengths or n_rounds < 1 or (not fill.switches.noise and fill.n_holes == 1):
        return corrected(fill, drafts, 0)
    n_rounds = max(1, min(n_rounds, (MAX_ROWS - n_corrected) // len(lengths)))
    rows = list[PlannedRow]()
    for number, (round_number, length) in enumerate(itertools.product(range(n_rounds), lengths)):
        ids, gaps = _canvas(fill, [[]] * fill.n_holes, length)
        free = tuple(gap >= 0 for gap in gaps)
        row = Row(ids, free, fill.n_steps, seed(fill, number), greedy=round_number == 0)
        rows.append(PlannedRow(row, "noise", gaps))
    return [*rows, *corrected(fill, drafts, len(rows))]


def affordable(
    fill: FillInput, rows: Sequence[PlannedRow], left_ms: float, step_ms: Callable[[int], float | None]
) -> list[PlannedRow]:
    """Return as many of the rows as can settle in the time left, at least one.

    `step_ms` returns the milliseconds of a step by its positions. Rows that only vary others are removed first, then drafts,
    then the widest rows. If no step was measured, all rows stay.
    """
    planned_rows = list(rows)
    while len(planned_rows) > 1:
        # The expected milliseconds until the rows settle, with unlikely lengths dropped on the way.
        width = max(len(planned_row.row.ids) for planned_row in planned_rows)
        n_steps = min(LEAST_STEPS, max(planned_row.row.steps for planned_row in planned_rows))
        n_before = min(DROPPING_STEP, n_steps) if fill.sheet.delete is None else n_steps
        n_kept = min(len(planned_rows), N_LENGTHS + sum(planned_row.kind != "noise" for planned_row in planned_rows))
        before, behind = step_ms(len(planned_rows) * width), step_ms(n_kept * width)
        if before is None or behind is None or n_before * before + (n_steps - n_before) * behind <= left_ms:
            break
        noise = [planned_row for planned_row in planned_rows if planned_row.kind == "noise"]
        others = [row for row in noise if not row.row.greedy] or [row for row in planned_rows if row.kind != "noise"]
        planned_rows.remove(others[-1] if others else max(noise, key=lambda row: len(row.row.ids)))
    return planned_rows


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
        chances, noisy = tuple[float, ...](), tuple[bool, ...]()
        if len(draft.tokens) == len(draft_ids):  # a pass has scored the draft
            own, rest = [min(1.0, math.exp(logp)) for logp in draft.tokens], len(ids) - len(draft_ids)
            chances = (*own, *[0.0] * rest)
            noisy = (*(chance < SURE for chance in own), *[False] * rest)
        own_seed = seed(fill, first_number + len(planned_rows))
        row = Row(ids, free, fill.profile.refine_steps, own_seed, True, True, chances, noisy)
        planned_rows.append(PlannedRow(row, draft.row, gaps, draft.left, draft.right))
    return planned_rows


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


def unlikely(rows: Sequence[PlannedRow], readings: Sequence[Reading]) -> list[int]:
    """Return the indexes of the noise rows to drop: all except those of the two likeliest gap lengths.

    A length is likely if its tokens' mean probability exceeds the average for that length (CAL, arXiv 2602.00476, with the
    curve fitted there). This is for checkpoints without a delete token.
    """
    excesses: dict[int, list[float]] = {}
    for planned_row, reading in zip(rows, readings, strict=True):
        if planned_row.kind == "noise":
            pairs = zip(reading.places, reading.chances, strict=True)
            chances = [chance for place, chance in pairs if planned_row.gaps[place] >= 0]
            mean = sum(chances) / max(len(chances), 1)
            excesses.setdefault(len(chances), []).append(mean - expected_confidence(len(chances)))
    means = {length: sum(values) / len(values) for length, values in excesses.items()}
    likely_lengths = sorted(means, key=lambda length: -means[length])[:N_LENGTHS]
    return [
        index
        for index, planned_row in enumerate(rows)
        if planned_row.kind == "noise" and sum(gap >= 0 for gap in planned_row.gaps) not in likely_lengths
    ]


def expected_confidence(length: int) -> float:
    """Return the first step's average confidence for a gap of this length (CAL, arXiv 2602.00476, fitted curve)."""
    return math.exp(-1.77 * length) + 0.56 * math.exp(-0.06 * length) + 0.24


def written(fill: FillInput, kv: KV, seed: int, settle: Settle) -> Generator[None, None, str]:
    """Return the text that several canvases write in sequence, up to the suffix or the end of the model's turn."""
    committed, first, width = list[int](), fill.next_tokens(()), fill.profile.canvas_tokens
    banned = tuple(token for token in fill.tokens.unwritable if token not in fill.sheet.closing)
    for number in range(fill.profile.max_canvases):
        row = Row((fill.tokens.regular[0],) * width, (True,) * width, fill.n_steps, seed + number)  # without a held suffix
        limits = TokenLimits(fill.tokens.regular, banned, first)
        denoiser = Denoiser([row], limits, fill.profile.sampling, fill.tokens.n_logits, fill.loaded.device)
        yield from settle(denoiser, kv)
        ids = denoiser.read(0).ids
        end = next((index for index, token in enumerate(ids) if token in fill.sheet.closing), None)
        whole = layout.answer(fill.vocabulary, [*committed, *ids[:end]], fill.sheet.heal)
        fence = re.search(r"^```", whole, re.MULTILINE)  # a code fence closes an answer
        text = repeats.before_suffix(whole[: fence.start()].removesuffix("\n") if fence else whole, fill.request.suffix)
        if end is not None or len(text) < len(whole) or number == fill.profile.max_canvases - 1:
            return text
        # Commit up to the last line end, or all if there is none.
        ends = [index + 1 for index, token in enumerate(ids) if fill.vocabulary.pieces[token].endswith(b"\n")]
        part = ids[: ends[-1] if ends else len(ids)]
        kv = fill.passes.encode(torch.tensor([part], device=fill.loaded.device), kv)[1]
        committed, first = [*committed, *part], ()
        yield
    return ""


# --- The search for a gap's likely lengths


def search(filling: Filling) -> Work:
    """Propose the texts that a search verified, and set the gap's likely lengths, if the fill needs a search.

    That is one hole without a delete token and without a fixed gap length.
    """
    fill = filling.fill
    if fill.n_holes == 1 and fill.delete is None and not fill.switches.gap and fill.switches.noise:
        yield from LengthSearch(filling).run()


class LengthSearch:
    """Searches for the possible lengths of one fill's gap."""

    def __init__(self, filling: Filling) -> None:
        self._filling, fill = filling, filling.fill
        self._fill, sheet = fill, fill.sheet
        ends = tuple(fill.ends)  # a checkpoint without its own end token may write any special token
        # The tokens that a causal model writes after an answer, as in `scoring`.
        self._tail = ends if sheet.end is not None else sheet.tail or ends[:1]
        longest = fill.profile.canvas_tokens - len(fill.sheet.tail)  # the held suffix needs room
        writable = {*self._tail, *ends}
        banned = tuple(token for token in fill.tokens.unwritable if token not in writable)
        gap = Gap(
            (longest if fill.is_block else min(longest, LINE_TOKENS)) + len(self._tail),
            self._tail,
            TokenLimits(fill.tokens.regular, banned, fill.next_tokens(())),
            () if fill.is_block else tuple(fill.vocabulary.with_newline),
            fill.n_steps,
            fill.request.seed & LARGEST_SEED,
        )
        self._speculation = Speculation(gap, ends, fill.profile.sampling, fill.tokens.n_logits, device=fill.loaded.device)
        self._has_drafts = fill.switches.causal and fill.profile.causal_rows > 0
        self._causal = CausalText(fill.passes, filling.tree)

    @property
    def n_verified(self) -> int:
        """The number of tokens that the causal model has verified."""
        return len(self._speculation.text)

    def run(self) -> Work:
        """Propose the search's results, and set the lengths worth a canvas, likeliest first.

        There are no lengths if no canvas could write an answer that ranks higher.
        """
        filling, speculation, causal = self._filling, self._speculation, self._causal
        pace = filling.resources.pace
        steps = filling.stepping(speculation.denoiser, filling.kv, is_open=True)
        filling.live = Live(lambda: (self._text(speculation.starts()[0]) if speculation.text else "",), is_answer=True)
        while not speculation.done and (not speculation.text or self._may_go_on()):
            if speculation.wants_canvas:
                yield from steps.take_one()
                yield
            proposal = speculation.proposal
            with pace.measuring("score", len(proposal) + 1):
                n_agreed = speculation.verify(proposal, causal.read(proposal))
            causal.keep(n_agreed, speculation.text[-1])
            yield
        starts = speculation.starts()
        with pace.measuring("score", self._n_scored()):
            scores = causal.scores([speculation.answer(start) for start in starts], self._tail)
        likely = speculation.lengths(starts, scores)
        yield
        filling.n_steps += speculation.n_steps
        filling.live = None
        steps.leave()
        fill = self._fill
        is_one = self._has_drafts and fill.request.budget.candidates == 1
        ranks_by_joint_score = is_one and fill.switches.scorer and fill.calibration is None
        is_final = ranks_by_joint_score and speculation.is_settled(starts, scores)
        if is_final and self._text(likely[0]) == self._uncut(likely[0]):
            filling.lengths = ()
        else:
            filling.lengths = tuple(dict.fromkeys(map(self._length, likely)))
            if starts[0] > self.n_verified:  # the search ended before it verified the open canvas's length
                likely = [*likely, starts[0]]
        # A causal draft if it is verified, otherwise the canvas's text.
        results: dict[str, Proposal] = {}
        for start in likely:
            is_causal = start <= self.n_verified
            if speculation.is_valid(start) and (self._has_drafts or not is_causal):
                text = self._text(start)
                results.setdefault(text, Proposal(text, "causal" if is_causal else "noise"))
        filling.proposals += results.values()

    def _may_go_on(self) -> bool:
        """Return whether the deadline leaves time for one more round.

        The open canvas may take the steps in which a canvas usually settles. It may take more while there is still time for
        as many steps on a canvas that holds the suffix. If the search ended earlier, that canvas would have to guess its
        length.
        """
        filling, n_steps = self._filling, self._speculation.n_steps
        step_ms, expected_ms = filling.step_ms(self._speculation.gap.width), filling.resources.pace.expected_ms
        if step_ms is None:
            return True
        round_ms = step_ms + (expected_ms("score", READ_AHEAD) or 0.0)
        last_ms = 2 * (expected_ms("score", self._n_scored()) or 0.0)  # one for the search, one for the ranking
        return filling.budget.may(round_ms + (LEAST_STEPS * step_ms if n_steps >= LEAST_STEPS else 0.0), last_ms)

    def _n_scored(self) -> int:
        """Return the number of positions in the pass that scores the answers, if the search ends now."""
        starts = self._speculation.starts()
        return len(starts) * (max(starts) + len(self._tail))

    def _length(self, start: int) -> int:
        """Return the number of tokens of an answer, without a copy of the suffix."""
        text, uncut = self._text(start), self._uncut(start)
        return start if text == uncut else max(len(self._fill.vocabulary.encode(self._fill.heal_text + text)), 1)

    def _text(self, start: int) -> str:
        """Return the answer with this length, without a copy of the suffix unless it ended with an end token."""
        speculation, text = self._speculation, self._uncut(start)
        following = speculation.text[start] if start < self.n_verified else None
        if following is not None and following == self._fill.sheet.end:
            return text
        if following in speculation.gap.closing:  # the token may contain text before its line end
            text = self._uncut(start, following)
        return self._fill.of_draft(text)

    def _uncut(self, start: int, *following: int) -> str:
        ids = (*self._speculation.answer(start), *following)
        return layout.answer(self._fill.vocabulary, ids, self._fill.sheet.heal)
