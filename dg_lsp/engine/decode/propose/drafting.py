"""Propose causal drafts: what the encoder writes from left to right, and branches of it.

Several holes get no drafts. Knows fills, texts and drafts. Knows nothing of canvases.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from dg_lsp.engine.decode import layout
from dg_lsp.engine.decode.fill import Fill
from dg_lsp.engine.decode.filling import Filling, Live, Proposing
from dg_lsp.engine.decode.propose import causal
from dg_lsp.engine.decode.propose.causal import Draft
from dg_lsp.engine.decode.rank import Proposal
from dg_lsp.engine.decode.scoring import Scorer

if TYPE_CHECKING:
    from collections.abc import Generator

MAX_CAUSAL_TOKENS = 128
MOST_BEHIND = 3.0  # nats: a draft that is so much less likely than another of its hole is hardly ever right


def propose(filling: Filling) -> Proposing:
    """Yield the causal drafts that are complete before the time runs out, and their branches.

    A search for the gap's length has written them already. At the end, another draft than the first may be the likeliest.
    """
    fill = filling.fill
    is_off = fill.n_holes > 1 or not fill.switches.causal or not fill.profile.causal_rows
    if is_off or filling.lengths is not None or not _pays(filling):
        return
    written: list[Draft] = []
    if filling.live is None:
        filling.live = Live(
            lambda: (_text_so_far(fill, written[0]),) if written else (),
            lambda: _results(fill, [draft for draft in written if draft.is_finished], filling.scorer),
        )
    pace, is_late = filling.resources.pace, None
    work = _drafts(fill, filling.scorer)
    while True:
        began = pace.clock()
        try:
            written = work.send(is_late)
        except StopIteration as stop:
            written = []  # they are proposals now
            yield from _results(fill, stop.value, filling.scorer)
            return
        pace.note("token", fill.profile.causal_rows, (pace.clock() - began) * 1000)
        is_late = filling.budget.left_ms(filling.score_ms()) <= 0
        if not is_late:
            yield None


def _pays(filling: Filling) -> bool:
    """Return whether a causal draft pays: it takes no longer than the time left, or than the canvas took.

    Without a deadline it always pays, because answers must not depend on the clock.
    """
    fill, budget = filling.fill, filling.budget
    if not budget.is_limited:
        return True
    left_ms = budget.left_ms(filling.score_ms())
    token_ms = filling.resources.pace.expected_ms("token", fill.profile.causal_rows)
    if token_ms is None or filling.steps is None:
        return left_ms > 0
    lengths = [len(fill.vocabulary.encode(each.text)) for each in filling.proposals if each.row == "noise"]
    draft_ms = token_ms * (1 + max(lengths, default=max(fill.gap_lengths())))
    canvas_ms = max(filling.steps.denoiser.canvas.steps) * (filling.step_ms(filling.steps.width) or 0.0)
    return draft_ms <= min(left_ms, canvas_ms)


def _drafts(fill: Fill, scorer: Scorer) -> Generator[list[Draft], bool | None, list[Draft]]:
    """Return the drafts, as `causal.drafts` does.

    Within a line there is one that starts with the likeliest token, because its branches start with other likely tokens too.
    In blocks, branches found hardly any right answer more.
    """
    end, line_ends = _stops(fill)
    has_branches = fill.profile.branches > 0 and not fill.is_block
    return causal.drafts(
        fill.passes,
        scorer.kv,
        fill.sheet.kv[-1],
        rows=1 if has_branches else fill.profile.causal_rows,
        most=min(MAX_CAUSAL_TOKENS, max(fill.gap_lengths())),
        first=fill.first_tokens(),
        banned=[token for token in fill.tokens.unwritable if token not in end],
        stops=end | line_ends,
        end=fill.sheet.end,
        file=scorer.file,
        alone=fill.profile.branches > 0,
        branches=fill.profile.branches if has_branches else 0,
        # Of blocks, the likeliest are the shortest.
        most_behind=MOST_BEHIND if has_branches else math.inf,
    )


def _results(fill: Fill, written: Sequence[Draft], scorer: Scorer) -> list[Proposal]:
    """Return the distinct texts of drafts. The scorer learns the log-probabilities that drafting computed."""
    end, line_ends = _stops(fill)
    results: dict[str, Proposal] = {}
    for draft in written:
        text = _text(fill, draft, end, line_ends)
        if draft.end is not None:
            scorer.learn(text, draft.ids, draft.logps, draft.end)
        results.setdefault(text, Proposal(text, "causal"))
    return list(results.values())


def _text_so_far(fill: Fill, draft: Draft) -> str:
    """Return the text of a causal draft that may still be written."""
    return fill.of_draft(layout.answer(fill.vocabulary, draft.ids, fill.sheet.heal))


def _stops(fill: Fill) -> tuple[set[int], set[int]]:
    """Return the tokens that end an answer, and those that end the line of an answer within one line."""
    end = {fill.sheet.end} if fill.sheet.end is not None else set(fill.vocabulary.special)
    return end, set() if fill.is_block else set(fill.vocabulary.with_newline)


def _text(fill: Fill, draft: Draft, end: Collection[int], line_ends: Collection[int]) -> str:
    """Return a causal draft's text, without a copy of the suffix unless the draft ended with an end token."""
    has_ended = draft.stop is not None and draft.stop in end
    # A token with a line end may contain text before it.
    is_line = draft.stop is not None and draft.stop in line_ends and not has_ended and fill.profile.line_ends
    ids = [*draft.ids, draft.stop] if is_line and draft.stop is not None else draft.ids
    text = layout.answer(fill.vocabulary, ids, fill.sheet.heal)
    return text if has_ended and fill.sheet.end is not None else fill.of_draft(text)
