"""Requests of a run: shared ones, failures, how many run at once, and stored answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from dg_lsp.batch import api, rounds
from dg_lsp.batch import plan as planning
from dg_lsp.batch.journal import Journal
from dg_lsp.batch.keep import FileResult
from dg_lsp.batch.options import Options
from dg_lsp.batch.plan import FilePlan
from dg_lsp.batch.rounds import Rounds
from dg_lsp.client.port import Engine, EngineError
from dg_lsp.core.values import Calibrated, Candidate, Hole, InfillRequest, Snippet
from dg_lsp.infill.pipeline import FileContext
from tests.batch.engines import planned
from tests.fakes import Filling

STUB = 'def f():\n    """Do."""\n    ...\n\n\n'
FAR = "# far away\n" * 200


def alone(plan: FilePlan) -> FileContext:
    return FileContext(plan.source.path.name)


class Calling:
    """Answers each request as a function does, and counts those that it is asked and those that end."""

    def __init__(self, answer: Callable[[InfillRequest], Awaitable[str]]) -> None:
        self.answer = answer
        self.n = self.now = self.most = 0

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        self.n, self.now = self.n + 1, self.now + 1
        self.most = max(self.most, self.now)
        try:
            text = await self.answer(request)
        finally:
            self.now -= 1
        return (Candidate((text,), Calibrated(0.5)),) if text else ()


async def fail(request: InfillRequest) -> str:
    raise EngineError("the engine is busy")


def filled(
    engine: Engine,
    *plans: FilePlan,
    options: Options | None = None,
    journal: Journal | None = None,
    counts: list[int] | None = None,
) -> list[FileResult]:
    on_count = counts.append if counts is not None else lambda n: None
    answers = journal or Journal(None)
    return asyncio.run(api.results(engine, plans, options or Options(retries=0), answers, alone, done=on_count))


def answers(results: list[FileResult]) -> list[list[str]]:
    return [
        [
            answer.fills[0].edit.text if answer.fills else answer.reason
            for answer in (decision.answer for decision in result.decisions.values())
        ]
        for result in results
    ]


def test_results_come_in_the_order_of_the_plans(tmp_path: Path) -> None:
    async def answer(request: InfillRequest) -> str:
        for _ in range(10 - engine.n):  # later requests are answered sooner
            await asyncio.sleep(0)
        return f"return '{request.path}'"

    engine = Calling(answer)
    plans = [planned(tmp_path / f"{name}.py", STUB) for name in "abcd"]
    counts: list[int] = []
    assert answers(filled(engine, *plans, counts=counts)) == [[f"return '{name}.py'"] for name in "abcd"]
    assert counts == [1, 1, 1, 1]


def test_the_number_of_concurrent_requests_is_limited(tmp_path: Path) -> None:
    async def answer(request: InfillRequest) -> str:
        await asyncio.sleep(0)
        return "return 1"

    engine = Calling(answer)
    filled(engine, *(planned(tmp_path / f"{n}.py", STUB) for n in range(6)))
    assert engine.most == api.N_IN_FLIGHT


def test_holes_that_fail_together_are_asked_one_by_one(tmp_path: Path) -> None:
    # The second text is blank, so the answer for both holes is dropped.
    engine = Filling(lambda request: ("return 1", "") if len(request.holes) == 2 else ("return 2",))
    assert answers(filled(engine, planned(tmp_path / "a.py", STUB * 2))) == [["return 2", "return 2"]]
    assert [len(request.holes) for request in engine.requests] == [2, 1, 1]
    assert len({request.seed for request in engine.requests}) == 3


class InSequence:
    """Answers two holes of a request, filled one after the other, with candidates; a hole alone with those in `single`."""

    def __init__(self, pairs: tuple[Candidate, ...], single: tuple[Candidate, ...] = ()) -> None:
        self.by_size = {2: pairs, 1: single}

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        return self.by_size[len(request.holes)]


def in_pairs(*texts: tuple[str, str]) -> tuple[Candidate, ...]:
    return tuple(Candidate(each, Calibrated(0.25), alone=(Calibrated(0.5),) * 2) for each in texts)


def test_each_hole_of_a_request_has_its_own_probability(tmp_path: Path) -> None:
    own = (Calibrated(0.9), Calibrated(0.2))
    engine = InSequence((Candidate(("return 1", "return 2"), Calibrated(0.18), alone=own),))
    [result] = filled(engine, planned(tmp_path / "a.py", STUB * 2))
    assert [answer.fills[0].probability for answer in (decision.answer for decision in result.decisions.values())] == [0.9, 0.2]


def test_the_best_text_of_a_hole_is_kept_if_that_of_another_is_dropped(tmp_path: Path) -> None:
    # The answers for both holes are dropped with the first one's blank text.
    engine = InSequence(in_pairs(("return 1", ""), ("return 8", "return 9")), (Candidate(("return 1",), Calibrated(0.5)),))
    assert answers(filled(engine, planned(tmp_path / "a.py", STUB * 2))) == [["return 1", "return 1"]]


def test_holes_that_are_filled_together_have_alternatives(tmp_path: Path) -> None:
    engine = InSequence(in_pairs(("return 1", "return 2"), ("return 3", "return 2")))
    [result] = filled(engine, planned(tmp_path / "a.py", STUB * 2))
    texts = [[fill.text for fill in answer.fills] for answer in (decision.answer for decision in result.decisions.values())]
    assert texts == [["return 1", "return 3"], ["return 2"]]


def test_a_failed_request_does_not_affect_others(tmp_path: Path) -> None:
    async def answer(request: InfillRequest) -> str:
        return await fail(request) if request.path == "b.py" else "return 1"

    plans = [planned(tmp_path / f"{name}.py", STUB) for name in "abc"]
    assert answers(filled(Calling(answer), *plans)) == [["return 1"], ["the engine is busy"], ["return 1"]]


def test_options_reach_the_engine(tmp_path: Path) -> None:
    engine = Filling("return 1", "return 2")
    options = Options(candidates=2, seed=7, deadline=100, retries=0)
    [result] = filled(engine, planned(tmp_path / "a.py", STUB * 2), options=options)
    [request] = engine.requests
    assert (request.budget.ms, request.budget.candidates, request.path) == (200, 2, "a.py")
    assert [
        [fill.edit.text for fill in answer.fills] for answer in (decision.answer for decision in result.decisions.values())
    ] == [["return 1", "return 2"]] * 2


def test_a_request_that_cant_be_built_is_the_hole_s_reason_with_and_without_a_journal(tmp_path: Path) -> None:
    plan, engine = planned(tmp_path / "a.py", STUB * 2), Filling("return 1")
    options = Options(candidates=0, retries=1)
    with Journal(tmp_path / "j") as journal:
        for one in (journal, None):
            [reasons] = answers(filled(engine, plan, options=options, journal=one))
            assert [reason.startswith("the limits of an answer must be at least 0, ") for reason in reasons] == [True, True]
        assert asyncio.run(Rounds(engine, plan, alone(plan), options, journal).further(plan.holes[0], 1, "failed")) == ()
    assert engine.requests == []


def test_each_request_is_built_once_with_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = rounds.request_for

    def counted(plan: FilePlan, context: FileContext, group: Sequence[Hole], options: Options) -> InfillRequest:
        sizes.append(len(group))
        return real(plan, context, group, options)

    monkeypatch.setattr(rounds, "request_for", counted)
    with Journal(tmp_path / "j") as journal:
        filled(Filling("return 1"), planned(tmp_path / "a.py", STUB * 3), journal=journal)
        # The keys of the answers contain the request of the group and that of each hole alone.
        assert sorted(sizes) == [1, 1, 1, 3]
        sizes.clear()
        filled(Filling("return 1"), planned(tmp_path / "b.py", STUB), journal=journal)
        assert sizes == [1]
    sizes.clear()
    filled(Filling("return 1"), planned(tmp_path / "a.py", STUB * 3))
    assert sizes == [3]


def test_related_text_is_read_before_the_first_request(tmp_path: Path) -> None:
    plans = [planned(tmp_path / f"{name}.py", STUB) for name in "ab"]
    order: list[str] = []

    def look(plan: FilePlan) -> FileContext:
        order.append(plan.source.path.name)
        return FileContext("", (Snippet("near.py", "def near(): ..."),))

    async def answer(request: InfillRequest) -> str:
        order.append(f"asked with {request.related[-1].path}")
        return ""

    asyncio.run(api.results(Calling(answer), plans, Options(retries=0), Journal(None), look))
    assert order == ["a.py", "b.py", "asked with near.py", "asked with near.py"]


def test_a_run_that_is_cancelled_cancels_its_requests(tmp_path: Path) -> None:
    async def cancelled() -> tuple[int, int]:
        asked = asyncio.Event()

        async def answer(request: InfillRequest) -> str:
            asked.set()
            await asyncio.Event().wait()
            return ""

        engine = Calling(answer)
        plans = [planned(tmp_path / f"{name}.py", STUB) for name in "abc"]
        task = asyncio.ensure_future(api.results(engine, plans, Options(retries=0), Journal(None), alone))
        await asked.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1
        return engine.n, engine.now

    assert asyncio.run(cancelled()) == (api.N_IN_FLIGHT, 0)


def test_a_hole_without_a_usable_answer_gets_further_rounds_with_other_seeds(tmp_path: Path) -> None:
    engine = Filling(lambda request: ("return 1" if len(engine.requests) == 3 else "  ",))
    plan = planned(tmp_path / "a.py", STUB)
    assert answers(filled(engine, plan, options=Options(retries=5))) == [["return 1"]]
    assert len({request.seed for request in engine.requests}) == 3
    assert len(answers(filled(Filling(" "), plan, options=Options(retries=1)))) == 1


def test_an_engine_that_fails_is_not_asked_again(tmp_path: Path) -> None:
    engine = Calling(fail)
    assert answers(filled(engine, planned(tmp_path / "a.py", STUB), options=Options(retries=3))) == [["the engine is busy"]]
    assert engine.n == 1


def test_a_further_round_contains_the_failure_and_is_stored(tmp_path: Path) -> None:
    engine, plan = Filling("return 2"), planned(tmp_path / "a.py", STUB)
    [hole] = plan.holes

    async def again(number: int, failure: str) -> list[str]:
        options = Options(retries=1)
        with Journal(tmp_path / "journal") as journal:
            fills = await Rounds(engine, plan, alone(plan), options, journal).further(hole, number, failure)
        return [fill.edit.text for fill in fills]

    assert asyncio.run(again(1, "assert 1 == 2 at 0x7f in 0.31s")) == ["return 2"]
    assert "The last attempt failed: assert 1 == 2 at ? in ?" in engine.requests[0].holes[0].instruction
    assert asyncio.run(again(1, "assert 1 == 2 at 0x80 in 0.12s")) == ["return 2"]
    assert len(engine.requests) == 1, "the second time it came from the journal"
    assert asyncio.run(again(2, "")) == []


@pytest.mark.parametrize("name", ["a.py", "/".join(["a_folder_with_a_long_name"] * 20) + "/a.py", "caf\udce9.py"])
def test_a_hole_gets_no_passage_of_its_own_file(tmp_path: Path, name: str) -> None:
    """Its text is already in the request, and its version on the disk may hold the answer."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / ".git").mkdir()
    body = "    check(price, quantity, customer)\n"
    path.write_text(
        f"def total(price, quantity, customer):\n{body}    return 1\n\n\ndef other(price, quantity, customer):\n{body}    \n"
    )
    (tmp_path / "b.py").write_text(f"def third(price, quantity, customer):\n{body}    return 3\n")
    place = planning.parse_place(f"{path}:8:5")
    plan = planning.for_places(api.source_at(place), [place])
    context = api.contexts()(plan)
    request = rounds.request_for(plan, context, plan.groups[0], Options(retries=0))
    passages = [snippet.text for snippet in request.related if snippet.for_copying]
    assert [text for text in passages if "third" in text]
    assert not [text for text in passages if "total" in text]
