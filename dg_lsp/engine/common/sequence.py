"""Fill several holes of one request in sequence.

Knows requests and candidates. Knows nothing of the model that fills them, whether local or remote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dg_lsp.core import confidence, scope
from dg_lsp.core.values import Candidate, InfillRequest


def next_hole(request: InfillRequest, filled: Sequence[str]) -> InfillRequest:
    """Return the request for the first unfilled hole alone; the texts of the filled holes become part of its prefix.

    It need not bind the names that they mention.
    """
    index, hole = len(filled), request.holes[len(filled)]
    before = "".join(text + between for text, between in zip(filled, request.between, strict=False))
    return replace(
        request,
        prefix=request.prefix + before,
        suffix="".join([*request.between[index:], request.suffix]),
        holes=(replace(hole, needed=tuple(scope.missing(hole.needed, "\n".join(filled)))),),
        between=(),
        seed=request.seed + index,
    )


def wholes(parts: Sequence[Sequence[Candidate]]) -> tuple[Candidate, ...]:
    """Return candidates for all holes from those of the single holes, which are best first.

    The first has the best text of each hole, the second the second best, and so on. A hole with fewer texts repeats its best
    one. All were written after the best texts of the holes before them, so only the first one's product is a probability.
    """
    n_texts = max(len(part) for part in parts)
    rows = [[part[place if place < len(part) else 0] for part in parts] for place in range(n_texts)]
    return tuple(
        Candidate(
            tuple(one.texts[0] for one in row),
            confidence.joint(one.confidence for one in row),
            tuple(one.confidences[0] if one.confidences else () for one in row),
            row[0].row,
            sum(one.steps for one in row),
            lengths=tuple(one.lengths[0] for one in row) if all(one.lengths for one in row) else (),
            alone=tuple(one.confidence for one in row),
        )
        for row in rows
    )
