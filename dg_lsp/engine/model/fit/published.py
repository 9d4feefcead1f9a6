"""The published 26B model's sizes, so that what fits can be computed before anything is downloaded."""

from __future__ import annotations

from dg_lsp.engine.model.fit.geometry import of_config

MODEL = "google/diffusiongemma-26B-A4B-it"
DOWNLOAD_BYTES = 51_600_000_000  # its files, also if the weights are quantised after that
CONTEXT_BYTES = 600_000_000  # what CUDA uses on a GPU before anything is loaded
PUBLISHED = of_config(
    {
        "canvas_length": 256,
        "text_config": {
            "num_hidden_layers": 30, "hidden_size": 2816, "intermediate_size": 2112, "moe_intermediate_size": 704,
            "num_experts": 128, "top_k_experts": 8, "num_attention_heads": 16, "num_key_value_heads": 8,
            "num_global_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512, "vocab_size": 262_144,
            "sliding_window": 1024, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
        },
    }
)  # fmt: skip
"""The sizes of the published model, from its `config.json`."""
