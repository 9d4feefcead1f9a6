"""Measure how many emptied bodies of a project come back working, with its own tests as the check.

    python tests/benchmarks/batch_bodies.py SOURCE --bodies 60 --candidates 1,4,16 --check 'python -m pytest -q'

SOURCE is an unpacked source distribution with its tests, which the model has not seen. It is copied; functions with a
docstring are chosen by seed and emptied. Prints a table by length and candidates, and what the patch broke.
`--no-check` measures the default gate instead: of what is written, how much is the original text. `--oracle` answers with
a wrong body and then the original one, so the bodies that do not come back are those that no test reaches.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from dg_lsp import cli
from dg_lsp.core.values import InfillRequest
from tests.batch.engines import Filling, connecting

STUB = "raise NotImplementedError"
LENGTHS = ((1, 1), (2, 3), (4, 8), (9, 10_000))


@dataclass(frozen=True)
class Body:
    """An emptied body: its file, its line afterwards, its original text, how many lines that had, and what stands before."""

    path: str
    line: int
    text: str
    n_lines: int
    head: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--bodies", type=int, default=60)
    parser.add_argument("--candidates", default="1,4,16")
    parser.add_argument("--retries", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--check", default=f"{sys.executable} -m pytest -q")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--oracle", action="store_true")
    parser.add_argument("--exclude", default="test*,docs,conftest.py", help="glob patterns of files that are not emptied")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / options.source.name
        shutil.copytree(options.source, root, symlinks=True)
        bodies = emptied(root, options.bodies, options.seed, options.exclude.split(","))
        print(f"{len(bodies)} bodies in {len({body.path for body in bodies})} files of {options.source.name}")
        for n in map(int, options.candidates.split(",")):
            measure(root, bodies, n, options)


def emptied(root: Path, n: int, seed: int, excluded: list[str]) -> list[Body]:
    """Empty bodies of the project and return them."""
    functions: list[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]] = []
    for path in sorted(root.rglob("*.py")):
        if any(part_path.match(pattern) for pattern in excluded for part_path in (path, *path.parents)):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if ast.get_docstring(node) and len(node.body) > 1 and not _has_inner(node):
                functions.append((path, node))
    chosen = random.Random(seed).sample(functions, min(n, len(functions)))
    bodies: list[Body] = []
    for path in {path for path, _ in chosen}:
        lines, shift = path.read_text("utf-8").split("\n"), 0
        for node in sorted((node for owner, node in chosen if owner == path), key=lambda node: node.lineno):
            first, last = node.body[1].lineno - 1 + shift, (node.body[-1].end_lineno or 0) + shift
            text = "\n".join(lines[first:last])
            lines[first:last] = [" " * node.body[1].col_offset + STUB]
            head = "\n".join(lines[:first])[-80:].rstrip()
            bodies.append(Body(str(path.relative_to(root)), first + 1, text.strip(), last - first, head))
            shift -= last - first - 1
        path.write_text("\n".join(lines), "utf-8")
    return bodies


def _has_inner(node: ast.AST) -> bool:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(inner, kinds) for inner in ast.walk(node) if inner is not node)


def measure(root: Path, bodies: list[Body], n_candidates: int, options: argparse.Namespace) -> None:
    """Fill the bodies and print how many came back."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    arguments = ["infill", ".", "--json", "--candidates", str(n_candidates), "--retries", str(options.retries)]
    arguments += ["--model", options.model] if not options.oracle else []
    arguments += [] if options.no_check else ["--check", options.check, "--jobs", str(options.jobs), "--min-confidence", "1"]
    report = json.loads(_run(root, arguments, bodies if options.oracle else None))
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}, "the project changed"
    by_place = {(row["path"], row["line"]): row for row in report["holes"]}
    print(f"\n{n_candidates} candidates, {options.retries} retries: {report['summary']}")
    print("lines      bodies  filled  verified  exact")
    for least, most in LENGTHS:
        group = [body for body in bodies if least <= body.n_lines <= most]
        rows = [(body, by_place.get((body.path, body.line), {})) for body in group]
        filled = [(body, row) for body, row in rows if row.get("status") == "filled"]
        n_exact = sum(ast.dump(_parsed(row["text"])) == ast.dump(_parsed(body.text)) for body, row in filled)
        n_verified = sum(bool(row["verified"]) for _, row in filled)
        print(f"{least:>2}-{most:<7} {len(group):>6}  {len(filled):>6}  {n_verified:>8}  {n_exact:>5}")


def _parsed(text: str) -> ast.AST:
    first, _, rest = text.strip().partition("\n")
    body = textwrap.indent(first + "\n" + textwrap.dedent(rest), "    ")
    try:
        return ast.parse(f"def f():\n{body}")
    except SyntaxError:
        return ast.Module([ast.Expr(ast.Constant(text))], [])


def _run(root: Path, arguments: list[str], oracle: list[Body] | None) -> str:
    if oracle is None:
        command = [sys.executable, "-m", "dg_lsp", *arguments]
        return subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=False).stdout

    def right(request: InfillRequest) -> tuple[str, ...]:
        texts_before = [text.rstrip() for text in (request.prefix, *request.between)]
        return tuple(next((body.text for body in oracle if text.endswith(body.head)), "pass") for text in texts_before)

    with contextlib.chdir(root):
        return CliRunner().invoke(cli.app, arguments, obj=connecting(Filling("return 'wrong'", right))).stdout


if __name__ == "__main__":
    main()
