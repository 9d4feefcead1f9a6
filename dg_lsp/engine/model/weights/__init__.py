"""Load a model folder's weights onto a device.

`checkpoint` reads the files' headers, `llama_layers` joins the matrices of a Llama layer, and `fetch` downloads a model
from the hub.
"""
