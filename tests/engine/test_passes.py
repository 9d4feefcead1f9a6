"""Our two passes are the library's, to rounding: experts, sliding windows, caches and conditioning included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.model.prefix_cache import crop

pytestmark = pytest.mark.usefixtures("without_gradients")

IDS = torch.arange(40).remainder(97)[None] + 10
CANVAS = torch.tensor([[11, 50, 60, 70, 33, 20], [12, 13, 14, 15, 16, 17]])


@pytest.fixture
def passes(with_experts: Any) -> Passes:
    return Passes(with_experts)


@pytest.mark.parametrize("length", [5, 8, 9, 40])
def test_the_encoder_equals_the_librarys(with_experts: Any, passes: Passes, length: int) -> None:
    ids = IDS[:, :length]
    expected = with_experts.model.encoder(input_ids=ids).last_hidden_state
    torch.testing.assert_close(passes.encode(ids)[0], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("length", [5, 8, 9, 40])
@pytest.mark.parametrize("conditioned", [False, True])
def test_the_decoder_equals_the_librarys(with_experts: Any, passes: Passes, length: int, conditioned: bool) -> None:
    ids, rows = IDS[:, :length], len(CANVAS)
    cache = with_experts.model.encoder(input_ids=ids).past_key_values
    cache.batch_repeat_interleave(rows)
    before = torch.randn(rows, CANVAS.shape[1], 120, generator=torch.Generator().manual_seed(2)) * 4 if conditioned else None
    expected = with_experts(past_key_values=cache, decoder_input_ids=CANVAS, self_conditioning_logits=before).logits
    kv = passes.encode(ids)[1]
    soft = None
    if before is not None:
        chances = before.softmax(-1)
        soft = passes.soft(torch.arange(120).expand_as(chances), chances)
    torch.testing.assert_close(passes.logits(passes.decode(CANVAS, kv, soft)), expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("n_kept", [1, 7, 8, 20, 39])
def test_a_cropped_and_extended_prefix_equals_a_new_one(passes: Passes, n_kept: int) -> None:
    hidden, whole = passes.encode(IDS)
    again, longer = passes.encode(IDS[:, n_kept:], crop(whole, n_kept))
    torch.testing.assert_close(again, hidden[:, n_kept:], atol=1e-5, rtol=1e-4)
    for (keys, values), (new_keys, new_values) in zip(whole, longer, strict=True):
        torch.testing.assert_close(new_keys, keys, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(new_values, values, atol=1e-5, rtol=1e-4)


def test_continuations_in_one_pass_equal_separate_passes(passes: Passes) -> None:
    """Two continuations that share a token, longer together with the prefix than the window."""
    prefix, kv = 12, passes.encode(IDS[:, :12])[1]
    tokens, parents = [30, 31, 32, 40, 41], [-1, 0, 1, 0, 3]  # 30 31 32 and 30 40 41
    depths, mask = [0, 1, 2, 1, 2], torch.zeros(5, prefix + 5, dtype=torch.bool)
    mask[:, :prefix] = True
    for node in range(5):
        above = node
        while above >= 0:
            mask[node, prefix + above] = True
            above = parents[above]
    room = [(torch.cat([k, k[:, :, :5]], 2), torch.cat([v, v[:, :, :5]], 2)) for k, v in kv]
    positions = torch.tensor(depths) + prefix
    hidden = passes.extend(torch.tensor(tokens), positions, room, mask, torch.cat([torch.arange(prefix), positions]))
    for nodes in ([0, 1, 2], [0, 3, 4]):
        alone, _ = passes.encode(torch.tensor([[tokens[node] for node in nodes]]), kv)
        torch.testing.assert_close(hidden[nodes], alone[0], atol=1e-5, rtol=1e-4)
