"""What both families of models share: tasks, prompts, drafts, ranking, and the checks before weights are read.

In: an `InfillRequest` (`local.LocalTask`, which has the order of the stages). Out: `Candidate`s, best first. Knows nothing of
how requests arrive, and asks nowhere which family it serves.
"""
