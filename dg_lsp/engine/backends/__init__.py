"""Who runs the denoising: the local model, a vLLM server, or a plain fill-in-the-middle endpoint."""
