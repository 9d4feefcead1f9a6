"""Propose drafts: copies from the file and from related texts, and what the encoder writes from left to right.

Several holes get no drafts. Knows canvas requests, texts and drafts. Knows nothing of denoising.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dg_lsp.engine.common import drafts
from dg_lsp.engine.common.drafts import LONGEST_DRAFT, MOST_BEHIND, CausalDraft, Drafting, DraftSettings
from dg_lsp.engine.common.generation import Live, Work
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.diffusion.generation import CanvasRequest, Generation


def propose(generation: Generation) -> Work:
    """Propose the causal drafts that are complete before the time runs out, and their branches.

    At the end, another draft than the first may be the likeliest.
    """
    canvas, timing = generation.canvas, generation.timing
    is_off = canvas.n_holes > 1 or not canvas.profile.causal_rows
    if is_off or timing.budget.left_ms(generation.score_ms()) <= 0:
        return
    written: list[CausalDraft] = []
    is_open = True  # what is written is not in the proposals yet
    # The first draft stays visible until the answer replaces it.
    generation.live = Live(
        lambda: (canvas.of_draft(canvas.text_of(written[0].ids)),) if written else (),
        lambda: _proposals(canvas, [draft for draft in written if draft.is_finished]) if is_open else [],
    )
    n_rows = canvas.profile.causal_rows
    found, _ = yield from drafts.finished(_drafts(generation), n_rows, timing, generation.score_ms, written)
    is_open = False
    generation.proposals += _proposals(canvas, found)


def _drafts(generation: Generation) -> Drafting:
    """Return the drafts, as `drafts.drafts` does.

    Within a line there is one that starts with the likeliest token, because its branches start with other likely tokens too.
    In blocks, branches found hardly any right answer more.
    """
    canvas, scorer, profile = generation.canvas, generation.scorer, generation.canvas.profile
    n_branches = 0 if canvas.is_block else profile.branches
    settings = DraftSettings(
        rows=1 if n_branches else profile.causal_rows,
        most=min(LONGEST_DRAFT, max(canvas.gap_lengths())),
        allowed=canvas.next_tokens,
        banned=canvas.banned,
        stops=canvas.ends | canvas.line_ends,
        end=canvas.prompt.end,
        file=scorer.file,
        alone=profile.branches > 0,
        branches=n_branches,
        most_behind=MOST_BEHIND if n_branches else math.inf,
    )
    return drafts.drafts(canvas.loaded.passes, generation.tree, settings)


def _proposals(canvas: CanvasRequest, written: Sequence[CausalDraft]) -> list[Proposal]:
    """Return the distinct texts of drafts."""
    texts = dict.fromkeys(canvas.draft_text(draft.ids, draft.stop) for draft in written)
    return [Proposal(text, "causal") for text in texts]
