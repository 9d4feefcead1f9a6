"""The model that runs on this machine: from a request to ranked candidates, one uninterruptible step at a time.

One fill, for each canvas of a request (`canvas.CanvasTask.run` is these lines as code):

    request -> layout -> Fill (fill.py) -> prefix encoded (prefixes.py) -> drafts (drafting.py): RowResult, ...
    Fill + drafts -> rows of noise and of drafts (rows.py): PlannedRow, ... -> denoised (engine.denoise) -> RowResult, ...
    all RowResults -> one causal pass scores each distinct text (scoring.py) -> ranked (engine.rank) -> Candidate, ...

`task.py` steps a request through its canvases, `together.py` steps canvases of several requests in one pass, `ahead.py`
reads the next prefix while the engine is idle, `filler.py` is what serving sees of all this. Knows layouts, rows and scores.
Knows nothing of how requests arrive.
"""

from __future__ import annotations

import torch  # noqa: F401 -- before smaller libraries: where the engine's parts are missing, the error names torch

from dg_lsp.engine.local.fill import Switches
from dg_lsp.engine.local.filler import LocalFiller, load_filler
from dg_lsp.engine.local.resources import MAX_ROWS
from dg_lsp.engine.local.task import InfillTask

__all__ = ["MAX_ROWS", "InfillTask", "LocalFiller", "Switches", "load_filler"]
