"""A request from start to ranked candidates, on tiny real checkpoints."""

from __future__ import annotations

import gc
import os
import re
import shutil
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core import confidence
from dg_lsp.core.values import Budget, Hole, InfillRequest, Ranked, Span, n_common
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.causal.filler import CausalFiller
from dg_lsp.engine.common import answering
from dg_lsp.engine.common.inputs import MAX_ROWS, RequestInputs
from dg_lsp.engine.common.loading import LoadError
from dg_lsp.engine.common.local import AHEAD_CHUNK, LocalFiller, LocalTask
from dg_lsp.engine.common.pace import Pace
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.diffusion.filler import DiffusionFiller
from dg_lsp.engine.diffusion.search import Speculate
from dg_lsp.engine.model import cores
from dg_lsp.engine.model.prefix_cache import PrefixCache
from dg_lsp.engine.model.room import PrefixEncoder
from dg_lsp.engine.model.tree import Tree
from tests.engine.engine_kit import finish
from tests.engine.filler_kit import ids_of, passes_of, room_of

LINE = Hole(Span(0, 0), "cursor")
BODY = Hole(Span(0, 0), "body", indent="    ", extent="block")
CONTROL_TOKENS = ("<pre>", "<eos>", "<turn|>", "<path>")
PREFIX, SUFFIX = "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.", "\n\n\nPoint(1, 2)\n"


@pytest.mark.parametrize("which", ["trained_filler", "instruct"])
def test_a_request_ends_with_ranked_candidates(request: pytest.FixtureRequest, which: str) -> None:
    model: LocalFiller = request.getfixturevalue(which)
    candidates = finish(model.start(InfillRequest(PREFIX, SUFFIX, (LINE,), language="python"))).candidates()
    assert candidates
    assert len({candidate.texts for candidate in candidates}) == len(candidates)
    assert all(candidate.finished for candidate in candidates)
    chances = [confidence.probability(candidate.confidence) for candidate in candidates]
    if which == "trained_filler":  # its profile has a calibration
        assert chances == sorted((chance or 0 for chance in chances), reverse=True)
        assert all(0 < (chance or 0) < 1 for chance in chances)
    else:
        assert [candidate.confidence for candidate in candidates] == [Ranked(place) for place in range(len(candidates))]
    assert all(0 <= chance <= 1 for candidate in candidates for row in candidate.confidences for chance in row)
    for candidate in candidates:
        # Each token's part of the text, though the first may have begun before the cursor.
        assert len(candidate.lengths[0]) == len(candidate.confidences[0])
        assert sum(candidate.lengths[0]) == len(candidate.texts[0])


DISTANT = "\n\n" + "\n".join(f"x{n} = {n}" for n in range(40)) + "\n\n"


@pytest.mark.parametrize(
    ("which", "n_steps", "n_holes"),
    [("trained_filler", 3, 1), ("trained_filler", 1000, 2), ("instruct", 2, 2), ("instruct", 1000, 1)],
)
def test_a_closed_task_leaves_nothing_for_the_garbage_collector(
    request: pytest.FixtureRequest, which: str, n_steps: int, n_holes: int
) -> None:
    kept = set[weakref.ref[RequestInputs]]()
    model: LocalFiller = request.getfixturevalue(which)
    gc.collect()
    gc.disable()
    try:
        holes, between = (LINE, BODY)[:n_holes], (DISTANT,) * (n_holes - 1)
        task = model.start(InfillRequest(PREFIX, SUFFIX, holes, between=between, language="python"))
        for _ in range(n_steps):
            if not task.step():
                break
            assert task.inputs is not None
            kept.add(weakref.ref(task.inputs))
        task.candidates()
        task.close()
        del task
        assert kept
        assert not any(each() for each in kept)
    finally:
        gc.enable()


def test_a_hole_in_a_line_stays_in_it(instruct: DiffusionFiller) -> None:
    for seed in range(4):
        candidates = finish(instruct.start(InfillRequest(PREFIX, SUFFIX, (LINE,), seed=seed))).candidates()
        noise = [candidate.texts[0] for candidate in candidates if candidate.row == "noise"]
        assert noise
        assert not any("\n" in text for text in noise)


@pytest.mark.parametrize(
    ("prefix", "suffix", "seed"),
    [
        ("", "", 0),
        *((f"def f(a):\n    {typed}", "\n", 0) for typed in ("re", "ret", "return", "    ret", "x = a +")),  # written again
        *((PREFIX, SUFFIX, seed) for seed in (2**63 - 1, -(2**63), 2**60, -1)),
        *((f'html = "{name}', f'{name}"\n', 0) for name in CONTROL_TOKENS),
    ],
)
def test_every_request_has_an_answer(trained_filler: CausalFiller, prefix: str, suffix: str, seed: int) -> None:
    assert finish(trained_filler.start(InfillRequest(prefix, suffix, (LINE,), seed=seed))).candidates()


def test_the_text_of_a_control_token_stays_text(trained_filler: CausalFiller) -> None:
    vocabulary = trained_filler.loaded.vocabulary
    for name in CONTROL_TOKENS:
        ids = vocabulary.encode(f"a {name} b")
        assert vocabulary.decode(ids) == f"a {name} b"
        assert not set(ids) & vocabulary.special


def test_the_step_budget_is_respected(instruct: DiffusionFiller) -> None:
    def n_steps(steps: int) -> int:
        asked = InfillRequest(PREFIX, SUFFIX, (LINE,), budget=Budget(steps=steps))
        return max(candidate.steps for candidate in finish(instruct.start(asked)).candidates())

    assert n_steps(1) < n_steps(12)


def test_several_holes_share_a_canvas_up_to_the_checkpoints_number(instruct: DiffusionFiller) -> None:
    few, between = Budget(steps=1), "\n\n\ndef g():\n    "
    two = InfillRequest("def f():\n    ", "\n", (BODY, BODY), between=(between,), budget=few)
    five = InfillRequest("def f():\n    ", "\n", (BODY,) * 5, between=(between,) * 4, budget=few)
    assert instruct.fills_together(two)
    assert not instruct.fills_together(five)
    assert len(finish(instruct.start(two)).candidates()[0].texts) == 2
    task = finish(instruct.start(five))
    assert {len(candidate.texts) for candidate in task.candidates()} == {5}
    assert task.drafts() == task.candidates()[0].texts


def test_a_keystroke_encodes_only_its_new_tokens(trained_filler: CausalFiller) -> None:
    trained_filler.cache.clear()
    finish(trained_filler.start(InfillRequest(PREFIX, SUFFIX, (LINE,))))
    n_tokens, n_reused = reused(trained_filler, InfillRequest(PREFIX + "y", SUFFIX, (LINE,)))
    assert n_tokens - n_reused <= 2


def test_the_cache_changes_no_answer(trained_filler: CausalFiller) -> None:
    request = InfillRequest(PREFIX + "x", SUFFIX, (LINE,), seed=1)
    trained_filler.cache.clear()
    fresh = finish(trained_filler.start(request))
    finish(trained_filler.start(InfillRequest(PREFIX + "y = y", SUFFIX, (LINE,))))
    warm = finish(trained_filler.start(request))
    assert [c.texts for c in warm.candidates()] == [c.texts for c in fresh.candidates()]
    assert [confidence.probability(c.confidence) for c in warm.candidates()] == pytest.approx(
        [confidence.probability(c.confidence) for c in fresh.candidates()], abs=1e-4
    )


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("/no/such/folder", {}, "there is no model folder /no/such/folder"),
        ("nonsense", {}, "there is no model folder nonsense"),
        (f"/{'x' * 300}", {}, f"^/{'x' * 300} can't be read: file name too long$"),
        ("embedded", {"dtype": "int9"}, "unknown dtype 'int9'"),
        ("embedded", {"device": "gpu"}, "unknown device 'gpu'; choose auto, cpu, cuda or mps"),
    ],
)
def test_what_no_model_can_be_loaded_from_is_named(name: str, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(LoadError, match=sentence):
        load_model(name, **{"device": "cpu", **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "config.json", "tokenizer.json", "dg_lsp.json", "model.safetensors"])
def test_a_file_without_permission_is_named(trained_layout: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(trained_layout, folder)
    (folder / name).chmod(0)
    try:
        if os.access(folder / name, os.R_OK):
            pytest.skip("root may read every file")
        with pytest.raises(LoadError, match=rf"^{folder / name} can't be read: permission denied$"):
            load_model(str(folder), device="cpu")
    finally:
        (folder / name).chmod(0o700)


def test_a_folder_without_a_model_or_a_tokenizer_is_named(trained_layout: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=re.escape(f"{tmp_path}/config.json can't be read: no such file")):
        load_model(str(tmp_path), device="cpu")
    shutil.copy(trained_layout / "config.json", tmp_path)
    with pytest.raises(LoadError, match=re.escape(f"{tmp_path} has no tokenizer")):
        load_model(str(tmp_path), device="cpu")


def test_about_reports_device_dtype_and_reasons(trained_filler: CausalFiller) -> None:
    about = trained_filler.about()
    assert (about["device"], about["dtype"]) == ("cpu", "float32")
    assert isinstance(about["device_bytes"], int)


def test_a_new_limit_of_threads_holds_from_the_next_step_on(instruct_layout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "after", lambda plan, *_times: plan)  # whatever else the machine does
    filler = DiffusionFiller(load_model(str(instruct_layout), device="cpu", threads=1))
    task = filler.start(InfillRequest("x = ", "\n", (Hole(Span(4, 4), "cursor"),)))
    for threads in (1, 2, 1):
        filler.limit(threads)
        assert task.step()
        assert (torch.get_num_threads(), filler.about()["threads"]) == (threads, threads)


def test_before_the_end_the_drafts_count_as_well(instruct: DiffusionFiller) -> None:
    task = instruct.start(InfillRequest("alpha = beta + gamma\nx = 1\nalpha = be", "\n", (LINE,)))
    while not any(candidate.row == "noise" for candidate in task.candidates()):
        assert task.step()
    candidates = task.candidates()
    assert candidates[0].row in ("copy", "causal")
    assert "ta + gamma" in {candidate.texts[0] for candidate in candidates}
    assert not any(candidate.finished for candidate in candidates)


def test_there_are_many_candidates_up_to_the_row_limit(instruct: DiffusionFiller) -> None:
    task = instruct.start(InfillRequest(PREFIX, SUFFIX, (LINE,), budget=Budget(candidates=500, steps=4)))
    candidates = finish(task).candidates()
    drafts = [row for row in task.progress.proposals if row.entropy is None]
    assert len(task.progress.proposals) - len(drafts) <= MAX_ROWS  # on the canvas, corrected drafts among them
    # What the search has written, and what its open canvas reads beyond that.
    assert len(drafts) <= instruct.loaded.profile.copy_rows + Speculate().rows + 1
    assert sum(candidate.row == "noise" for candidate in candidates) > 2


def test_distant_holes_are_filled_in_sequence(trained_filler: CausalFiller) -> None:
    asked = InfillRequest("def f():\n    ", "\n", (BODY, BODY), between=(DISTANT,), budget=Budget(candidates=4))
    task = finish(trained_filler.start(asked))
    candidates = task.candidates()
    assert len({candidate.texts for candidate in candidates}) == len(candidates) > 1
    for candidate in candidates:
        assert len(candidate.texts) == len(candidate.alone) == 2
        alone = [confidence.probability(each) or 0 for each in candidate.alone]
        assert confidence.probability(candidate.confidence) == pytest.approx(alone[0] * alone[1])
    # Each hole's texts are in the order of their own probability.
    columns = zip(*(candidate.alone for candidate in candidates), strict=True)
    assert candidates[0].alone == tuple(max(column, key=confidence.order) for column in columns)


REPEATED = InfillRequest("alpha = beta + gamma\nx = 1\nalpha = be", "\n", (LINE,))


def started(trained_filler: CausalFiller, request: InfillRequest) -> LocalTask:
    """Start a request as one who types asks for it."""
    trained_filler.expect(request)
    return trained_filler.start(request)


def reused(trained_filler: CausalFiller, request: InfillRequest) -> tuple[int, int]:
    task = trained_filler.start(request)
    while not task.cache()["tokens"]:
        assert task.step()
    return task.cache()["tokens"], task.cache()["reused"]


def foresee(trained_filler: CausalFiller) -> int:
    n_units = 1
    while trained_filler.foresee() is not None:
        n_units += 1
    return n_units


def test_the_prefix_of_a_cancelled_request_is_encoded_while_idle(trained_filler: CausalFiller) -> None:
    request = InfillRequest(PREFIX + "x = " + "1 + " * 25, SUFFIX, (LINE,))
    trained_filler.cache.clear()
    started(trained_filler, request)  # and nothing of it is done
    assert foresee(trained_filler) > 1  # a little at a time
    n_tokens, n_reused = reused(trained_filler, request)
    assert n_tokens == n_reused > AHEAD_CHUNK


def test_a_dropped_prefix_is_encoded_again_while_idle(trained_filler: CausalFiller) -> None:
    task = started(trained_filler, REPEATED)
    assert task.step()
    trained_filler.trim()
    foresee(trained_filler)
    n_tokens, n_reused = reused(trained_filler, REPEATED)
    assert n_tokens == n_reused


def test_the_accepted_answer_is_encoded_while_idle(trained_filler: CausalFiller) -> None:
    trained_filler.cache.clear()
    best = finish(started(trained_filler, REPEATED)).candidates()[0].texts[0]
    foresee(trained_filler)
    n_tokens, n_reused = reused(trained_filler, replace(REPEATED, prefix=REPEATED.prefix + best))
    assert n_tokens == n_reused


def test_only_the_newest_expected_request_is_prepared_and_only_once(trained_filler: CausalFiller) -> None:
    older = started(trained_filler, REPEATED)
    started(trained_filler, InfillRequest(PREFIX, SUFFIX, (LINE,)))
    finish(older)
    foresee(trained_filler)
    n_tokens, n_reused = reused(trained_filler, InfillRequest(PREFIX, SUFFIX, (LINE,)))
    assert n_tokens == n_reused
    foresee(trained_filler)
    trained_filler.cache.clear()
    assert trained_filler.foresee() is None
    assert not trained_filler.cache.bytes


def test_failed_preparation_is_not_retried(trained_filler: CausalFiller, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    trained_filler.cache.clear()
    started(trained_filler, REPEATED)
    with monkeypatch.context() as patched:
        patched.setattr(trained_filler.prefixes, "encode", fail)
        with pytest.raises(MemoryError):
            trained_filler.foresee()
    assert trained_filler.foresee() is None
    assert not trained_filler.cache.bytes


def test_a_body_is_not_drafted_from_the_placeholders_of_other_bodies(trained_filler: CausalFiller) -> None:
    stub = 'def {}():\n    """Return it."""\n    raise NotImplementedError\n\n\n'
    prefix = "".join(stub.format(name) for name in ("one", "two")) + 'def three():\n    """Return it."""\n    '
    suffix = "\n\n\n" + stub.format("four") + 'def five():\n    """Return it."""\n    return 5\n'

    def copied(hole: Hole) -> set[str]:
        rows = finish(trained_filler.start(InfillRequest(prefix, suffix, (hole,)))).progress.proposals
        return {row.text for row in rows if row.row == "copy"}

    assert "return 5" in copied(BODY)
    assert "raise NotImplementedError" not in copied(BODY)
    # Where the user asks for other text than a missing body, a copy may be a placeholder.
    assert "raise NotImplementedError" in copied(replace(BODY, kind="selection"))


def proposals(filler: CausalFiller, file_weight: float) -> dict[str, Proposal]:
    """Return the proposals of one fill by their texts."""
    profile = replace(filler.loaded.profile, file_weight=file_weight)
    task = CausalFiller(replace(filler.loaded, profile=profile)).start(
        InfillRequest(PREFIX, SUFFIX, (LINE,), language="python")
    )
    return {row.text: row for row in finish(task).progress.proposals}


def test_the_model_s_own_scores_do_not_depend_on_the_file_s_repetitions(trained_filler: CausalFiller) -> None:
    alone, mixed = proposals(trained_filler, 0.0), proposals(trained_filler, 0.9)
    assert all(row.model_logps == row.logps for row in alone.values())
    in_both = alone.keys() & mixed.keys()
    assert in_both
    for text in in_both:
        assert mixed[text].model_logps == pytest.approx(alone[text].model_logps, abs=1e-4)
    assert any(mixed[text].logps != pytest.approx(alone[text].logps, abs=1e-2) for text in in_both)


def test_scores_from_drafting_equal_those_of_a_pass_over_the_text(
    trained_filler: CausalFiller, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted, read = proposals(trained_filler, 0.9), answering.read

    def read_again(inputs: RequestInputs, tree: Tree, pace: Pace, texts: Sequence[str]) -> dict[str, answering.Logps]:
        tree._logps.clear()
        return read(inputs, tree, pace, texts)

    monkeypatch.setattr(answering, "read", read_again)
    scored = proposals(trained_filler, 0.9)
    assert drafted
    for text in drafted:
        assert drafted[text].model_logps == pytest.approx(scored[text].model_logps, abs=1e-4)
        assert drafted[text].logps == pytest.approx(scored[text].logps, abs=1e-4)
        assert sum(drafted[text].after) == pytest.approx(sum(scored[text].after), abs=1e-4)


def kv_of(*ids: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of one layer, which say of which ids they are."""
    side = torch.tensor(ids, dtype=torch.float)[None, None, :, None].expand(1, 1, -1, 4)
    return [(side.clone(), -side)]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=12), st.lists(st.integers(0, 2), max_size=8))
def test_the_cache_has_the_keys_and_values_of_all_that_was_encoded(rows: list[list[int]], asked: list[int]) -> None:
    cache = PrefixCache()
    for row in rows:
        cache.put(row, kv_of(*row), torch.tensor([float(len(row))]))
    runs, n_known = cache.runs(asked), cache.known(asked)
    assert n_known == max((n_common(row, asked) for row in rows), default=0)
    for index, side in enumerate(kv_of(*asked[:n_known])[0]):
        assert torch.equal(torch.cat([side[:, :, :0], *(kv[0][index] for kv in runs)], 2), side)
    for row in rows:
        hidden = cache.last_hidden(tuple(row))
        assert hidden is not None
        assert hidden.item() == len(row)
    distinct = {tuple(row[:n]) for row in rows for n in range(1, len(row) + 1)}
    assert cache.bytes == len(distinct) * kv_of(0)[0][0].nbytes * 2


def test_what_prefixes_have_in_common_is_kept_once_and_their_ends_are_dropped_first() -> None:
    cache, size = PrefixCache(), kv_of(0)[0][0].nbytes * 2
    shared = range(300)
    for end in (1000, 2000, 3000):
        cache.put([*shared, *range(end, end + 100)], kv_of(*shared, *range(end, end + 100)))
    assert cache.bytes == 600 * size
    cache.max_bytes = 550 * size
    cache.runs([*shared, 1000])
    cache.put([*shared, 4000], kv_of(*shared, 4000))
    assert [cache.known([*shared, *range(end, end + 100)]) for end in (1000, 2000, 3000, 4000)] == [400, 300, 400, 301]


def test_keys_and_values_are_kept_in_a_narrower_type() -> None:
    wide, narrow = PrefixCache(), PrefixCache(dtype=torch.float16)
    for cache in (wide, narrow):
        cache.put(range(10), kv_of(*range(10)))
        cache.put([*range(5), 7], kv_of(*range(5), 7))
    assert 2 * narrow.bytes == wide.bytes
    passes = passes_of("tied")
    room = room_of(passes, ids_of(1, 9))
    narrow.clear()
    narrow.put(range(9), room.kv)
    copied = PrefixEncoder(passes, "cpu", narrow).room(range(9)).kv
    for found, expected in zip(copied, room.kv, strict=True):
        assert found[0].dtype is torch.float32
        torch.testing.assert_close(found[0], expected[0], atol=1e-2, rtol=1e-3)
