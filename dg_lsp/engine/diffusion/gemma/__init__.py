"""DiffusionGemma's weights and passes: in transformers' classes. Knows nothing of requests."""
