"""Time fills next to transformers' own generate, on the held-out tasks: python tests/benchmarks/against_generate.py

The same as `dg-lsp bench fixtures/eval/heldout.jsonl.gz`. Prints a table; asserts nothing, as clocks differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dg_lsp.evaluate.bench import app

TASKS = Path(__file__).parents[2] / "fixtures" / "eval" / "heldout.jsonl.gz"

if __name__ == "__main__":
    app([str(TASKS), *sys.argv[1:]])
