"""Decide which of a file's fills to accept: those that the check proves, and those with a high enough probability.

A hole without such a fill stays open: it is `unsure`, with a reason and its candidates. A fill is also rejected if it does not
parse together with the others, or if the check rejects it. The check runs for each file alone, and then for all files
together: if the whole patch fails, it is split in halves and checked again, so that few files are left out. Changes no file.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dg_lsp import OUT_OF_MEMORY, is_out_of_memory
from dg_lsp.batch import check
from dg_lsp.batch.check import Copies, Prober, root_of
from dg_lsp.batch.options import Options
from dg_lsp.batch.plan import FilePlan
from dg_lsp.batch.rounds import HoleResult
from dg_lsp.batch.scratch import Copy, ScratchError
from dg_lsp.batch.verify import Outcome, Verifier, by_halves
from dg_lsp.core import confidence, syntax
from dg_lsp.core.confidence import Threshold
from dg_lsp.core.values import Hole
from dg_lsp.infill.fill import Fill, text_with

# Lower at markers, cursors and selections, because the user has named these places. Of the one-line answers there with a
# probability of at least 0.5, four of five are right with Qwen2.5-Coder, and seven of ten with the embedded model
# (docs/measurements.md). Answers of several lines reach 0.5 too seldom to be measured, so they need LINES_AT_MARKER.
DEFAULT_MIN_CONFIDENCE: Mapping[str, float] = {"body": 0.8, "marker": 0.5, "error": 0.8, "cursor": 0.5, "selection": 0.5}
LINES_AT_MARKER = 0.8
BREAKS = "the file does not parse with this fill and its other fills"
UNWRITABLE = "the fill contains characters that a source file can't contain"
# Such a file is UTF-8 only as long as it is ASCII.
_OTHER_ENCODING = re.compile(r"\A(?:#.*\n|[ \t\f]*\n)?[ \t\f]*#.*?coding[:=][ \t]*(?!utf-?8\b)[\w.-]", re.IGNORECASE)


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
class Decision:
    """What becomes of a hole: the accepted fill and what proved it, or why the hole stays open.

    `is_unsure`: a fill is there, but neither proven nor likely enough. `candidates` are all fills, of further rounds too.
    """

    answer: HoleResult
    candidates: tuple[Fill, ...] = ()
    fill: Fill | None = None
    proof: str = ""
    reason: str = ""
    is_unsure: bool = False


@dataclass(frozen=True, slots=True)
class FileResult:
    """The decision about each of a file's holes. `tests` are those that pass with the proven fills, if the check has tests."""

    plan: FilePlan
    decisions: Mapping[Hole, Decision]
    tests: frozenset[str] = frozenset()

    @property
    def fills(self) -> dict[Hole, Fill]:
        """The accepted fills."""
        return {hole: decision.fill for hole, decision in self.decisions.items() if decision.fill}

    @property
    def text(self) -> str:
        """The file's text with the fills in place."""
        return text_with(self.plan.source.document, self.fills.values())

    def refused(self, reason: str, kept: frozenset[Hole] = frozenset()) -> FileResult:
        """Return the result without any fill but those of `kept`, for this reason."""
        decisions = {
            hole: replace(decision, fill=None, proof="", reason=reason) if decision.fill and hole not in kept else decision
            for hole, decision in self.decisions.items()
        }
        return replace(self, decisions=decisions)


async def keep(
    plan: FilePlan, by_hole: Mapping[Hole, HoleResult], options: Options | None = None, copies: Copies | None = None
) -> FileResult:
    """Return which fills are accepted. With `copies` the check runs; while it rejects all fills, the results provide more."""
    options = options or Options()
    fills = {hole: answer.fills for hole, answer in by_hole.items() if answer.fills}
    candidates = dict(fills)
    tests = frozenset[str]()

    def decided(outcomes: Mapping[Hole, Outcome]) -> FileResult:
        return FileResult(plan, _decisions(plan, by_hole, candidates, outcomes, options), tests)

    def all_refused(reason: str) -> FileResult:
        return decided(dict.fromkeys(fills, Outcome((), reason=reason)))

    async def retry_and_record(hole: Hole, round_number: int, failure: str) -> Sequence[Fill]:
        further = by_hole[hole].further
        more = await further(hole, round_number, failure) if further else ()
        candidates[hole] = (*candidates[hole], *more)
        return more

    try:
        settle(plan, fills)
    except ValueError as error:  # overlapping fills; only this file fails
        return all_refused(f"the fills can't be put into the file: {error}")
    if copies is None or not fills:
        return decided({hole: Outcome(choices) for hole, choices in fills.items()})
    try:
        async with copies.taken(root_of(plan, copies.check.folder)) as copy:
            usable = {hole: tuple(fill for fill in choices if _fits(plan, fill)) for hole, choices in fills.items()}
            usable = {hole: choices for hole, choices in usable.items() if choices}
            verifier = Verifier(usable, Prober(plan, copy, copies.check), retry_and_record)
            outcomes = dict(await verifier.outcomes())
            tests = verifier.passing_tests
            result = decided(outcomes)
            unproven = [hole for hole in result.fills if not result.decisions[hole].proof]
            if unproven and (problem := await verifier.problem_of([fill.edit for fill in result.fills.values()])):
                result = decided({**outcomes, **dict.fromkeys(unproven, Outcome((), reason=problem))})
            return result
    except (ScratchError, OSError) as error:
        # If the check can't run, no fill is accepted.
        why = str(error)
        if isinstance(error, OSError) and error.strerror:
            why = f"{error.filename or 'its copy'}: {error.strerror.lower()}"
        return all_refused(f"it can't be checked: {OUT_OF_MEMORY if is_out_of_memory(error) else why}")


def _decisions(
    plan: FilePlan,
    by_hole: Mapping[Hole, HoleResult],
    candidates: Mapping[Hole, tuple[Fill, ...]],
    outcomes: Mapping[Hole, Outcome],
    options: Options,
) -> dict[Hole, Decision]:
    """Return the decisions with the largest set of proven or sure fills that parse together."""
    decisions: dict[Hole, Decision] = {}
    sure: dict[Hole, tuple[Fill, ...]] = {}
    for hole, answer in by_hole.items():
        fills = candidates.get(hole, ())
        reason, is_unsure = answer.reason, False
        if outcome := outcomes.get(hole):
            rejections = [(fill, "" if outcome.proof else rejection(options, hole, fill)) for fill in outcome.choices]
            if choices := tuple(fill for fill, why in rejections if not why):
                sure[hole] = choices
            reason, is_unsure = outcome.reason, bool(rejections)
            if rejections:
                reason = f"{reason}, and {rejections[0][1]}" if reason else rejections[0][1]
        elif fills:
            reason = BREAKS if any(_is_writable(plan, fill) for fill in fills) else UNWRITABLE
        decisions[hole] = Decision(answer, fills, reason=reason, is_unsure=is_unsure)
    proven = frozenset(hole for hole in sure if outcomes[hole].proof)
    attempts = [settle(plan, sure, place, proven) for place in range(max(map(len, sure.values()), default=0))]
    survivors, dropped = max(attempts, key=lambda attempt: len(attempt[0]), default=({}, {}))
    for hole, fill in survivors.items():
        decisions[hole] = replace(decisions[hole], fill=fill, proof=outcomes[hole].proof, reason="", is_unsure=False)
    for hole, reason in dropped.items():
        decisions[hole] = replace(decisions[hole], reason=reason, is_unsure=False)
    return decisions


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
                    await by_halves(group, functools.partial(_add_passing, copies, copy, chosen))
            left_out |= {result.plan.source.path for result in group if result not in chosen}
    return [result.refused(FAILS_TOGETHER) if result.plan.source.path in left_out else result for result in results]


async def _add_passing(copies: Copies, copy: Copy, chosen: list[FileResult], group: Sequence[FileResult]) -> bool:
    """Add the files of the group to the chosen ones if all pass together; return whether they do."""
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
    passes = expected <= verdict.tests.passed if verdict.tests is not None and expected else not verdict.problem
    chosen += group if passes else ()
    return passes


# --- The fills of a file that parse together. Polishing checks each fill alone. A file that parsed before must still parse: if
# the fills together add errors, the least sure ones are dropped.


def settle(
    plan: FilePlan, fills: Mapping[Hole, Sequence[Fill]], attempt: int = 0, proven: frozenset[Hole] = frozenset()
) -> tuple[dict[Hole, Fill], dict[Hole, str]]:
    """Return the fills that parse together, and why each other one was dropped.

    Of each hole it is the fill with index `attempt`, or the last one if there are fewer. `proven` ones are dropped last.
    """
    by_hole = {hole: choices[min(attempt, len(choices) - 1)] for hole, choices in fills.items() if choices}
    dropped = {hole: UNWRITABLE for hole, fill in by_hole.items() if not _is_writable(plan, fill)}
    survivors = {hole: fill for hole, fill in by_hole.items() if hole not in dropped}
    while True:
        text = text_with(plan.source.document, survivors.values())
        if not survivors or not _breaks(plan, text):
            return survivors, dropped
        # Of equally sure fills the last one is dropped.
        worst = min(reversed(survivors), key=lambda hole: (hole in proven, confidence.order(survivors[hole].confidence)))
        del survivors[worst]
        dropped[worst] = BREAKS


def _is_writable(plan: FilePlan, fill: Fill) -> bool:
    try:
        fill.edit.text.encode("ascii" if _OTHER_ENCODING.match(plan.source.document.text) else "utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in fill.edit.text


def _fits(plan: FilePlan, fill: Fill) -> bool:
    """Return whether the file can contain a fill, without more syntax errors than before."""
    return _is_writable(plan, fill) and not _breaks(plan, text_with(plan.source.document, (fill,)))


def _breaks(plan: FilePlan, text: str) -> bool:
    if plan.syntax is None:
        return False
    after = syntax.of(replace(plan.source.document, text=text))
    return after is None or syntax.adds_errors(after, plan.syntax)
