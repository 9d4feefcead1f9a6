"""Show a file with earlier fills in place, and bring what is answered back to the file as it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dg_lsp.batch import settle
from dg_lsp.batch.plan import Fill, Plan
from dg_lsp.core.values import Edit, Hole, Snippet, Span


@dataclass(frozen=True, slots=True)
class View:
    """A file with edits in place as a plan without holes, and what text of other files was shown beside it."""

    plan: Plan
    edits: tuple[Edit, ...]
    related: tuple[Snippet, ...] = ()

    def moved(self, hole: Hole) -> Hole:
        """Return a hole of the file at its place in the view."""
        shift = sum(len(edit.text) - (edit.span.end - edit.span.start) for edit in self.edits if edit.span <= hole.span)
        return replace(hole, span=Span(hole.span.start + shift, hole.span.end + shift))

    def back(self, fills: Sequence[Fill], hole: Hole) -> tuple[Fill, ...]:
        """Return fills that were found in the view as fills of the file's hole."""
        return tuple(replace(fill, edit=Edit(hole.span, fill.edit.text)) for fill in fills)


def of(plan: Plan, fills: Mapping[Hole, Sequence[Fill]]) -> View | None:
    """Return the file with those of the fills in place that stand together; None where there are none."""
    settled = settle.settle(plan, fills)
    if not settled.survivors:
        return None
    document = replace(plan.source.document, text=settled.text)
    edits = tuple(sorted((fill.edit for fill in settled.survivors.values()), key=lambda edit: edit.span))
    return View(Plan(replace(plan.source, document=document), ()), edits)
