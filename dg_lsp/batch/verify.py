"""Find out which fills of a file the user's check proves.

A check proves a fill only if it executes the hole and fails while the hole raises an error, and passes with the fill. If the
check runs pytest, each test counts: every test that executes the hole must pass with the fill, unless it then executes
another open hole, and no test that passed before may fail. Otherwise only the command's exit status counts. The `Prober`
applies edits and runs the check.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dg_lsp.batch.check import Prober, Tests, Verdict
from dg_lsp.core.values import Edit, Hole
from dg_lsp.core.wording import counted
from dg_lsp.infill.fill import Fill

UNREACHED = "no test that the check runs reaches the hole"
BLOCKED = "every test that reaches the hole also reaches another open hole"
NO_PROOF = "the check passes even if the hole raises an error, so it proves nothing"
UNRAISABLE = "no statement that raises an error fits into the hole, so the check proves nothing"
_MAX_LINE_CHARS = 300
Item = TypeVar("Item")
_FEW_TESTS = 4  # a hole's tests run alone first if at most one in so many tests is among them


@dataclass(frozen=True, slots=True)
class Outcome:
    """A hole's fills that the check did not reject, and what it proved, or why it rejected all or proved none."""

    choices: tuple[Fill, ...]
    proof: str = ""
    reason: str = ""


async def by_halves(items: Sequence[Item], passes: Callable[[Sequence[Item]], Awaitable[bool]]) -> None:
    """Try all items together; if they do not pass, each half of them, down to single ones."""
    if items and not await passes(items) and len(items) > 1:
        middle = len(items) // 2
        await by_halves(items[:middle], passes)
        await by_halves(items[middle:], passes)


# Returns the next round's fills of a hole, given the round (from 1) and the failure's message; empty after the last round.
Retry = Callable[[Hole, int, str], Awaitable[Sequence[Fill]]]


@dataclass(slots=True)
class Verifier:
    """Verifies the holes of one file."""

    fills: Mapping[Hole, Sequence[Fill]]
    prober: Prober
    retry: Retry
    _outcomes: dict[Hole, Outcome] = field(default_factory=dict)
    _accepted: dict[Hole, Fill] = field(default_factory=dict)
    _tests: Tests | None = None

    async def outcomes(self) -> Mapping[Hole, Outcome]:
        """Return the outcome of each hole that has fills."""
        open_holes = [hole for hole in self.fills if hole in self.prober.raising]
        first = await self._probed(open_holes)
        if first.tests is not None and (first.tests.passed or first.tests.failing):
            await self._by_tests(open_holes, first.tests)
        else:
            await self._by_status(first)
        return self._outcomes

    @property
    def passing_tests(self) -> frozenset[str]:
        """The tests that pass with the proven fills, if the check reports tests."""
        return self._tests.passed if self._tests else frozenset()

    async def problem_of(self, edits: Sequence[Edit]) -> str:
        """Return why the check rejects these edits together, or "". Some of them may be unproven fills."""
        verdict = await self.prober.probe(edits)
        if self._tests is None or verdict.tests is None:
            return verdict.problem
        lost = sorted(self._tests.passed - verdict.tests.passed)
        return f"{lost[0]} fails: {_end(verdict.tests.failing.get(lost[0], 'it was not run'))}" if lost else ""

    async def _probed(
        self, raising: Iterable[Hole], more: Mapping[Hole, Fill] | None = None, tests: Collection[str] = ()
    ) -> Verdict:
        """Run the check with the accepted fills and some more, while the other given holes raise errors."""
        chosen = {**self._accepted, **(more or {})}
        errors = [self.prober.raising[hole] for hole in raising if hole not in chosen]
        return await self.prober.probe([*(fill.edit for fill in chosen.values()), *errors], tests)

    async def _by_tests(self, open_holes: Sequence[Hole], tests: Tests) -> None:
        for hole in self.fills:
            if hole not in self.prober.raising:
                self._outcomes[hole] = Outcome(tuple(self.fills[hole]), reason=UNRAISABLE)
        self._tests = tests
        pending = list(open_holes)
        blocked: dict[Hole, tuple[Fill, ...]] = {}
        while reached := [hole for hole in pending if hole not in blocked and self._reached(hole, self._tests)]:
            hole = reached[0]
            undecided = await self._fill_by_tests(hole, open_holes, self._tests)
            if undecided:
                blocked[hole] = undecided
            else:
                pending.remove(hole)
            if hole in self._accepted:
                blocked.clear()  # tests that executed this hole may now pass or fail
        for hole in pending:
            choices, reason = (
                (blocked[hole], BLOCKED) if hole in blocked else (tuple(self.fills[hole]), _unreached(self._tests))
            )
            self._outcomes[hole] = Outcome(choices, reason=reason)

    def _reached(self, hole: Hole, tests: Tests) -> list[str]:
        return [name for name, text in tests.failing.items() if self.prober.tokens[hole] in text]

    async def _fill_by_tests(self, hole: Hole, open_holes: Sequence[Hole], before: Tests) -> tuple[Fill, ...]:
        """Accept the fill with which the hole's tests pass, or reject all; return those that depend on another open hole."""
        reached = self._reached(hole, before)
        others = {self.prober.tokens[other] for other in open_holes if other != hole and other not in self._accepted}
        failures = {hole: ""}
        undecided: list[Fill] = []
        n_first = len(self.fills[hole])
        async for fill in self._candidates(hole, failures):
            if undecided and n_first <= 0:
                return tuple(undecided)  # only holes whose fills are all wrong get further rounds
            n_first -= 1
            if len(reached) * _FEW_TESTS <= len(before.passed) + len(before.failing):
                alone = (await self._probed(open_holes, {hole: fill}, reached)).tests
                if alone and (wrong := _wrong(reached, alone, others)):
                    failures[hole] = f"{wrong[0]} fails: {_end(alone.failing[wrong[0]])}"
                    continue
            probed = await self._probed(open_holes, {hole: fill})
            tests = probed.tests
            if tests is None:
                failures[hole] = probed.problem or "the check reported no tests with the fill"
                continue
            failing = [name for name in reached if name in tests.failing]
            wrong = _wrong(reached, tests, others)
            lost = sorted(before.passed - tests.passed)
            # If a test file could not be imported before, its tests have other names afterwards.
            passing = [name for name in reached if name in tests.passed] or (not failing and tests.passed - before.passed)
            if passing and not lost and not wrong:
                self._accepted[hole] = fill
                self._outcomes[hole] = Outcome((fill,), proof=f"the check: {counted(len(passing), 'test')}")
                self._tests = tests
                return ()
            if failing and not lost and not wrong:
                undecided.append(fill)
            name = next(iter([*wrong, *lost, *reached]))
            failures[hole] = f"{name} fails: {_end(tests.failing.get(name, 'it was not run'))}"
        if not undecided:
            self._outcomes[hole] = Outcome((), reason=failures[hole])
        return tuple(undecided)

    async def _by_status(self, all_raising: Verdict) -> None:
        failures: dict[Hole, str] = {}
        await by_halves(list(self.fills), lambda holes: self._accept_together(holes, failures))
        for hole in [hole for hole in self.fills if hole not in self._accepted]:
            async for fill in self._candidates(hole, failures, n_tried=len(self.fills[hole])):
                probed = await self._probed((), {hole: fill})
                if not probed.problem:
                    self._accepted[hole] = fill
                    break
                failures[hole] = probed.problem
        for hole, fill in list(self._accepted.items()):
            proof, reason = "", UNRAISABLE
            if hole in self.prober.raising:
                # If the check passes while all holes raise errors, it also passes while one does.
                reason = NO_PROOF
                if all_raising.problem and await self._fails_without(hole):
                    proof, reason = "the check", ""
            self._outcomes[hole] = Outcome((fill,), proof, reason)
        for hole in self.fills:
            if hole not in self._accepted:
                self._outcomes[hole] = Outcome((), reason=failures[hole])

    async def _accept_together(self, holes: Sequence[Hole], failures: dict[Hole, str]) -> bool:
        """Accept fills that pass together: the first of all these holes, or any of one hole."""
        for index in range(len(self.fills[holes[0]]) if len(holes) == 1 else 1):
            chosen = {hole: self.fills[hole][index] for hole in holes}
            probed = await self._probed((), chosen)
            if not probed.problem:
                self._accepted.update(chosen)
                return True
            failures |= dict.fromkeys(holes, probed.problem)
        return False

    async def _fails_without(self, hole: Hole) -> bool:
        fill = self._accepted.pop(hole)
        try:
            probed = await self._probed([hole])
        finally:
            self._accepted[hole] = fill
        return bool(probed.problem) and hole in probed.executed

    async def _candidates(self, hole: Hole, failures: Mapping[Hole, str], n_tried: int = 0) -> AsyncIterator[Fill]:
        """Yield the hole's untried fills, then those of further rounds."""
        tried_texts = {fill.edit.text for fill in self.fills[hole][:n_tried]}
        fills, round_number = self.fills[hole], 0
        while fills:
            for fill in fills:
                if fill.edit.text not in tried_texts:
                    tried_texts.add(fill.edit.text)
                    yield fill
            round_number += 1
            fills = await self.retry(hole, round_number, failures[hole])


def _unreached(tests: Tests) -> str:
    """Return why no test reaches a hole. If no test passes, most likely the tests can't run at all."""
    if tests.passed:
        return UNREACHED
    names = sorted(tests.failing)
    return f"no test passes: {names[0]} fails: {_end(tests.failing[names[0]])}"


def _wrong(reached: Sequence[str], tests: Tests, other_tokens: Collection[str]) -> list[str]:
    """Return the tests of a hole that fail, and not because they ran into another open hole."""
    failing = {name: tests.failing[name] for name in reached if name in tests.failing}
    return [name for name, text in failing.items() if not any(token in text for token in other_tokens)]


def _end(text: str) -> str:
    """Return the most useful line of a failure: the first that pytest marks as an error, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (errors[:1] or lines or [""])[-1][:_MAX_LINE_CHARS]
