"""Remove bodies from an installed package's files and fill them again: python tests/benchmarks/real_files.py networkx

Takes 200 files with documented functions, makes two bodies of each `raise NotImplementedError`, runs `dg-lsp infill
--write --json` on the folder, and says whether every hole is accounted for and every file still parses.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

FILES, BODIES = 200, 2


def main(package: str) -> int:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        print(f"{package} is no package that is installed here")
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        n_files = holes = 0
        for path in sorted(Path(spec.submodule_search_locations[0]).rglob("*.py")):
            text, n_removed = without_bodies(path.read_text(encoding="utf-8"))
            if n_removed and n_files < FILES:
                (folder / f"{n_files:03}_{path.name}").write_text(text, encoding="utf-8")
                n_files, holes = n_files + 1, holes + n_removed
        began = time.monotonic()
        process = subprocess.run(
            ["dg-lsp", "infill", str(folder), "--write", "--json"], capture_output=True, text=True, check=False
        )
        report = json.loads(process.stdout)
        states = Counter(hole["status"] for hole in report["holes"])
        broken_names = [path.name for path in sorted(folder.iterdir()) if not parses(path)]
        print(f"{n_files} files, {holes} bodies removed, {len(report['holes'])} holes found: {dict(states)}")
        took = f"{time.monotonic() - began:.0f} s"
        print(f"exit {process.returncode}, {took}, traceback: {'Traceback' in process.stderr}, broken: {broken_names}")
        return int(bool(broken_names) or "Traceback" in process.stderr)


def without_bodies(text: str) -> tuple[str, int]:
    """Return the text with the bodies of up to `BODIES` documented functions gone, and how many are."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text, 0
    lines, n_removed, last = text.split("\n"), 0, len(text)
    for node in sorted(ast.walk(tree), key=lambda node: -getattr(node, "lineno", 0)):
        documented = isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and len(node.body) > 1
        if not isinstance(node, ast.FunctionDef) or not documented or n_removed == BODIES:
            continue
        first, end = node.body[1].lineno, node.end_lineno or 0
        if end >= last:
            continue  # inside one that is gone already
        lines[first - 1 : end] = [" " * node.body[1].col_offset + "raise NotImplementedError"]
        n_removed, last = n_removed + 1, node.lineno
    return "\n".join(lines), n_removed


def parses(path: Path) -> bool:
    try:
        ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "networkx"))
