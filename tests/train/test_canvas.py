"""`dg-lsp train canvas`: losses and gradients against a plain reference, holes, files, and runs that are killed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from dg_lsp.cli.train import app
from dg_lsp.core import values
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.causal import lora
from dg_lsp.engine.causal.layout import LeftToRight
from dg_lsp.engine.causal.passes import CausalLlama
from dg_lsp.engine.causal.profile import Profile
from dg_lsp.engine.common.loading import LoadError
from dg_lsp.engine.model.fit.geometry import llama_sizes
from dg_lsp.engine.model.tree import Tree
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.train.canvas import batches, holes, loop
from dg_lsp.train.canvas.batches import Canvas
from dg_lsp.train.canvas.holes import Hole, Sources
from dg_lsp.train.canvas.loop import Training, TrainingPlan
from dg_lsp.train.canvas.weights import TrainedPasses
from dg_lsp.wire import files
from tests import checkpoints
from tests.engine.test_llama import RANK, adapter_for, checkpoint, ids_of
from tests.train.conftest import SOURCE

pytestmark = pytest.mark.usefixtures("in_32_bits")
PLAN = TrainingPlan(minutes=60, steps=4, rank=RANK, batches=2, most=12, measured=8, shapes=((2, 96, 3), (1, 128, 4)))
END, RIGHT = 0, (20, 21, 22)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    checkpoints.tokenizer([SOURCE], vocabulary=290).save(str(folder / "tokenizer.json"))
    checkpoint("tied").save_pretrained(folder)
    return folder


def vocabulary_of(base: Path) -> Vocabulary:
    return Vocabulary.from_file(base / "tokenizer.json")


def training_of(base: Path, sources: Path, plan: TrainingPlan = PLAN) -> Training:
    frozen = loop.read_base(str(base))
    return Training(frozen, Sources([sources], frozen.vocabulary), plan)


def hole_at(first: int, answer: tuple[int, ...]) -> Hole:
    return Hole(first, 30 + first, answer, RIGHT)


def hand_made() -> list[Canvas]:
    """Return canvases in two windows, two of them in one row, and one without a right side."""
    made = ((0, 9, (5, 6, 7), RIGHT), (0, 4, (8, 9), ()), (1, 11, (1, 2, 3, 4), RIGHT[:1]))
    return [Canvas(one, hole_at(first, answer), END, held) for one, first, answer, held in made]


def reference(model: Any, adapter: dict[str, Tensor], ids: Tensor, canvases: list[Canvas]) -> Tensor:
    """Return the losses [N] of each canvas alone, by the library's own model with a mask.

    The prefix is encoded by the frozen model, and the rest by one to whose matrices the adapter was added.
    """
    losses = []
    for canvas in canvases:
        n_prefix, n_held, n_rows = canvas.hole.first - 1, len(canvas.held), len(canvas.held) + 1 + len(canvas.hole.answer)
        past = model(ids[canvas.window, :n_prefix][None], use_cache=True).past_key_values
        row = torch.tensor([[*canvas.held, canvas.hole.before, *canvas.hole.answer]])
        places = [n_prefix + 33 + at for at in range(n_held)] + [n_prefix + at for at in range(n_rows - n_held)]
        seen = torch.zeros(n_rows, n_prefix + n_rows, dtype=torch.bool)
        seen[:, : n_prefix + n_held] = True
        for at in range(n_held, n_rows):
            seen[at, n_prefix + n_held : n_prefix + at + 1] = True
        added = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[None, None]
        merged = {name: one.detach() for name, one in model.named_parameters()}
        for name in [name for name in merged if name.endswith("_proj.weight")]:
            _, _, layer, _, projection, _ = name.split(".")
            own = f"{layer}{projection[0]}"
            merged[name] = merged[name] + adapter[f"{own}_b"] @ adapter[f"{own}_a"]
        given = {"past_key_values": past, "position_ids": torch.tensor([places]), "attention_mask": added}
        logits = torch.func.functional_call(model, merged, (row,), given).logits[0, n_held:]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(canvas.body), reduction="none"))
    return torch.cat(losses)


@pytest.mark.parametrize("kind", ["tied", "untied", "biases", "wide heads"])
def test_losses_and_gradients_equal_a_plain_reference(kind: str) -> None:
    model, ids = checkpoint(kind), ids_of(2, 20)
    adapter = {name: tensor.requires_grad_() for name, tensor in adapter_for(model).items()}
    sizes = llama_sizes(model.config.to_dict())
    passes, expected = (TrainedPasses(sizes, dict(model.state_dict()), RANK) for _ in range(2))
    passes.load(adapter)
    total, losses = batches.laid_out(hand_made(), 2, 20, 2).losses(passes, passes.encode(ids)[1])
    plain = reference(model, adapter, ids, hand_made())
    torch.testing.assert_close(losses, plain.detach(), atol=1e-3, rtol=1e-4)
    total.backward()  # type: ignore[no-untyped-call]
    plain.sum().backward()  # type: ignore[no-untyped-call]
    expected.load({name: one.grad for name, one in adapter.items() if one.grad is not None})
    for name, part in passes.parts.items():
        wanted = expected.parts[name].detach()
        assert bool(wanted.any())
        assert part.grad is not None
        torch.testing.assert_close(part.grad, wanted, atol=2e-3 * float(wanted.abs().max()), rtol=1e-3)


def test_products_in_16_bits_give_nearly_the_same(base: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = training_of(base, sources)
    monkeypatch.setattr(loop, "dtype_of", lambda _device: torch.bfloat16)
    narrow = training_of(base, sources)
    losses, gradients = zip(*((training.step(1.0)[0], training.passes.grad) for training in (wide, narrow)), strict=True)
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
    first, second = gradients
    assert float(torch.nn.functional.cosine_similarity(first, second, dim=0)) > 0.95


def test_batch_reads_the_answer_and_predicts_it_up_to_its_end(base: Path, sources: Path) -> None:
    training, random = training_of(base, sources), Random(3)
    windows = training.sources.windows(random, 2, 96, 12, 12)
    batch, _ = batches.drawn(training.passes, random, windows, 3, END)
    predicted = batch.targets != END
    assert bool(predicted.any())
    assert torch.equal(batch.ids.view(-1)[batch.rows[predicted] + 1], batch.targets[predicted])
    assert int((~predicted).sum()) > len(windows)  # each canvas has one end


def test_canvas_that_is_alone_in_its_row_has_the_same_losses(base: Path) -> None:
    passes = training_passes(base)
    ids, found = ids_of(2, 20), []
    for chosen in (hand_made(), hand_made()[:1]):
        batch = batches.laid_out(chosen, 2, 20, 1)
        found.append(batch.losses(passes, passes.encode(ids)[1])[1])
    torch.testing.assert_close(found[0][: len(found[1])], found[1])


def training_passes(base: Path) -> TrainedPasses:
    frozen = loop.read_base(str(base))
    passes = TrainedPasses(frozen.sizes, frozen.weights, RANK)
    passes.load(adapter_for(checkpoint("tied")))
    return passes


def test_frozen_model_stays_as_it_is_bit_by_bit(base: Path, sources: Path) -> None:
    training, ids = training_of(base, sources), ids_of(1, 20)
    bare = CausalLlama(training.base.sizes, dict(checkpoint("tied").state_dict()), "plain")
    first = training.passes.adapter()
    training.step(1.0)
    assert any(not torch.equal(first[name], tensor) for name, tensor in training.passes.adapter().items())
    (hidden, kv), (other, other_kv) = bare.encode(ids), training.passes.encode(ids)
    assert torch.equal(hidden, other)
    batch = batches.laid_out(hand_made()[:2], 1, 20, 1)
    rows = training.passes.canvas(batch.ids, other_kv, batch.positions, batch.mask, adapted=False)
    assert torch.equal(bare._pass(batch.ids, batch.positions, kv, batch.mask)[0], rows)
    assert torch.equal(bare.logits(hidden), training.passes.logits(other))


class KilledError(Exception):
    """Stands for a kill at any place."""


def test_killed_run_continues_with_the_same_losses(
    base: Path, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(state: Path, kill_at: str = "") -> list[str]:
        said: list[str] = []

        def on_message(text: str) -> None:
            said.append(text.partition(", mean")[0])
            if kill_at and text.startswith(kill_at):
                raise KilledError

        steps = 6 - (torch.load(state)["step"] if state.exists() else 0)
        plan = replace(PLAN, steps=steps, batches=2)
        loop.train(str(base), [sources], state, plan, on_message=on_message)
        return [text for text in said if text.startswith("step")]

    whole = run(tmp_path / "whole.pt")
    monkeypatch.setattr(loop, "SAVE_S", -1.0)  # save after each step
    with pytest.raises(KilledError):
        run(tmp_path / "killed.pt", kill_at="step 4")
    assert torch.load(tmp_path / "killed.pt")["step"] == 3
    assert run(tmp_path / "killed.pt") == whole[3:]
    assert len(whole) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed.pt", "whole.pt"]
    states_ = [torch.load(tmp_path / f"{name}.pt") for name in ("whole", "killed")]
    assert all(torch.equal(states_[0][name], states_[1][name]) for name in ("flat", "m1", "m2"))


def test_steps_on_the_same_canvases_lower_their_loss(base: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = training_of(base, sources, replace(PLAN, rate=1e-2, batches=1))
    first = training.figures()
    assert "end" in first
    monkeypatch.setattr(loop, "Random", lambda _seed: Random(3))
    losses = [training.step(1.0)[0] for _ in range(20)]
    assert losses[-1] < losses[0] - 0.2
    causal = [figures.split("(")[1:] for figures in (first, training.figures())]
    assert [part[:5] for part in causal[0]] == [part[:5] for part in causal[1]]


def test_vocabulary_without_an_end_is_reported(base: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "START_TOKENS", ("<none>",))
    with pytest.raises(EvalError, match="has none of the tokens <none>, one of which ends an answer"):
        training_of(base, sources)


class Recording(Vocabulary):
    """Remembers the texts before holes."""

    texts: list[str]

    def safe_end(self, text: str) -> int:
        self.__dict__.setdefault("texts", []).append(text)
        return super().safe_end(text)


def test_holes_are_cut_where_the_product_cuts_them(base: Path) -> None:
    vocabulary = Recording.from_file(base / "tokenizer.json")
    assert isinstance(vocabulary, Recording)
    layout, n_checked = LeftToRight(Profile("left"), vocabulary_of(base)), 0
    window = holes.cut(SOURCE, vocabulary, Random(1), 300, 30, 32)
    for hole in window.holes:
        prefix, answer = vocabulary.decode(window.ids[: hole.first]), vocabulary.decode(hole.answer)
        assert SOURCE.startswith(prefix + answer + vocabulary.decode(hole.after))
        texts = [text for text in vocabulary.texts if vocabulary_of(base).safe_end(text) == len(prefix)]
        assert texts
        for text in texts:
            sheet = layout.lay_out(values.InfillRequest(text, "", (values.Hole(values.Span(0, 0), "cursor"),)))
            assert sheet.ids[-hole.first :] == window.ids[: hole.first]
            assert answer.startswith(sheet.heal.decode()) or len(text) > len(prefix) + len(answer)
            n_checked += 1
    assert n_checked >= len(window.holes) > 10


def test_set_aside_excluded_and_held_out_files_are_never_trained_on(
    base: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = set()
    original = files.read_regular

    def spy(path: Path, limit: int) -> bytes:
        if path.is_relative_to(sources):
            read.add(path.relative_to(sources).as_posix())
        return original(path, limit)

    monkeypatch.setattr(files, "read_regular", spy)
    excluded = frozenset({"thing_3.py", "thing_4.py"})
    drawn = Sources([sources], vocabulary_of(base), excluded=excluded)
    drawn.windows(Random(1), 500, 64, 4, 12)
    assert len(read) > 100
    assert not any(holes.is_aside(name) or name in excluded or "held" in name for name in read)
    read.clear()
    drawn.windows(Random(1), 30, 64, 4, 12, aside=True)
    assert read
    assert all(holes.is_aside(name) for name in read)


def test_exported_adapter_says_what_it_was_trained_on(base: Path, sources: Path, tmp_path: Path) -> None:
    out = tmp_path / lora.FILE
    training = loop.train(str(base), [sources], tmp_path / "state.pt", replace(PLAN, steps=2), export=out)
    facts = lora.read(out, training.base.sizes, training.base.hash).facts
    assert (facts["tokens"], facts["rank"], facts["base"]) == (str(training.state.tokens), str(RANK), str(base))
    assert "files; sha256" in facts["sources"]
    assert out.stat().st_size < 2.2 * len(training.passes.flat) + 30_000


def test_rows_in_order_are_those_of_the_engine_s_tree(base: Path, sources: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(base, tmp_path / "model")
    training = training_of(base, sources)
    training.passes.load({name: tensor.half().float() for name, tensor in adapter_for(checkpoint("tied")).items()})
    training.export(folder / lora.FILE)
    passes = load_model(str(folder), device="cpu", dtype="float32").passes
    ids = ids_of(1, 20)
    for canvas in hand_made()[:2]:
        prefix = torch.cat([ids[:, : canvas.hole.first - 1], torch.tensor([[canvas.hole.before]])], 1)
        own = passes.adapted if canvas.held else passes
        tree = Tree(own, passes.encode(prefix)[1], canvas.hole.before, right=canvas.held)
        batch = batches.laid_out([canvas], 1, 20, 1)
        losses = batch.losses(training.passes, training.passes.encode(ids)[1], adapted=bool(canvas.held))[1]
        torch.testing.assert_close(torch.tensor(tree.log_probabilities([canvas.body])[0]), -losses, atol=1e-3, rtol=0)


def test_state_of_another_trainer_starts_a_run(base: Path, sources: Path, tmp_path: Path) -> None:
    adapter = adapter_for(checkpoint("tied"))
    first = training_of(base, sources)
    first.passes.load(adapter)
    stored = {
        "adapter": {name: tensor.bfloat16() for name, tensor in adapter.items()},
        "step": 90,
        "tokens": 1000,
        "lossy": 600,
    }
    # Older trainers also had vectors, at the end of the weights.
    stored["adapter"] |= {"mask": torch.ones(48), "dist": torch.ones(48, 48)}  # type: ignore[operator]
    flat = torch.cat([first.passes.flat, torch.ones(49 * 48)])
    stored |= {"flat": flat, "m1": flat / 2, "m2": flat.square(), "adam_step": 70}
    torch.save(stored | {"secs": 3.0, "rank": RANK, "options": {"mix": "A.4"}}, tmp_path / "main.pt")
    plan = replace(PLAN, minutes=0, rank=8)
    begun = loop.train(str(base), [sources], tmp_path / "new.pt", plan, start=tmp_path / "main.pt")
    assert (begun.state.step, begun.state.tokens, begun.state.tokens_with_loss) == (70, 1000, 600)
    second = stored["m2"]
    assert isinstance(second, Tensor)
    assert torch.equal(begun.state.second, second[: len(first.passes.flat)])
    for name, tensor in begun.passes.adapter().items():
        torch.testing.assert_close(tensor, adapter[name])
    exported = tmp_path / "canvas.safetensors"
    begun.export(exported)
    begun = loop.train(str(base), [sources], tmp_path / "new.pt", plan, start=exported)
    assert (begun.state.step, begun.state.tokens, begun.state.tokens_with_loss) == (0, 1000, 600)
    assert not begun.state.first.any()
    for name, tensor in begun.passes.adapter().items():
        torch.testing.assert_close(tensor, adapter[name].half().float(), atol=0, rtol=1e-2)


def test_mistakes_are_reported_in_one_sentence(base: Path, sources: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    torch.save({"adapter": {}, "step": 1, "tokens": 1, "base_hash": "other"}, tmp_path / "other.pt")
    torch.save({"adapter": {"0q_a": torch.zeros(3, 5)}, "step": 1, "tokens": 1}, tmp_path / "narrow.pt")
    (tmp_path / "text.pt").write_text("no state")
    (tmp_path / "text.safetensors").write_text("no adapter")
    given = {"--base": base, "--sources": sources, "--state": tmp_path / "s.pt", "--minutes": 0}
    for changed, sentence in (
        ({}, f"there is no state {tmp_path}/s.pt; train first, with --minutes above 0, or name a state with --from"),
        ({"--sources": tmp_path / "no"}, f"{tmp_path}/no is not a folder; give a folder of source files with --sources"),
        ({"--sources": tmp_path / "empty"}, f"{tmp_path}/empty: no source file; more files are needed"),
        ({"--state": tmp_path / "no" / "s.pt"}, f"{tmp_path}/no is not a folder that you can write to"),
        ({"--export": tmp_path / "text.pt" / "x"}, f"{tmp_path}/text.pt is not a folder that you can write to"),
        ({"--state": tmp_path / "text.safetensors"}, "has the name of an exported adapter; give it with --from, and another"),
        ({"--state": tmp_path / "other.pt"}, f"{tmp_path}/other.pt is a state for another base model than {base}"),
        ({"--state": tmp_path / "narrow.pt"}, f"{tmp_path}/narrow.pt does not fit {base}: 0q_a has the shape [3, 5]"),
        ({"--state": tmp_path / "text.pt"}, f"{tmp_path}/text.pt is not a state of `dg-lsp train canvas`"),
        ({"--from": tmp_path / "no.pt"}, "no.pt: no such file or directory"),
        ({"--from": tmp_path / "text.safetensors"}, "text.safetensors is not an adapter that can be read"),
        ({"--base": tmp_path / "no"}, f"there is no model folder {tmp_path}/no"),
        ({"--base": "embedded"}, "embedded is a diffusion_gemma model; a canvas is trained for"),
    ):
        options = given | ({"--minutes": 1} if {"--sources", "--base"} & changed.keys() else {}) | changed
        result = CliRunner().invoke(app, ["canvas", *(str(part) for pair in options.items() for part in pair)])
        assert result.exit_code == 2, (changed, result.output, result.exception)
        (line,) = result.stderr.splitlines()
        assert sentence in line


def test_adapter_that_does_not_fit_is_refused(base: Path, sources: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(base, tmp_path / "model")
    file = folder / lora.FILE
    training = training_of(base, sources)
    training.export(file)
    good, facts = load_file(file), lora.read(file, training.base.sizes, training.base.hash).facts
    wide = good | {"1o_b": torch.zeros(49, RANK, dtype=torch.float16)}
    for tensors, stated, sentence in (
        (wide, facts, "1o_b in {} is F16 [49, 4], but its model needs [48, 4] in 16 or 32 bits"),
        ({name: one for name, one in good.items() if name != "1o_a"}, facts, "{} lacks the tensor 1o_a"),
        (good | {"more": torch.zeros(1)}, facts, "{} has, beside the adapter's, the tensor more"),
        (good | {"0q_a": torch.zeros(0, 48)}, facts, "{} has no valid rank"),
        (good | {"1o_b": torch.full((48, RANK), torch.nan)}, facts, "1o_b in {} holds numbers that are not finite"),
        (good | {"1o_b": torch.zeros(48, RANK, dtype=torch.int8)}, facts, "1o_b in {} is I8 [48, 4]"),
        (good, {**facts, "base_hash": "0"}, "the adapter {} belongs to other weights"),
        (good, {**facts, "format": "2"}, "{} is not an adapter of format 1"),
    ):
        save_file(tensors, file, dict(stated))
        with pytest.raises(LoadError) as caught:
            load_model(str(folder), device="cpu", dtype="float32")
        assert sentence.format(file) in str(caught.value)
    save_file(good | {"mask": torch.zeros(48), "dist": torch.zeros(9, 48)}, file, dict(facts))
    load_model(str(folder), device="cpu", dtype="float32")  # an older file, whose vectors are not read
    file.write_bytes(b"0" * 20)
    with pytest.raises(LoadError, match="is not an adapter that can be read"):
        load_model(str(folder), device="cpu", dtype="float32")


def test_files_without_enough_holes_are_reported(base: Path, tmp_path: Path) -> None:
    for n in range(200):
        (tmp_path / f"thing_{n}.py").write_text("x = 1\n")
    (tmp_path / "data.json").write_text(json.dumps({}))
    with pytest.raises(EvalError, match="too few holes can be cut from these files"):
        Sources([tmp_path], vocabulary_of(base)).windows(Random(1), 1, 64, 4, 12)
