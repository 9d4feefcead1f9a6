"""A file in each language: working functions, placeholder bodies that a comment describes, and a marker."""

from __future__ import annotations

from pathlib import Path

from dg_lsp.core import languages

FOLDER = Path(__file__).parents[2] / "fixtures" / "languages"
# The name, the language's id in editors and the text of each.
SOURCES = tuple(
    (path.name, language.lsp_ids[0], path.read_text("utf-8"))
    for path in sorted(FOLDER.iterdir())
    if (language := languages.for_path(path.name)) is not None
)
