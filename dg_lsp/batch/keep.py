"""Keep what is good of a file's fills, and put it in place where asked to.

Good is what parses, and what the user's check passes, where there is one. For the check the file holds its fills, whether
they are to stay or not; afterwards, and when the run is interrupted, it holds what it should.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from dg_lsp.batch import check, recovery, settle, write
from dg_lsp.batch.plan import Fill, Plan
from dg_lsp.batch.run import HoleResult
from dg_lsp.core.values import Hole


@dataclass(frozen=True, slots=True)
class FileResult:
    """What became of a file: the fills that stay, and for each other hole why it has none."""

    plan: Plan
    fills: Mapping[Hole, Fill]
    reasons: Mapping[Hole, str]


class _StuckError(Exception):
    """The file is not what it was, or can't be written, so that no other attempt may be made; the message says why."""


async def keep(plan: Plan, by_hole: Mapping[Hole, HoleResult], *, to_write: bool, command: str = "") -> FileResult:
    """Return what is kept of the fills; with `to_write` the file holds them afterwards."""
    reasons = {hole: answer.reason for hole, answer in by_hole.items() if not answer.fills}
    fills = {hole: answer.fills for hole, answer in by_hole.items() if answer.fills}
    try:
        attempts = _attempts(plan, fills)
    except ValueError as error:  # fills that can't be put into one text are this file's failure alone
        return FileResult(plan, {}, reasons | dict.fromkeys(fills, f"the fills can't be put into the file: {error}"))
    if not command:
        best = max(attempts, key=lambda attempt: len(attempt.survivors), default=None)
        attempts = [best] if best else []
    problem = ""
    for attempt in attempts:
        reasons |= attempt.dropped
        if not attempt.survivors:
            continue
        try:
            problem = await _in_place(plan, attempt, to_write=to_write, command=command)
        except _StuckError as error:
            problem = str(error)
            break
        if not problem:
            return FileResult(
                plan, attempt.survivors, {hole: why for hole, why in reasons.items() if hole not in attempt.survivors}
            )
    return FileResult(plan, {}, reasons | {hole: problem for hole in fills if problem})


def _attempts(plan: Plan, fills: Mapping[Hole, tuple[Fill, ...]]) -> list[settle.Settled]:
    """Return the different ways to fill the file, best first."""
    attempts: list[settle.Settled] = []
    for place in range(settle.n_attempts(fills)):
        settled = settle.settle(plan, fills, place)
        if all(settled.text != other.text for other in attempts):
            attempts.append(settled)
    return attempts


async def _in_place(plan: Plan, attempt: settle.Settled, *, to_write: bool, command: str) -> str:
    """Put the fills in place, for good or for the check, and return why they can't stay, "" when they can.

    Raise _StuckError when the file can't be written, or be put back afterwards.
    """
    if not (to_write or command):
        return ""
    with contextlib.ExitStack() as stack:
        if command:
            # Whoever kills us hard now leaves the file to the next run.
            try:
                stack.enter_context(recovery.remembered(plan.source.path, plan.source.data, attempt.text.encode()))
            except OSError as error:
                raise _StuckError(f"no record for recovery can be kept: {(error.strerror or str(error)).lower()}") from error
        return await _put(plan, attempt, to_write=to_write, command=command)


async def _put(plan: Plan, attempt: settle.Settled, *, to_write: bool, command: str) -> str:
    path, old, new = plan.source.path, plan.source.data, attempt.text.encode()
    stays = False
    try:
        write.replace(path, new, expected=old)
    except write.WriteError as error:
        raise _StuckError(str(error)) from error
    try:
        problem = await check.verdict(command, path) if command else ""
        stays = to_write and not problem
    finally:
        restored = stays or _restored(plan, new)
    if not restored:
        raise _StuckError(f"{problem or 'the check passed'}, but the file changed meanwhile and holds the fills")
    return problem


def _restored(plan: Plan, new: bytes) -> bool:
    try:
        write.replace(plan.source.path, plan.source.data, expected=new)
    except write.WriteError:
        return False
    return True
