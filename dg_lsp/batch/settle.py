"""Choose the fills of a file that stand together.

Each fill was judged alone, by polishing; here all of a file's fills meet. A file that parsed goes on parsing: where the
fills together add errors, the least sure ones go. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dg_lsp.batch.plan import Fill, Plan
from dg_lsp.core import confidence, syntax, values
from dg_lsp.core.values import Hole

BREAKS = "the fill does not parse together with the others of the file"
UNWRITABLE = "the fill holds characters that no source file can"


@dataclass(frozen=True, slots=True)
class Settled:
    """The fills to keep, the text with them in place, and why each other one went."""

    survivors: Mapping[Hole, Fill]
    text: str
    dropped: Mapping[Hole, str]


def settle(
    plan: Plan, fills: Mapping[Hole, Sequence[Fill]], attempt: int = 0, proven: frozenset[Hole] = frozenset()
) -> Settled:
    """Return the fills that stand together: of each hole the one at place `attempt`, or its last where it has fewer.

    Of fills that do not, `proven` ones are the last to go.
    """
    by_hole = {hole: choices[min(attempt, len(choices) - 1)] for hole, choices in fills.items() if choices}
    dropped = {hole: UNWRITABLE for hole, fill in by_hole.items() if not _is_writable(fill.edit.text)}
    survivors = {hole: fill for hole, fill in by_hole.items() if hole not in dropped}
    while True:
        text = text_with(plan, survivors)
        if not survivors or not _breaks(plan, text):
            return Settled(survivors, text, dropped)
        # The last of equals, so that what stands first in the file wins.
        worst = min(reversed(survivors), key=lambda hole: (hole in proven, confidence.order(survivors[hole].confidence)))
        del survivors[worst]
        dropped[worst] = BREAKS


def n_attempts(fills: Mapping[Hole, Sequence[Fill]]) -> int:
    """Return how many different choices `settle` has."""
    return max(map(len, fills.values()), default=0)


def text_with(plan: Plan, fills: Mapping[Hole, Fill]) -> str:
    """Return the file's text with these fills in place."""
    return values.apply(plan.source.document.text, tuple(fill.edit for fill in fills.values()))


def parses_alone(plan: Plan, fill: Fill) -> bool:
    """Return whether the file can hold the fill and, with it alone, has no more syntax errors than before."""
    return _is_writable(fill.edit.text) and not _breaks(plan, values.apply(plan.source.document.text, (fill.edit,)))


def unfit(plan: Plan, choices: Sequence[Fill]) -> str:
    """Return why a hole's fills can't stand in the file, where none can."""
    return BREAKS if any(_is_writable(fill.edit.text) for fill in choices) else UNWRITABLE


def _is_writable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _breaks(plan: Plan, text: str) -> bool:
    before = plan.syntax
    return before is not None and syntax.adds_errors(syntax.parse(text, before.language), before)
