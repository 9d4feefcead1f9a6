"""DiffusionGemma's weights and passes: from transformers' classes, or packed for a processor. Knows nothing of requests."""
