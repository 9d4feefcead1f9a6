"""Propose texts for a hole, each way in its own module.

In: a `Fill` and its encoded prefix. Out: texts with what is known of them (`rank.RowResult`), from copies, from the causal
pass and from canvases. Knows nothing of how requests arrive.
"""
