"""Requests to a stand-in that checks them like a real vLLM, and the use of its canvases."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dg_lsp.core import confidence
from dg_lsp.core.values import Hole, Ranked, Snippet, Span
from dg_lsp.engine import backends
from dg_lsp.engine.backends.http_client import RemoteError
from dg_lsp.engine.backends.remote import STEP_S, RemoteFiller
from dg_lsp.engine.backends.vllm import (
    MAX_ROWS,
    SERVED_STEPS,
    PinnedCanvas,
    Vllm,
    agreement,
    answer_tokens,
    connect,
)
from dg_lsp.engine.diffusion.layout import CanvasProfile, Sampling
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.wire.config import Config
from tests.checkpoints import dump_profile, gemma_like_tokenizer
from tests.engine.backends_kit import BODY, LINE, Judge, Recorder, StandIn, own_judge, request, rules, serving
from tests.engine.engine_kit import finish, wait_until

Opened = Callable[..., AbstractContextManager[tuple[RemoteFiller, StandIn]]]

PREFIX, SUFFIX = "def add(x, y):\n    return ", "\n\n\nadd(1, 2)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer's folder with a profile of short canvases and all gap lengths that the tests' answers need."""
    filler = tmp_path_factory.mktemp("served")
    gemma_like_tokenizer().save(str(filler / "tokenizer.json"))
    profile = CanvasProfile(held_tokens=8, line_gaps=(3, 5, 9), block_gaps=(12, 24, 29), prefix_tokens=512, suffix_tokens=64)
    (filler / "dg_lsp.json").write_text(dump_profile(profile))
    return filler


@pytest.fixture(scope="module")
def vocabulary(folder: Path) -> Vocabulary:
    return Vocabulary.from_file(folder / "tokenizer.json")


@pytest.fixture(scope="module", params=["known rules", "vLLM's own code"])
def judge(request: pytest.FixtureRequest) -> Iterator[Judge]:
    if request.param == "known rules":
        yield rules
    else:
        with own_judge() as filler:
            yield filler


@pytest.fixture
def open_remote(folder: Path, vocabulary: Vocabulary) -> Opened:
    @contextlib.contextmanager
    def open_(judge: Judge = rules, *, configured: Config | None = None, model: str = "", **settings: Any) -> Iterator[Any]:
        filler = StandIn(vocabulary, judge, **settings)
        with serving(filler.routes()) as url:
            remote = connect(url, model or str(folder), configured or Config())
            try:
                yield remote, filler
            finally:
                remote.close()

    return open_


def texts(remote: RemoteFiller, *arguments: Any, **more: Any) -> list[tuple[str, ...]]:
    return [candidate.texts for candidate in finish(remote.start(request(*arguments, **more))).candidates()]


def test_the_answer_that_fits_its_gap_comes_first(open_remote: Opened, judge: Judge, vocabulary: Vocabulary) -> None:
    assert len(vocabulary.encode("x + y")) + 1 == 5  # the space before is healed, so it is not part of the gap
    with open_remote(judge, answers=["x +y"]) as (remote, server):
        candidates = finish(remote.start(request(PREFIX, SUFFIX, language="python"))).candidates()
        assert candidates[0].texts == ("x +y",)
        assert candidates[0].finished
        assert len(candidates[0].confidences[0]) == len(vocabulary.encode("x +y"))
        assert [candidate.confidence for candidate in candidates][:1] == [Ranked(0)]
        assert [confidence.order(each.confidence) for each in candidates] == sorted(
            (confidence.order(each.confidence) for each in candidates), reverse=True
        )
        assert len(server.asked) == 3
        assert server.refused == ["diffusion_seed_canvas must hold exactly 64 ids, got 1."] or judge is not rules


def test_nothing_is_sent_that_the_server_refuses(open_remote: Opened, judge: Judge) -> None:
    with open_remote(judge) as (remote, server):
        n_refused = len(server.refused)
        finish(remote.start(request(PREFIX, SUFFIX, BODY, n=8, seed=7)))
        finish(remote.start(request(PREFIX, SUFFIX, LINE, BODY, between=("\n    ",))))
        assert len(server.refused) == n_refused == 1
        for body in server.asked:
            assert set(body) == {
                "model", "prompt", "max_tokens", "logprobs", "return_token_ids", "return_tokens_as_token_ids", "vllm_xargs",
            }  # fmt: skip
            xargs = body["vllm_xargs"]
            width = xargs["diffusion_canvas_length"]
            assert width <= 64
            assert body["max_tokens"] == len(xargs["diffusion_seed_canvas"]) == width
            assert xargs["diffusion_read_only"] == 1
            assert body["logprobs"] == 1


def test_held_text_stands_around_free_noise(open_remote: Opened, vocabulary: Vocabulary) -> None:
    with open_remote() as (remote, server):
        finish(remote.start(request("x = (a, ", ")\ny = 1\n")))
        for body in server.asked:
            seed, pinned = body["vllm_xargs"]["diffusion_seed_canvas"], body["vllm_xargs"]["diffusion_pinned"]
            free = sorted(set(range(len(seed))) - set(pinned))
            assert free == list(range(free[0], free[-1] + 1))
            assert len(free) in (3, 5, 9)
            assert vocabulary.decode(seed[: free[0]]) == " "  # healed: the prefix's last token is written again
            assert vocabulary.decode(seed[free[-1] + 1 :]).startswith(")\ny")
            assert not {seed[place] for place in free} & vocabulary.special
            assert vocabulary.decode(body["prompt"]).endswith("```\nx = (a,")


def test_the_same_seed_draws_the_same_noise(open_remote: Opened) -> None:
    with open_remote() as (remote, server):
        for seed in (1, 1, 2):
            finish(remote.start(request(PREFIX, SUFFIX, seed=seed)))
        bodies = [sorted(str(body["vllm_xargs"]) for body in server.asked[idx : idx + 3]) for idx in (0, 3, 6)]
        assert bodies[0] == bodies[1] != bodies[2]


def test_a_budget_of_steps_is_the_servers_cap(open_remote: Opened) -> None:
    with open_remote() as (remote, server):
        infill_request = request(PREFIX, SUFFIX)
        finish(remote.start(replace(infill_request, budget=replace(infill_request.budget, steps=3))))
        assert {body["vllm_xargs"]["diffusion_max_steps"] for body in server.asked} == {3}


def test_the_default_steps_reach_the_end_of_the_documented_temperature_schedule(open_remote: Opened) -> None:
    with open_remote() as (remote, server):
        for hole, steps in ((LINE, SERVED_STEPS), (BODY, Sampling().block_steps)):
            server.asked.clear()
            finish(remote.start(request(PREFIX, SUFFIX, hole)))
            assert {body["vllm_xargs"]["diffusion_max_steps"] for body in server.asked} == {steps}


@pytest.mark.parametrize(
    ("canvas", "hole", "width"),
    [(32, LINE, 32), (64, LINE, 64), (64, BODY, 64), (256, LINE, 32), (256, BODY, 48), (80, BODY, 80)],
)
def test_the_rows_of_a_request_are_as_wide_as_the_servers_graphs(
    open_remote: Opened, canvas: int, hole: Hole, width: int
) -> None:
    """All have the same width: the served one unless it is much too wide, because other batches run without full graphs."""
    with open_remote(canvas=canvas) as (remote, server):
        finish(remote.start(request(PREFIX, SUFFIX, hole, n=4)))
        assert len(server.asked) > 2
        assert {len(body["vllm_xargs"]["diffusion_seed_canvas"]) for body in server.asked} == {width}


def test_a_canvas_is_filled_up_as_vllm_does(open_remote: Opened, vocabulary: Vocabulary) -> None:
    end, pad = vocabulary.id("<turn|>"), vocabulary.id("<pad>")
    with open_remote() as (remote, server):
        finish(remote.start(request("x = (a, ", ")\ny = 1\n" + "z = 2\n" * 40)))
        finish(remote.start(request("x = (a, ", ")\n")))
        for body in server.asked:
            seed, pinned = body["vllm_xargs"]["diffusion_seed_canvas"], body["vllm_xargs"]["diffusion_pinned"]
            assert seed.count(end) == 1
            at = seed.index(end)
            # A closed answer contains its own end of turn, which includes <eos>.
            rest = seed[at + 1 :]
            assert set(rest) <= {pad, vocabulary.id("<eos>")}
            assert rest.count(vocabulary.id("<eos>")) <= 1
            assert rest
            assert set(range(at, len(seed))) <= set(pinned)


@pytest.mark.parametrize(
    ("max_rows", "n", "gaps"), [(2, 1, {3, 9}), (1, 1, {9}), (4, 8, {3, 5, 9}), (0, 60, {3, 5, 9}), (64, 60, {3, 5, 9})]
)
def test_no_more_canvases_are_sent_than_the_server_steps_together(
    open_remote: Opened, max_rows: int, n: int, gaps: set[int]
) -> None:
    with open_remote(max_rows=max_rows) as (remote, server):
        finish(remote.start(request(PREFIX, SUFFIX, n=n)))
        n_canvases = min(max(3, n), MAX_ROWS, max_rows or MAX_ROWS)
        assert len(server.asked) == n_canvases
        assert len({str(body["vllm_xargs"]["diffusion_seed_canvas"]) for body in server.asked}) == n_canvases
        frees = [
            len(body["vllm_xargs"]["diffusion_seed_canvas"]) - len(body["vllm_xargs"]["diffusion_pinned"])
            for body in server.asked
        ]
        assert set(frees) == gaps
        facts = remote.about()["remote"]
        assert isinstance(facts, dict)
        assert facts.get("rows", 0) == max_rows


def test_a_line_ends_with_its_line_and_a_block_does_not(open_remote: Opened) -> None:
    with open_remote(answers=["a\nb"]) as (remote, _):
        assert texts(remote, PREFIX, SUFFIX)[0] == ("a",)
        assert texts(remote, PREFIX, SUFFIX, Hole(Span(0, 0), "selection", extent="block"))[0][0].startswith("a\nb")


def test_several_holes_share_a_canvas(open_remote: Opened, vocabulary: Vocabulary) -> None:
    with open_remote(answers=["abc", "xyz"], canvas=128) as (remote, server):
        infill_request = request("f(", ")\n", LINE, LINE, between=(", ",))
        candidates = finish(remote.start(infill_request)).candidates()
        assert candidates[0].texts == ("abc", "xyz")
        assert len(candidates[0].confidences) == 2
        assert len(server.asked) == 3


def test_more_holes_than_a_canvas_takes_are_filled_one_after_another(open_remote: Opened) -> None:
    with open_remote(answers=["abc"]) as (remote, server):
        task = remote.start(request("f(", ")\n", *[LINE] * 5, between=(", ",) * 4))
        candidates = finish(task).candidates()
        assert candidates[0].texts == ("abc",) * 5
        assert len({candidate.texts for candidate in candidates}) == len(candidates)
        assert len(server.asked) == 15
        assert task.cache()["tokens"] == sum(len(body["prompt"]) for body in server.asked)


def test_a_closing_token_ends_the_answer(vocabulary: Vocabulary) -> None:
    end, letters = vocabulary.id("<turn|>"), vocabulary.encode("abc")
    chosen_tokens = [(letters[0], 0.9), (end or 0, 0.9), (letters[1], 0.9)]
    assert [token for token, _ in answer_tokens(vocabulary, chosen_tokens)] == [letters[0]]


def test_a_longer_context_than_the_window_is_cut(open_remote: Opened, vocabulary: Vocabulary) -> None:
    long = "".join(f"value_{number} = {number}\n" for number in range(200))
    related = (Snippet("other.py", long),)
    with open_remote(max_model_len=1024) as (remote, server):
        finish(remote.start(request(long + PREFIX, SUFFIX + long, related=related)))
        assert server.asked
        assert all(len(body["prompt"]) + 64 <= 1024 for body in server.asked)
        assert "value_199" in vocabulary.decode(server.asked[0]["prompt"])
    with open_remote(max_model_len=128) as (remote, _), pytest.raises(RemoteError, match="larger --max-model-len"):
        finish(remote.start(request(long + PREFIX, SUFFIX)))


def test_holes_with_more_text_between_than_a_canvas_takes_are_filled_one_after_another(open_remote: Opened) -> None:
    with open_remote(answers=["abc"]) as (remote, server):
        between = "\n" + "value = 1\n" * 8
        candidate, *_ = finish(remote.start(request("f(", ")\n", LINE, LINE, between=(between,)))).candidates()
        assert candidate.texts == ("abc", "abc")
        assert len(server.asked) == 6


def test_a_canvas_too_short_for_any_answer_is_reported(open_remote: Opened) -> None:
    with (
        open_remote(canvas=4) as (remote, _),
        pytest.raises(RemoteError, match=r"canvases of 4 tokens, too short .* canvas_length"),
    ):
        finish(remote.start(request("f(", ")\n")))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"version": "0.29.0"}, r"runs vLLM 0\.29\.0: it is too old to infill.*upgrade it to vLLM 0\.33 or later"),
        ({"old": True}, r"does not accept a canvas: it is too old to infill, or serves no DiffusionGemma"),
        ({"old": True, "version": "?"}, "does not accept a canvas"),
        ({"tokens": [1, 2, 3]}, "serves tiny-diffusion with a tokenizer other than"),
        ({"key": "secret"}, r"requires an API key \(401\): Unauthorized; add it to the configuration"),
    ],
)
def test_a_server_that_cannot_infill_is_reported_at_once(open_remote: Opened, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RemoteError, match=sentence), open_remote(**settings):
        pass


@pytest.mark.parametrize("version", ["0.33.0", "0.34.1+cu130", "1.0", "v0.33", "0.1.dev20+gabc", ""])
def test_versions_that_may_infill_are_tried(open_remote: Opened, version: str) -> None:
    with open_remote(version=version) as (remote, _):
        assert remote.about()["remote"] == {"model": "tiny-diffusion", "canvas": 64, "vllm": version}


def test_canvases_without_their_held_text_are_not_answers(open_remote: Opened) -> None:
    with open_remote(heedless=True) as (remote, _), pytest.raises(RemoteError, match="without their held text"):
        finish(remote.start(request(PREFIX, SUFFIX)))


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"token_ids": [1, 2]}, "returned 2 tokens for a canvas of 64: it is too old"),
        ({"token_ids": ["x"] * 64}, "can't be understood: token_ids must be whole numbers"),
        ({"token_ids": [1] * 64}, "can't be understood: token_logprobs has 0 entries for 64 tokens"),
        ({"token_ids": 7}, "can't be understood: choices\\[0\\].token_ids must be a list"),
        (None, "can't be understood: choices is empty"),
    ],
)
def test_an_answer_of_another_shape_is_reported(open_remote: Opened, choice: Any, sentence: str) -> None:
    with open_remote() as (remote, server):
        body = {"choices": [choice] if choice else []}

        async def odd(_: Request) -> Response:
            return JSONResponse(body)

        with serving({**server.routes(), "POST /v1/completions": odd}) as url:
            object.__setattr__(remote.client.server, "url", url)
            with pytest.raises(RemoteError, match=sentence):
                finish(remote.start(request(PREFIX, SUFFIX)))


def test_tokens_may_be_named_by_their_ids(open_remote: Opened) -> None:
    with open_remote(answers=["x +y"]) as (remote, server):
        write = server._completions

        async def without(http_request: Request) -> Response:
            response = await write(http_request)
            return Response(bytes(response.body).replace(b'"token_ids"', b'"others"'), media_type="application/json")

        with serving({"POST /v1/completions": without}) as url:
            object.__setattr__(remote.client.server, "url", url)
            assert texts(remote, PREFIX, SUFFIX)[0] == ("x +y",)


def test_a_missing_tokenizer_is_reported(open_remote: Opened, tmp_path: Path) -> None:
    for model, sentence in ((str(tmp_path), "has no tokenizer.json"), ("/none/such", "is not available here; name the served")):
        with pytest.raises(RemoteError, match=sentence), open_remote(model=model):
            pass
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(RemoteError, match=r"the tokenizer and profile in .* can't be read"), open_remote(model=str(tmp_path)):
        pass


def test_a_task_that_is_closed_closes_its_connections(open_remote: Opened) -> None:
    hold = threading.Event()
    recorder = Recorder([{}], hold=hold)
    with open_remote() as (remote, server), serving({**server.routes(), "POST /v1/completions": recorder.answer}) as url:
        object.__setattr__(remote.client.server, "url", url)
        task = remote.start(request(PREFIX, SUFFIX))
        assert task.step()
        wait_until(lambda: len(recorder.bodies) == 3)
        assert recorder.most_at_once == 3
        task.close()
        wait_until(lambda: recorder.dropped == 3)


def test_a_step_never_waits_long_and_answers_so_far_count(open_remote: Opened, vocabulary: Vocabulary) -> None:
    late = threading.Event()
    with open_remote(answers=["x +y"]) as (remote, server):
        write, bodies = server._completions, []

        async def slow(http_request: Request) -> Response:
            bodies.append(await http_request.json())
            if len(bodies) > 1:
                while not late.is_set() and not await http_request.is_disconnected():
                    await asyncio.sleep(0.005)
            return await write(http_request)

        with serving({"POST /v1/completions": slow}) as url:
            object.__setattr__(remote.client.server, "url", url)
            task = remote.start(request(PREFIX, SUFFIX))
            assert task.candidates() == ()
            assert task.drafts() == ("",)
            wait_until(lambda: task.step() and task.candidates())
            assert [candidate.finished for candidate in task.candidates()] == [False]
            assert task.drafts() != ("",)
            late.set()
            assert all(candidate.finished for candidate in finish(task).candidates())
    assert STEP_S <= 0.05


def test_a_closed_filler_fails_its_tasks(open_remote: Opened) -> None:
    with open_remote() as (remote, _):
        task = remote.start(request(PREFIX, SUFFIX))
        remote.close()
        with pytest.raises(RemoteError, match="connection to the server is closed"):
            finish(task)


def test_agreement_is_the_share_of_held_positions_that_are_read_as_held() -> None:
    canvas = PinnedCanvas((5, 6, 7, 8, 9, 0), (-1, 0, 0, -1, -1, -1), n_filled=5)
    assert agreement(canvas, [(token, 1.0) for token in (5, 1, 1, 8, 1, 3)]) == pytest.approx(2 / 3)
    assert agreement(PinnedCanvas((1,), (0,), 1), [(2, 1.0)]) == 1.0


def test_a_name_is_enough_to_fill_remotely(
    folder: Path, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DG_LSP_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text("[keys]\n'127.0.0.1' = 'secret'")
    server = StandIn(vocabulary, rules, answers=["x +y"], key="secret")
    messages: list[str] = []
    with serving(server.routes()) as url:
        filler: Any = backends.load_filler(f"vllm:{url}#{folder}", on_progress=lambda text, _: messages.append(text))
        assert texts(filler, PREFIX, SUFFIX)[0] == ("x +y",)
        filler.close()
    assert messages[-1] == "ready"


def test_the_served_models_own_folder_has_its_tokenizer(folder: Path, vocabulary: Vocabulary) -> None:
    server = StandIn(vocabulary, rules, root=str(folder))
    with serving(server.routes()) as url:
        filler = connect(url, "", Config())
        filler.close()
    assert isinstance(filler.backend, Vllm)
    assert filler.backend.served.model == "tiny-diffusion"
