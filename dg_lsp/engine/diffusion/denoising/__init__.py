"""Denoise canvases.

In: rows of held and free positions on an encoded prefix (`denoise.Row`). Out: each row's tokens with their probabilities
(`denoise.Reading`). `tests/engine/reference.py` is the algorithm in plain Python. Knows nothing of text.
"""
