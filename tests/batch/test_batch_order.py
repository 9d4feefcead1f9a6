"""The order of a run: a callee is filled before its caller, also in other files, and its fill is in the caller's request."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dg_lsp.batch import plan as planning
from dg_lsp.batch.api import Front, fill
from dg_lsp.batch.journal import Journal
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.options import Options
from dg_lsp.batch.plan import After, FilePlan
from dg_lsp.core.values import InfillRequest
from tests.batch.engines import Filling, connecting, planned
from tests.batch.test_batch_verify import PYTEST

FAR = "# far away\n" * 200
CALLER = 'def caller():\n    """Return twice `callee()`."""\n    ...\n\n\n'
CALLEE = "def callee():\n    ...\n\n\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


class ScriptedRun:
    """Answers by the function of a hole: the last one that is defined before it."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts
        self.order: list[str] = []
        self.engine = Filling(self._answer)

    def _answer(self, request: InfillRequest) -> tuple[str, ...]:
        names = [text.rpartition("def ")[2].partition("(")[0] for text in (request.prefix, *request.between)]
        self.order += names
        return tuple(self.texts.get(name, f"print({name!r})") for name in names)

    def request_for(self, name: str) -> InfillRequest:
        """Return the request for a function's hole."""
        return next(request for request in self.engine.requests if request.prefix.rpartition("def ")[2].startswith(f"{name}("))


def run(
    scripted: ScriptedRun, *plans: FilePlan, journal: Path | None = None, check: str = "", n_retries: int = 0
) -> list[FileResult]:
    options = Options(check=check, retries=n_retries, model="embedded")

    async def results() -> list[FileResult]:
        with Journal(journal) as answers:
            return await fill(options, plans, answers, connecting(scripted.engine), Front())

    return asyncio.run(results())


def test_a_callee_is_filled_first_and_shown_to_its_caller(project: Path) -> None:
    scripted = ScriptedRun(callee="return 21  # the answer, by half")
    [result] = run(scripted, planned(project / "a.py", CALLER + FAR + CALLEE + FAR + "def other():\n    ...\n"))
    assert scripted.order.index("callee") < scripted.order.index("caller")
    assert "return 21" in scripted.request_for("caller").suffix
    assert [fill.edit.text.strip() for _, fill in sorted(result.fills.items(), key=lambda item: item[0].span)] == [
        "print('caller')",
        "return 21  # the answer, by half",
        "print('other')",
    ]
    assert result.text.count("...") == 0


def test_a_callee_in_another_file_is_filled_first_and_shown_to_its_caller(project: Path) -> None:
    scripted = ScriptedRun(callee="return 21  # the answer, by half")
    plans = planned(project / "a.py", "from b import callee\n\n\n" + CALLER), planned(project / "b.py", CALLEE)
    run(scripted, *plans)
    assert scripted.order == ["callee", "caller"]
    [snippet] = [each for each in scripted.request_for("caller").related if each.path == "b.py"]
    assert "return 21" in snippet.text
    assert (project / "b.py").read_text() == CALLEE


def test_an_unsure_fill_is_not_part_of_later_requests(project: Path) -> None:
    scripted = ScriptedRun(callee="return 21")
    scripted.engine.best = 0.3
    run(scripted, planned(project / "a.py", CALLER + FAR + CALLEE))
    assert scripted.order == ["callee", "caller"]
    assert "return 21" not in scripted.request_for("caller").suffix


@pytest.mark.parametrize(
    ("text", "after"),
    [
        pytest.param("def a():\n    # FILL: add up\n    return b()\n" + FAR + CALLEE.replace("callee", "b"), 1, id="a call"),
        pytest.param(
            "def a():\n    # FILL\n    return middle()\n"
            + FAR
            + "def middle():\n    return b()\n"
            + FAR
            + "def b():\n    ...\n",
            1,
            id="a call through a function without holes",
        ),
        pytest.param("def a():\n    # FILL\n    return x.y.b(1)\n" + FAR + "def b(self, n):\n    ...\n", 1, id="a method"),
        pytest.param("def a():\n    # FILL: with `b`\n    return 1\n" + FAR + "def b():\n    ...\n", 1, id="an instruction"),
        pytest.param("def a():\n    # FILL\n    return a()\n" + FAR + "def b():\n    ...\n", 0, id="itself"),
    ],
)
def test_calls_are_found_by_name(project: Path, text: str, after: int) -> None:
    plan = planned(project / "a.py", text)
    assert len(plan.groups) == 2
    assert planning.order_of([plan]) == [(After((1,) if after else ()), After())]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.ts", "function a() {\n  // FILL\n  return b(1);\n}\n%s\nfunction b(n: number) {\n  // FILL\n}\n"),
        ("a.go", "package a\n\nfunc a() int {\n\t// FILL\n\treturn b()\n}\n%s\nfunc b() int {\n\t// FILL\n}\n"),
        ("a.rs", "fn a() -> i32 {\n    // FILL\n    b()\n}\n%s\nfn b() -> i32 {\n    todo!()\n}\n"),
        ("a.java", "class A {\n  int a() {\n    // FILL\n    return b();\n  }\n%s\n  int b() {\n    // FILL\n  }\n}\n"),
        ("a.rb", "def a\n  # FILL\n  b(1)\nend\n%s\ndef b(n)\n  # FILL\nend\n"),
        ("a.lua", "function a()\n  -- FILL\n  return b()\nend\n%s\nfunction b()\n  -- FILL\nend\n"),
        ("a.php", "<?php\nfunction a() {\n  // FILL\n  return b();\n}\n%s\nfunction b() {\n  // FILL\n}\n"),
        ("a.cs", "class A {\n  int F() {\n    // FILL\n    return b();\n  }\n%s\n  int b() {\n    // FILL\n  }\n}\n"),
        ("a.c", "int a(void) {\n  // FILL\n  return b();\n}\n%s\nint b(void) {\n  // FILL\n}\n"),
        ("a.sh", "a() {\n  # FILL\n  b\n}\n%s\nb() {\n  # FILL\n}\n"),
    ],
)
def test_calls_are_found_in_each_language(project: Path, name: str, text: str) -> None:
    comment = {"py": "#", "rb": "#", "sh": "#", "lua": "--"}.get(name.partition(".")[2], "//")
    plan = planned(project / name, text % (f"{comment} far away\n" * 200))
    assert [len(group) for group in plan.groups] == [1, 1]
    assert planning.order_of([plan]) == [(After((1,)), After())]


def test_a_cycle_is_broken_where_it_closes(project: Path) -> None:
    one = "def one():\n    # FILL\n    return two()\n"
    two = "def two():\n    # FILL\n    return one()\n"
    plan = planned(project / "a.py", one + FAR + two)
    assert planning.order_of([plan]) == [(After((1,)), After())]
    plans = planned(project / "b.py", one), planned(project / "c.py", two)
    assert planning.order_of(plans) == [(After((), (1,)),), (After(),)]
    assert planning.order_of(plans[::-1]) == [(After((), (1,)),), (After(),)]
    scripted = ScriptedRun()
    assert [len(result.fills) for result in run(scripted, *plans)] == [1, 1]
    assert scripted.order == ["two", "one"]


def test_the_edges_that_are_left_have_no_cycle() -> None:
    edges = [{1, 4}, {2}, {0, 3}, {3, 1}, set[int]()]
    assert planning.acyclic(edges) == [{1, 4}, {2}, {3}, set(), set()]
    chain = [{idx + 1} for idx in range(5000)] + [set[int]()]
    assert planning.acyclic(chain) == [frozenset(each) for each in chain]


def test_an_ambiguous_name_does_not_affect_the_order(project: Path) -> None:
    many = [planned(project / f"m{idx}.py", "def get():\n    ...\n") for idx in range(planning.MAX_NAMESAKES + 1)]
    caller = planned(project / "a.py", "def a():\n    # FILL\n    return get()\n")
    assert planning.order_of([caller, *many])[0] == (After(),)
    assert planning.order_of([caller, *many[1:]])[0] == (After((), (1, 2, 3, 4)),)
    other = planned(project / "b.rb", "def get\n  # FILL\nend\n")
    assert planning.order_of([caller, other])[0] == (After(),)


def test_a_run_that_is_resumed_asks_for_nothing_again(project: Path, tmp_path: Path) -> None:
    plans = (
        planned(project / "a.py", "from b import far\n\n\n" + CALLER.replace("callee", "far") + FAR + CALLEE),
        planned(project / "b.py", CALLER + FAR + "def far():\n    # FILL\n    return callee()\n"),
    )
    first, second = ScriptedRun(), ScriptedRun()
    results = run(first, *plans, journal=tmp_path / "journal")
    assert [result.text for result in run(second, *plans, journal=tmp_path / "journal")] == [each.text for each in results]
    assert (len(first.order), second.order) == (4, [])


def test_a_further_round_sees_what_the_first_one_saw(project: Path) -> None:
    (project / "test_a.py").write_text("from a import caller\n\n\ndef test():\n    assert caller() == 42\n")
    raising = "raise NotImplementedError"
    plans = (
        planned(project / "a.py", "from b import callee\n\n\n" + CALLER.replace("...", raising)),
        planned(project / "b.py", CALLEE.replace("...", raising)),
    )
    scripted = ScriptedRun(caller="return 41", callee="return 21")
    [result, _] = run(scripted, *plans, check=PYTEST, n_retries=2)
    assert not result.fills
    rounds = [request for request in scripted.engine.requests if request.prefix.endswith('"""\n    ')]
    assert len({request.seed for request in rounds}) == len(rounds) == 3
    assert ["return 21" in "".join(each.text for each in request.related) for request in rounds] == [True] * 3


@pytest.mark.parametrize(
    ("name", "old", "new", "n_asked"),
    [
        pytest.param("far/copied.py", "total", "amount", 1, id="a passage to copy from"),
        pytest.param("near.py", "price, day", "price, hour", 1, id="a file in its folder"),
        pytest.param("far/unused.py", "one", "two", 0, id="a file that no request contains"),
    ],
)
def test_a_resumed_run_asks_again_where_its_requests_changed(
    project: Path, name: str, old: str, new: str, n_asked: int
) -> None:
    (project / "far").mkdir()
    (project / "far/copied.py").write_text("    items = prices(day)\n    total = 1\n    return total\n")
    (project / "near.py").write_text("def rate_of(price, day):\n    pass\n")
    (project / "far/unused.py").write_text("one = 1\n")
    text = "def total_of(day):\n    x = rate_of(1, day)\n    items = prices(day)\n    # FILL\n    return total\n"
    plans = [planned(project / "a.py", text)]
    journal = project / "journal"

    def asked() -> int:
        scripted = ScriptedRun()
        run(scripted, *plans, journal=journal)
        return len(scripted.engine.requests)

    assert (asked(), asked()) == (1, 0)
    path = project / name
    path.write_text(path.read_text().replace(old, new))
    assert (asked(), asked()) == (n_asked, 0)


def test_a_check_sees_what_was_filled_in_other_files_before(project: Path) -> None:
    (project / "test_a.py").write_text("from a import caller\n\n\ndef test():\n    assert caller() == 42\n")
    (project / "test_b.py").write_text("from b import callee\n\n\ndef test():\n    assert callee() == 21\n")
    raising = "raise NotImplementedError"
    plans = (
        planned(project / "a.py", "from b import callee\n\n\n" + CALLER.replace("...", raising)),
        planned(project / "b.py", CALLEE.replace("...", raising)),
    )
    scripted = ScriptedRun(caller="return callee() * 2", callee="return 21")
    scripted.engine.best = 0.01  # only fills that the check proves are accepted
    results = run(scripted, *plans, check=PYTEST)
    assert [list(result.proofs.values()) for result in results] == [["the check: 1 test"]] * 2
    assert "return 21" in "".join(each.text for each in scripted.request_for("caller").related)
    assert (project / "b.py").read_text() == CALLEE.replace("...", raising)
