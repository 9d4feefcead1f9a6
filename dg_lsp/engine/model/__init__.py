"""Load a checkpoint and run its passes.

In: a model's name, then token ids. Out: a `Loaded` model (`loading`), then hidden states, logits, and keys and values
(`passes`).
"""
