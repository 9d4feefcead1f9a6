"""Load a model folder's weights onto a device.

`checkpoint` reads the files' headers, `skeleton` builds the model without memory, `reading` fills it shard by shard,
`quantised` computes with 8-bit and 4-bit weights, `llama_layers` joins the matrices of a Llama layer, `fetch` downloads a
model from the hub, and `progress` reports the progress.
"""
