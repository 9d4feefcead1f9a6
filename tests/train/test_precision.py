"""Training computes in the precision that the processor multiplies fastest."""

from __future__ import annotations

import pytest
import torch

from dg_lsp.train.canvas import loop


def test_the_precision_depends_on_the_processor_s_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has=has: has)
        assert loop.dtype_of("cpu") is dtype
    assert loop.dtype_of("cuda") is torch.bfloat16
