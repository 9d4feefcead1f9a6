"""Models that write from left to right: the embedded model, SmolLM2, Llama, Qwen2 and Qwen2.5-Coder.

Knows requests and proposals. Knows nothing of canvases (`engine.diffusion`).
"""
