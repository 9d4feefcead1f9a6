"""What a reader sees of drafts, and what bodies are not drafted from."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from dg_lsp.core.values import Hole, InfillRequest, Span
from dg_lsp.engine.causal.filler import CausalFiller
from tests.engine.engine_kit import finish

BODY = Hole(Span(0, 0), "body", indent="    ", extent="block")
NEW = InfillRequest("def area(width, height):\n    ", "\n\n\nprint(area(2, 3))\n", (BODY,))  # nothing to copy


def test_a_causal_draft_is_visible_while_it_is_written(trained_filler: CausalFiller) -> None:
    task = trained_filler.start(NEW)
    views: list[str] = []
    while task.step():
        [view] = task.drafts()
        if view and view not in views[-1:]:
            views.append(view)
    assert len(views) > 2
    # It only grows, and ends as one of the drafts.
    assert all(later.startswith(earlier) for earlier, later in pairwise(views))
    assert views[-1] in {row.text for row in task.progress.proposals if row.row == "causal"}


def test_a_body_is_not_drafted_from_the_placeholders_of_other_bodies(trained_filler: CausalFiller) -> None:
    stub = 'def {}():\n    """Return it."""\n    raise NotImplementedError\n\n\n'
    prefix = "".join(stub.format(name) for name in ("one", "two")) + 'def three():\n    """Return it."""\n    '
    suffix = "\n\n\n" + stub.format("four") + 'def five():\n    """Return it."""\n    return 5\n'

    def copied(hole: Hole) -> set[str]:
        return {
            row.text
            for row in finish(trained_filler.start(InfillRequest(prefix, suffix, (hole,)))).progress.proposals
            if row.row == "copy"
        }

    assert "return 5" in copied(BODY)
    assert "raise NotImplementedError" not in copied(BODY)
    # Where the user asks for other text than a missing body, a copy may be a placeholder.
    assert "raise NotImplementedError" in copied(replace(BODY, kind="selection"))
