"""`dg-lsp serve` with another catalogue: the one tiny model in the variable TEST_LAPTOP_MODEL."""

from __future__ import annotations

import os
import sys

from dg_lsp.server import offers, start
from dg_lsp.wire import laptop
from tests.engine import laptop_kit

if __name__ == "__main__":
    text = os.environ["TEST_LAPTOP_MODEL"]
    laptop.MODELS = (laptop_kit.from_text(text),)
    offers.PULL_COMMAND = (sys.executable, "-m", "tests.engine.laptop_kit", text)
    start.serve()
