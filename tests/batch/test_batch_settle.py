"""Which fills are accepted in a file that does not parse."""

from __future__ import annotations

from pathlib import Path

from dg_lsp.batch import keep
from dg_lsp.core import polish
from dg_lsp.core.values import Calibrated, Candidate
from dg_lsp.infill.fill import Fill
from tests.batch.engines import planned

# The list of parameters never ends.
BROKEN = 'void h( {\n  throw std::logic_error("not implemented");\n}\n'


def test_a_fill_that_passes_polishing_is_accepted_in_a_broken_file(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.cpp", BROKEN)
    (hole,) = plan.holes
    polished = polish.to_edits(
        Candidate(("return [1, 2];",), Calibrated(0.5)), plan.holes, plan.source.document, syntax=plan.syntax
    )
    (edit,) = polished.edits
    settled = keep.settle(plan, {hole: (Fill(edit, Calibrated(0.5), 1),)})
    assert (list(settled.survivors), settled.dropped) == ([hole], {})
