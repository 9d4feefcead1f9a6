"""Print what a model writes in thirty everyday holes: python tests/benchmarks/everyday.py [MODEL]

The holes of fixtures/eval/everyday.txt, each filled as an editor asks for it, with what belongs there, the answer's
probability. To be read one by one: a right answer can be worded differently. MODEL is a folder, or `copy` for what a program
without a model copies from the snippet.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dg_lsp.core import confidence, languages, syntax
from dg_lsp.core.values import Document
from dg_lsp.engine.backends import local
from dg_lsp.engine.backends.local import filler_of
from dg_lsp.engine.common import loading
from dg_lsp.evaluate import run, score
from dg_lsp.evaluate.tasks import Task
from dg_lsp.infill import pipeline
from tests.benchmarks import arguments

FILE = Path(__file__).parents[2] / "fixtures" / "eval" / "everyday.txt"
SNIPPET = re.compile(r"^### (\S+)\n(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)


def main(model: str) -> int:
    answers = copies if model == "copy" else functools.partial(written, model)
    n_right = n_tasks = 0
    for task, (text, chance) in zip(tasks(), answers(), strict=True):
        is_right = score.is_exact(text, task.answer)
        n_right, n_tasks = n_right + is_right, n_tasks + 1
        stated, mark = "-" if chance is None else f"{chance:.3f}", "right" if is_right else ""
        print(f"{mark:5}  {task.path:20} {stated:5} {text!r}  (expected {task.answer!r})", flush=True)
    print(f"{n_right} of {n_tasks} word for word as expected")
    return 0


def written(folder: str) -> Iterator[tuple[str, float | None]]:
    """Yield the model's best answer to each task, with its probability if the model is calibrated; "" for no answer."""
    filler = filler_of(local.load_model(folder))
    for task in tasks():
        document = Document(f"file:///{task.path}", task.language, task.prompt + task.suffix)
        tree = syntax.of(document)
        request = pipeline.to_request(document, (task.hole,), pipeline.FileContext(path=task.path), syntax=tree)
        work = filler.start(request)
        while work.step():
            pass
        answer = pipeline.to_answer(request, work.candidates(), document, syntax=tree, is_file=True)
        if answer.suggestions:
            best = answer.suggestions[0]
            yield best.edits[0].text, confidence.probability(best.confidence)
        else:
            yield "", None


def copies() -> Iterator[tuple[str, float | None]]:
    """Yield what follows the longest match in the snippet, as `dg-lsp eval --baseline copy` does."""
    bench = run.Bench(run.Setup(methods=(run.COPY,)), None)
    for task in tasks():
        yield bench.answer(task, run.COPY).text, None


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
