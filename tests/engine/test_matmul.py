"""Products with oneDNN equal torch's own, whatever the number of tokens, and attention equals torch's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dg_lsp.engine.backends import local
from dg_lsp.engine.model import matmul
from dg_lsp.engine.model.matmul import Inputs, Kind

needs_onednn = pytest.mark.skipif(matmul.best_kind() == "plain", reason="this processor or this torch has no oneDNN products")
needs_16_bits = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no products in 16 bits"
)


def matrices(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=random) / shape[-1] ** 0.5 for shape in shapes]


@needs_onednn
@pytest.mark.parametrize(("kind", "tolerance"), [("onednn", 1e-5), pytest.param("onednn-bf16", 3e-2, marks=needs_16_bits)])
@pytest.mark.parametrize("n_tokens", [7, 48, 144])
@torch.inference_mode()
def test_products_equal_torchs_own(kind: Kind, tolerance: float, n_tokens: int) -> None:
    weight, inputs = matrices((96, 64), (n_tokens, 64))
    actual = matmul.matrix(weight, kind).times(Inputs(8 * inputs))
    assert actual.dtype is torch.float32
    torch.testing.assert_close(actual, 8 * inputs @ weight.t(), atol=tolerance, rtol=tolerance)


def test_few_shapes_occur_for_any_number_of_tokens() -> None:
    sizes = {matmul.padded(n) for n in range(1, 2049)}
    assert len(sizes) < 50
    assert all(matmul.padded(n) >= n for n in range(1, 2049))


@pytest.fixture
def choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Patches under which the kind of products is chosen again."""
    with monkeypatch.context() as patch:
        matmul.best_kind.cache_clear()
        yield patch
    matmul.best_kind.cache_clear()


def test_a_torch_without_the_operations_multiplies_plainly(choice: pytest.MonkeyPatch) -> None:
    def missing(*_arguments: object) -> None:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")

    choice.setattr(matmul.OneDnnMatrix, "times", missing)
    assert matmul.best_kind() == "plain"


@needs_onednn
@pytest.mark.parametrize(
    ("has_them", "they_work", "kind"),
    [(True, True, "onednn-bf16"), (False, True, "onednn"), (True, False, "onednn")],
)
def test_products_of_16_bits_are_used_where_the_processor_has_them_and_they_work(
    has_them: bool, they_work: bool, kind: Kind, choice: pytest.MonkeyPatch
) -> None:
    choice.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_them)
    choice.setattr(matmul, "_computes", lambda dtype=torch.float32, **_: they_work or dtype == torch.float32)
    assert matmul.best_kind() == kind


@needs_onednn
def test_a_model_that_is_asked_for_in_32_bits_is_not_multiplied_in_16(trained_layout: Path) -> None:
    loaded = local.load_model(str(trained_layout), device="cpu", threads=1, dtype="float32")
    assert loaded.passes.kind == "onednn"
    assert loaded.why["dtype"] == "you selected it; products are computed in 32 bits by oneDNN"
    unasked = local.load_model(str(trained_layout), device="cpu", threads=1)
    assert unasked.passes.kind == matmul.best_kind()


@pytest.mark.parametrize("n_rows", [1, 2])
@pytest.mark.parametrize("n_tokens", [1, 7, 16, 40])
@pytest.mark.parametrize("n_past", [0, 30])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n_scores", [1, 2000, matmul.SCORES])  # blocks of one token, of several, and one for all
def test_attention_in_blocks_equals_torchs_own(
    n_rows: int, n_tokens: int, n_past: int, causal: bool, n_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "SCORES", n_scores)
    generator, n_keys, groups = torch.Generator().manual_seed(n_tokens), n_past + n_tokens, 3
    queries = torch.randn(n_rows, n_tokens, 2 * groups, 32, generator=generator)
    keys, values = (torch.randn(n_rows, 2, n_keys, 32, generator=generator).bfloat16() for _ in range(2))
    visible = torch.rand(n_rows, 1, n_tokens, n_keys, generator=generator) < 0.7
    visible[..., 0] = True
    if causal:
        visible = torch.ones(n_tokens, n_keys, dtype=torch.bool).tril(n_past)[None, None].expand(n_rows, 1, -1, -1)
    added = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf).repeat_interleave(groups, 2)
    before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    blocks = matmul.attention_in_blocks(queries, keys, values, 0.2, None if causal else added, causal=causal)
    exact = F.scaled_dot_product_attention(
        queries.transpose(1, 2).double(),
        keys.double().repeat_interleave(groups, 1),
        values.double().repeat_interleave(groups, 1),
        attn_mask=visible,
        scale=0.2,
    ).transpose(1, 2)
    assert float((blocks - exact).norm() / exact.norm()) < 0.01
    assert torch.backends.mkldnn.matmul.fp32_precision == before  # type: ignore[attr-defined]
