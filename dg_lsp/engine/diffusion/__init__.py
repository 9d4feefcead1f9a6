"""Models that denoise text on a canvas: DiffusionGemma, and published models that fill masks.

Knows requests and proposals. Knows nothing of models that only write from left to right (`engine.causal`).
"""
