"""`python -m tests.trainer`: train the embedded model."""

from __future__ import annotations

from tests.trainer.commands import app

app()
