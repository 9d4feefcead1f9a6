"""Compute how many bytes `dg-lsp train tune` needs, from sizes alone. Not yet verified on a GPU."""

from __future__ import annotations

from dg_lsp.engine.model.fit.geometry import Geometry
from dg_lsp.engine.model.fit.needs import weight_bytes

TRAINED_BYTES = 16  # per trained weight: itself, its gradient and two averages, in 32 bits
LOSS_ROWS = 512  # positions whose logits are held at once
LOSS_COPIES = 5  # of those logits in 32 bits: the loss keeps what its gradient needs


def lora_weights(geometry: Geometry, rank: int, *, experts: bool = False) -> int:
    """Return the number of weights of an adapter, which has separate weights for each of the two passes."""
    hidden, wide = geometry.hidden, geometry.feed_forward
    layers = sum(2 * (hidden + one.queries) + (1 + one.has_values) * (hidden + one.keys) for one in geometry.attentions)
    layers += 3 * (hidden + wide) * len(geometry.attentions)
    if experts:
        banks = hidden + 2 * geometry.expert_width + geometry.expert_width + hidden
        layers += geometry.experts * banks * len(geometry.attentions)
    return rank * (2 * layers + 3 * (hidden + wide))


def lora_bytes(geometry: Geometry, *, rank: int = 16, tokens: int = 4 * 512 + 8 * 64) -> int:
    """Return the bytes for tuning in 16 bits: the model, the adapter's training, and the activations for the backward pass.

    `tokens` are those of one step: its windows and its canvases. The experts are not adapted: that would create each layer's
    expert banks a second time, which fits on no GPU.
    """
    trained = TRAINED_BYTES * lora_weights(geometry, rank)
    # The inputs and outputs of each matrix, the values between them, and four norms in 32 bits.
    activations = sum(
        8 * geometry.hidden * 2 + 4 * geometry.hidden * 4 + 2 * (one.queries * 3 + one.keys * 4) for one in geometry.attentions
    )
    activations += (
        len(geometry.attentions)
        * 2
        * (4 * geometry.feed_forward + geometry.experts_at_once * (4 * geometry.expert_width + 3 * geometry.hidden))
    )
    logits = LOSS_ROWS * geometry.vocabulary * 4 * LOSS_COPIES
    return weight_bytes(geometry, "bfloat16") + trained + tokens * activations + logits
