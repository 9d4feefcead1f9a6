"""Which of a file's fills are accepted: those that parse, pass the check and can be written."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import get_type_hints

import pytest

from dg_lsp.batch import keep, write
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.options import Options
from dg_lsp.batch.plan import FilePlan
from dg_lsp.batch.rounds import HoleResult
from dg_lsp.core import polish
from dg_lsp.core.values import Calibrated, Candidate, Edit, Hole, Ranked, Span
from dg_lsp.infill.fill import Fill
from tests.batch.engines import planned

TWO = 'def f():\n    """Do."""\n    ...\n\n\ndef g():\n    """Do."""\n    ...\n'


def answers_for(plan: FilePlan, *texts: str | tuple[str, ...], scores: tuple[float, ...] = ()) -> dict[object, HoleResult]:
    """Return answers for the plan's holes; a tuple holds several candidates of a hole."""
    answers = {}
    for idx, (hole, result) in enumerate(zip(plan.holes, texts, strict=True)):
        choices = (result,) if isinstance(result, str) else result
        score = scores[idx] if scores else 0.9
        answers[hole] = HoleResult(tuple(Fill(Edit(hole.span, text), Calibrated(score), 1) for text in choices))
    return answers  # type: ignore[return-value]  # keys are holes


def accepted(plan: FilePlan, *texts: str | tuple[str, ...], to_write: bool = False, rule: Options | None = None) -> FileResult:
    result = asyncio.run(keep.keep(plan, answers_for(plan, *texts), rule))  # type: ignore[arg-type]
    return write.write([result], print, commits=False)[0].result if to_write else result


def texts(result: FileResult) -> list[str]:
    return [fill.edit.text for fill in result.fills.values()]


def stay_open(result: FileResult, *, is_unsure: bool = False) -> dict[Hole, str]:
    """Return why holes failed, or are unsure."""
    return {
        hole: decision.reason
        for hole, decision in result.decisions.items()
        if not decision.fill and decision.is_unsure == is_unsure
    }


def test_the_least_sure_fill_is_dropped_if_the_file_would_not_parse(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    answers = answers_for(plan, "return (", "return 2", scores=(0.8, 0.9))
    result = asyncio.run(keep.keep(plan, answers))  # type: ignore[arg-type]
    assert texts(result) == ["return 2"]
    assert list(stay_open(result).values()) == [keep.BREAKS]


def test_a_broken_file_may_stay_as_broken_as_it_was(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO + "x = (\n")
    assert plan.syntax is not None
    assert plan.syntax.errors
    assert texts(accepted(plan, "return 1", "return 2")) == ["return 1", "return 2"]


def test_text_that_no_file_can_contain_is_dropped(tmp_path: Path) -> None:
    result = accepted(planned(tmp_path / "a.py", TWO), "return '\ud800'", "return '\0'")
    assert texts(result) == []
    assert set(stay_open(result).values()) == {keep.UNWRITABLE}


def test_the_next_candidate_is_used_if_the_first_does_not_parse(tmp_path: Path) -> None:
    assert texts(accepted(planned(tmp_path / "a.py", TWO), ("return (", "return 1"), "return 2")) == ["return 1", "return 2"]


def test_writing_keeps_line_ends_mark_and_mode(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", "\ufeff" + TWO.replace("\n", "\r\n"))
    plan.source.path.chmod(0o751)
    accepted(plan, "return 1", "return 2", to_write=True)
    filled_text = TWO.replace("...", "return 1", 1).replace("...", "return 2", 1)
    assert plan.source.path.read_bytes() == ("\ufeff" + filled_text.replace("\n", "\r\n")).encode()
    assert plan.source.path.stat().st_mode & 0o777 == 0o751
    assert list(tmp_path.iterdir()) == [plan.source.path]


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    plan.source.path.write_text("mine\n")
    result = accepted(plan, "return 1", "return 2", to_write=True)
    assert set(stay_open(result).values()) == {"the file changed in the meantime"}
    assert (result.fills, plan.source.path.read_text()) == ({}, "mine\n")


def test_a_file_that_is_gone_is_reported(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    plan.source.path.unlink()
    reasons = set(stay_open(accepted(plan, "return 1", "return 2", to_write=True)).values())
    assert reasons == {"the file can't be written: no such file or directory"}


def test_overlapping_fills_fail_only_their_file(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    first, second = plan.holes
    answers = {
        first: HoleResult((Fill(Edit(Span(first.span.start, second.span.end), "return 1"), Calibrated(0.9), 1),)),
        second: HoleResult((Fill(Edit(second.span, "return 2"), Calibrated(0.9), 1),)),
    }
    result = asyncio.run(keep.keep(plan, answers))
    assert stay_open(result) == dict.fromkeys((first, second), "the fills can't be put into the file: edits overlap")
    assert (result.fills, plan.source.path.read_text()) == ({}, TWO)


def test_a_fill_below_its_kinds_default_stays_open_with_its_candidates(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    result = asyncio.run(keep.keep(plan, answers_for(plan, "return 1", "return 2", scores=(0.9, 0.79))))  # type: ignore[arg-type]
    _first, second = plan.holes
    assert (texts(result), stay_open(result)) == (["return 1"], {})
    assert stay_open(result, is_unsure=True) == {second: "its probability is 79 %, below --min-confidence 0.8"}
    assert [fill.edit.text for fill in result.decisions[second].candidates] == ["return 2"]


@pytest.mark.parametrize(("text", "is_written"), [("y = 2", True), ("if x:\n    y = 2", False)])
def test_one_line_at_a_marker_needs_less_than_several(tmp_path: Path, text: str, *, is_written: bool) -> None:
    plan = planned(tmp_path / "a.py", "x = 1\n# FILL\nz = 3\n")
    (hole,) = plan.holes
    result = asyncio.run(keep.keep(plan, {hole: HoleResult((Fill(Edit(hole.span, text), Calibrated(0.6), 1),))}))
    assert texts(result) == ([text] if is_written else [])


def test_the_help_states_the_defaults() -> None:
    (option,) = get_type_hints(Options, include_extras=True)["min_confidence"].__metadata__
    least = keep.DEFAULT_MIN_CONFIDENCE
    assert f"{least['body']} for bodies, {least['cursor']} for a place or a selection" in option.help
    assert least["cursor"] == least["selection"] == least["marker"]
    assert f"for a marker, {keep.LINES_AT_MARKER} if that gets several lines" in option.help


def test_the_first_candidate_that_is_sure_is_taken(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    first, second = plan.holes
    answers = {
        first: HoleResult(
            (Fill(Edit(first.span, "return 0"), Calibrated(0.3), 1), Fill(Edit(first.span, "return 1"), Calibrated(0.6), 1))
        ),
        second: HoleResult((Fill(Edit(second.span, "return 2"), Ranked(0), 1),)),
    }
    result = asyncio.run(keep.keep(plan, answers, Options(min_confidence=0.5)))
    assert texts(result) == ["return 1"]
    assert stay_open(result, is_unsure=True)[second].startswith("the model has no calibrated probabilities")


def test_all_takes_every_fill_that_parses(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    answers = answers_for(plan, "return 1", "return (", scores=(0.01, 0.01))
    result = asyncio.run(keep.keep(plan, answers, Options(take_all=True)))  # type: ignore[arg-type]
    assert (texts(result), list(stay_open(result).values())) == (["return 1"], [keep.BREAKS])


def test_a_fill_that_passes_polishing_is_accepted_in_a_file_that_never_parses(tmp_path: Path) -> None:
    # The list of parameters never ends.
    plan = planned(tmp_path / "a.cpp", 'void h( {\n  throw std::logic_error("not implemented");\n}\n')
    candidate = Candidate(("return [1, 2];",), Calibrated(0.5))
    (edit,) = polish.to_edits(candidate, plan.holes, plan.source.document, syntax=plan.syntax).edits
    survivors, dropped = keep.settle(plan, {plan.holes[0]: (Fill(edit, Calibrated(0.5), 1),)})
    assert (list(survivors), dropped) == (list(plan.holes), {})
