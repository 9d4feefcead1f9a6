"""`dg-lsp train fim`: holes laid out as requests are, losses against the library's model, and the adapter in a conversion."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from dg_lsp.cli.train import app
from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.causal import lora
from dg_lsp.engine.common.loading import LoadError
from dg_lsp.engine.model.fit.geometry import PROJECTIONS
from dg_lsp.engine.model.pull.convert import convert
from dg_lsp.engine.model.vocabulary import FIM_TOKENS, Vocabulary
from dg_lsp.train.canvas import batches, loop
from dg_lsp.train.canvas.batches import Middles
from dg_lsp.train.canvas.holes import Sources
from dg_lsp.train.canvas.loop import Training, TrainingPlan
from tests import checkpoints
from tests.engine import laptop_kit
from tests.engine.test_llama import RANK, checkpoint
from tests.train.conftest import SOURCE

pytestmark = pytest.mark.usefixtures("in_32_bits")
PLAN = TrainingPlan(minutes=60, steps=3, rank=RANK, measured=8, middles=8)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen")
    tokenizer = checkpoints.tokenizer([SOURCE], vocabulary=280)
    tokenizer.add_special_tokens([AddedToken(names[0], special=True) for names in FIM_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    checkpoint("tied").save_pretrained(folder)
    return folder


def training_of(base: Path, sources: Path) -> Training:
    frozen = loop.read_base(str(base))
    return Training(frozen, Sources([sources], frozen.vocabulary), PLAN)


def test_a_row_is_a_request_with_its_answer_and_end(base: Path, sources: Path) -> None:
    vocabulary = Vocabulary.from_file(base / "tokenizer.json")
    before, after, middle, end = (vocabulary.id(names[0]) for names in FIM_TOKENS)
    drawn = Middles(Sources([sources], vocabulary), vocabulary)
    for batch in drawn.drawn(Random(1), 12):
        places = drawn.places(batch)
        for row in range(len(batch.ids)):
            own = [n for n, at in enumerate(batch.rows.tolist()) if at // batch.ids.shape[1] == row]
            tokens = batch.ids[row].tolist()
            first = tokens.index(middle) + 1
            body = batch.targets[own].tolist()
            assert [places[n] for n in own] == [*range(len(own) - 1), -1]
            assert body[-1] == end
            assert body[:-1] == tokens[first : first + len(body) - 1]
            prefix = vocabulary.decode(tokens[tokens.index(before) + 1 : tokens.index(after)])
            suffix = vocabulary.decode(tokens[tokens.index(after) + 1 : first - 1])
            line = (prefix + vocabulary.decode(body[:-1]) + suffix).split("\n", 1)[1]  # the first one may be cut
            assert any(line in path.read_text() for path in sources.glob("*.py"))


def test_losses_equal_those_of_the_library(base: Path, sources: Path) -> None:
    training = training_of(base, sources)
    passes = training.passes
    with torch.no_grad():
        for name, part in passes.parts.items():
            if name.endswith(".b"):
                part.copy_(0.1 * torch.randn(part.shape, generator=torch.Generator().manual_seed(3)))
    passes.merge()
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged = {name: one.detach().clone() for name, one in model.named_parameters()}
    adapter = passes.adapter()
    for layer in range(passes.sizes.layers):
        for letter, name in PROJECTIONS.items():
            place = f"model.layers.{layer}.{name}.weight"
            merged[place] += adapter[f"{layer}{letter}_b"] @ adapter[f"{layer}{letter}_a"]
    drawn = Middles(training.sources, training.base.vocabulary)
    (batch,) = drawn.drawn(Random(2), batches.ROWS)
    logits = torch.func.functional_call(model, merged, (batch.ids,)).logits.flatten(0, 1)[batch.rows]
    expected = torch.nn.functional.cross_entropy(logits, batch.targets, reduction="none")
    torch.testing.assert_close(batch.losses(passes, [])[1], expected, rtol=1e-3, atol=2e-4)


def test_a_step_lowers_the_loss_and_figures_have_the_end(base: Path, sources: Path) -> None:
    training = training_of(base, sources)
    before = training.figures()
    assert "end" in before
    assert before.count("(") == before.count(", ") + 1  # every figure beside that of the model without the adapter
    losses = [training.step(1.0)[0] for _ in range(12)]
    assert sum(losses[-4:]) < sum(losses[:4])


def test_the_command_trains_and_exports(base: Path, sources: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "fim.safetensors"
    command = ["fim", "--base", str(base), "--sources", str(sources), "--state", str(tmp_path / "state.pt")]
    command += ["--minutes", "0.02", "--rank", str(RANK), "--holes", "4", "--export", str(adapter)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert adapter.exists()

    model = shutil.copytree(base, tmp_path / "model")
    shutil.copy(adapter, model / lora.FILE)
    with pytest.raises(LoadError, match="is not an adapter that reads the suffix, but one for the weights"):
        load_model(str(model), device="cpu")


def test_a_vocabulary_without_the_tokens_is_reported(sources: Path, tmp_path: Path) -> None:
    checkpoints.tokenizer([SOURCE], vocabulary=280).save(str(tmp_path / "tokenizer.json"))
    checkpoint("tied").save_pretrained(tmp_path)
    command = ["fim", "--base", str(tmp_path), "--sources", str(sources), "--state", str(tmp_path / "state.pt")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "lacks a fill-in-the-middle token" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_a_conversion_adds_the_adapter(tmp_path: Path, family: str) -> None:
    gguf = laptop_kit.write_gguf(tmp_path / "tiny.gguf", family)
    plain, adapted = tmp_path / "plain", tmp_path / "adapted"
    for folder in (plain, adapted):
        folder.mkdir()
    convert(gguf, plain)
    stored = load_file(plain / "model.safetensors")
    random, tensors = np.random.default_rng(1), {}
    for layer in range(laptop_kit.LAYERS):
        for letter, name in PROJECTIONS.items():
            n_outputs, n_inputs = stored[f"model.layers.{layer}.{name}.weight"].shape
            tensors[f"{layer}{letter}_a"] = torch.from_numpy(random.normal(0, 0.1, (RANK, n_inputs))).half()
            tensors[f"{layer}{letter}_b"] = torch.from_numpy(random.normal(0, 0.1, (n_outputs, RANK))).half()
    save_file(tensors, tmp_path / "fim.safetensors")
    convert(gguf, adapted, adapter=tmp_path / "fim.safetensors")
    found = load_file(adapted / "model.safetensors")
    assert torch.equal(found["model.embed_tokens.weight"], stored["model.embed_tokens.weight"])
    for layer in range(laptop_kit.LAYERS):
        for letter, name in PROJECTIONS.items():
            place = f"model.layers.{layer}.{name}.weight"
            before, after = (one[place] * one[f"{place}_scale"][:, None] for one in (stored, found))
            added = tensors[f"{layer}{letter}_b"].float() @ tensors[f"{layer}{letter}_a"].float()
            rounding = stored[f"{place}_scale"] + found[f"{place}_scale"]
            assert bool(((after - before - added).abs() <= 0.51 * rounding[:, None]).all())
