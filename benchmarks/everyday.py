"""Print what a model writes in thirty everyday holes: python benchmarks/everyday.py [MODEL]

The holes of fixtures/eval/everyday.txt, each filled as an editor asks for it, with what belongs there, the answer's
probability. To be read one by one: a right answer can be worded differently. MODEL is a folder, or `copy` for what a program
without a model copies from the snippet.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import arguments, evaluate
from dg_lsp.core import languages
from dg_lsp.engine.backends import local
from dg_lsp.engine.backends.local import filler_of
from dg_lsp.engine.common import loading
from dg_lsp.evaluate import answers
from dg_lsp.evaluate.answers import InProcess
from dg_lsp.evaluate.tasks import Task

FILE = Path(__file__).parents[1] / "fixtures" / "eval" / "everyday.txt"
SNIPPET = re.compile(r"^### (\S+)\n(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)


def main(model: str) -> int:
    engine = evaluate.Copying() if model == "copy" else InProcess(filler_of(local.load_model(model)))
    n_right = n_tasks = 0
    for task in tasks():
        found = answers.answer(engine, task)
        is_right = answers.is_exact(found.text, task.answer)
        n_right, n_tasks = n_right + is_right, n_tasks + 1
        stated, mark = "-" if found.probability is None else f"{found.probability:.3f}", "right" if is_right else ""
        print(f"{mark:5}  {task.path:20} {stated:5} {found.text!r}  (expected {task.answer!r})", flush=True)
    print(f"{n_right} of {n_tasks} word for word as expected")
    return 0


def tasks() -> Iterator[Task]:
    """Yield the snippets as tasks, each with one hole."""
    for name, text in SNIPPET.findall(FILE.read_text(encoding="utf-8")):
        prompt, _, rest = text.rstrip("\n").partition("⟦")
        answer, _, suffix = rest.partition("⟧")
        language = languages.for_path(name)
        assert language is not None, f"{name} has no language"
        yield Task(name, prompt, suffix + "\n", answer, kind="line", language=language.name, path=name)


if __name__ == "__main__":
    sys.exit(main(*arguments.parsed(__doc__, model=str(loading.EMBEDDED))))
