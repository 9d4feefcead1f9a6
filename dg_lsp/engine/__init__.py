"""The engine process: layouts, denoising, ranking, the model and how it is served. Torch lives here only."""
