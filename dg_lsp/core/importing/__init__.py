"""Import the names that an answer uses and its file does not bind: where they come from, and the edit that imports them.

`sources` finds one import for each name, `edits` writes imports into a file's text. Python, TypeScript and JavaScript.
"""

from __future__ import annotations

from dg_lsp.core.importing.edits import edit, is_valid, statement
from dg_lsp.core.importing.sources import Sources, find

__all__ = ["Sources", "edit", "find", "is_valid", "statement"]
