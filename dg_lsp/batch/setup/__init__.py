"""`dg-lsp setup`: inspect this machine, offer the models that fit, and write the choice into the user's configuration."""

from __future__ import annotations


class SetupError(Exception):
    """The setup can't go on. The message says why and what to do."""
