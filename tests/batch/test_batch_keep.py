"""What stays of a file's fills: what parses, what passes the check, and what can be written."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path

import pytest

from dg_lsp.batch import check, keep, settle, write
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.plan import Fill, Plan
from dg_lsp.batch.run import HoleResult
from dg_lsp.core.values import Edit, Span
from tests.batch.engines import planned

TWO = 'def f():\n    """Do."""\n    ...\n\n\ndef g():\n    """Do."""\n    ...\n'


def asked(plan: Plan, *texts: str | tuple[str, ...], scores: tuple[float, ...] = ()) -> dict[object, HoleResult]:
    """Return answers for the plan's holes; a tuple holds a hole's further choices."""
    answers = {}
    for idx, (hole, found) in enumerate(zip(plan.holes, texts, strict=True)):
        choices = (found,) if isinstance(found, str) else found
        score = scores[idx] if scores else 0.5
        answers[hole] = HoleResult(tuple(Fill(Edit(hole.span, text), score, 1) for text in choices))
    return answers  # type: ignore[return-value]  # keys are holes


def kept(plan: Plan, *texts: str | tuple[str, ...], to_write: bool = False, command: str = "") -> FileResult:
    return asyncio.run(keep.keep(plan, asked(plan, *texts), to_write=to_write, command=command))  # type: ignore[arg-type]


def texts(found: FileResult) -> list[str]:
    return [fill.edit.text for fill in found.fills.values()]


def test_fills_that_parse_are_kept_and_the_file_left_alone(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    found = kept(plan, "return 1", "return 2")
    assert (texts(found), found.reasons) == (["return 1", "return 2"], {})
    assert plan.source.path.read_text() == TWO


def test_the_least_sure_fill_goes_when_the_file_would_not_parse(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    answers = asked(plan, "return (", "return 2", scores=(0.4, 0.9))
    found = asyncio.run(keep.keep(plan, answers, to_write=False))  # type: ignore[arg-type]
    assert texts(found) == ["return 2"]
    assert list(found.reasons.values()) == [settle.BREAKS]


def test_a_broken_file_may_stay_as_broken_as_it_was(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO + "x = (\n")
    assert plan.n_errors > 0
    assert texts(kept(plan, "return 1", "return 2")) == ["return 1", "return 2"]


def test_text_that_no_file_can_hold_goes(tmp_path: Path) -> None:
    found = kept(planned(tmp_path / "a.py", TWO), "return '\ud800'", "return '\0'")
    assert texts(found) == []
    assert set(found.reasons.values()) == {settle.UNWRITABLE}


def test_another_choice_is_taken_where_the_first_does_not_stand(tmp_path: Path) -> None:
    assert texts(kept(planned(tmp_path / "a.py", TWO), ("return (", "return 1"), "return 2")) == ["return 1", "return 2"]


def test_a_hole_without_an_answer_has_its_reason(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    first, second = plan.holes
    answers = {
        first: HoleResult(reason="the engine is gone"),
        second: HoleResult((Fill(Edit(second.span, "return 2"), 0.5, 1),)),
    }
    found = asyncio.run(keep.keep(plan, answers, to_write=False))
    assert found.reasons == {first: "the engine is gone"}


def test_writing_keeps_line_ends_mark_and_mode(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", "\ufeff" + TWO.replace("\n", "\r\n"))
    plan.source.path.chmod(0o751)
    kept(plan, "return 1", "return 2", to_write=True)
    filled = TWO.replace("...", "return 1", 1).replace("...", "return 2", 1)
    assert plan.source.path.read_bytes() == ("\ufeff" + filled.replace("\n", "\r\n")).encode()
    assert plan.source.path.stat().st_mode & 0o777 == 0o751
    assert list(tmp_path.iterdir()) == [plan.source.path]


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    plan.source.path.write_text("mine\n")
    found = kept(plan, "return 1", "return 2", to_write=True)
    assert set(found.reasons.values()) == {"the file changed in the meantime"}
    assert (found.fills, plan.source.path.read_text()) == ({}, "mine\n")


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    plan.source.path.unlink()
    reasons = set(kept(plan, "return 1", "return 2", to_write=True).reasons.values())
    assert reasons == {"the file can't be written: no such file or directory"}


def test_nothing_is_left_behind_when_the_file_can_not_be_replaced(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.mkdir()
    with pytest.raises(write.WriteError, match="is a directory"):
        write.replace(target, b"x", expected=b"")
    assert list(tmp_path.iterdir()) == [target]


def checking(code: str) -> str:
    """Return a command that runs Python code with the file's text as `text`."""
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(f'import sys; text = open(sys.argv[1]).read(); {code}')} {{}}"


def test_fills_that_pass_the_check_are_kept(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a b.py", TWO)
    found = kept(plan, "return 1", "return 2", command=checking("sys.exit('return 2' not in text)"))
    assert texts(found) == ["return 1", "return 2"]
    assert plan.source.path.read_text() == TWO, "without --write the file is put back"


def test_fills_that_fail_the_check_go_and_the_file_is_put_back(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    found = kept(plan, "return 1", "return 2", to_write=True, command=checking("sys.exit('no good')"))
    assert texts(found) == []
    assert set(found.reasons.values()) == {"the check ended with 1: no good"}
    assert plan.source.path.read_text() == TWO


def test_the_check_chooses_among_candidates(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    command = checking("sys.exit('return 3' not in text)")
    found = kept(plan, ("return 1", "return 3"), "return 2", to_write=True, command=command)
    assert texts(found) == ["return 3", "return 2"]
    assert "return 3" in plan.source.path.read_text()


def test_what_the_check_itself_changes_is_not_overwritten(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    found = kept(plan, "return 1", "return 2", command=checking("open(sys.argv[1], 'w').write('mine')"))
    assert plan.source.path.read_text() == "mine"
    assert all("changed meanwhile" in reason for reason in found.reasons.values())


def test_a_file_that_can_not_be_put_back_is_tried_no_further(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    found = kept(plan, ("return 1", "return 3"), "return 2", command="echo '# x' >> {}")
    assert texts(found) == []
    assert set(found.reasons.values()) == {"the check passed, but the file changed meanwhile and holds the fills"}
    assert plan.source.path.read_text().count("# x") == 1


def test_fills_that_overlap_are_their_files_failure(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    first, second = plan.holes
    answers = {
        first: HoleResult((Fill(Edit(Span(first.span.start, second.span.end), "return 1"), 0.5, 1),)),
        second: HoleResult((Fill(Edit(second.span, "return 2"), 0.5, 1),)),
    }
    found = asyncio.run(keep.keep(plan, answers, to_write=True))
    assert found.reasons == dict.fromkeys((first, second), "the fills can't be put into the file: edits overlap")
    assert (found.fills, plan.source.path.read_text()) == ({}, TWO)


def test_a_check_knows_its_file_and_says_its_last_line(tmp_path: Path) -> None:
    verdict = asyncio.run(check.verdict('echo one; echo "$DG_LSP_FILE"; exit 3', tmp_path / "a.py"))
    assert verdict == f"the check ended with 3: {tmp_path / 'a.py'}"


def test_a_check_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    # The shell's own child writes its number, so that the test can see it gone.
    command = f"sleep 1000 & echo $! > {shlex.quote(str(tmp_path / 'child'))}; wait"
    assert asyncio.run(check.verdict(command, tmp_path, timeout_s=0.5)) == "the check took longer than 0.5 s"
    child = int((tmp_path / "child").read_text())
    assert _is_gone(child)


def test_an_interrupted_check_puts_the_file_back(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", TWO)
    started = tmp_path / "started"
    os.mkfifo(started)

    async def interrupted() -> None:
        answers = asked(plan, "return 1", "return 2")
        command = f"echo > {shlex.quote(str(started))}; sleep 1000"
        task = asyncio.ensure_future(keep.keep(plan, answers, to_write=True, command=command))  # type: ignore[arg-type]
        await asyncio.to_thread(started.read_text)
        assert plan.source.path.read_text() != TWO
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupted())
    assert plan.source.path.read_text() == TWO


def _is_gone(pid: int) -> bool:
    """Return once the process has ended, or is a zombie that nobody has collected yet."""
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
