"""What the model is shown and what is taken of its answer, on a checkpoint without a profile: the shape of the 26B's."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import pytest
import torch

from dg_lsp.core.values import Hole, InfillRequest, Snippet, Span
from dg_lsp.engine.common import answering
from dg_lsp.engine.common.layout import required_ids
from dg_lsp.engine.common.pace import Timing
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.diffusion import canvas
from dg_lsp.engine.diffusion.denoise import Denoiser, Reading
from dg_lsp.engine.diffusion.filler import DiffusionFiller
from dg_lsp.engine.diffusion.generation import CanvasAnswer, CanvasRequest
from dg_lsp.engine.diffusion.layout import REPEATED_LINES, CanvasProfile
from dg_lsp.engine.model.kv import KV
from dg_lsp.engine.model.weights import checkpoint
from tests.engine.engine_kit import finish

LINE = Hole(Span(0, 0), "cursor")
BODY = Hole(Span(0, 0), "body", indent="    ", extent="block")
SUFFIX = "\n\n\nclass Point:\n    pass\n"
TURN = "<turn|>"  # the end of the model's turn
CODE = """
import os
from dataclasses import dataclass


@dataclass
class Point:
    x: int
    y: int

    def moved(self, dx: int, dy: int) -> "Point":
        return Point(self.x + dx, self.y + dy)


def main() -> None:
    point = Point(1, 2)
    for n in range(10):
        point = point.moved(n, -n)
        print(point, os.getpid())
""".lstrip()


# Typing.


def n_new(filler: DiffusionFiller, request: InfillRequest) -> int:
    """Return how many tokens a request's prefix has that the cache does not, and put them there."""
    ids = filler.layout.lay_out(request).ids
    n_tokens = len(ids) - filler.cache.known(ids)
    if n_tokens:
        with torch.inference_mode():
            filler.prefixes.encode(ids, filler.prefixes.room(ids), n_tokens)
    return n_tokens


def test_a_keystroke_encodes_few_tokens_beyond_the_repeated_lines(instruct: DiffusionFiller) -> None:
    encode = instruct.loaded.vocabulary.encode
    head = "".join(f"value_{n} = {n}\n" for n in range(20))
    related = (Snippet("b.py", "def g(): ..."), Snippet("a.py", "def h(): ..."))
    suffix = "\n" + "".join(f"other_{n} = {n}\n" for n in range(60))
    request = InfillRequest(head, suffix, (LINE,), language="python", path="m.py", related=related)
    instruct.cache.clear()
    n_new(instruct, request)
    costs, n_all = list[int](), len(instruct.layout.lay_out(request).ids)
    for n in range(1, len(CODE) + 1):
        text = head + CODE[:n]
        new = n_new(instruct, replace(request, prefix=text, related=related[:: -1 if n % 2 else 1]))
        n_lines = text.count("\n")
        if (
            text.endswith("\n") and n_lines % REPEATED_LINES == 0
        ):  # the user's turn shows more lines, and the answer repeats them
            repeated_lines = "".join(f"{line}\n" for line in text.split("\n")[n_lines - REPEATED_LINES : n_lines])
            new -= 2 * len(encode(repeated_lines))
        costs.append(new)
    assert max(costs) < 32
    assert sorted(costs)[len(costs) * 9 // 10] <= 3
    assert n_all > 500


# The end of a line.


def reading(fill: CanvasRequest, text: str, length: int) -> tuple[canvas.PlannedRow, Reading]:
    """Return a row of noise whose gap reads as a text, with something behind it."""
    plan = next(row for row in canvas.planned(fill, [], fill.gap_lengths()) if sum(row.row.free) == length)
    ids = [*fill.vocabulary.encode(text), *plan.row.ids][: len(plan.row.ids)]
    return plan, Reading(tuple(ids), (0.5,) * len(ids), 0.1)


def test_a_line_hole_may_write_a_line_end_and_its_answer_is_cut_there(instruct: DiffusionFiller) -> None:
    fill = instruct.inputs(InfillRequest("x = ", SUFFIX, (LINE,)))
    assert not set(fill.vocabulary.with_newline) & set(fill.control)
    assert canvas.texts(fill, *reading(fill, " a\nb = 1\n", 10)) == ("a",)  # one space was typed already
    in_call = instruct.inputs(InfillRequest("x = f(", ", 2)\ny\n", (LINE,)))
    assert canvas.texts(in_call, *reading(in_call, "(a, 2)\nyy", 10)) == ("a",)
    assert canvas.texts(in_call, *reading(in_call, "(a, 2, 3)b", 10)) == ("a, 2, 3)b",)


def test_each_of_several_holes_is_truncated_at_its_line_with_its_confidences(instruct: DiffusionFiller) -> None:
    request = InfillRequest("x = 1\n", SUFFIX, (LINE, LINE), between=("\nb = ",))
    fill = instruct.inputs(request)
    plan = canvas.planned(fill, [], fill.gap_lengths())[0]
    n_gap = sum(gap == 0 for gap in plan.gaps)
    first, newline = fill.vocabulary.encode("ab\n")[:2], fill.vocabulary.encode("\n")[0]
    ids = list(plan.row.ids)
    ids[:3] = [*first, newline]
    evidence = canvas.evidence(fill, plan, Reading(tuple(ids), (0.5,) * len(ids), 0.1), 1)
    assert evidence.candidate.texts[0] == "ab"
    assert len(evidence.candidate.confidences[0]) == 2 < n_gap


# Drafts.


def test_draft_tokens_of_low_causal_probability_start_as_noise(instruct: DiffusionFiller) -> None:
    fill = instruct.inputs(InfillRequest("x = 1\n", SUFFIX, (BODY,)))
    result = Proposal("abc", "causal", logps=(-0.01, -3.0, -0.2))
    [plan] = canvas.corrected(fill, [result], 5)
    n_tail = len(fill.prompt.tail)
    assert plan.row.draft
    assert plan.row.noisy == (False, True, False, *[False] * n_tail)
    assert plan.row.chances[:3] == pytest.approx((0.990, 0.050, 0.819), abs=1e-3)
    assert plan.row.ids[3:] == fill.prompt.tail
    [unscored] = canvas.corrected(fill, [replace(result, logps=())], 5)
    assert (unscored.row.chances, unscored.row.noisy) == ((), ())


# Answers longer than a canvas.


def several(filler: DiffusionFiller, texts: Sequence[str], prefixes: list[int], patch: pytest.MonkeyPatch) -> str:
    """Return what canvases write that settle to these texts, one after another; note how long the prefix of each was."""
    inputs, timing, left = filler.inputs(InfillRequest("def f():\n", SUFFIX, (BODY,))), Timing(filler.pace), list(texts)
    encode = filler.loaded.vocabulary.encode

    def settle(denoiser: Denoiser, kv: KV) -> None:
        prefixes.append(kv[0][0].shape[2])
        ids = ids_of(filler, left.pop(0))
        denoiser.canvas.best[0] = torch.tensor([*ids, *encode("~") * denoiser.width][: denoiser.width])
        denoiser.drop(0)

    def whole() -> Generator[None, None, str]:
        answer = CanvasAnswer(inputs, *(yield from answering.encoded(inputs, filler.prefixes, timing)), timing, filler.steps)
        patch.setattr(answer, "take_step", settle)
        return (yield from canvas.written(answer))

    with torch.inference_mode():
        work = whole()
        while True:
            try:
                next(work)
            except StopIteration as stop:
                return str(stop.value)


def ids_of(filler: DiffusionFiller, text: str) -> list[int]:
    """Return the ids of a text that may end with the end of the model's turn."""
    own, vocabulary = text.removesuffix(TURN), filler.loaded.vocabulary
    return [*vocabulary.encode(own), *required_ids(vocabulary, (TURN,) if own != text else ())]


@pytest.mark.parametrize("ending", [SUFFIX, "\n```\nmore", TURN])
def test_a_long_answer_continues_after_the_whole_lines_of_its_canvases(
    instruct: DiffusionFiller, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler = DiffusionFiller(replace(instruct.loaded, profile=replace(instruct.loaded.profile, canvas_tokens=48)))
    lines, prefixes = "a = 1\n" * 6, list[int]()
    text = several(filler, [lines + "b = ", "b = 2\n" + "b" * 9, "c = 3" + ending], prefixes, monkeypatch)
    assert text == lines + "b = 2\nc = 3"
    n_lines, n_line = (len(ids_of(filler, part)) for part in (lines, "b = 2\n"))
    assert [length - prefixes[0] for length in prefixes] == [0, n_lines, n_lines + n_line]
    assert prefixes[0] == len(filler.inputs(InfillRequest("def f():\n", SUFFIX, (BODY,))).prompt.ids)


def test_an_answer_takes_at_most_four_canvases(instruct: DiffusionFiller, monkeypatch: pytest.MonkeyPatch) -> None:
    filler = DiffusionFiller(replace(instruct.loaded, profile=replace(instruct.loaded.profile, canvas_tokens=8)))
    prefixes: list[int] = []
    text = several(filler, ["a = 1\n"] * 4, prefixes, monkeypatch)
    assert text.startswith("a = 1\n" * 4)
    assert len(prefixes) == 4


def test_a_block_that_the_suffix_does_not_follow_is_written_on_longer_canvases(instruct: DiffusionFiller) -> None:
    """A random model finds no suffix likely behind anything, and writes on to the last canvas."""
    profile = replace(instruct.loaded.profile, canvas_tokens=40, copy_rows=0, causal_rows=0)
    filler = DiffusionFiller(replace(instruct.loaded, profile=profile))
    request = InfillRequest("def f():\n    ", "\n\nf()\n", (BODY,))
    *within, beyond = finish(filler.start(request)).progress.proposals
    encode = filler.loaded.vocabulary.encode
    assert within
    assert all(row.row == "noise" and len(encode(row.text)) <= 40 for row in within)
    assert beyond.row == "noise"
    assert len(encode(beyond.text)) > 40


# The checkpoint's own files.


def test_the_turns_are_those_of_the_published_chat_template(instruct: DiffusionFiller) -> None:
    vocabulary = instruct.loaded.vocabulary
    text = "".join(
        str(vocabulary.tokenizer.id_to_token(token)) if token in vocabulary.special else vocabulary.decode([token])
        for token in instruct.inputs(InfillRequest("x = ", SUFFIX, (LINE,))).prompt.ids
    )
    question = text.removeprefix("<bos><|turn>user\n").partition("<turn|>")[0]
    turns = f"<bos><|turn>user\n{question}<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"
    assert text.startswith(turns)


@pytest.mark.parametrize("name", ["refine_steps", "line", "max_canvases"])
def test_a_setting_that_follows_from_the_layout_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        checkpoint.parse_profile(CanvasProfile, {"layout": "instruct", name: 0})
