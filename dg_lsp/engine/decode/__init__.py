"""Turn a request into ranked candidates with a model on this machine: propose, score, rank.

In: an `InfillRequest` (`filler.InfillTask`). Out: `Candidate`s, best first. `filler` has the order of the stages, `propose`
the ways to propose texts, `canvas` the denoiser. Knows layouts, texts and scores. Knows nothing of how requests arrive.
"""
