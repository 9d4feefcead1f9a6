"""Run a model on this machine: turn a request into ranked candidates, one uninterruptible step at a time.

The stages of one fill, for each canvas of a request (`canvas.CanvasTask.run` is the code):

    request -> layout -> Fill (fill.py) -> prefix encoded (prefixes.py) -> drafts (drafting.py): RowResult, ...
    without a delete token: the gap's lengths, and causal drafts of them (search.py)
    Fill + drafts -> rows of noise and of drafts (rows.py): PlannedRow, ... -> denoised (engine.denoise) -> RowResult, ...
    a block that the suffix follows in no result -> canvases one after another (longer.py): RowResult
    all RowResults -> a causal pass scores each distinct text (scoring.py) -> ranked (engine.rank) -> Candidate, ...

`pace.py` measures the duration of steps, so that a fill can plan for its deadline. `task.py` steps a request through its
canvases, `together.py` steps canvases of several requests in one pass, and `ahead.py` encodes the next prefix while the
engine is idle. `filler.py` is the interface to serving. Knows layouts, rows and scores. Knows nothing of how requests
arrive.
"""

from __future__ import annotations

from dg_lsp.engine import numpy_first  # noqa: F401 -- before torch

# isort: split
import torch  # noqa: F401 -- imported first, so that the error of an incomplete installation names torch

from dg_lsp.engine.local.fill import Switches
from dg_lsp.engine.local.filler import LocalFiller, load_local
from dg_lsp.engine.local.resources import MAX_ROWS
from dg_lsp.engine.local.task import InfillTask

__all__ = ["MAX_ROWS", "InfillTask", "LocalFiller", "Switches", "load_local"]
