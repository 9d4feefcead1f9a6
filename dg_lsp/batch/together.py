"""Check the fills of all files together, because each file was checked alone before.

If the whole patch fails, it is split in halves and checked again, so that few files are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dg_lsp.batch import check
from dg_lsp.batch.copies import Copies, root_of
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.scratch import Copy

REASON = "the check fails with the fills of the other files"


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
            async with copies.taken(root) as copy:
                patch = _Patch(copies, copy)
                with contextlib.suppress(OSError):  # files that can't be checked are left out
                    await patch.grow(group)
            chosen = {result.plan.source.path for result in patch.chosen}
            left_out |= {result.plan.source.path for result in group} - chosen
    return [result.without(result.fills, REASON) if result.plan.source.path in left_out else result for result in results]


@dataclass(slots=True)
class _Patch:
    """The files that pass together so far."""

    copies: Copies
    copy: Copy
    chosen: list[FileResult] = field(default_factory=list)

    async def grow(self, group: Sequence[FileResult]) -> None:
        if await self._passes([*self.chosen, *group]):
            self.chosen += group
        elif len(group) > 1:
            middle = len(group) // 2
            await self.grow(group[:middle])
            await self.grow(group[middle:])

    async def _passes(self, group: Sequence[FileResult]) -> bool:
        self.copy.restore()
        try:
            for result in group:
                self.copy.put(result.plan.source.path, result.text.encode())
            verdict = await check.run(self.copies.check, self.copy, group[0].plan.source.path)
        finally:
            for result in group:
                self.copy.put(result.plan.source.path, result.plan.source.data)
        expected = frozenset[str]().union(*(result.tests for result in group))
        if verdict.tests is not None and expected:
            return expected <= verdict.tests.passed
        return not verdict.problem
