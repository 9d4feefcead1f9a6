"""Let the user review each hole: accept, reject, show the next candidate, edit.

This module does not know the terminal; it shows text and asks through functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dg_lsp.batch import diff, settle
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.plan import where
from dg_lsp.core import confidence
from dg_lsp.core.confidence import Ranked
from dg_lsp.core.values import Edit, Hole
from dg_lsp.infill.fill import Fill, edits

REJECTED = "you rejected it"
UNREVIEWED = "you quit the review"
QUESTION = "accept, reject, next, edit, quit (a/r/n/e/q)"


@dataclass(frozen=True, slots=True)
class Terminal:
    """Functions that show text, ask for a letter, and let the user edit text (None: unchanged)."""

    show: Callable[[str], None]
    ask: Callable[[str], str]
    edit: Callable[[str], str | None]


def review(results: Sequence[FileResult], terminal: Terminal) -> list[FileResult]:
    """Return the results with the user's decisions; after `quit`, no further fill is accepted."""
    reviewed: list[FileResult] = []
    has_quit = False
    for result in results:
        fills: dict[Hole, Fill] = {}
        reasons, proofs = dict(result.reasons), dict(result.proofs)
        for hole in sorted({*result.fills, *result.unsure}, key=lambda hole: hole.span):
            answer = None if has_quit else _decided(result, hole, fills, terminal)
            has_quit = answer is None
            if isinstance(answer, Fill):
                fills[hole] = answer
                if answer != result.fills.get(hole):
                    proofs.pop(hole, None)  # the check proved another text
            else:
                reasons[hole] = UNREVIEWED if has_quit else REJECTED
                proofs.pop(hole, None)
        unsure = {hole: why for hole, why in result.unsure.items() if hole not in fills and hole not in reasons}
        reviewed.append(replace(result, fills=fills, reasons=reasons, unsure=unsure, proofs=proofs))
    return reviewed


def _decided(result: FileResult, hole: Hole, fills: dict[Hole, Fill], terminal: Terminal) -> Fill | bool | None:
    """Return the accepted fill, False if the user rejects all, None if the user quits."""
    source = result.plan.source
    first = [result.fills[hole]] if hole in result.fills else []
    choices = first + [fill for fill in result.candidates.get(hole, ()) if fill not in first]
    place, n_model = 0, len(choices)
    while True:
        fill = choices[place]
        proof = f", proved by {result.proofs[hole]}" if hole in result.proofs and fill in first else ""
        reason = f" ({result.unsure[hole]})" if hole in result.unsure else ""
        sure = "edited by you" if place >= n_model else confidence.words(fill.confidence)
        terminal.show(f"{source.name}:{where(source.document, hole)}: {place + 1} of {len(choices)}, {sure}{proof}{reason}\n")
        terminal.show(diff.unified(source.name, source.document.text, edits(source.document, (fill,))))
        letter = terminal.ask(QUESTION)
        if letter == "n":
            place = (place + 1) % len(choices)
        elif letter == "e":
            text = terminal.edit(fill.edit.text)
            if text is not None and text != fill.edit.text:
                place = len(choices)
                choices.append(Fill(Edit(hole.span, text), Ranked(), 0))
        elif letter == "a":
            if settle.settle(result.plan, {**{other: (one,) for other, one in fills.items()}, hole: (fill,)}).dropped:
                terminal.show(f"{settle.BREAKS}\n")
                continue
            return fill
        elif letter == "r":
            return False
        elif letter == "q":
            return None
