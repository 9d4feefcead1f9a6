"""Choose the fills of a file that parse together.

Polishing checks each fill alone; this module checks all of a file's fills together. A file that parsed before must still
parse: if the fills together add errors, the least sure ones are dropped. A `View` is the file with such fills in
place, for later requests. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dg_lsp.batch.plan import FilePlan
from dg_lsp.core import confidence, syntax
from dg_lsp.core.values import Edit, Hole, Span
from dg_lsp.infill import fill as filling
from dg_lsp.infill.fill import Fill
from dg_lsp.infill.fill import edits as edits_of

BREAKS = "the file does not parse with this fill and its other fills"
UNWRITABLE = "the fill contains characters that a source file can't contain"


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
        text = text_with(plan, survivors)
        if not survivors or not _breaks(plan, text):
            return SettledFills(survivors, text, dropped)
        # Of equally sure fills the last one is dropped.
        worst = min(reversed(survivors), key=lambda hole: (hole in proven, confidence.order(survivors[hole].confidence)))
        del survivors[worst]
        dropped[worst] = BREAKS


def text_with(plan: FilePlan, fills: Mapping[Hole, Fill]) -> str:
    """Return the file's text with these fills in place."""
    return filling.text_with(plan.source.document, fills.values())


def parses_alone(plan: FilePlan, fill: Fill) -> bool:
    """Return whether the file can contain the fill, and has no more syntax errors with it than before."""
    return _is_writable(fill.edit.text) and not _breaks(plan, filling.text_with(plan.source.document, (fill,)))


def unfit(choices: Sequence[Fill]) -> str:
    """Return why none of a hole's fills can be used in the file."""
    return BREAKS if any(_is_writable(fill.edit.text) for fill in choices) else UNWRITABLE


def _is_writable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _breaks(plan: FilePlan, text: str) -> bool:
    before = plan.syntax
    return before is not None and syntax.adds_errors(syntax.parse(text, before.language), before)


@dataclass(frozen=True, slots=True)
class View:
    """A plan of the file with edits in place, without holes."""

    plan: FilePlan
    edits: tuple[Edit, ...] = ()

    def moved(self, hole: Hole) -> Hole:
        """Return the file's hole with its span in the view."""
        shift = sum(len(edit.text) - (edit.span.end - edit.span.start) for edit in self.edits if edit.span <= hole.span)
        return replace(hole, span=Span(hole.span.start + shift, hole.span.end + shift))

    def back(self, fills: Sequence[Fill], hole: Hole) -> tuple[Fill, ...]:
        """Return the view's fills as fills of the file's hole."""
        return tuple(replace(fill, edit=Edit(hole.span, fill.edit.text)) for fill in fills)


def view_of(plan: FilePlan, fills: Mapping[Hole, Sequence[Fill]]) -> View:
    """Return the file with the fills that parse together; without any if they overlap."""
    try:
        settled = settle(plan, fills)
    except ValueError:  # `keep` says so, because the file's fills can't be put into it
        return View(plan)
    if not settled.survivors:
        return View(plan)
    document = replace(plan.source.document, text=settled.text)
    edits = tuple(sorted(edits_of(plan.source.document, settled.survivors.values()), key=lambda edit: edit.span))
    return View(FilePlan(replace(plan.source, document=document), ()), edits)
