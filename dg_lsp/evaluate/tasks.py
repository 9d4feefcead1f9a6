"""Read and write infilling tasks, in the format of HumanEval-Infilling: one JSON object a line, plain or gzipped.

A task is text on both sides of a hole and what stood in it. `kind`, `language` and `path` are ours; a file without them
is read as well. Knows files and the request that a task makes. Knows nothing of models or scores.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dg_lsp.core import languages
from dg_lsp.core.values import Budget, Document, Hole, InfillRequest, Span

NEEDED = ("task_id", "prompt", "suffix", "canonical_solution")
OPTIONAL = ("test", "entry_point", "kind", "language", "path")
BLOCK_KINDS = frozenset({"block", "body"})

# `SingleLineInfilling/HumanEval/12/L0`: which benchmark, which problem, which cut of it.
_NAMED = re.compile(r"(?:(?P<kind>[^/]*)/)?(?P<base>[^/]+/\d+)/[^/]+")


class EvalError(Exception):
    """An evaluation can't be carried out as asked; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Task:
    """A hole in a text, what stood in it, and where there is one, a test of the whole program."""

    task_id: str
    prompt: str
    suffix: str
    answer: str
    test: str = ""
    entry_point: str = ""
    kind: str = ""
    language: str = "python"
    path: str = ""

    @property
    def cluster(self) -> str:
        """What the task shares with others: the problem that its id names, else its file, else nothing."""
        named = _NAMED.fullmatch(self.task_id)
        return named["base"] if named else self.path or self.task_id

    @property
    def document(self) -> Document:
        """The task as a file with the hole empty."""
        return Document(f"task:///{self.path or self.task_id}", self.language, self.prompt + self.suffix)

    @property
    def hole(self) -> Hole:
        """The hole as a front end would ask for it.

        Whoever asks knows whether they want a block or the rest of a line, so the answer's having a line end counts.
        """
        line = self.prompt.rpartition("\n")[2]
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        block = self.kind in BLOCK_KINDS or "\n" in self.answer
        place = Span(len(self.prompt), len(self.prompt))
        return Hole(place, "body" if self.kind == "body" else "cursor", indent=indent, block=block)

    def request(self, *, steps: int = 0, seed: int = 0, suffix: bool = True) -> InfillRequest:
        """Return what the engine is asked; without `suffix` it hears nothing of the text behind the hole."""
        return InfillRequest(
            self.prompt,
            self.suffix if suffix else "",
            (self.hole,),
            language=self.language,
            path=self.path,
            budget=Budget(steps=steps),
            seed=seed,
        )


def read(path: Path, language: str = "python") -> list[Task]:
    """Return the tasks of a file, in its order; `language` is that of tasks that state none.

    Raises EvalError, with the number of the line, when a line is no task or repeats an id, and when there is no task.
    """
    try:
        data = path.read_bytes()
        lines = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8").split("\n")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
        raise EvalError(f"{path} can't be read as .jsonl or .jsonl.gz: {reason}") from error
    tasks: dict[str, Task] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            task = parse(line, language)
        except ValueError as error:
            raise EvalError(f"{path}, line {number}: {error}") from error
        if task.task_id in tasks:
            raise EvalError(f"{path}, line {number}: task_id {task.task_id!r} is there twice")
        tasks[task.task_id] = task
    if not tasks:
        raise EvalError(f"{path} holds no task")
    return list(tasks.values())


def parse(line: str, language: str = "python") -> Task:
    """Return the task that a line states; raise ValueError with the end of a sentence that begins with the line's number."""
    try:
        stated: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error})") from error
    if not isinstance(stated, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004  # wrong in the file, not in the program
    values = {name: stated[name] for name in (*NEEDED, *OPTIONAL) if stated.get(name) is not None}
    if missing := [name for name in NEEDED if name not in values]:
        raise ValueError(f"has no {missing[0]}")
    if wrong := [name for name, value in values.items() if not isinstance(value, str)]:
        raise ValueError(f"has a {wrong[0]} that is not text")
    if wrong := [name for name, value in values.items() if not _is_unicode(value)]:
        raise ValueError(f"has a {wrong[0]} with half of a character in it")
    if not values["task_id"]:
        raise ValueError("has an empty task_id")
    known = values.setdefault("language", language)
    if known and languages.get(known) is None:
        raise ValueError(f"is in {known!r}, a language that dg-lsp does not know")
    named = _NAMED.fullmatch(values["task_id"])
    values.setdefault("kind", (named["kind"] or "") if named else "")
    return Task(answer=values.pop("canonical_solution"), **values)


def write(path: Path, tasks: Iterable[Task]) -> None:
    """Write the tasks, gzipped where the name ends with .gz; the same tasks give the same bytes."""
    data = "".join(json.dumps(_stated(task), ensure_ascii=False) + "\n" for task in tasks).encode()
    # A gzip header would hold the time otherwise.
    path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)


def spread(tasks: Sequence[Task], limit: int) -> list[Task]:
    """Return `limit` of the tasks in their order: as many of each kind as there can be, evenly spread over the file."""
    if not 0 < limit < len(tasks):
        return list(tasks)
    kinds: dict[str, list[int]] = {}
    for place, task in enumerate(tasks):
        kinds.setdefault(task.kind, []).append(place)
    # The kinds with the fewest tasks go first, so that the others can make up for what they lack.
    chosen: list[int] = []
    for number, places in enumerate(sorted(kinds.values(), key=len)):
        share = min(-(-(limit - len(chosen)) // (len(kinds) - number)), len(places))
        chosen += [places[index * len(places) // share] for index in range(share)]
    return [tasks[place] for place in sorted(chosen)]


def _is_unicode(text: str) -> bool:
    """Return whether the text can be written: JSON may name one half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stated(task: Task) -> dict[str, str]:
    needed = dict(zip(NEEDED, (task.task_id, task.prompt, task.suffix, task.answer), strict=True))
    return needed | {name: value for name in OPTIONAL if (value := getattr(task, name))}
