"""Train a canvas for a causal model that stays as it is."""
