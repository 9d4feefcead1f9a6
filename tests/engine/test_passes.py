"""Our two passes are the library's, to rounding: experts, sliding windows, caches and conditioning included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dg_lsp.engine.passes import Passes, crop

IDS = torch.arange(40).remainder(97)[None] + 10
CANVAS = torch.tensor([[11, 50, 60, 70, 33, 20], [12, 13, 14, 15, 16, 17]])


@torch.no_grad()
@pytest.mark.parametrize("length", [5, 8, 9, 40])
def test_the_encoder_is_the_librarys(with_experts: Any, length: int) -> None:
    ids = IDS[:, :length]
    expected = with_experts.model.encoder(input_ids=ids).last_hidden_state
    torch.testing.assert_close(Passes(with_experts).encode(ids)[0], expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("length", [5, 8, 9, 40])
@pytest.mark.parametrize("conditioned", [False, True])
def test_the_decoder_is_the_librarys(with_experts: Any, length: int, conditioned: bool) -> None:
    ids, rows = IDS[:, :length], len(CANVAS)
    cache = with_experts.model.encoder(input_ids=ids).past_key_values
    cache.batch_repeat_interleave(rows)
    before = torch.randn(rows, CANVAS.shape[1], 120, generator=torch.Generator().manual_seed(2)) * 4 if conditioned else None
    expected = with_experts(past_key_values=cache, decoder_input_ids=CANVAS, self_conditioning_logits=before).logits
    passes = Passes(with_experts)
    kv = passes.encode(ids)[1]
    soft = None
    if before is not None:
        chances = before.softmax(-1)
        soft = passes.soft(torch.arange(120).expand_as(chances), chances)
    torch.testing.assert_close(passes.logits(passes.decode(CANVAS, kv, soft)), expected, atol=1e-4, rtol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("cut", [1, 7, 8, 20, 39])
def test_a_prefix_cut_anywhere_and_grown_again_is_as_good_as_new(with_experts: Any, cut: int) -> None:
    passes = Passes(with_experts)
    hidden, whole = passes.encode(IDS)
    again, grown = passes.encode(IDS[:, cut:], crop(whole, cut))
    torch.testing.assert_close(again, hidden[:, cut:], atol=1e-5, rtol=1e-4)
    for (keys, values), (new_keys, new_values) in zip(whole, grown, strict=True):
        torch.testing.assert_close(new_keys, keys, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(new_values, values, atol=1e-5, rtol=1e-4)
