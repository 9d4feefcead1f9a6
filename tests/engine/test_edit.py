"""The next edit: how a question becomes tokens, and an answer that the window predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dg_lsp.core import edits
from dg_lsp.core.values import Hole, InfillRequest, Ranked, Span
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.causal.edit import EditDraft, EditInputs
from dg_lsp.engine.causal.filler import CausalFiller
from dg_lsp.engine.diffusion.filler import DiffusionFiller
from dg_lsp.engine.model.vocabulary import Vocabulary
from tests import checkpoints
from tests.engine.engine_kit import finish
from tests.engine.filler_kit import hidden_of, tree_of

BEFORE = f"def area(w, h):\n    return w * h  # {edits.SEPARATOR}\n\n\nprint(area(2, 3))\n"
AFTER = BEFORE.replace("def area(w", "def size(w")
N_TOKENS = 60


def asked(at: str = "return") -> InfillRequest:
    edit = edits.edit_between("a.py", BEFORE, AFTER)
    assert edit is not None
    question = edits.question(BEFORE, AFTER, AFTER.index(at), (edit,))
    return InfillRequest("", "", (Hole(Span(0, 0), "cursor"),), path="a.py", question=question)


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> CausalFiller:
    """A tiny random Qwen2 model whose vocabulary has the separator. Its likeliest token always has text."""
    folder = checkpoints.qwen(tmp_path_factory.mktemp("qwen"))
    vocabulary = Vocabulary.from_file(folder / "tokenizer.json")
    vocabulary.tokenizer.add_special_tokens([edits.SEPARATOR])
    vocabulary.tokenizer.save(str(folder / "tokenizer.json"))
    return CausalFiller(load_model(str(folder), device="cpu", dtype="float32"))


@pytest.fixture(scope="module")
def greedy(filler: CausalFiller) -> list[int]:
    """What the model writes, one token at a time."""
    passes, ids = filler.loaded.passes, list(EditInputs(asked(), filler.loaded).prompt.ids)
    n_read = len(ids)
    with torch.inference_mode():
        while len(ids) < n_read + N_TOKENS:
            hidden = hidden_of(passes, torch.tensor([ids]))
            ids.append(int(passes.logits(hidden[:, -1:]).argmax()))
    return ids[n_read:]


def test_only_the_separators_of_the_form_become_tokens(filler: CausalFiller) -> None:
    request, vocabulary = asked(), filler.loaded.vocabulary
    assert request.question is not None
    blocks = edits.blocks("a.py", request.question, edits.SHORT)
    assert sum(edits.SEPARATOR in block for block in blocks) > 2  # in the file's own text
    inputs = EditInputs(request, filler.loaded)
    separator = vocabulary.id(edits.SEPARATOR)
    assert inputs.prompt.ids.count(separator) == len(blocks)
    assert inputs.copy.count(separator) == 1
    assert vocabulary.decode(inputs.copy) == request.question.window.text


@pytest.mark.parametrize(
    ("predicted", "most_passes"),
    [
        (lambda ids: ids, 2),
        (lambda ids: [*ids[:20], 60, *ids[20:]], N_TOKENS // 4),
        (lambda ids: [*ids[:20], 50, *ids[21:]], N_TOKENS // 4),
        (lambda ids: [*ids[:20], *ids[23:]], N_TOKENS // 4),
        (lambda ids: [50] * 9, N_TOKENS),
        (lambda _: [], N_TOKENS),
    ],
    ids=["the same", "one less", "another", "three more", "others", "none"],
)
def test_predicted_tokens_save_passes_and_change_no_answer(
    filler: CausalFiller, greedy: list[int], predicted: object, most_passes: int
) -> None:
    assert callable(predicted)
    copy: Sequence[int] = predicted(greedy)
    inputs = EditInputs(asked(), filler.loaded)
    inputs.copy = tuple(copy)
    written, n_passes = EditDraft(inputs), 0
    with torch.inference_mode():
        tree = tree_of(filler.loaded.passes, torch.tensor([inputs.prompt.ids]))
        while len(written.ids) < N_TOKENS:
            written.write(tree)
            n_passes += 1
    assert written.ids[:N_TOKENS] == greedy
    # A random model repeats itself, so even a wrong prediction may agree.
    assert n_passes <= most_passes


def test_an_answer_is_the_written_window_and_one_without_an_end_is_none(filler: CausalFiller, greedy: list[int]) -> None:
    assert finish(filler.start(asked())).candidates() == ()
    task = filler.start(asked())
    task.step()
    assert isinstance(task.inputs, EditInputs)
    end = max(greedy.index(token) for token in greedy)  # the first place of the token that comes last
    task.inputs.ends = frozenset({greedy[end]})
    (candidate,) = finish(task).candidates()
    assert candidate.texts == (filler.loaded.vocabulary.decode(greedy[:end]),)
    assert len(candidate.confidences[0]) == end + 1
    assert candidate.confidence == Ranked(0, doubted=True)  # random weights are sure of nothing
    # The prompt is in the cache, for the next question.
    again = filler.start(asked())
    again.step()
    assert again.cache()["reused"] == again.cache()["tokens"]


@pytest.mark.parametrize(("repeats", "doubted"), [(True, False), (False, True)])
def test_a_change_that_repeats_an_edit_has_a_threshold_of_its_own(filler: CausalFiller, repeats: bool, doubted: bool) -> None:
    profile = replace(filler.loaded.profile, edit_threshold=-1e9, new_edit_threshold=1.0)
    question = asked().question
    assert question is not None
    old = question.window.text
    made = (
        edits.Edit("a.py", 0, old, old.replace("area", "size"), "", "")
        if repeats
        else edits.Edit("a.py", 0, "x\n", "y\n", "", "")
    )
    request = replace(asked(), question=replace(question, edits=(made,)))
    written = EditDraft(EditInputs(request, replace(filler.loaded, profile=profile)))
    written.ids = [*filler.loaded.vocabulary.encode(old.replace("area", "size")), 0]
    written.logps = [-1.0] * len(written.ids)
    assert written.candidate().confidence == Ranked(0, doubted=doubted)


def test_a_question_is_read_ahead(filler: CausalFiller) -> None:
    filler.trim()
    filler.expect(asked())
    while filler.foresee() is not None:
        pass
    task = filler.start(asked())
    task.step()
    assert task.cache()["reused"] == task.cache()["tokens"]


def test_a_model_of_another_kind_says_why_it_writes_no_edits(instruct: DiffusionFiller, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not write from left to right"):
        instruct.start(asked())
    plain = CausalFiller(load_model(str(checkpoints.qwen(tmp_path)), device="cpu"))
    with pytest.raises(ValueError, match=r"its vocabulary has no <\|file_sep\|>"):
        plain.start(asked())
    plain.expect(asked())
    assert plain.foresee() is None
