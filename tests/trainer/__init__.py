"""A tool of developers, which made the released weights of the embedded model: corpus, tokenizer, objective, loop, export.

Run it in a checkout, as `python -m tests.trainer`; it is not part of the wheel.
"""
