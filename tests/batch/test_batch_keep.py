"""Which of a file's fills are accepted: those that parse, pass the check and can be written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import get_type_hints

import pytest

from dg_lsp.batch import keep, write
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.options import Options
from dg_lsp.batch.plan import FilePlan
from dg_lsp.batch.rounds import HoleResult
from dg_lsp.core import polish
from dg_lsp.core.values import Calibrated, Candidate, Edit, Ranked, Span
from dg_lsp.infill.fill import Fill
from tests.batch.engines import planned

TWO = 'def f():\n    """Do."""\n    ...\n\n\ndef g():\n    """Do."""\n    ...\n'


Choice = str | tuple[str, float]


def kept(plan: FilePlan, *choices: Sequence[Choice], rule: Options | None = None, to_write: bool = False) -> FileResult:
    """Return what is accepted of the candidates of each hole, best first; one without a probability has 0.9."""
    answers = {}
    for hole, texts in zip(plan.holes, choices, strict=True):
        pairs = [(each, 0.9) if isinstance(each, str) else each for each in texts]
        fills = (Fill(Edit(hole.span, text), Calibrated(sure) if sure else Ranked(0), 1) for text, sure in pairs)
        answers[hole] = HoleResult(tuple(fills))
    result = asyncio.run(keep.keep(plan, answers, rule))
    return write.write([result], print, commits=False)[0].result if to_write else result


def texts(result: FileResult) -> list[str]:
    return [fill.edit.text for fill in result.fills.values()]


def reasons(result: FileResult) -> list[str]:
    """Return why holes stay open."""
    return [decision.reason for decision in result.decisions.values() if not decision.fill]


UNSURE = "its probability is {} %, below --min-confidence 0.8"
NO_PROBABILITY = "the model has no calibrated probabilities; run dg-lsp calibrate, or use --check"
MARKER = "x = 1\n# FILL\nz = 3\n"


@pytest.mark.parametrize(
    ("text", "choices", "rule", "filled", "open_reasons"),
    [
        (TWO, [[("return (", 0.8)], ["return 2"]], None, ["return 2"], [keep.BREAKS]),
        (TWO + "x = (\n", [["return 1"], ["return 2"]], None, ["return 1", "return 2"], []),
        (TWO, [["return '\ud800'"], ["return '\0'"]], None, [], [keep.UNWRITABLE] * 2),
        ("#!x\n# coding: latin-1\n" + TWO, [["return 'é'"], ["return 1"]], None, ["return 1"], [keep.UNWRITABLE]),
        ("# coding: utf-8\n" + TWO, [["return 'é'"], ["return 1"]], None, ["return 'é'", "return 1"], []),
        (TWO, [["return (", "return 1"], ["return 2"]], None, ["return 1", "return 2"], []),
        (TWO, [["return 1"], [("return 2", 0.79)]], None, ["return 1"], [UNSURE.format(79)]),
        (MARKER, [[("y = 2", 0.6)]], None, ["y = 2"], []),
        (MARKER, [[("if x:\n    y = 2", 0.6)]], None, [], [UNSURE.format(60)]),
        (
            TWO,
            [[("return 0", 0.3), ("return 1", 0.6)], [("return 2", 0)]],
            Options(min_confidence=0.5),
            ["return 1"],
            [NO_PROBABILITY],
        ),
        (TWO, [[("return 1", 0.01)], [("return (", 0.01)]], Options(take_all=True), ["return 1"], [keep.BREAKS]),
    ],
    ids=[
        "least sure",
        "broken before",
        "no text",
        "latin-1",
        "utf-8",
        "next",
        "below",
        "marker",
        "lines at marker",
        "first that is sure",
        "all",
    ],
)
def test_what_is_accepted_and_why_the_others_stay_open(
    tmp_path: Path,
    text: str,
    choices: Sequence[Sequence[Choice]],
    rule: Options | None,
    filled: list[str],
    open_reasons: list[str],
) -> None:
    result = kept(planned(tmp_path / "a.py", text), *choices, rule=rule)
    assert (texts(result), reasons(result)) == (filled, open_reasons)
    for decision in result.decisions.values():
        assert decision.is_unsure == (decision.reason.startswith(("its probability", "the model has")))
        assert decision.fill or decision.candidates


def test_writing_keeps_line_ends_mark_and_mode(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", "\ufeff" + TWO.replace("\n", "\r\n"))
    plan.source.path.chmod(0o751)
    kept(plan, ["return 1"], ["return 2"], to_write=True)
    filled_text = TWO.replace("...", "return 1", 1).replace("...", "return 2", 1)
    assert plan.source.path.read_bytes() == ("\ufeff" + filled_text.replace("\n", "\r\n")).encode()
    assert plan.source.path.stat().st_mode & 0o777 == 0o751
    assert list(tmp_path.iterdir()) == [plan.source.path]


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    plan.source.path.write_text("mine\n")
    result = kept(plan, ["return 1"], ["return 2"], to_write=True)
    assert set(reasons(result)) == {"the file changed in the meantime"}
    assert (result.fills, plan.source.path.read_text()) == ({}, "mine\n")


def test_a_file_that_is_gone_is_reported(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    plan.source.path.unlink()
    result = kept(plan, ["return 1"], ["return 2"], to_write=True)
    assert set(reasons(result)) == {"the file can't be written: no such file or directory"}


def test_overlapping_fills_fail_only_their_file(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    first, second = plan.holes
    answers = {
        first: HoleResult((Fill(Edit(Span(first.span.start, second.span.end), "return 1"), Calibrated(0.9), 1),)),
        second: HoleResult((Fill(Edit(second.span, "return 2"), Calibrated(0.9), 1),)),
    }
    result = asyncio.run(keep.keep(plan, answers))
    assert set(reasons(result)) == {"the fills can't be put into the file: edits overlap"}
    assert (result.fills, plan.source.path.read_text()) == ({}, TWO)


def test_the_help_states_the_defaults() -> None:
    (option,) = get_type_hints(Options, include_extras=True)["min_confidence"].__metadata__
    least = keep.DEFAULT_MIN_CONFIDENCE
    assert f"{least['body']} for bodies, {least['cursor']} for a place or a selection" in option.help
    assert least["cursor"] == least["selection"] == least["marker"]
    assert f"for a marker, {keep.LINES_AT_MARKER} if that gets several lines" in option.help


def test_a_fill_that_passes_polishing_is_accepted_in_a_file_that_never_parses(tmp_path: Path) -> None:
    # The list of parameters never ends.
    plan = planned(tmp_path / "a.cpp", 'void h( {\n  throw std::logic_error("not implemented");\n}\n')
    candidate = Candidate(("return [1, 2];",), Calibrated(0.5))
    (edit,) = polish.to_edits(candidate, plan.holes, plan.source.document, syntax=plan.syntax).edits
    survivors, dropped = keep.settle(plan, {plan.holes[0]: (Fill(edit, Calibrated(0.5), 1),)})
    assert (list(survivors), dropped) == (list(plan.holes), {})
