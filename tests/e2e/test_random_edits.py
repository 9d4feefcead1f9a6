"""No random edit damages code, and the judge's own tests."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from dg_lsp.core.values import Edit, Span
from tests import marked
from tests.batch.engines import connecting
from tests.e2e import random_edits
from tests.e2e.editor import CODE, Editor, command, environment
from tests.e2e.random_edits import Desk, Tally, Trial
from tests.server.adversary import Adversary

ROWS = marked.rows(Path(__file__).with_name("edits.txt"))

SETTINGS = {"completion": {"debounce": 0, "speculate": False, "threshold": 0, "tokenThreshold": 0}}


@pytest.mark.e2e
def test_no_random_edit_in_an_editor_damages_code(tmp_path: Path) -> None:
    async def edit(tally: Tally) -> None:
        env = environment(tmp_path, DG_LSP_SERVE_ENGINE="tests.server.adversary:engine", DG_LSP_TEST_SEED="7")
        client = Editor(*command(), env=env)
        async with client:
            await client.hello(CODE, settings=SETTINGS)
            await client.until_ready()
            async for trial in Desk(client, random.Random(7)).trials(60):
                tally.add(trial)
            assert await client.end() == 0

    tally = Tally()
    asyncio.run(edit(tally))
    assert tally.lines() == []
    assert {"suggestion", "all", "regenerate", "body", "hole", "docstring"} <= set(tally.counts)


@pytest.mark.e2e
def test_no_random_edit_in_the_shell_damages_code(tmp_path: Path) -> None:
    async def edit(tally: Tally) -> None:
        async for trial in random_edits.in_the_shell(30, random.Random(7), tmp_path, connecting(Adversary(7))):
            tally.add(trial)

    tally = Tally()
    asyncio.run(edit(tally))
    assert tally.lines() == []
    assert set(tally.counts) == {"infill", "--at"}


CODE_BEFORE = "def f(a):\n    if a:\n        return a\n    return 1\n"
ONE = CODE_BEFORE.index("return 1")


@pytest.mark.parametrize(
    ("command", "span", "edit", "fault"),
    [
        ("regenerate", Span(ONE, ONE + 8), Edit(Span(ONE, ONE + 8), "return 2"), ""),
        ("regenerate", Span(ONE, ONE + 8), Edit(Span(ONE - 14, ONE + 8), "return 2"), "outside"),
        ("regenerate", Span(ONE, ONE + 8), Edit(Span(ONE, ONE + 8), "pass"), "placeholder"),
        ("regenerate", Span(0, len(CODE_BEFORE)), Edit(Span(0, len(CODE_BEFORE)), "def f(a):\n    ...\n"), "placeholder"),
        ("body", Span(ONE, ONE), Edit(Span(ONE, ONE + 8), "return 2"), "outside"),
        ("suggestion", Span(ONE + 8, ONE + 8), Edit(Span(ONE, ONE + 8), "return 12"), ""),
        ("suggestion", Span(ONE + 8, ONE + 8), Edit(Span(ONE, ONE + 8), "x = 1"), "outside"),
        ("--at", Span(ONE, ONE), Edit(Span(ONE, ONE), "x = ("), "syntax error"),
    ],
)
def test_faults_of_an_edit_are_detected(command: str, span: Span, edit: Edit, fault: str) -> None:
    problems = random_edits.faults(Trial(command, "a.py", CODE_BEFORE, span, (edit,)))
    assert bool(problems) == bool(fault)
    assert all(fault in problem for problem in problems[:1])


@pytest.mark.parametrize(("code", "expected"), ROWS["code"])
def test_the_judge_knows_working_code(code: str, expected: str) -> None:
    assert random_edits.works(code) == (expected == "yes")
