"""Front ends live without the engine's packages, and no library is imported that is not asked for."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import dg_lsp
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]

# What only the engine may import; blocked, the rest must still import.
HEAVY = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
FRONT_ENDS = ("dg_lsp.cli", "dg_lsp.core", "dg_lsp.wire", "dg_lsp.infill", "dg_lsp.batch", "dg_lsp.server", "dg_lsp.cli.bench")

BLOCKED = """
import importlib, sys

heavy, names = {heavy!r}, {names!r}

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in heavy:
            raise ImportError(f"{{name}} is imported by a front end", name=name)

sys.meta_path.insert(0, Block())
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def modules(*parts: str) -> list[str]:
    """Return the names of all modules of these parts of the package."""
    names = [module.name for module in pkgutil.walk_packages(dg_lsp.__path__, "dg_lsp.")]
    return [name for name in names if any(name == part or name.startswith(f"{part}.") for part in parts)]


def test_front_ends_import_without_torch() -> None:
    names = modules(*FRONT_ENDS)
    assert {"dg_lsp.cli", "dg_lsp.cli.infill", "dg_lsp.infill.pipeline"} <= set(names)
    code = BLOCKED.format(heavy=HEAVY, names=names)
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == str(len(names))


def test_every_library_that_is_imported_is_asked_for() -> None:
    """A library that the tests' own tools bring would be missing in an installation."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*stated["dependencies"], *(name for extra in stated["optional-dependencies"].values() for name in extra)]
    names = {re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower().replace("-", "_") for line in requirements}
    # Installed with transformers, uvicorn and lsprotocol, which use them in their interfaces, and with torch for CUDA.
    indirect_dependencies = {"huggingface_hub", "h11", "cattrs", "triton"}
    path_by_module: dict[str, str] = {}
    for path in sorted((ROOT / "dg_lsp").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                modules = [node.module]
            path_by_module |= {module.partition(".")[0]: str(path) for module in modules}
    known_modules = {*sys.stdlib_module_names, "dg_lsp", *names, *indirect_dependencies}
    missing = {name: path for name, path in path_by_module.items() if name not in known_modules}
    assert not missing
