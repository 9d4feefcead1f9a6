"""Compute how many bytes a model needs in a precision, including the memory for one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dg_lsp.engine.model.fit.geometry import Geometry

Precision = Literal["float32", "bfloat16", "float16", "int8", "fp8", "int4"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "float16", "int8", "fp8", "int4")
QUANTISED: tuple[Precision, ...] = ("fp8", "int4")

VOCABULARY_SLICE = 32_768  # tokens whose probabilities are computed at once; a smaller vocabulary is not sliced
# A position's logits and their parts, in 32 bits, at once: with slices, the logits and half a copy before they are widened;
# without, logits, probabilities, cumulative sums and a mask.
SLICED_COPIES, PLAIN_COPIES = 2, 5
HIDDEN_COPIES = 8  # copies of a position's hidden state during a layer
FP8_SCALE_BYTES = 4  # per row
INT8_SCALE_BYTES = 12  # per row: a scale, and the zero point that oneDNN asks for
# NF4: 64 weights share one 8-bit scale, and 256 scales share one 32-bit scale.
INT4_BYTES = 1 / 2 + 1 / 64 + 4 / (64 * 256)


@dataclass(frozen=True, slots=True)
class Use:
    """The size of a request, in tokens."""

    prefix_tokens: int = 7168  # the default profile's prefix and suffix
    canvas_tokens: int = 256
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Needs:
    """The bytes that a model needs, by use. `workspace` is what a pass needs whatever its number of rows."""

    weights: int
    workspace: int
    cache: int
    rows: int

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return self.weights + self.workspace + self.cache + self.rows


def needs(geometry: Geometry, precision: Precision, use: Use | None = None) -> Needs:
    """Return the bytes that a model needs in a precision, with one encoded prefix and the rows of one pass."""
    use = use or Use()
    prefix = use.prefix_tokens * geometry.kv_per_token * wide_bytes(precision)
    row = prefix + use.canvas_tokens * canvas_token_bytes(geometry, wide_bytes(precision))
    # Any pass needs one layer's experts at full width, if the experts are quantised.
    workspace = geometry.n_layer_experts * wide_bytes(precision) if precision in QUANTISED else 0
    return Needs(weight_bytes(geometry, precision), workspace, prefix, use.rows * row)


def wide_bytes(precision: Precision) -> int:
    """Return the bytes of one number during computation; 8-bit integers give 32 bits, other quantised weights 16."""
    return 4 if precision in ("float32", "int8") else 2


def weight_bytes(geometry: Geometry, precision: Precision) -> int:
    """Return the bytes of all weights. The embedding, the routers and the norms are quantised in int8 at most."""
    if precision == "int8":  # the embedding is in memory twice: for its rows, and for the products of the head
        n_tied = 0 if geometry.has_head else geometry.n_embedding
        n_rows = geometry.n_linear_rows + 2 * geometry.vocabulary
        return geometry.n_embedding + n_tied + geometry.n_linear + INT8_SCALE_BYTES * n_rows + 4 * geometry.n_other
    wide = (geometry.n_embedding + geometry.n_other) * wide_bytes(precision)
    n_narrow = geometry.n_linear + geometry.n_experts
    match precision:
        case "fp8":
            return wide + n_narrow + FP8_SCALE_BYTES * (geometry.n_linear_rows + geometry.n_expert_rows)
        case "int4":
            return wide + round(n_narrow * INT4_BYTES)
    return wide + n_narrow * wide_bytes(precision)


def canvas_token_bytes(geometry: Geometry, value_bytes: int) -> int:
    """Return the bytes of one canvas token in a step: its keys and values, the widest layer, and its logits."""
    hidden = (HIDDEN_COPIES * geometry.hidden + geometry.widest) * value_bytes
    return geometry.kv_per_token * value_bytes + hidden + logit_bytes(geometry)


def logit_bytes(geometry: Geometry) -> int:
    """Return the bytes of one position's logits, with all that is computed from them."""
    copies = PLAIN_COPIES if geometry.vocabulary <= VOCABULARY_SLICE else SLICED_COPIES
    return copies * 4 * geometry.vocabulary
