"""Pretrained causal models: their layouts drawn, typed text that is written again, and where answers end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from dg_lsp.core.calibration import Calibration
from dg_lsp.core.values import Budget, Calibrated, Hole, InfillRequest, Snippet, Span
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.causal import answer, layout
from dg_lsp.engine.causal.filler import CausalFiller
from dg_lsp.engine.causal.layout import CausalProfile, FillInTheMiddle
from dg_lsp.engine.common import drafts
from dg_lsp.engine.common.answering import PREFILL_CHUNK
from dg_lsp.engine.common.drafts import MOST_BEHIND, Drafting, DraftSettings
from dg_lsp.engine.common.layout import next_after_typed
from dg_lsp.engine.common.local import LONGEST_QUIET_S, LocalTask
from dg_lsp.engine.common.rank import Proposal
from dg_lsp.engine.common.task import next_hole
from dg_lsp.engine.model.kv import KV, Tokens
from dg_lsp.engine.model.tree import Tree
from dg_lsp.engine.model.vocabulary import Vocabulary
from tests import marked
from tests.engine.engine_kit import finish
from tests.engine.filler_kit import hidden_of

ROWS = marked.rows(Path(__file__).with_name("pretrained.txt"))

TEXT = 'def area(width, height):\n    """Return the area."""\n    return width * height\n\n\nclass Point:\n    x = 1\n' * 4
CURSOR, BODY = Hole(Span(0, 0), "cursor"), Hole(Span(0, 0), "body", indent="    ", extent="block")
FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
FILE = "<file_sep>"


def tokenizer(*special: str) -> Tokenizer:
    """A byte-level tokenizer that cuts words with the space before them, like those of published models."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=360, special_tokens=["<|endoftext|>", FILE, *special], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    return made


def checkpoint(folder: Path, *special: str) -> Path:
    made = tokenizer(*special)
    made.save(str(folder / "tokenizer.json"))
    torch.manual_seed(1)
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 3}
    LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=made.get_vocab_size(), num_key_value_heads=1)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> CausalFiller:
    return CausalFiller(load_model(str(checkpoint(tmp_path_factory.mktemp("left"))), device="cpu", dtype="float32"))


@pytest.fixture(scope="module")
def fim(tmp_path_factory: pytest.TempPathFactory) -> CausalFiller:
    return CausalFiller(load_model(str(checkpoint(tmp_path_factory.mktemp("fim"), *FIM)), device="cpu", dtype="float32"))


def drawn(filler: CausalFiller, request: InfillRequest) -> str:
    """The prompt as text: what the model reads, what is written again, and what is held after the gap."""
    vocabulary = filler.loaded.vocabulary
    prompt = filler.layout.lay_out(request)
    read = "".join(
        str(vocabulary.tokenizer.id_to_token(token)) if token in vocabulary.special else vocabulary.decode([token])
        for token in prompt.ids
    )
    return f"{read}⟪{prompt.heal.decode()}⟫⟦⟧{vocabulary.decode(prompt.tail)}"


def request(prefix: str, suffix: str, hole: Hole = CURSOR, **more: Any) -> InfillRequest:
    return InfillRequest(prefix, suffix, (hole,), language="python", **more)


# Layouts.


def test_layout_follows_from_the_vocabulary(left: CausalFiller, fim: CausalFiller) -> None:
    assert (left.loaded.profile.layout, fim.loaded.profile.layout) == ("left", "fim")


def test_model_without_fim_tokens_reads_the_left_side(left: CausalFiller) -> None:
    assert drawn(left, request("x = 1\ny = ", "\nz = 2\n")) == "<|endoftext|>x = 1\ny =⟪ ⟫⟦⟧\nz = 2\n"


@pytest.mark.parametrize("start", layout.START_TOKENS)
def test_a_model_reads_its_start_token_where_there_is_no_text(start: str) -> None:
    vocabulary = Vocabulary(Tokenizer(models.WordLevel({"?": 0, start: 1}, unk_token="?")))
    prompt = layout.LeftToRight(CausalProfile("left"), vocabulary).lay_out(request("", ""))
    assert prompt.ids == (1,)


def test_model_with_fim_tokens_reads_both_sides_in_their_order(fim: CausalFiller) -> None:
    assert drawn(fim, request("x = 1\ny = ", "\nz = 2\n")) == (
        "<|fim_prefix|>x = 1\ny =<|fim_suffix|>\nz = 2\n<|fim_middle|>⟪ ⟫⟦⟧\nz = 2\n"
    )


@pytest.mark.parametrize(
    ("suffix", "read"),
    [
        (")\n\n\ndef area(width):\n" + "    width += 1\n" * 40, ")\n\n"),
        (")\n\nA = 1\n\nclass Point:\n" + "    x = 1\n" * 40, ")\n\nA = 1\n"),
        ("\n\nclass Point:\n" + "    x = 1\n" * 40, None),  # the blank line before any text ends nothing
        (")\n\n\ndef area(width):\n    width += 1\n", ")\n\n\ndef area(width):\n    width += 1\n"),
    ],
)
def test_suffix_that_is_cut_ends_with_a_paragraph(fim: CausalFiller, suffix: str, read: str | None) -> None:
    """A suffix that ends within a block would be continued, instead of the prefix."""
    found = drawn(fim, request("x = (1\n", suffix)).partition("<|fim_suffix|>")[2].partition("<|fim_middle|>")[0]
    if read is None:
        assert found.endswith("    x = 1\n")
        assert found.count("x = 1") < 40
    else:
        assert found == read


def test_path_and_other_files_come_first_as_in_a_repository(fim: CausalFiller) -> None:
    other, copied = Snippet("pkg/other.py", "A = 1\n"), Snippet("pkg/third.py", "B = 1\n", for_copying=True)
    inputs = drawn(fim, request("x", "\n", path="pkg/mod.py", related=(other, copied)))
    assert inputs.startswith(f"{FILE}pkg/other.py\nA = 1\n{FILE}pkg/mod.py\n<|fim_prefix|>")


@pytest.mark.parametrize(("prefix", "kept", "typed"), ROWS["prefixes"])
def test_prefix_is_cut_before_what_more_text_could_change(left: CausalFiller, prefix: str, kept: str, typed: str) -> None:
    assert drawn(left, request(prefix, "\n")) == f"<|endoftext|>{kept}⟪{typed}⟫⟦⟧\n"


@pytest.mark.parametrize("end", ["wid", "width ", "    ", "\n", "\n\n  ", "é", "日", "x" * 300, '"', ")", "1.5", "\t"])
def test_cut_prefix_is_encoded_as_in_the_whole_text(left: CausalFiller, end: str) -> None:
    """Whatever follows, the tokens before the cut stay the same."""
    vocabulary = left.loaded.vocabulary
    prefix = f"def area(width):\n    return {end}"
    kept = vocabulary.encode(prefix[: vocabulary.safe_end(prefix)])
    for more in ("th", " * 2", "\n    x", ")", "", "é", "  #"):
        if len(end) < 100:
            assert vocabulary.encode(prefix + more)[: len(kept)] == kept


def test_no_fim_profile_without_its_tokens(left: CausalFiller) -> None:
    with pytest.raises(ValueError, match="lacks a fill-in-the-middle token"):
        FillInTheMiddle(CausalProfile("fim"), left.loaded.vocabulary)


def test_the_next_token_agrees_with_what_is_typed_and_adds_no_blank_to_it(left: CausalFiller) -> None:
    vocabulary = left.loaded.vocabulary
    for typed in (b" wid", b"\n    ", b"\n  ", b"  ", b"\t", b" ", b"r"):
        for _ in range(2):  # computed, and then cached
            assert next_after_typed(vocabulary, typed, ()) == tuple(
                token
                for token, piece in enumerate(vocabulary.pieces)
                if piece
                and (typed.startswith(piece) or piece.startswith(typed))
                and not (typed[-1:] in b" \t" and piece != typed and piece.startswith(typed) and piece.isspace())
            )
        whole = vocabulary.encode(typed.decode())
        written = len(vocabulary.bytes_of(whole[:1]))
        if written < len(typed):
            assert next_after_typed(vocabulary, typed, whole[:1]) == next_after_typed(vocabulary, typed[written:], ())
    assert vocabulary.after_typed.cache_info().hits >= 7


def test_tokens_that_begin_with_a_text_are_found_by_their_bytes(left: CausalFiller) -> None:
    vocabulary = left.loaded.vocabulary
    for head in (b" wid", b"\n    ", b"r", b"~~"):
        expected = tuple(token for token, piece in enumerate(vocabulary.pieces) if piece.startswith(head))
        assert vocabulary.starting_with(head) == expected


# Drafts of a model that knows what follows.


class Scripted:
    """The passes of a model that predicts a text token by token, whatever was written instead; all else is improbable."""

    def __init__(self, filler: CausalFiller, lay_out: InfillRequest, text: str) -> None:
        self._real, vocabulary = filler.loaded.passes, filler.loaded.vocabulary
        self._first = len(filler.layout.lay_out(lay_out).ids)
        self._script = vocabulary.encode(text) + [vocabulary.id("<|endoftext|>") or 0] * 200
        self.n_passes, self.n_rows = 0, 0
        self.others = dict[int, int]()  # a token at a place of the text that is nearly as likely

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def read(self, tokens: Tokens, store: KV) -> Tensor:
        if tokens.visible is not None:  # of a tree
            self.n_passes, self.n_rows = self.n_passes + 1, self.n_rows + len(tokens.ids)
        self._real.read(tokens, store)
        return self._places(tokens.positions)

    def logits(self, hidden: Tensor, first: int = 0, last: int | None = None) -> Tensor:
        logits = torch.zeros(*hidden.shape[:-1], self._real.n_vocabulary)
        for place, value in enumerate(hidden.reshape(-1, hidden.shape[-1])[:, 0].tolist()):
            at = int(value) + 1 - self._first
            if at >= 0:
                logits.view(-1, logits.shape[-1])[place, self._script[at]] = 12.0
                if at in self.others:
                    logits.view(-1, logits.shape[-1])[place, self.others[at]] = 11.5
        return logits[..., first:last]

    def _places(self, positions: Tensor) -> Tensor:
        return positions.float()[..., None].expand(*positions.shape, 48)


def scripted(
    filler: CausalFiller, asked: InfillRequest, text: str, clock: Callable[[], float] = time.perf_counter, **settings: Any
) -> tuple[LocalTask, Scripted]:
    """A task of a model with these settings that writes `text` after the prefix as it was cut, and its passes."""
    passes = Scripted(filler, next_hole(asked, []), text)
    profile = replace(filler.loaded.profile, **{"branches": 0, **settings})
    loaded: Any = replace(filler.loaded, passes=passes, profile=profile)  # type: ignore[arg-type]
    return CausalFiller(loaded, clock=clock).start(asked), passes


def filled(filler: CausalFiller, asked: InfillRequest, text: str) -> tuple[LocalTask, Scripted]:
    """Fill with a model that writes `text`, without branches and copies."""
    task, passes = scripted(filler, asked, text, copy_rows=0)
    return finish(task), passes


def texts(task: LocalTask) -> Sequence[str]:
    return [candidate.texts[0] for candidate in task.candidates()]


SEVERAL = Hole(Span(0, 0), "cursor", indent="    ", extent="lines")
IN_BODY = "def area(width, height):\n    "
CALL = request("x = area(", ", 2)\ny = 1\n")
LESS_INDENTED = "\n    x = width\n    return x * height\n\n\ndef other(width):\n    pass\n"


@pytest.mark.parametrize(
    ("name", "asked", "written", "answer"),
    [
        # It begins with what is typed, and ends with its line.
        *(pytest.param("left", request(row.values[0], "\n"), *row.values[1:], id=row.id) for row in ROWS["answers"]),
        # A block ends before a line that is indented less.
        ("left", request(IN_BODY, "\n\n\nclass Point:\n    x = 1\n", BODY), LESS_INDENTED, "x = width\n    return x * height"),
        # In an empty line it has as many lines as the model writes, or one if the model does not end it.
        ("fim", request(IN_BODY, "\n\n", SEVERAL), "\n    x = width", "x = width"),
        ("fim", request(IN_BODY, "\n\n", SEVERAL), "\n    x = width\n    y = height", "x = width\n    y = height"),
        ("left", request(IN_BODY, "\n\n", SEVERAL), "\n    x = width\n    y = height\n", "x = width"),
        # The draft runs on to the line's end; the start after which the suffix follows scores higher.
        ("left", CALL, "(width, 2)\ny = 1\n", "width"),
        ("fim", CALL, "(width", "width"),  # its end is believed
    ],
)
def test_an_answer_is_the_part_of_the_draft_that_belongs_into_the_hole(
    request: pytest.FixtureRequest, name: str, asked: InfillRequest, written: str, answer: str
) -> None:
    task, _ = filled(request.getfixturevalue(name), asked, written)
    assert texts(task)[0] == answer


def test_copies_in_an_empty_line_have_several_lines(fim: CausalFiller, left: CausalFiller) -> None:
    block = "def area(width, height):\n    x = width\n    return x * height\n\n\n"
    asked = request(f"{block}def area(width, height):\n    ", "\n\n", SEVERAL)
    copies = [[one.text for one in _copies(filler, asked)] for filler in (fim, left)]
    assert "x = width\n    return x * height" in copies[0]
    assert "x = width" in copies[1]


def _copies(filler: CausalFiller, asked: InfillRequest) -> Sequence[Proposal]:
    return [proposal for proposal in finish(filler.start(asked)).progress.proposals if proposal.row == "copy"]


def test_lines_that_are_written_count_when_the_time_is_over(fim: CausalFiller) -> None:
    asked = request("def area(width, height):\n    ", "\n\n", SEVERAL)
    now = 0.0
    task, _ = scripted(fim, asked, "\n    x = width\n    y = height\n    z = 1", lambda: now, copy_rows=0)
    task.finish_in(1_000)
    while task.step():
        now = 2.0 * (task.drafts()[0].count("\n") == 1)
    assert texts(task) == ["x = width"]


def test_text_that_the_model_writes_against_the_typed_one_is_never_an_answer(left: CausalFiller) -> None:
    task, _ = filled(left, request("    return hei", "\n"), " width * height\n")
    assert all(text.startswith("ght") or not text for text in texts(task))


def test_typed_indentation_is_not_made_longer(left: CausalFiller) -> None:
    task, _ = filled(left, request("def area(width):\n    ", "\n"), "\n        return width\n")
    assert not any(text.startswith((" ", "\t")) for text in texts(task))


@pytest.mark.parametrize("suffix", ["\n\n\nx = 1\n", ", 2)\n"])
def test_end_that_the_model_writes_counts_as_what_follows(fim: CausalFiller, suffix: str) -> None:
    task, _ = filled(fim, request("    return ", suffix), " width")
    (best,) = (one for one in task.progress.proposals if one.text == "width")
    assert sum(best.after) > math.log(0.9)


@pytest.mark.parametrize("needed", [("total",), ("total", "count")])
def test_block_goes_on_until_it_mentions_what_the_code_after_it_needs(fim: CausalFiller, needed: tuple[str, ...]) -> None:
    hole = Hole(Span(0, 0), "cursor", indent="    ", extent="block", needed=needed)
    asked = request("def area(width):\n    ", "\n    return total + count\n", hole)
    task, _ = filled(fim, asked, "\n    x = 1")
    assert any(text == "x = 1" for text in texts(task))
    longer = [text for text in texts(task) if all(name in text for name in needed)]
    assert longer
    assert all(text.startswith("x = 1\n") and f"\n    {needed[-1]}" in text for text in longer)
    plain, _ = filled(fim, replace(asked, holes=(replace(hole, needed=()),)), "\n    x = 1")
    assert not any(name in text for text in texts(plain) for name in needed)


def test_line_may_begin_with_a_name_that_the_code_after_it_needs(fim: CausalFiller) -> None:
    hole = Hole(Span(0, 0), "cursor", needed=("total", "count"))
    for before, start in (("    ", ""), ("", "    ")):
        asked = request(f"def area(width):\n    y = 2\n{before}", "\n    return total + count\n", hole)
        task, _ = filled(fim, asked, "\n    x = 1")
        assert f"{start}x = 1" in texts(task)
        assert any(text.startswith(f"{start}total") for text in texts(task))
        found, _ = filled(fim, asked, "\n    count = 1")
        assert not any(text.startswith(f"{start}total") for text in texts(found))


def test_answer_that_leaves_needed_names_unbound_ranks_as_less_likely(fim: CausalFiller) -> None:
    hole = Hole(Span(0, 0), "cursor", needed=("total",))
    asked = request("def area(width):\n    ", "\n    return total\n", hole)
    task, _ = filled(fim, asked, "\n    x = 1")
    by_text = {item.candidate.texts[0]: item for item in task.evidence()}
    for text, item in by_text.items():
        assert item.features["incomplete"] == ("total" not in text)
        assert item.order == pytest.approx(item.features["joint"] - 12.0 * ("total" not in text))


def test_hole_need_not_bind_what_an_earlier_one_has_bound() -> None:
    holes = tuple(Hole(Span(at, at), "cursor", needed=("total", "count")) for at in (0, 1))
    both = InfillRequest("", "\nprint(total, count)\n", holes, ("\n",), language="python")
    assert next_hole(both, []).holes[0].needed == ("total", "count")
    assert next_hole(both, ["total = 0"]).holes[0].needed == ("count",)


def test_repeated_code_is_read_ahead_with_the_same_text(left: CausalFiller, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "    return area(width, height) + area(height, width)\n"
    asked = request(f"def one():\n{line}\n\ndef two():\n    ret", "\n")
    written = " return area(width, height) + area(height, width)\n"
    ahead, ahead_passes = filled(left, asked, written)
    monkeypatch.setattr(layout, "AHEAD_WEIGHT", 0.0)
    plain, plain_passes = filled(left, asked, written)
    assert texts(ahead) == texts(plain)
    assert ahead_passes.n_passes < plain_passes.n_passes / 2


# Sure answers.

OF_DRAFTS = Calibration(1.0, {"chance": 2.0})


def started(filler: CausalFiller, asked: InfillRequest, text: str, *, at: int = 1, **more: Any) -> LocalTask:
    """A task of a model with probabilities of first drafts, which writes `text`, or "height" as its token `at`."""
    task, passes = scripted(filler, asked, text, **{"branches": 3, "draft_calibration": OF_DRAFTS, **more})
    passes.others[at] = filler.loaded.vocabulary.encode("(height")[1]
    return task


def probability(task: LocalTask) -> float:
    best = task.candidates()[0]
    assert isinstance(best.confidence, Calibrated)
    assert best.lengths  # a client cuts an answer where it gets uncertain
    return best.confidence.probability


SURE = request("x = area(", ", 2)\n")


def test_sure_draft_is_the_answer_without_branches_and_scores(fim: CausalFiller) -> None:
    task, whole = finish(started(fim, SURE, "(width")), finish(started(fim, SURE, "(width", draft_calibration=None))
    assert texts(task) == ["width"]
    assert texts(whole)[0] == "width"
    assert len(texts(whole)) > 1
    assert texts(finish(started(fim, SURE, "(width", sure_logp=0.0, sure_margin=0.4))) == ["width"]
    assert task.candidates()[0].finished
    # The draft's log-probability is -0.48. This is the logistic function of 1 + 2 * 0.62.
    assert probability(task) == pytest.approx(0.90, abs=0.01)
    passes, whole_passes = (each.inputs.loaded.passes for each in (task, whole))  # type: ignore[union-attr]
    assert passes.n_passes < whole_passes.n_passes


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        (replace(SURE, budget=Budget(candidates=3)), {}),  # several are asked for
        (SURE, {"draft_calibration": None}),  # how often such a draft is right was never measured
        (replace(SURE, holes=(replace(CURSOR, needed=("total",)),)), {}),  # it lacks a name
    ],
)
def test_other_drafts_have_branches(fim: CausalFiller, asked: InfillRequest, more: dict[str, Any]) -> None:
    assert len(texts(finish(started(fim, asked, "(width", **more)))) > 1


def test_one_unsure_draft_is_compared_with_copies_and_has_no_branches(fim: CausalFiller) -> None:
    asked = request("x = area(height, 2)\nx = area(", ", 2)\n")
    task = finish(started(fim, asked, "(width", sure_logp=0.0))
    assert {(each.text, each.row) for each in task.progress.proposals} == {("width", "causal"), ("height", "copy")}
    assert all(each.logps for each in task.progress.proposals)


def test_a_draft_is_not_sure_where_long_agreeing_code_goes_on_in_another_way(fim: CausalFiller) -> None:
    before = "def total(width, height, depth, weight, price, tax, count):\n    "
    for line, n in ((before, 2), ("", 1)):
        asked = request(f"{line}x = area(height, 2)\n{line}x = area(", ", 2)\n")
        assert (len(texts(finish(started(fim, asked, "(width")))) > 1) == (n > 1), line
    agreeing = request(f"{before}x = area(width, 2)\n{before}x = area(", ", 2)\n")
    assert texts(finish(started(fim, agreeing, "(width"))) == ["width"]


def test_first_draft_is_the_answer_at_the_deadline_with_a_probability(fim: CausalFiller) -> None:
    task = started(fim, SURE, "(width", at=2, sure_logp=0.0)
    while not any(candidate.texts == ("width",) for candidate in task.candidates()):
        assert task.step()
    assert not task.candidates()[0].finished
    assert texts(task)[0] == "width"
    assert probability(task) == pytest.approx(0.90, abs=0.01)
    assert task.step()  # it is scored


def test_scored_answers_are_those_at_the_deadline(fim: CausalFiller) -> None:
    task = started(fim, SURE, "(width", sure_logp=0.0, calibration=Calibration(-2.0, reorders=False))
    while not (task.progress.proposals and all(proposal.logps for proposal in task.progress.proposals)):
        assert task.step()
    assert texts(task)[0] == "width"
    assert probability(task) == pytest.approx(0.12, abs=0.01)


def test_a_hopeless_draft_is_not_written_to_its_end_if_it_is_not_wanted(
    fim: CausalFiller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "HOPELESS", -0.1)
    for least, expected in ((0.0, ["width"]), (0.19, ["width"]), (0.3, [])):
        asked = replace(SURE, budget=replace(SURE.budget, least=least))
        assert texts(finish(started(fim, asked, "(width"))) == expected


def test_drafts_of_several_holes_have_no_probability_at_the_deadline(fim: CausalFiller) -> None:
    both = InfillRequest("x = area(", ", 2)\n", (CURSOR, CURSOR), (", 1)\ny = area(",), language="python")
    task = started(fim, both, "(width", at=2, sure_logp=0.0)
    while not any(candidate.texts[0] == "width" for candidate in task.candidates()):
        assert task.step()
    assert task.candidates()[0].texts == ("width", "")
    assert not any(isinstance(candidate.confidence, Calibrated) for candidate in task.candidates())


@pytest.mark.parametrize(("n_candidates", "behind"), [(1, MOST_BEHIND), (2, math.inf)])
def test_one_block_is_looked_for_only_among_likely_ones(
    fim: CausalFiller, monkeypatch: pytest.MonkeyPatch, n_candidates: int, behind: float
) -> None:
    """For a model whose first drafts were never measured."""
    wanted, plain = [], drafts.drafts

    def noted(tree: Tree, settings: DraftSettings) -> Drafting:
        wanted.append(settings.most_behind)
        return plain(tree, settings)

    monkeypatch.setattr(drafts, "drafts", noted)
    asked = request("def area(width, height):\n    ", "\n", BODY, budget=Budget(candidates=n_candidates))
    finish(started(fim, asked, "\n    return width", draft_calibration=None))
    assert wanted == [behind]


# Scores.


def test_improbable_copies_are_read_if_a_calibration_decides_the_order(
    fim: CausalFiller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "AHEAD_WEIGHT", 0.0)
    asked = request("x = area(width, 1)\ny = area(", ", 2)\n")
    weights = [Calibration(0.0, {"copied": 9.0}, reorders) for reorders in (True, False)]
    ordered, given = (finish(started(fim, asked, "(height", calibration=each, draft_calibration=None)) for each in weights)
    assert (texts(ordered)[0], texts(given)[0]) == ("width", "height")
    rows = [each.inputs.loaded.passes.n_rows for each in (ordered, given)]  # type: ignore[union-attr]
    assert rows[0] > rows[1]


def test_improbable_copies_are_not_read_if_one_answer_is_wanted(fim: CausalFiller, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request("x = area(width, 1)\ny = area(", ", 2)\n")
    monkeypatch.setattr(layout, "AHEAD_WEIGHT", 0.0)  # the file's repetitions would read the copy ahead
    one, several = (
        finish(started(fim, replace(asked, budget=Budget(candidates=n)), "(height", draft_calibration=None)) for n in (1, 3)
    )
    assert texts(one)[0] == texts(several)[0] == "height"
    assert {proposal.text for proposal in one.progress.proposals} == {proposal.text for proposal in several.progress.proposals}
    assert any(proposal.row == "copy" for proposal in one.progress.proposals)
    passes, more_passes = (each.inputs.loaded.passes for each in (one, several))  # type: ignore[union-attr]
    assert passes.n_rows < more_passes.n_rows
    best = max(proposal.joint_logp for proposal in one.progress.proposals)
    for proposal in one.progress.proposals:  # what was not read does not look likelier than what was
        assert proposal.text == "height" or proposal.joint_logp < best - answer.NEAR


LONG_COPY = "height * " * 20 + "height"


@pytest.mark.parametrize(("weights", "is_read"), [({"left": 9.0}, True), ({"left": -9.0}, False), ({"chance": 3.0}, False)])
def test_a_copy_that_can_have_no_probability_is_not_read(
    fim: CausalFiller, monkeypatch: pytest.MonkeyPatch, weights: dict[str, float], is_read: bool
) -> None:
    monkeypatch.setattr(layout, "AHEAD_WEIGHT", 0.0)  # the file's repetitions would read the copy ahead
    asked = request(f"x = area({LONG_COPY}, 1)\ny = area(", ", 2)\n")
    task = finish(started(fim, asked, "(width", sure_logp=0.0, calibration=Calibration(-4.0, weights)))
    assert {(each.text, each.row) for each in task.progress.proposals} == {("width", "causal"), (LONG_COPY, "copy")}
    assert texts(task)[0] == (LONG_COPY if is_read else "width")
    assert (task.inputs.loaded.passes.n_rows > len(fim.loaded.vocabulary.encode(LONG_COPY))) == is_read  # type: ignore[union-attr]


def test_a_draft_is_written_where_there_is_no_time_to_score_copies(fim: CausalFiller) -> None:
    asked = request(f"x = area({LONG_COPY}, 1)\ny = area(", ", 2)\n")
    task = started(fim, asked, "(width", sure_logp=0.0)
    task._filler.pace.note("score", 1, 10_000.0)
    task.finish_in(5_000.0)
    assert "width" in texts(finish(task))


def test_score_is_that_of_the_text_as_the_tokenizer_encodes_it_with_what_follows(left: CausalFiller) -> None:
    asked = request("x = area(", ", 2)\ny = 1\n")
    loaded = left.loaded
    task = finish(CausalFiller(replace(loaded, profile=replace(loaded.profile, branches=2))).start(asked))
    prompt, vocabulary = left.layout.lay_out(asked), loaded.vocabulary
    assert task.progress.proposals
    for proposal in task.progress.proposals:
        joint = vocabulary.encode(prompt.heal.decode() + proposal.text + vocabulary.decode(prompt.tail))
        with torch.inference_mode():
            hidden = hidden_of(loaded.passes, torch.tensor([[*prompt.ids, *joint]]))
            logps = loaded.passes.logits(hidden[0, len(prompt.ids) - 1 : -1]).log_softmax(-1)
        expected = float(logps.gather(1, torch.tensor(joint)[:, None]).sum())
        assert proposal.joint_logp == pytest.approx(expected, abs=1e-3)


def with_branches(filler: CausalFiller) -> CausalFiller:
    return CausalFiller(replace(filler.loaded, profile=replace(filler.loaded.profile, branches=4)))


def read_on(filler: CausalFiller, asked: InfillRequest, before: InfillRequest | None = None) -> LocalTask:
    """Answer a request with branches, after another was expected."""
    own = with_branches(filler)
    if before is not None:
        own.expect(before)
        while own.foresee() == 0.0:
            pass
    return finish(own.start(asked))


@pytest.mark.parametrize("n_typed", [0, 10])
def test_likeliest_answers_are_read_from_left_to_right_with_what_follows(
    fim: CausalFiller, monkeypatch: pytest.MonkeyPatch, n_typed: int
) -> None:
    """In one pass over the rows after the left side alone, each equals a plain pass over the whole text."""
    monkeypatch.setattr(answer, "NEAR", 50.0)  # random weights write answers of very different lengths
    asked = request(TEXT[:60], TEXT[60:])
    before = request(TEXT[: 60 - n_typed], TEXT[60:]) if n_typed else None
    task, passes, vocabulary = read_on(fim, asked, before), fim.loaded.passes, fim.loaded.vocabulary
    assert task.inputs is not None
    prompt = task.inputs.prompt
    assert bool(prompt.typed) == bool(n_typed)
    left_side = (*prompt.ids[: prompt.n_left], *prompt.typed)
    assert vocabulary.decode(left_side) + prompt.heal.decode() == asked.prefix
    follow = vocabulary.decode(prompt.follow)
    assert follow
    assert asked.suffix.startswith(follow)

    def read(text: str) -> float:
        n_own = len((prompt.heal.decode() + text).encode())
        ids = vocabulary.encode(prompt.heal.decode() + text + follow)
        with torch.inference_mode():
            hidden = hidden_of(passes, torch.tensor([[*left_side, *ids]]))
            logps = passes.logits(hidden[0, len(left_side) - 1 : -1]).log_softmax(-1)
        each = logps.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
        ends = list(accumulate(len(vocabulary.pieces[token]) for token in ids))
        return answer.FOLLOW_WEIGHT * float(sum(logp for end, logp in zip(ends, each, strict=True) if end > n_own))

    plain = {one.text: one.joint_logp - one.suffix_margin for one in task.progress.proposals}
    best = max(plain.values())
    near = sorted((text for text in plain if plain[text] >= best - answer.NEAR), key=lambda text: -plain[text])
    found = {text: read(text) for text in near[: answer.MOST_NEAR]}
    assert len(found) > 1
    most, least = max(found.values()), min(found.values())
    assert least < most
    for one in task.progress.proposals:
        assert one.suffix_margin == pytest.approx(found.get(one.text, least) - most, abs=1e-3)
    assert texts(task)[0] == max(task.progress.proposals, key=lambda one: one.joint_logp).text


@pytest.mark.parametrize(("model", "suffix"), [("left", TEXT[60:]), ("fim", "")])
def test_nothing_is_read_on_if_the_score_has_what_follows_or_nothing_does(
    model: str, suffix: str, request: pytest.FixtureRequest
) -> None:
    task = read_on(request.getfixturevalue(model), InfillRequest(TEXT[:60], suffix, (CURSOR,), language="python"))
    assert len(task.progress.proposals) > 1
    assert all(one.suffix_margin == 0 for one in task.progress.proposals)


def test_nothing_is_read_on_without_time_for_it(fim: CausalFiller) -> None:
    task = with_branches(fim).start(request(TEXT[:60], TEXT[60:]))
    while not any(one.logps for one in task.progress.proposals):
        assert task.step()
    task._timing.due_at = 0.0
    finish(task)
    assert len(task.progress.proposals) > 1
    assert all(one.suffix_margin == 0 for one in task.progress.proposals)


def test_vocabulary_of_code_tokens_keeps_text_as_text(left: CausalFiller) -> None:
    vocabulary: Vocabulary = left.loaded.vocabulary
    ids = vocabulary.encode(f"x = '{FILE}'")
    assert vocabulary.id(FILE) not in ids
    assert vocabulary.decode(ids) == f"x = '{FILE}'"


# Windows: what is read in a new place, at once and later. Which one is chosen: test_windows.py.

LONG = TEXT * 24


def read(filler: CausalFiller) -> list[float]:
    """Read ahead as far as possible; return the seconds that the filler asked to wait."""
    waits = list[float]()
    while (seconds := filler.foresee()) is not None:
        waits.append(seconds)
    return waits


@pytest.mark.parametrize("name", ["left", "fim"])
def test_a_long_window_is_read_when_nothing_happens(name: str, request: pytest.FixtureRequest) -> None:
    base: CausalFiller = request.getfixturevalue(name)
    now = 0.0
    filler = CausalFiller(base.loaded, clock=lambda: now)
    filler.pace.note("prefill", PREFILL_CHUNK, 10_000.0)
    asked = InfillRequest(LONG + "x = ", "\n" + LONG, (CURSOR,), language="python", budget=Budget(ms=1500))
    filler.expect(asked)
    while filler.foresee() == 0.0:
        pass
    short = filler.prompt(asked, 1500.0)
    assert filler.cache.known(short.ids) == len(short.ids)
    filler.expect(asked)
    assert filler.foresee() == filler.quiet_s
    now = filler.quiet_s
    assert not any(read(filler))
    long = filler.prompt(asked, 1500.0)
    assert long.n_text >= filler.loaded.profile.prefix_tokens > short.n_text
    assert filler.cache.known(long.ids) == len(long.ids)
    filler.expect(asked)
    assert filler.foresee() == filler.quiet_s
    now += filler.quiet_s
    assert filler.foresee() is None  # there is no better one


def test_a_first_answer_reads_as_much_as_its_deadline_allows(left: CausalFiller) -> None:
    filler = CausalFiller(left.loaded)
    filler.pace.note("prefill", PREFILL_CHUNK, 150.0)
    asked = InfillRequest(LONG + "x = ", "\n" + LONG, (CURSOR,), language="python")
    sizes = [filler.prompt(asked, ms).n_text for ms in (300.0, 1_500.0, 20_000.0)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] == filler.prompt(asked).n_text


def test_a_better_window_that_was_not_read_to_its_end_is_read_after_a_longer_pause(left: CausalFiller) -> None:
    now = 0.0
    filler = CausalFiller(left.loaded, clock=lambda: now)
    asked = InfillRequest(LONG + "x = ", "\n" + LONG, (CURSOR,), language="python", budget=Budget(ms=1500))

    def wait() -> float | None:
        """Return how long the filler waits after the cursor arrived, and let that time pass."""
        nonlocal now
        filler.expect(asked)
        while (seconds := filler.foresee()) == 0.0:
            pass
        now += seconds or 0.0
        return seconds

    filler.pace.note("prefill", PREFILL_CHUNK, 10_000.0)
    waits = list[float | None]()
    for _ in range(4):
        waits.append(wait())
        assert filler.foresee() == 0.0  # one chunk of several
    assert waits == [filler.quiet_s, 2 * filler.quiet_s, LONGEST_QUIET_S, LONGEST_QUIET_S]
    read(filler)
    assert wait() == filler.quiet_s


def test_an_answer_does_not_depend_on_how_much_was_typed_after_the_suffix_was_read(fim: CausalFiller) -> None:
    """Only which tokens come before the suffix differs: the text is the same, and so is the text of what is left."""
    asked = request(LONG + "x = area(", ", 2)\n" + LONG)
    fim.cache.clear()
    fresh = fim.prompt(asked)
    fim.expect(request(LONG + "x", ", 2)\n" + LONG))
    read(fim)
    warm = fim.prompt(asked)
    assert (warm.n_text, warm.heal, warm.tail, warm.follow) == (fresh.n_text, fresh.heal, fresh.tail, fresh.follow)
    decode = fim.loaded.vocabulary.decode
    assert decode(warm.typed) == "x = area"
    assert decode(warm.ids[: warm.n_left]) + decode(warm.typed) == decode(fresh.ids[: fresh.n_left])
    assert len(warm.ids) - fim.cache.known(warm.ids) == len(warm.typed)
