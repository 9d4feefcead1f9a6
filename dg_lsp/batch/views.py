"""Put earlier fills into a file's text for a request, and convert its answers back to the original file. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dg_lsp.batch import settle
from dg_lsp.batch.plan import Plan
from dg_lsp.core.values import Edit, Hole, Span
from dg_lsp.infill.fill import Fill
from dg_lsp.infill.fill import edits as edits_of


@dataclass(frozen=True, slots=True)
class View:
    """A plan of the file with edits in place, without holes."""

    plan: Plan
    edits: tuple[Edit, ...]

    def moved(self, hole: Hole) -> Hole:
        """Return the file's hole with its span in the view."""
        shift = sum(len(edit.text) - (edit.span.end - edit.span.start) for edit in self.edits if edit.span <= hole.span)
        return replace(hole, span=Span(hole.span.start + shift, hole.span.end + shift))

    def back(self, fills: Sequence[Fill], hole: Hole) -> tuple[Fill, ...]:
        """Return the view's fills as fills of the file's hole."""
        return tuple(replace(fill, edit=Edit(hole.span, fill.edit.text)) for fill in fills)


def of(plan: Plan, fills: Mapping[Hole, Sequence[Fill]]) -> View | None:
    """Return the file with the fills that parse together; None if there are none, or if they overlap."""
    try:
        settled = settle.settle(plan, fills)
    except ValueError:  # `keep` says so, because the file's fills can't be put into it
        return None
    if not settled.survivors:
        return None
    document = replace(plan.source.document, text=settled.text)
    edits = tuple(sorted(edits_of(plan.source.document, settled.survivors.values()), key=lambda edit: edit.span))
    return View(Plan(replace(plan.source, document=document), ()), edits)
