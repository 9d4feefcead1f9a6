"""Remove bodies from a project's files and fill them again: python tests/benchmarks/real_files.py FOLDER [FILES] [MODEL]

Copies that many files with functions of several lines, in any language with a grammar, makes two bodies of each a `FILL`
comment, runs `dg-lsp infill --all --write --json` on the copy, and says whether every hole is accounted for, and whether a
file has more syntax errors than before. Ends with 1 if so.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from dg_lsp.core import languages, syntax, values  # noqa: E402  # found only now
from dg_lsp.core.values import Edit, Span  # noqa: E402
from tests.benchmarks import arguments  # noqa: E402

BODIES, MAX_CHARS = 2, 100_000


def main(folder: str, n_files: int, model: str) -> int:
    paths = sorted(path for path in Path(folder).rglob("*") if languages.for_path(path.name) and path.is_file())
    random.Random(1).shuffle(paths)
    with tempfile.TemporaryDirectory() as name:
        n_removed, n_errors = 0, dict[Path, int]()
        for path in paths:
            text, n_of_file = without_bodies(path)
            if n_of_file and len(n_errors) < n_files:
                copy = Path(name) / f"{len(n_errors):03}" / path.name  # a name may tell the language
                copy.parent.mkdir()
                copy.write_text(text, encoding="utf-8", newline="")
                n_removed, n_errors[copy] = n_removed + n_of_file, errors(copy)
        began = time.monotonic()
        command = [sys.executable, "-m", "dg_lsp", "infill", "--all", name, "--write", "--json", "--model", model]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        report = json.loads(process.stdout)
        states = Counter(hole["status"] for hole in report["holes"])
        broken_names = [path.name for path, before in n_errors.items() if errors(path) > before]
        print(f"{len(n_errors)} files, {n_removed} bodies removed, {len(report['holes'])} holes found: {dict(states)}")
        took = f"{time.monotonic() - began:.0f} s"
        print(f"exit {process.returncode}, {took}, traceback: {'Traceback' in process.stderr}, broken: {broken_names}")
        return int(bool(broken_names) or "Traceback" in process.stderr)


def without_bodies(path: Path) -> tuple[str, int]:
    """Return the file's text with up to `BODIES` bodies replaced by a `FILL` comment, and how many are."""
    language = languages.for_path(path.name)
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return "", 0
    if language is None or len(text) > MAX_CHARS:
        return "", 0
    tree, edits = syntax.parse(text, language), list[Edit]()
    for owner in tree.facts.owners:
        items = owner.items
        if owner.kind != "function" or len(items) < 2 or not language.line_comments or len(edits) == BODIES:
            continue
        span = Span(tree.span(items[0]).start, tree.span(items[-1]).end)
        fill = f"{language.line_comments[0]} FILL"
        if language.by_indentation:  # a comment is no body
            fill = f"{fill}\n{tree.lines.indent(tree.lines.at(span.start))}pass"
        if edits and span.start < edits[-1].span.end:
            continue  # inside one that is gone already
        edits.append(Edit(span, fill))
    return values.apply(text, tuple(edits)), len(edits)


def errors(path: Path) -> int:
    """Return the number of syntax errors of a file."""
    language = languages.for_path(path.name)
    assert language is not None
    return len(syntax.parse(path.read_bytes().decode("utf-8"), language).errors)


if __name__ == "__main__":
    raise SystemExit(main(*arguments.parsed(__doc__, folder="", files=40, model="embedded")))
