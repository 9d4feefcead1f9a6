"""Measure how many emptied bodies of a project come back working, with its own tests as the check.

    python benchmarks/batch_bodies.py SOURCE --bodies 60 --rounds 1,4,16,4+2 --check 'python -m pytest -q'

SOURCE is an unpacked source distribution with its tests, which the model has not seen. It is copied; functions with a
docstring are chosen by seed and emptied. Prints a table by kind, length and candidates.
It fails if a byte outside the holes differs afterwards, or if a test fails that passed with the emptied bodies.
The check must be pytest without `-x`: a test that does not run proves nothing.
`--no-check` measures the default gate instead: of what is written, how much is the original text. `--oracle` answers with
a wrong body and then the original one, so the bodies that do not come back are those that no test reaches.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from typer.testing import CliRunner

from dg_lsp.cli import main as cli
from dg_lsp.core.values import InfillRequest
from tests.batch.engines import connecting
from tests.fakes import Filling

STUB = "raise NotImplementedError"
LENGTHS = ((1, 1), (2, 3), (4, 8), (9, 10_000))


@dataclass(frozen=True)
class Body:
    """An emptied body: its file, its line afterwards, its original text, and the end of the text before it.

    `n_lines` is the length of the original text, `kind` says whether the function is a method.
    """

    path: str
    line: int
    text: str
    n_lines: int
    head: str
    kind: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--bodies", type=int, default=60)
    parser.add_argument("--rounds", default="1,4,16,4+2", help="candidates of each run, and after a plus its retries")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--check", default=f"{sys.executable} -m pytest -q")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--oracle", action="store_true")
    parser.add_argument("--exclude", default="test*,docs,conftest.py", help="glob patterns of files that are not emptied")
    options = parser.parse_args()
    if not options.no_check and not passing_tests(options.source, options.check):
        raise SystemExit(f"no test of {options.source} passes before its bodies are emptied: install what its tests need")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / options.source.name
        shutil.copytree(options.source, root, symlinks=True)
        bodies = emptied(root, options.bodies, options.seed, options.exclude.split(","))
        print(f"{len(bodies)} bodies in {len({body.path for body in bodies})} files of {options.source.name}")
        before = set() if options.no_check else passing_tests(root, options.check)
        for rounds in options.rounds.split(","):
            n_candidates, _, n_retries = rounds.partition("+")
            filled_root = Path(folder) / rounds / root.name
            shutil.copytree(root, filled_root, symlinks=True)
            measure(filled_root, bodies, int(n_candidates), int(n_retries or 0), options)
            if options.no_check:
                continue
            after = passing_tests(filled_root, options.check)
            if new_failures := sorted(before - after):
                raise SystemExit(f"{len(new_failures)} tests fail that passed before: {', '.join(new_failures)}")
            print(f"tests that pass: {len(before)} with the emptied bodies, {len(after)} with the patch", flush=True)


def emptied(root: Path, n: int, seed: int, excluded: list[str]) -> list[Body]:
    """Empty bodies of the project and return them."""
    functions: list[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]] = []
    methods: set[ast.AST] = set()
    for path in sorted(root.rglob("*.py")):
        if any(part_path.match(pattern) for pattern in excluded for part_path in (path, *path.parents)):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                methods.update(node.body)
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if ast.get_docstring(node) and len(node.body) > 1 and not _has_inner(node):
                functions.append((path, node))
    sample = random.Random(seed).sample(functions, min(n, len(functions)))
    bodies: list[Body] = []
    for path in {path for path, _ in sample}:
        lines, shift = path.read_text("utf-8").split("\n"), 0
        for node in sorted((node for owner, node in sample if owner == path), key=lambda node: node.lineno):
            first, last = node.body[1].lineno - 1 + shift, (node.body[-1].end_lineno or 0) + shift
            text = "\n".join(lines[first:last])
            lines[first:last] = [" " * node.body[1].col_offset + STUB]
            head = "\n".join(lines[:first])[-80:].rstrip()
            kind = "method" if node in methods else "function"
            bodies.append(Body(str(path.relative_to(root)), first + 1, text.strip(), last - first, head, kind))
            shift -= last - first - 1
        path.write_text("\n".join(lines), "utf-8")
    return bodies


def _has_inner(node: ast.AST) -> bool:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(inner, kinds) for inner in ast.walk(node) if inner is not node)


def measure(root: Path, bodies: Sequence[Body], n_candidates: int, n_retries: int, options: argparse.Namespace) -> None:
    """Fill the bodies in this copy and print how many came back."""
    before = _contents(root)
    arguments = ["infill", ".", "--write", "--json", "--candidates", str(n_candidates), "--retries", str(n_retries)]
    arguments += ["--model", options.model] if not options.oracle else []
    arguments += [] if options.no_check else ["--check", options.check, "--jobs", str(options.jobs), "--min-confidence", "1"]
    began = time.monotonic()
    report = json.loads(_run(root, arguments, bodies if options.oracle else None))
    minutes = (time.monotonic() - began) / 60
    rows = {(row["path"], row["line"]): row for row in report["holes"]}
    filled_rows = {body: row for body in bodies if (row := rows.get((body.path, body.line), {})).get("status") == "filled"}
    if _contents(root) != _with_fills(before, filled_rows):
        raise SystemExit("a byte outside the holes differs")
    print(f"\n{n_candidates} candidates, {n_retries} retries, {minutes:.1f} minutes: {report['summary']}")
    print("bodies           all  filled  verified  exact")
    for name, group in _groups(bodies):
        pairs = [(body, filled_rows[body]) for body in group if body in filled_rows]
        n_exact = sum(ast.dump(_parsed(row["text"])) == ast.dump(_parsed(body.text)) for body, row in pairs)
        n_verified = sum(bool(row["verified"]) for _, row in pairs)
        print(f"{name:<14} {len(group):>5}  {len(pairs):>6}  {n_verified:>8}  {n_exact:>5}")
    for body, row in filled_rows.items():
        print(f"{body.path}:{body.line} p={row['probability']} {row['verified']}: {row['text']!r}, was {body.text[:300]!r}")
    for body in bodies:
        for candidate in rows.get((body.path, body.line), {}).get("candidates", [])[:1]:
            row = rows[body.path, body.line]
            print(
                f"{body.path}:{body.line} p={candidate['probability']} {row['status']}: {candidate['text']!r}, {row['reason']}"
            )
    sys.stdout.flush()


def _groups(bodies: Sequence[Body]) -> Iterator[tuple[str, list[Body]]]:
    for least, most in LENGTHS:
        name = f"{least} to {most} lines" if most < 10_000 else f"{least} or more lines"
        yield name, [body for body in bodies if least <= body.n_lines <= most]
    for kind in ("function", "method"):
        yield kind, [body for body in bodies if body.kind == kind]
    yield "all", list(bodies)


def _contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _with_fills(contents: Mapping[str, bytes], filled_rows: Mapping[Body, Mapping[str, Any]]) -> dict[str, bytes]:
    """Return the files with the stub of each filled body replaced by its fill, and everything else as it is."""
    files = dict(contents)
    for path in {body.path for body in filled_rows}:
        lines = contents[path].decode().split("\n")
        for body, row in filled_rows.items():
            if body.path == path:
                lines[body.line - 1] = lines[body.line - 1].replace(STUB, row["text"])
        files[path] = "\n".join(lines).encode()
    return files


def passing_tests(root: Path, command: str) -> set[str]:
    """Return the tests that pass in a copy of the project."""
    with tempfile.TemporaryDirectory() as folder:
        copy, report = Path(folder) / root.name, Path(folder) / "tests.xml"
        shutil.copytree(root, copy, symlinks=True)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(copy / "src"), str(copy), os.environ.get("PYTHONPATH", "")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_ADDOPTS": f"--junit-xml={report}",
        }
        subprocess.run(command, shell=True, cwd=copy, env=environment, stdout=subprocess.DEVNULL, check=False)
        cases = ET.parse(report).iter("testcase")
        return {
            f"{case.get('classname')}::{case.get('name')}"
            for case in cases
            if not {"failure", "error", "skipped"} & {*map(_tag, case)}
        }


def _tag(element: ET.Element) -> str:
    return element.tag


def _parsed(text: str) -> ast.AST:
    first, _, rest = text.strip().partition("\n")
    body = textwrap.indent(first + "\n" + textwrap.dedent(rest), "    ")
    try:
        return ast.parse(f"def f():\n{body}")
    except SyntaxError:
        return ast.Module([ast.Expr(ast.Constant(text))], [])


def _run(root: Path, arguments: list[str], oracle: Sequence[Body] | None) -> str:
    if oracle is None:
        command = [sys.executable, "-m", "dg_lsp", *arguments]
        return subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=False).stdout

    def right(request: InfillRequest) -> tuple[str, ...]:
        texts_before = [text.rstrip() for text in (request.prefix, *request.between)]
        return tuple(next((body.text for body in oracle if text.endswith(body.head)), "pass") for text in texts_before)

    with contextlib.chdir(root):
        result = CliRunner().invoke(cli.app, arguments, obj=connecting(Filling("return 'wrong'", right)))
    if not result.stdout:
        raise SystemExit(result.stderr)
    return result.stdout


if __name__ == "__main__":
    main()
