"""What a check proves, with real commands in copies of a real project."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dg_lsp import OUT_OF_MEMORY
from dg_lsp.batch import check, keep
from dg_lsp.batch.check import Check
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.options import Options
from dg_lsp.batch.plan import FilePlan
from dg_lsp.batch.rounds import HoleResult
from dg_lsp.batch.verify import Retry
from dg_lsp.core.values import Calibrated, Edit, Hole
from dg_lsp.infill.fill import Fill
from tests import marked
from tests.batch.engines import planned

PYTHON = shlex.quote(sys.executable)
ONE = 'def f():\n    """Do."""\n    ...\n'
TWO = ONE + '\n\ndef g():\n    """Do."""\n    ...\n'
PYTEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {PYTHON} -m pytest -q -p no:cacheprovider"


def snapshot(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) for path in files}


def answers(plan: FilePlan, *choices: Sequence[str], further: Retry | None = None) -> dict[Hole, HoleResult]:
    return {
        hole: HoleResult(tuple(Fill(Edit(hole.span, text), Calibrated(0.01), 1) for text in texts), further=further)
        for hole, texts in zip(plan.holes, choices, strict=True)
    }


def checked(
    root: Path,
    command: str,
    *files: tuple[FilePlan, Sequence[Sequence[str]]],
    rule: Options | None = None,
    further: Retry | None = None,
    n_jobs: int = 1,
    on_message: Callable[[str], None] = pytest.fail,
) -> list[FileResult]:
    """Return the accepted fills of the files, and assert that the project is unchanged."""
    (root / ".git").mkdir(exist_ok=True)
    before = snapshot(root)

    async def run() -> list[FileResult]:
        with check.open_copies(Check(command, root), n_jobs, on_message) as copies_of_run:
            results = await asyncio.gather(
                *(keep.keep(plan, answers(plan, *choices, further=further), rule, copies_of_run) for plan, choices in files)
            )
            return await keep.passing(results, copies_of_run)

    results = asyncio.run(run())
    assert snapshot(root) == before
    return results


def outcome(result: FileResult) -> list[tuple[str, str]]:
    """Return the text and proof of each fill, or "" and the reason if there is none."""
    decisions = [result.decisions[hole] for hole in result.plan.holes]
    return [(each.fill.edit.text, each.proof) if each.fill else ("", each.reason) for each in decisions]


THREE = TWO + '\n\ndef h():\n    """Do."""\n    ...\n'
# Like a linter that reports an unused import while the hole raises.
NO_OS = shlex.quote("import sys; sys.exit('os.sep' not in open(sys.argv[1]).read())")
COMMANDS = {
    "pytest": PYTEST,
    "pytest -x": f"{PYTEST} -x",
    "no reports": f"{PYTEST} -p no:junitxml",
    "no reports in settings": f"printf '[pytest]\\naddopts = -p no:junitxml' >pytest.ini; {PYTEST}",
    "compiles": f"{PYTHON} -m py_compile {{}}",
    "linter": f"{PYTHON} -c {NO_OS} {{}}",
    "halves": f"{PYTHON} -c 'import a; assert a.f() in (None, 1); assert a.g() in (None, 2)'",
}
PROOFS = marked.rows(Path(__file__).with_name("proofs.txt"))["proofs"]


@pytest.mark.parametrize(("source", "tests", "command", "choices", "taken", "expected"), PROOFS)
def test_what_a_check_proves(
    tmp_path: Path, source: str, tests: str, command: str, choices: str, taken: str, expected: str
) -> None:
    if tests:
        (tmp_path / "test_a.py").write_text(tests)
    plan = planned(tmp_path / "a.py", source.replace("ONE", ONE).replace("TWO", TWO).replace("THREE", THREE))
    answers = [each.split(" | ") for each in choices.split(" / ")]
    rule, messages = Options(take_all=True) if taken == "all" else None, list[str]()
    [result] = checked(tmp_path, COMMANDS[command], (plan, answers), rule=rule, on_message=messages.append)
    assert ["remove -x" in each for each in messages] == [True] * (command == "pytest -x"), "it is said once"
    for (fill, said), each in zip(outcome(result), expected.split(" / "), strict=True):
        expected_fill, _, pattern = each.partition(": ")
        assert (fill, bool(re.match(pattern, said))) == (expected_fill.rstrip(), True), said


def test_a_fill_that_loops_is_stopped_by_what_earlier_checks_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LEAST_S", 3.0)
    monkeypatch.setattr(check, "TIMES", 0.0)
    plan = planned(tmp_path / "a.py", ONE)
    (tmp_path / "test_a.py").write_text("import a\ndef test_f():\n    a.f()\ndef test_old():\n    pass\n")
    [result] = checked(tmp_path, PYTEST, (plan, [["while True: pass"]]))
    assert outcome(result) == [("", "the check took longer than 3 s")]


def test_no_memory_for_a_check_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **_options: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(asyncio, "create_subprocess_shell", fails)
    [result] = checked(tmp_path, PYTEST, (planned(tmp_path / "a.py", ONE), [["return 1"]]))
    assert outcome(result) == [("", f"it can't be checked: {OUT_OF_MEMORY}")]


def test_a_check_that_failed_early_does_not_limit_one_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LEAST_S", 0.2)
    monkeypatch.setattr(check, "TIMES", 0.0)
    plan = planned(tmp_path / "a.py", ONE)
    command = f"{PYTHON} -c 'import a, time; assert a.f() == 2; time.sleep(1)'"
    [result] = checked(tmp_path, command, (plan, [["return 2"]]))
    assert outcome(result) == [("return 2", "the check")]


@pytest.mark.parametrize(
    ("seconds", "longest_s", "allowed_s"),
    [(5.0, 900.0, 5.0), (None, 0.0, 600.0), (None, 2.0, 60.0), (None, 12.0, 120.0), (None, 99.0, 600.0)],
)
def test_a_check_may_take_ten_times_as_long_as_before(seconds: float | None, longest_s: float, allowed_s: float) -> None:
    assert Check("x", Path(), seconds, 7).after(longest_s) == Check("x", Path(), allowed_s, 7)


def test_a_fill_that_its_own_tests_reject_costs_no_run_of_all_tests(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", ONE)
    log = tmp_path.parent / "log"
    (tmp_path / "conftest.py").write_text(
        f"def pytest_collection_finish(session):\n    open({str(log)!r}, 'a').write(f'{{len(session.items)}} ')\n"
    )
    (tmp_path / "test_a.py").write_text(
        "import a, pytest\n@pytest.mark.parametrize('x', [1, 'b[ ]'])\ndef test_f(x):\n    assert a.f() == 3\n"
        "@pytest.mark.parametrize('x', range(10))\ndef test_old(x):\n    assert True\n"
    )
    [result] = checked(tmp_path, PYTEST, (plan, [["return 1", "return 2", "return 3"]]))
    assert outcome(result) == [("return 3", "the check: 2 tests")]
    # All while the hole raises; the hole's own for each fill; all with the fill that passes them.
    assert log.read_text() == "12 2 2 2 12 "


def test_of_files_that_fail_together_some_are_accepted(tmp_path: Path) -> None:
    one, two = planned(tmp_path / "a.py", ONE), planned(tmp_path / "b.py", ONE)
    command = f"{PYTHON} -c 'import a, b; assert (a.f(), b.f()) in [(None, None), (1, None), (None, 1)]'"
    results = checked(tmp_path, command, (one, [["return 1"]]), (two, [["return 1"]]), n_jobs=2)
    assert [outcome(result)[0] for result in results] == [("return 1", "the check"), ("", keep.FAILS_TOGETHER)]


def test_the_next_round_contains_the_failure(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", ONE)
    (tmp_path / "test_a.py").write_text("import a\ndef test_f():\n    assert a.f() == 3\n")
    failures: list[tuple[int, str]] = []

    class Numbering:
        """Fills a hole with the number of the round."""

        async def further(self, hole: Hole, number: int, failure: str) -> Sequence[Fill]:
            failures.append((number, failure))
            return [Fill(Edit(hole.span, f"return {number + 1}"), Calibrated(0.01), 1)] if number < 3 else []

    [result] = checked(tmp_path, PYTEST, (plan, [["return 1"]]), further=Numbering().further)
    assert outcome(result) == [("return 3", "the check: 1 test")]
    assert [number for number, _ in failures] == [1, 2]
    assert failures[0][1].startswith("test_a::test_f fails: ")
    assert "assert 1 == 3" in failures[0][1]
    assert [fill.edit.text for fill in result.decisions[plan.holes[0]].candidates] == ["return 1", "return 2", "return 3"]


def test_imports_come_from_the_copy_where_the_original_is_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Like an editable install, but after PYTHONPATH; the folder is not the root, as with `package-dir`.
    plan = planned(tmp_path / "project" / "lib" / "pkg" / "a.py", ONE)
    (tmp_path / "project" / "lib" / "pkg" / "__init__.py").write_text("")
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{tmp_path / 'project' / 'lib'}")
    command = f"{PYTHON} -c 'import pkg.a; assert pkg.a.f() == 2; assert \"dg-lsp-check-\" in pkg.a.__file__'"
    [result] = checked(tmp_path / "project", command, (plan, [["return 1", "return 2"]]))
    assert outcome(result) == [("return 2", "the check")]


def test_changes_by_a_check_reach_neither_the_project_nor_the_next_check(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a.py", ONE)
    (tmp_path / "other.txt").write_text("as it was")
    (tmp_path / "link.txt").symlink_to(tmp_path / "other.txt")
    (tmp_path / "hard.txt").hardlink_to(tmp_path / "other.txt")
    command = (
        f'{PYTHON} -c \'import a; assert open("other.txt").read() == "as it was"; assert a.f() == 2\'; code=$?; '
        "echo changed > link.txt; echo changed > hard.txt; rm -f a.py; exit $code"
    )
    [result] = checked(tmp_path, command, (plan, [["return 1", "return 2"]]))
    assert outcome(result) == [("return 2", "the check")]


def test_fills_of_one_size_do_not_share_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path / "a.py", ONE)
    command = f"PYTHONDONTWRITEBYTECODE= {PYTHON} -c 'import a; assert a.f() == 4'"
    [result] = checked(tmp_path, command, (plan, [["return 1", "return 2", "return 3", "return 4"]]))
    assert outcome(result) == [("return 4", "the check")]


@pytest.mark.parametrize(
    ("name", "text", "command", "fill"),
    [
        ("a.sh", "f() {\n  # FILL: print 2\n}\n", '. ./a.sh; test "$(f)" = 2', "echo 2"),
        (
            "a.js",
            "function f() {\n  // FILL: return 2\n}\nmodule.exports = f;\n",
            "node -e 'if (require(\"./a.js\")() !== 2) process.exit(1)'",
            "return 2;",
        ),
    ],
)  # fmt: skip
def test_other_languages_raise_as_well(tmp_path: Path, name: str, text: str, command: str, fill: str) -> None:
    if name.endswith(".js") and os.system("node --version > /dev/null 2>&1"):
        pytest.skip("no node here")
    plan = planned(tmp_path / name, text)
    [result] = checked(tmp_path, command, (plan, [[plan.holes[0].lead + fill + plan.holes[0].trail]]))
    assert [proof for _, proof in outcome(result)] == ["the check"]
