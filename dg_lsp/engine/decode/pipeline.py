"""Propose, score, rank: some ways propose texts for the hole, one pass scores them all, and one scale ranks them.

    request -> Sheet -> FillInput -> Filling (the encoded prefix)
    each proposer that the profile lists for this kind of hole -> Proposal, ...
    all Proposals -> a causal pass over their tree (scoring.py) -> ranked (rank.py, core.calibration) -> Candidate, ...

A proposer is a generator. It yields proposals, and None after each uninterruptible unit of work. It returns True if no other
proposer is needed. Knows the order of the stages. Knows nothing of how texts are proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from dg_lsp.core import calibration
from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import Candidate
from dg_lsp.engine.decode import scoring
from dg_lsp.engine.decode.filling import Filling, Item
from dg_lsp.engine.decode.propose import canvas, copying, drafting, masked, search, several_canvases

PROPOSERS: dict[str, tuple[Callable[[Filling], Generator[Item, None, bool | None]], str]] = {
    "copy": (copying.propose, "draft"),
    "previous": (canvas.previous, "denoise"),
    "search": (search.propose, "denoise"),
    "causal": (drafting.propose, "draft"),
    "canvas": (canvas.propose, "denoise"),
    "repair": (canvas.repair, "denoise"),
    "several_canvases": (several_canvases.propose, "denoise"),
    "masked": (masked.propose, "denoise"),
}
"""Each proposer by its name in a profile, and the stage that its time counts for."""


def run(filling: Filling) -> Generator[None, None, tuple[Candidate, ...]]:
    """Return the ranked candidates of one canvas, best first."""
    usage, fill = filling.usage, filling.fill
    usage.switch("prefill")
    yield from filling.begin(copying.file_model(fill, fill.profile.file_weight))
    joint: list[Evidence] = []  # of canvases with several holes
    for name in fill.proposers:
        propose, stage = PROPOSERS[name]
        usage.switch(stage)
        is_settled = yield from _collected(propose(filling), filling, joint)
        if is_settled:
            break
    usage.switch("score")
    if fill.n_holes > 1:
        return calibration.to_candidates(joint, None)
    if not filling.proposals:
        return ()
    yield from filling.score()
    filling.read_on()
    return calibration.to_candidates(scoring.evidence(fill, filling.proposals, filling.n_steps), fill.calibration)


def _collected(
    work: Generator[Item, None, bool | None], filling: Filling, joint: list[Evidence]
) -> Generator[None, None, bool]:
    """Add what a proposer yields to the filling, or to `joint`; return whether it settles the answer."""
    while True:
        try:
            item = next(work)
        except StopIteration as stop:
            return bool(stop.value)
        if item is None:
            yield
        elif isinstance(item, Evidence):
            joint.append(item)
        else:
            filling.proposals.append(item)
