"""What both families' passes share: sizes, weights, products, attention, keys and values, and trees of tokens.

In: token ids. Out: hidden states, logits, and keys and values. Knows nothing of requests.
"""
