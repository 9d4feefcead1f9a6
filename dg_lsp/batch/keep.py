"""Decide what stays of a file's fills: what the check proved, and what the model is sure of.

A hole whose fills are neither stays open: `unsure`, with a reason and its candidates. No fill stays that does not parse
together with the others, or that the check rejects. Changes no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dg_lsp.batch import settle
from dg_lsp.batch.copies import Copies, Prober, root_of
from dg_lsp.batch.plan import Fill, Plan
from dg_lsp.batch.raising import token_of
from dg_lsp.batch.run import HoleResult
from dg_lsp.batch.scratch import ScratchError
from dg_lsp.batch.verify import Again, Outcome, Verifier
from dg_lsp.core import confidence
from dg_lsp.core.confidence import Threshold
from dg_lsp.core.values import Hole

# A probability states how often such an answer is right, so four of five fills that pass are right. A place that the user
# named is looked at by the user, so there more than half is enough.
DEFAULT_MIN_CONFIDENCE: Mapping[str, float] = {"body": 0.8, "marker": 0.8, "error": 0.8, "cursor": 0.5, "selection": 0.5}


@dataclass(frozen=True, slots=True)
class AcceptanceRule:
    """Which fills are sure enough: those of at least this probability (None: the default of the hole's kind), or all."""

    min_confidence: float | None = None
    takes_all: bool = False

    def reason(self, hole: Hole, fill: Fill) -> str:
        """Return why the fill is not sure enough, "" when it is."""
        least = DEFAULT_MIN_CONFIDENCE[hole.kind] if self.min_confidence is None else self.min_confidence
        if self.takes_all or confidence.is_sure(fill.confidence, Threshold(least)):
            return ""
        if confidence.probability(fill.confidence) is None:
            return "the model states no probability; calibrate it, or name a --check"
        return f"its probability is {confidence.words(fill.confidence)}, below --min-confidence {least:g}"


@dataclass(frozen=True, slots=True)
class FileResult:
    """What became of a file: the fills that stay, why other holes are unsure or failed, and all candidates of each hole.

    `proofs` says for a fill what proved it; `tests` are those that pass with the proven fills, where the check has tests.
    """

    plan: Plan
    fills: Mapping[Hole, Fill]
    reasons: Mapping[Hole, str]
    unsure: Mapping[Hole, str] = field(default_factory=dict)
    proofs: Mapping[Hole, str] = field(default_factory=dict)
    candidates: Mapping[Hole, tuple[Fill, ...]] = field(default_factory=dict)
    tests: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The file's text with the fills in place."""
        return settle.text_with(self.plan, self.fills)

    def without(self, holes: Iterable[Hole], reason: str) -> FileResult:
        """Return the result with these holes failed for this reason."""
        failed = dict.fromkeys(holes, reason)
        return replace(
            self,
            fills={hole: fill for hole, fill in self.fills.items() if hole not in failed},
            proofs={hole: proof for hole, proof in self.proofs.items() if hole not in failed},
            reasons={**self.reasons, **failed},
        )


async def no_more(_hole: Hole, _round: int, _failure: str) -> Sequence[Fill]:
    """Return no further fills: there are no retries."""
    return ()


async def keep(
    plan: Plan,
    by_hole: Mapping[Hole, HoleResult],
    rule: AcceptanceRule | None = None,
    copies: Copies | None = None,
    again: Again = no_more,
    beside: Mapping[Path, str] | None = None,
) -> FileResult:
    """Return what stays of the fills; with `copies` the check is asked, and further rounds of fills while it rejects them.

    `beside` are the texts of other files that the check sees in place of what they hold.
    """
    rule = rule or AcceptanceRule()
    reasons = {hole: answer.reason for hole, answer in by_hole.items() if not answer.fills}
    fills = {hole: answer.fills for hole, answer in by_hole.items() if answer.fills}
    try:
        settle.settle(plan, fills)
    except ValueError as error:  # fills that can't be put into one text are this file's failure alone
        return FileResult(
            plan, {}, reasons | dict.fromkeys(fills, f"the fills can't be put into the file: {error}"), candidates=fills
        )
    if copies is None or not fills:
        outcomes = {hole: Outcome(choices) for hole, choices in fills.items()}
        return _decided(plan, outcomes, rule, reasons, fills)
    drawn = dict(fills)

    async def noted(hole: Hole, round_number: int, failure: str) -> Sequence[Fill]:
        more = await again(hole, round_number, failure)
        drawn[hole] = (*drawn[hole], *more)
        return more

    try:
        async with copies.taken(root_of(plan, copies.check.folder)) as copy, copy.holding(beside or {}):
            prober = Prober(plan, copy, copies.check)
            writable = {
                hole: tuple(fill for fill in choices if settle.parses_alone(plan, fill)) for hole, choices in fills.items()
            }
            tokens = {hole: token_of(plan.source.document, hole) for hole in plan.holes}
            verifier = Verifier(
                {hole: choices for hole, choices in writable.items() if choices}, prober.raising(), tokens, prober.probe, noted
            )
            outcomes = dict(await verifier.outcomes())
            result = _decided(plan, outcomes, rule, reasons, drawn)
            if any(hole not in result.proofs for hole in result.fills):
                problem = await verifier.problem_of([fill.edit for fill in result.fills.values()])
                if problem:
                    rejected = {hole: Outcome((), reason=problem) for hole in result.fills if hole not in result.proofs}
                    result = _decided(plan, outcomes | rejected, rule, reasons, drawn)
    except (ScratchError, OSError) as error:
        # An unverified fill is not kept because the check could not be run.
        return FileResult(plan, {}, reasons | dict.fromkeys(fills, f"it can't be checked: {error}"), candidates=drawn)
    return replace(result, tests=verifier.passing_tests)


def _decided(
    plan: Plan,
    outcomes: Mapping[Hole, Outcome],
    rule: AcceptanceRule,
    reasons: Mapping[Hole, str],
    candidates: Mapping[Hole, tuple[Fill, ...]],
) -> FileResult:
    """Return the best fills that stand together, of those that are proven or sure."""
    proofs = {hole: outcome.proof for hole, outcome in outcomes.items() if outcome.proof}
    failed = {hole: outcome.reason for hole, outcome in outcomes.items() if not outcome.choices}
    failed |= {hole: settle.unfit(plan, choices) for hole, choices in candidates.items() if hole not in outcomes}
    sure, unsure = {}, {}
    for hole, outcome in outcomes.items():
        choices = tuple(fill for fill in outcome.choices if outcome.proof or not rule.reason(hole, fill))
        if choices:
            sure[hole] = choices
        elif outcome.choices:
            why = rule.reason(hole, outcome.choices[0])
            unsure[hole] = f"{outcome.reason}, and {why}" if outcome.reason else why
    attempts = [settle.settle(plan, sure, place, proven=frozenset(proofs)) for place in range(settle.n_attempts(sure))]
    best = max(attempts, key=lambda attempt: len(attempt.survivors), default=None)
    survivors = best.survivors if best else {}
    dropped = best.dropped if best else {}
    return FileResult(
        plan,
        survivors,
        {**reasons, **failed, **dropped},
        unsure,
        {hole: proof for hole, proof in proofs.items() if hole in survivors},
        candidates,
    )
