"""A workspace whose modules and programs leave a trace if anything runs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# Of Python, of what dg-lsp requires, of what these require only where it is installed, and what Python runs at each start.
_NAMES = """
    __future__ argparse asyncio concurrent ctypes dataclasses email hashlib http json logging multiprocessing pathlib random
    resource secrets shutil ssl string subprocess tempfile typing anyio httpx lsprotocol msgspec numpy pip platformdirs pygls
    starlette tokenizers torch transformers tree_sitter typer uvicorn brotli orjson socksio triton uvloop zstandard
"""
MODULES = tuple(_NAMES.split())
# These Python itself imports before anything of ours, if its search path begins with the folder.
AT_START = ("dg_lsp", "runpy", "sitecustomize", "types", "usercustomize", "warnings")
PROGRAMS = ("dg-lsp", "git", "nvidia-smi", "pip", "python3", "uv")


def planted(root: Path, modules: Sequence[str]) -> Path:
    """Return a workspace in which each of these modules and some programs write their name into the file `ran`."""
    root.mkdir()
    canary = f"with open({str(root.parent / 'ran')!r}, 'a') as file:\n    file.write(__name__ + '\\n')\n"
    for name in modules:
        (root / f"{name}.py").write_text(canary)
    for part in ("__init__", "__main__") if "dg_lsp" in modules else ():
        (root / "dg_lsp").mkdir(exist_ok=True)
        (root / "dg_lsp" / f"{part}.py").write_text(canary)
    for folder in (root, root / "bin"):
        folder.mkdir(exist_ok=True)
        for name in PROGRAMS:
            (folder / name).write_text(f"#!/bin/sh\necho {name} >> '{root.parent / 'ran'}'\n")
            (folder / name).chmod(0o700)
    (root / "uv.toml").write_text('[[index]]\nurl = "http://127.0.0.1:9/planted"\ndefault = true\n')
    (root / "a.py").write_text('def double(n):\n    """Return n times 2."""\n    raise NotImplementedError\n')
    return root


def ran(root: Path) -> list[str]:
    """Return what ran of a workspace."""
    path = root.parent / "ran"
    return sorted(set(path.read_text().split())) if path.exists() else []
