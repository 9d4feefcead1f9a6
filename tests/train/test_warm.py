"""A run can start from an existing checkpoint, with another vocabulary and more layers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from dg_lsp.engine.model.loading import find, load_model
from dg_lsp.engine.model.passes import Passes
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.train import warm
from dg_lsp.train.curve import START
from dg_lsp.train.shape import Shape, build, resume


@pytest.fixture(scope="module")
def old_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(Path(warm.__file__).parents[1] / "models" / "embedded" / "tokenizer.json"))


@pytest.fixture(scope="module", params=["by name", "in a folder"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The embedded model, and a checkpoint of its kind in a folder, which the library's class loads."""
    if request.param == "by name":
        return "embedded"
    folder = tmp_path_factory.mktemp("checkpoint")
    shutil.copytree(find("embedded"), folder, dirs_exist_ok=True)
    return str(folder)


def test_added_layers_do_not_change_the_output(tmp_path: Path, old_tokenizer: Tokenizer, checkpoint: str) -> None:
    old_tokenizer.save(str(tmp_path / "tokenizer.json"))
    old = load_model(checkpoint, device="cpu", dtype="float32").diffusion
    shape = Shape(
        hidden=old.config.hidden_size,
        layers=old.config.num_hidden_layers + 2,
        heads=old.config.num_attention_heads,
        feed_forward=old.config.intermediate_size,
        vocabulary=old.config.vocab_size,
    )
    warm.start(tmp_path, checkpoint, shape)
    model = build(shape)
    resume(model, tmp_path / "state.pt")
    ids = torch.tensor([old_tokenizer.encode("def area(width, height):\n    return ").ids])
    with torch.no_grad():
        torch.testing.assert_close(Passes(model).encode(ids)[0], old.encode(ids)[0], atol=1e-4, rtol=1e-4)
    assert json.loads((tmp_path / START).read_text()) == {"weights": Path(checkpoint).name}
    with pytest.raises(EvalError, match="this run has started"):
        warm.start(tmp_path, checkpoint, shape)


def test_a_new_token_starts_as_the_mean_of_the_tokens_that_spelled_it() -> None:
    pieces = {b"a": 40, b"b": 41, b"ab": 42, b"c": 43}
    assert warm._spelled(b"abc", pieces) == (42, 43)
    weights = torch.arange(50.0)[:, None].expand(50, 2)
    rows = warm._transferred(weights, [(42,), warm._spelled(b"abc", pieces)])
    assert rows[:, 0].tolist() == [42.0, 42.5]
