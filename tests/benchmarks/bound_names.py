"""Take statements of installed Python code for answers: python tests/benchmarks/bound_names.py [N] [SEED]

What is installed runs, so nearly every name in it is bound: prints each statement in which the check of `core.scope` finds an
unbound name, to be judged by hand, and what a check costs in files of about 2,000 lines, where the place is new and where
it was asked about before.
"""

from __future__ import annotations

import random
import statistics
import sys
import sysconfig
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dg_lsp.core import scope, syntax
from dg_lsp.core.scope import python
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Span
from tests.benchmarks import arguments

STATEMENTS = frozenset(
    {"expression_statement", "return_statement", "if_statement", "for_statement", "function_definition", "argument_list"}
)
PER_FILE = 6
LONG_LINES = range(1_800, 2_300)


def main(n: int, seed: int) -> int:
    draw = random.Random(seed)
    paths = [path for key in ("stdlib", "purelib") for path in Path(sysconfig.get_paths()[key]).rglob("*.py")]
    draw.shuffle(paths)
    n_checked = n_found = 0
    took_ms: dict[str, list[float]] = {"at a new place": [], "again": []}
    for path in paths:
        tree = parsed(path)
        if n_checked >= n:
            break
        if tree is None:
            continue
        spans = list(statements(tree))
        for span in draw.sample(spans, min(PER_FILE, len(spans))):
            n_checked += 1
            python.bound_names.cache_clear()
            for what, times in took_ms.items():
                began = time.thread_time()
                names = scope.unbound_names(tree, [(span, "pass")], path.as_posix())
                if len(tree.lines) in LONG_LINES:
                    times.append((time.thread_time() - began) * 1000)
                if names and what == "again":
                    n_found += 1
                    print(f"{path}:{tree.lines.at(span.start) + 1}: {sorted(names)}")
    print(f"{n_checked} statements, {n_found} with an unbound name")
    for what, times in took_ms.items():
        if len(times) > 1:
            print(
                f"{what}: {statistics.median(times):.2f} ms at the median, {statistics.quantiles(times, n=20)[-1]:.2f} at p95"
            )
    return 0


def parsed(path: Path) -> Syntax | None:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    tree = syntax.of(Document(path.as_uri(), "python", text)) if len(text) < 150_000 else None
    return tree if tree is not None and not tree.errors else None


def statements(tree: Syntax) -> Iterator[Span]:
    todo = [tree.tree.root_node]
    while todo:
        node = todo.pop()
        if node.type in STATEMENTS:
            yield tree.span(node)
        todo += node.children


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    raise SystemExit(main(*arguments.parsed(__doc__, n=5_000, seed=1)))
