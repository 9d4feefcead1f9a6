"""Propose texts for a hole, each way in its own module.

In: a `Filling` with the encoded prefix and the proposals so far. Out: `rank.Proposal`s in the filling, and a pause after each
unit of work. CONTRIBUTING.md says how to add one.
"""
