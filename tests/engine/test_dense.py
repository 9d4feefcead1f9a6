"""The embedded weights read without transformers are those that it reads, and so is what is computed with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DiffusionGemmaForBlockDiffusion

from dg_lsp.engine.common import loading
from dg_lsp.engine.diffusion.gemma import dense
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.model import fit, memory


@pytest.fixture(scope="module")
def embedded() -> Path:
    return loading.find(loading.EMBEDDED)


@torch.no_grad()
def test_the_embedded_model_equals_the_librarys(embedded: Path) -> None:
    library: Any = DiffusionGemmaForBlockDiffusion.from_pretrained(str(embedded), dtype=torch.float32)
    own = dense.load_dense(embedded, torch.float32)
    assert fit.of_config(own.config.to_dict()) == fit.of_config(library.config.to_dict())
    weights = library.state_dict()
    for name, tensor in own.state_dict().items():
        if name in weights:
            torch.testing.assert_close(tensor, weights[name], atol=0, rtol=0)
    ours, theirs = Passes(own), Passes(library.eval())
    assert memory.cost(ours) == memory.cost(theirs)
    ids, canvas = torch.arange(100, 140)[None], torch.arange(200, 224)[None]
    hidden, kv = ours.encode(ids)
    expected, library_kv = theirs.encode(ids)
    torch.testing.assert_close(hidden, expected, atol=0, rtol=0)
    soft = ours.soft(canvas[..., None], torch.full((1, 24, 1), 0.5))
    torch.testing.assert_close(
        ours.logits(ours.decode(canvas, kv, soft)), theirs.logits(theirs.decode(canvas, library_kv, soft)), atol=0, rtol=0
    )


@pytest.mark.slow
def test_the_embedded_model_is_loaded_without_transformers_and_torchs_compiler() -> None:
    code = (
        "import sys; from dg_lsp.engine import backends; backends.load_filler('embedded', device='cpu'); "
        "print(sorted(name for name in ('transformers', 'torch', 'torch._dynamo', 'sympy') if name in sys.modules))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "['torch']"
