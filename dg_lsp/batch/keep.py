"""Decide which of a file's fills to accept: those that the check proves, and those with a high enough probability.

A hole without such a fill stays open: it is `unsure`, with a reason and its candidates. A fill is also rejected if it does not
parse together with the others, or if the check rejects it. The check runs for each file alone, and then for all files
together: if the whole patch fails, it is split in halves and checked again, so that few files are left out. Changes no file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dg_lsp.batch import check
from dg_lsp.batch.check import Copies, Prober, root_of
from dg_lsp.batch.options import Options
from dg_lsp.batch.plan import FilePlan
from dg_lsp.batch.rounds import HoleResult
from dg_lsp.batch.scratch import Copy, ScratchError
from dg_lsp.batch.verify import Outcome, Verifier
from dg_lsp.core import confidence, syntax
from dg_lsp.core.confidence import Threshold
from dg_lsp.core.values import Edit, Hole
from dg_lsp.infill.fill import Fill, text_with

# Lower at markers, cursors and selections, because the user has named these places. Of the one-line answers there with a
# probability of at least 0.5, four of five are right with Qwen2.5-Coder, and seven of ten with the embedded model
# (docs/measurements.md). Answers of several lines reach 0.5 too seldom to be measured, so they need LINES_AT_MARKER.
DEFAULT_MIN_CONFIDENCE: Mapping[str, float] = {"body": 0.8, "marker": 0.5, "error": 0.8, "cursor": 0.5, "selection": 0.5}
LINES_AT_MARKER = 0.8
BREAKS = "the file does not parse with this fill and its other fills"
UNWRITABLE = "the fill contains characters that a source file can't contain"


def rejection(options: Options, hole: Hole, fill: Fill) -> str:
    """Return why a fill that no check proves is rejected; "" if it is accepted."""
    has_lines = hole.kind == "marker" and "\n" in fill.text.strip()
    default = LINES_AT_MARKER if has_lines else DEFAULT_MIN_CONFIDENCE[hole.kind]
    least = default if options.min_confidence is None else options.min_confidence
    if options.take_all or confidence.is_sure(fill.confidence, Threshold(least)):
        return ""
    if confidence.probability(fill.confidence) is None:
        return "the model has no calibrated probabilities; run dg-lsp calibrate, or use --check"
    return f"its probability is {confidence.words(fill.confidence)}, below --min-confidence {least:g}"


@dataclass(frozen=True, slots=True)
class FileResult:
    """A file's accepted fills, why other holes are unsure or failed, and all candidates of each hole.

    `proofs` says what proved a fill. `tests` are those that pass with the proven fills, if the check reports tests. `answers`
    has what the requests returned for each hole.
    """

    plan: FilePlan
    fills: Mapping[Hole, Fill]
    reasons: Mapping[Hole, str]
    unsure: Mapping[Hole, str] = field(default_factory=dict)
    proofs: Mapping[Hole, str] = field(default_factory=dict)
    candidates: Mapping[Hole, tuple[Fill, ...]] = field(default_factory=dict)
    tests: frozenset[str] = frozenset()
    answers: Mapping[Hole, HoleResult] = field(default_factory=dict)

    @property
    def edits(self) -> list[Edit]:
        """The edits of the fills."""
        return [fill.edit for fill in self.fills.values()]

    @property
    def text(self) -> str:
        """The file's text with the fills in place."""
        return text_with(self.plan.source.document, self.fills.values())

    def without(self, holes: Iterable[Hole], reason: str) -> FileResult:
        """Return the result with these holes failed for this reason."""
        failed = dict.fromkeys(holes, reason)
        return replace(
            self,
            fills={hole: fill for hole, fill in self.fills.items() if hole not in failed},
            proofs={hole: proof for hole, proof in self.proofs.items() if hole not in failed},
            reasons={**self.reasons, **failed},
        )


async def keep(
    plan: FilePlan,
    by_hole: Mapping[Hole, HoleResult],
    options: Options | None = None,
    copies: Copies | None = None,
) -> FileResult:
    """Return which fills are accepted. With `copies` the check runs; while it rejects all fills, the results provide more."""
    options = options or Options()
    reasons = {hole: answer.reason for hole, answer in by_hole.items() if not answer.fills}
    fills = {hole: answer.fills for hole, answer in by_hole.items() if answer.fills}
    try:
        settle(plan, fills)
    except ValueError as error:  # overlapping fills; only this file fails
        return FileResult(
            plan, {}, reasons | dict.fromkeys(fills, f"the fills can't be put into the file: {error}"), candidates=fills
        )
    if copies is None or not fills:
        outcomes = {hole: Outcome(choices) for hole, choices in fills.items()}
        return _decided(plan, outcomes, options, reasons, fills)
    all_fills = dict(fills)

    async def retry_and_record(hole: Hole, round_number: int, failure: str) -> Sequence[Fill]:
        further = by_hole[hole].further
        more = await further(hole, round_number, failure) if further else ()
        all_fills[hole] = (*all_fills[hole], *more)
        return more

    try:
        async with copies.taken(root_of(plan, copies.check.folder)) as copy:
            usable: dict[Hole, tuple[Fill, ...]] = {}
            for hole, choices in fills.items():
                # What the file can contain, without more syntax errors than before.
                writable = (fill for fill in choices if _is_writable(fill.edit.text))
                if fitting := tuple(fill for fill in writable if not _breaks(plan, text_with(plan.source.document, (fill,)))):
                    usable[hole] = fitting
            verifier = Verifier(usable, Prober(plan, copy, copies.check), retry_and_record)
            outcomes = dict(await verifier.outcomes())
            result = _decided(plan, outcomes, options, reasons, all_fills)
            if any(hole not in result.proofs for hole in result.fills):
                problem = await verifier.problem_of(result.edits)
                if problem:
                    rejected = {hole: Outcome((), reason=problem) for hole in result.fills if hole not in result.proofs}
                    result = _decided(plan, outcomes | rejected, options, reasons, all_fills)
    except (ScratchError, OSError) as error:
        # If the check can't run, no fill is accepted.
        return FileResult(plan, {}, reasons | dict.fromkeys(fills, f"it can't be checked: {error}"), candidates=all_fills)
    return replace(result, tests=verifier.passing_tests)


def _decided(
    plan: FilePlan,
    outcomes: Mapping[Hole, Outcome],
    options: Options,
    reasons: Mapping[Hole, str],
    candidates: Mapping[Hole, tuple[Fill, ...]],
) -> FileResult:
    """Return the largest set of proven or sure fills that parse together."""
    proofs = {hole: outcome.proof for hole, outcome in outcomes.items() if outcome.proof}
    failed = {hole: outcome.reason for hole, outcome in outcomes.items() if not outcome.choices}
    for hole, choices in candidates.items():
        if hole not in outcomes:
            failed[hole] = BREAKS if any(_is_writable(fill.edit.text) for fill in choices) else UNWRITABLE
    sure, unsure = {}, {}
    for hole, outcome in outcomes.items():
        choices = tuple(fill for fill in outcome.choices if outcome.proof or not rejection(options, hole, fill))
        if choices:
            sure[hole] = choices
        elif outcome.choices:
            why = rejection(options, hole, outcome.choices[0])
            unsure[hole] = f"{outcome.reason}, and {why}" if outcome.reason else why
    n_attempts = max(map(len, sure.values()), default=0)
    attempts = [settle(plan, sure, place, proven=frozenset(proofs)) for place in range(n_attempts)]
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


FAILS_TOGETHER = "the check fails with the fills of the other files"


async def passing(results: Sequence[FileResult], copies: Copies) -> list[FileResult]:
    """Return the results, without the fills of files that fail the check together with the others."""
    by_root: dict[Path, list[FileResult]] = {}
    for result in results:
        if result.fills:
            by_root.setdefault(root_of(result.plan, copies.check.folder), []).append(result)
    left_out: set[Path] = set()
    for root, group in by_root.items():
        # With {} in the command, each file has its own check, which has passed already.
        if len(group) > 1 and "{}" not in copies.check.command:
            chosen: list[FileResult] = []
            async with copies.taken(root) as copy:
                with contextlib.suppress(OSError):  # files that can't be checked are left out
                    await _grow(copies, copy, group, chosen)
            left_out |= {result.plan.source.path for result in group} - {result.plan.source.path for result in chosen}
    return [
        result.without(result.fills, FAILS_TOGETHER) if result.plan.source.path in left_out else result for result in results
    ]


async def _grow(copies: Copies, copy: Copy, group: Sequence[FileResult], chosen: list[FileResult]) -> None:
    """Add to the chosen files those of the group that pass together with them: all, or else what passes of each half."""
    together = [*chosen, *group]
    copy.restore()
    try:
        for result in together:
            copy.put(result.plan.source.path, result.text.encode())
        verdict = await check.run(copies.check, copy, together[0].plan.source.path)
    finally:
        for result in together:
            copy.put(result.plan.source.path, result.plan.source.data)
    expected = frozenset[str]().union(*(result.tests for result in together))
    if expected <= verdict.tests.passed if verdict.tests is not None and expected else not verdict.problem:
        chosen += group
    elif len(group) > 1:
        middle = len(group) // 2
        await _grow(copies, copy, group[:middle], chosen)
        await _grow(copies, copy, group[middle:], chosen)


# --- The fills of a file that parse together. Polishing checks each fill alone. A file that parsed before must still parse: if
# the fills together add errors, the least sure ones are dropped.


@dataclass(frozen=True, slots=True)
class SettledFills:
    """The accepted fills, the text with them in place, and why each other fill was dropped."""

    survivors: Mapping[Hole, Fill]
    text: str
    dropped: Mapping[Hole, str]


def settle(
    plan: FilePlan, fills: Mapping[Hole, Sequence[Fill]], attempt: int = 0, proven: frozenset[Hole] = frozenset()
) -> SettledFills:
    """Return the fills that parse together: for each hole the one with index `attempt`, or its last if it has fewer.

    If some must be dropped, `proven` ones are dropped last.
    """
    by_hole = {hole: choices[min(attempt, len(choices) - 1)] for hole, choices in fills.items() if choices}
    dropped = {hole: UNWRITABLE for hole, fill in by_hole.items() if not _is_writable(fill.edit.text)}
    survivors = {hole: fill for hole, fill in by_hole.items() if hole not in dropped}
    while True:
        text = text_with(plan.source.document, survivors.values())
        if not survivors or not _breaks(plan, text):
            return SettledFills(survivors, text, dropped)
        # Of equally sure fills the last one is dropped.
        worst = min(reversed(survivors), key=lambda hole: (hole in proven, confidence.order(survivors[hole].confidence)))
        del survivors[worst]
        dropped[worst] = BREAKS


def _is_writable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _breaks(plan: FilePlan, text: str) -> bool:
    if plan.syntax is None:
        return False
    after = syntax.of(replace(plan.source.document, text=text))
    return after is None or syntax.adds_errors(after, plan.syntax)
