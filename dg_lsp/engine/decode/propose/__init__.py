"""Propose texts for a hole, each way in its own module.

In: a `Filling` with the encoded prefix and the proposals so far. Out: `rank.Proposal`s, and None after each unit of work.
A new way is a generator here, a line in `pipeline.PROPOSERS`, and its name in a profile.
"""
