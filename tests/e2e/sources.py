"""A file in each language: working functions, placeholder bodies that a comment describes, and a marker."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "fixtures" / "languages"
# The files, and the ids of their languages in editors.
_LANGUAGE_IDS = {
    "cart.py": "python",
    "cart.js": "javascript",
    "cart.ts": "typescript",
    "panel.tsx": "typescriptreact",
    "cart.go": "go",
    "cart.rs": "rust",
    "Cart.java": "java",
    "cart.c": "c",
    "cart.cpp": "cpp",
    "Cart.cs": "csharp",
    "cart.rb": "ruby",
    "cart.php": "php",
    "cart.sh": "shellscript",
    "cart.lua": "lua",
}
# The name, the language's id and the text of each.
SOURCES = tuple((name, language_id, (FOLDER / name).read_text("utf-8")) for name, language_id in _LANGUAGE_IDS.items())
