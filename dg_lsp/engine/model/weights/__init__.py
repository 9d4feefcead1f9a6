"""Load a model folder's weights onto a device.

`checkpoint` reads the files' headers, `llama` reads the weights of a Llama model and joins their matrices, and `fetch`
downloads a model from the hub.
"""
