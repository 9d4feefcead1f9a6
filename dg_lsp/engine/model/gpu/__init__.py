"""Passes of Llama and Qwen2 models over few tokens on a GPU, in fixed buffers that graphs can be recorded of.

Knows weights, keys and values. Knows nothing of trees, requests or the meaning of tokens.
"""
