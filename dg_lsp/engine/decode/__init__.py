"""Turn a request into ranked candidates with a model on this machine, one uninterruptible step at a time.

In: an `InfillRequest`. Out: `Candidate`s, best first. The stages of one canvas (`propose.canvas.CanvasTask.run` is the code):

    request -> layout -> Fill (fill.py) -> prefix encoded (resources.py) -> drafts (propose/drafting.py): RowResult, ...
    without a delete token: the gap's lengths, and causal drafts of them (propose/search.py)
    Fill + drafts -> rows of noise and of drafts (propose/rows.py) -> denoised (canvas/denoise.py) -> RowResult, ...
    a block that the suffix follows in no result -> canvases one after another (propose/longer.py): RowResult
    all RowResults -> a causal pass scores each distinct text (scoring.py) -> ranked (rank.py) -> Candidate, ...

`pace.py` measures the duration of steps, so that a fill can plan for its deadline. `task.py` steps a request through its
canvases. `filler.py` is the interface to serving. Knows layouts, rows and scores. Knows nothing of how requests arrive.
"""
