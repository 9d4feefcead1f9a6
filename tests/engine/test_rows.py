"""Which rows start from noise, and what a reader sees of a fill without them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from dg_lsp.core.values import Budget, Hole, InfillRequest, Span
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.common.local import LocalTask
from dg_lsp.engine.diffusion.filler import DiffusionFiller
from tests.engine.engine_kit import finish

LINE = Hole(Span(0, 0), "cursor")
BODY = Hole(Span(0, 0), "body", indent="    ", extent="block")
REQUEST = InfillRequest("alpha = beta + gamma\nx = 1\nalpha = be", "\n", (LINE,))
NEW = InfillRequest("def area(width, height):\n    ", "\n\n\nprint(area(2, 3))\n", (BODY,))  # nothing to copy


@pytest.fixture(scope="module")
def filler(trained_layout: Path) -> DiffusionFiller:
    """Return a filler whose profile asks for no noise."""
    filler = DiffusionFiller(load_model(str(trained_layout), device="cpu"))
    return DiffusionFiller(replace(filler.loaded, profile=replace(filler.loaded.profile, line_noise_rows=0)))


def kinds(task: LocalTask) -> list[str]:
    return [row.row for row in finish(task).proposals()]


def test_drafts_suffice_if_the_profile_asks_for_no_noise(filler: DiffusionFiller) -> None:
    task = filler.start(REQUEST)
    assert {"copy", "causal"} <= set(kinds(task))
    assert "noise" not in kinds(filler.start(REQUEST))
    assert task.candidates()[0].steps == 0


def test_noise_supplies_the_candidates_that_drafts_do_not(filler: DiffusionFiller) -> None:
    n_drafts = len(kinds(filler.start(REQUEST)))
    more = replace(REQUEST, budget=Budget(candidates=n_drafts + 2))
    n_lengths = len(filler.loaded.profile.line_gaps)
    assert kinds(filler.start(more)).count("noise") == 2 * n_lengths


def test_lines_and_blocks_have_their_own_number_of_rows(filler: DiffusionFiller) -> None:
    assert "noise" in kinds(filler.start(NEW))


def test_without_a_draft_there_is_a_row_of_noise(filler: DiffusionFiller) -> None:
    profile = replace(filler.loaded.profile, copy_rows=0, causal_rows=0)
    bare = DiffusionFiller(replace(filler.loaded, profile=profile))
    assert set(kinds(bare.start(REQUEST))) == {"noise"}


def test_a_causal_draft_is_visible_while_it_is_written(filler: DiffusionFiller) -> None:
    profile = replace(filler.loaded.profile, block_noise_rows=0)
    task = DiffusionFiller(replace(filler.loaded, profile=profile)).start(NEW)
    views: list[str] = []
    while task.step():
        [view] = task.drafts()
        if view and view not in views[-1:]:
            views.append(view)
    assert len(views) > 2
    # It only grows, and ends as one of the drafts.
    assert all(later.startswith(earlier) for earlier, later in pairwise(views))
    assert views[-1] in {row.text for row in task.proposals() if row.row == "causal"}


def test_a_body_is_not_drafted_from_the_placeholders_of_other_bodies(filler: DiffusionFiller) -> None:
    stub = 'def {}():\n    """Return it."""\n    raise NotImplementedError\n\n\n'
    prefix = "".join(stub.format(name) for name in ("one", "two")) + 'def three():\n    """Return it."""\n    '
    suffix = "\n\n\n" + stub.format("four") + 'def five():\n    """Return it."""\n    return 5\n'

    def copied(hole: Hole) -> set[str]:
        return {
            row.text for row in finish(filler.start(InfillRequest(prefix, suffix, (hole,)))).proposals() if row.row == "copy"
        }

    assert "return 5" in copied(BODY)
    assert "raise NotImplementedError" not in copied(BODY)
    # Where the user asks for other text than a missing body, a copy may be a placeholder.
    assert "raise NotImplementedError" in copied(replace(BODY, kind="selection"))
