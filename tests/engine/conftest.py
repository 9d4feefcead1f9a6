"""Create tiny real checkpoints: one per layout, and one with experts and a sliding window shorter than its prefix."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

# Without a GPU, Triton's interpreter runs the kernels. Triton reads this when a library first imports it.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# isort: split
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import DiffusionGemmaForBlockDiffusion

from dg_lsp.engine.backends.local import load_model
from dg_lsp.engine.common.profile_file import FILE
from dg_lsp.engine.diffusion.filler import DiffusionFiller
from dg_lsp.engine.diffusion.profile import Profile
from dg_lsp.engine.model import matmul
from dg_lsp.engine.model.fit import machine
from tests import checkpoints
from tests.checkpoints import Shape, build

TEXT = (
    "def add(a, b):\n    return a + b\n\n\n"
    "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y\n"
)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Run every pass in one thread: a sum's last bits depend on how many threads share it, and passes use as many as are free."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "physical_cores", lambda: 1)
        yield


@pytest.fixture(autouse=True)
def _products_in_32_bits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply in 32 bits on every processor, except in the tests of 16-bit products.

    Random weights amplify the rounding of 16-bit products until tokens differ between a row alone and the same row in a batch.
    """
    if request.module.__name__.rpartition(".")[2] != "test_matmul":
        kind = matmul.best_kind(in_16_bits=False)
        monkeypatch.setattr(matmul, "best_kind", lambda **_settings: kind)


@pytest.fixture(scope="session")
def trained_layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained checkpoint in the infill-trained layout, with a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("trained")
    tokenizer = checkpoints.tokenizer([TEXT] * 3, vocabulary=400)
    tokenizer.save(str(folder / "tokenizer.json"))
    _save(folder, Shape(hidden=64, layers=2, heads=1, feed_forward=64, vocabulary=tokenizer.get_vocab_size()))
    settings = {
        "layout": "infill-trained", "prefix_tokens": 128, "suffix_tokens": 32, "held_tokens": 12, "canvas_tokens": 64,
        "line_gaps": [16], "block_gaps": [32], "gaps_per_canvas": 2, "refine_steps": 2, "causal_rows": 2,
        "calibration": {"intercept": -1.0, "weights": {"mean": 2.0, "after": 1.0}},
    }  # fmt: skip
    (folder / FILE).write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def instruct_layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained checkpoint with the tokenizer features of Gemma's: spaces as ▁, byte fallback, newline runs, turns."""
    folder = tmp_path_factory.mktemp("instruct")
    gemma_like_tokenizer().save(str(folder / "tokenizer.json"))
    size = gemma_like_tokenizer().get_vocab_size()
    _save(folder, Shape(hidden=64, layers=2, heads=1, feed_forward=64, vocabulary=size))
    return folder


@pytest.fixture(scope="module")
def trained_filler(trained_layout: Path) -> DiffusionFiller:
    return DiffusionFiller(load_model(str(trained_layout), device="cpu"))


@pytest.fixture(scope="module")
def instruct(instruct_layout: Path) -> DiffusionFiller:
    """A filler with the default profile."""
    filler = DiffusionFiller(load_model(str(instruct_layout), device="cpu"))
    assert filler.loaded.profile == Profile()
    return filler


def gemma_like_tokenizer() -> Tokenizer:
    """Return a small tokenizer built the way Gemma's is."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<image>", "<|turn>", "<turn|>", "<|channel>", "<channel|>"]
    words = ["▁", "▁▁", "▁▁▁▁", "\n", "\n\n", *(chr(code) for code in range(33, 127)), "de", "def", "re", "return", "▁+", "Ġ"]
    merges = [("▁", "▁"), ("▁▁", "▁▁"), ("\n", "\n"), ("d", "e"), ("de", "f"), ("r", "e"), ("▁", "+")]
    for word in ("```", "model", "thought", "python"):  # of a chat turn
        words += [word[:n] for n in range(2, len(word) + 1)]
        merges += [(word[:n], word[n]) for n in range(1, len(word))]
    vocabulary = {token: index for index, token in enumerate([*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *words])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
    return tokenizer


@pytest.fixture(scope="session")
def with_experts() -> Any:
    """A model whose experts are on and whose window of 8 is shorter than its prefix."""
    torch.manual_seed(0)
    model: Any = build(Shape(hidden=64, layers=3, heads=2, feed_forward=64, vocabulary=120, positions=64))
    config = model.config
    config.text_config.sliding_window = 8
    config.text_config.num_experts, config.text_config.top_k_experts = 4, 2
    config.text_config.moe_intermediate_size = 32
    model = DiffusionGemmaForBlockDiffusion(config).eval()
    _shake(model)
    return model


def _save(folder: Path, shape: Shape) -> None:
    torch.manual_seed(1)
    model: Any = build(shape)
    _shake(model)
    model.save_pretrained(folder)


def _shake(model: Any) -> None:
    """Change every norm's weight from one, so that a test notices a missing norm."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1 and parameter.any():
                parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
        for layer in model.model.decoder.layers:
            layer.self_attn.q_norm.weight.fill_(0.2)
