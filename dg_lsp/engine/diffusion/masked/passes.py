"""The pass of a published model that fills masks: its whole text attends to itself in both directions.

Shapes: C positions of the text, H hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dg_lsp.engine.model.llama import Llama


class MaskedLlama(Llama):
    """The pass of one loaded model with the weights of a Qwen2 model. Position i predicts token i + 1."""

    def read(self, ids: Tensor) -> Tensor:
        """Return the last hidden states [C, H] of a text [C]."""
        with torch.no_grad():
            return self._pass(ids[None], torch.arange(len(ids), device=ids.device)[None], None, None)[0][0]
