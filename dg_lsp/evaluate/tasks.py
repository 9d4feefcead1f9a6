"""Read infilling tasks in the format of HumanEval-Infilling: one JSON object per line, plain or gzipped.

A task is the text on both sides of a hole, and the expected answer. We add the fields `kind`, `language` and `path`; files
without them can be read too.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.core import languages, scope, syntax
from dg_lsp.core.place import last_line
from dg_lsp.core.values import Budget, Document, Extent, Hole, InfillRequest, Span
from dg_lsp.wire import messages

NEEDED = ("task_id", "prompt", "suffix", "canonical_solution")
OPTIONAL = ("test", "entry_point", "kind", "language", "path")
BLOCK_KINDS = frozenset({"block", "body"})

# `SingleLineInfilling/HumanEval/12/L0`: the benchmark, the problem, and the cut of it.
_NAMED = re.compile(r"(?:(?P<kind>[^/]*)/)?(?P<base>[^/]+/\d+)/[^/]+")
_HALF_PAIR = re.compile("[\ud800-\udfff]")  # one half of a surrogate pair, which JSON may contain and UTF-8 may not


class EvalError(Exception):
    """An evaluation failed. The message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Task:
    """A hole in a text, the expected answer and, if there is one, a test of the whole program."""

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
        """What related tasks share: the problem that the id names, else the file, else nothing."""
        match = _NAMED.fullmatch(self.task_id)
        return match["base"] if match else self.path or self.task_id

    @property
    def document(self) -> Document:
        """The task's file, with an empty hole."""
        return Document(f"task:///{self.path or self.task_id}", self.language, self.prompt + self.suffix)

    @property
    def hole(self) -> Hole:
        """The hole as a front end would request it.

        A user knows whether they want a block or the rest of a line, so the answer's line ends decide that here.
        """
        line = last_line(self.prompt)
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        extent: Extent = "block" if self.kind in BLOCK_KINDS or "\n" in self.answer else "line"
        place = Span(len(self.prompt), len(self.prompt))
        tree = syntax.of(Document("", self.language, self.prompt + self.suffix))
        names = scope.needed_names(tree, place) if tree else ()
        return Hole(place, "body" if self.kind == "body" else "cursor", indent=indent, extent=extent, needed=names)

    def request(self, *, steps: int = 0, seed: int = 0) -> InfillRequest:
        """Return the request for the engine."""
        return InfillRequest(
            self.prompt,
            self.suffix,
            (self.hole,),
            language=self.language,
            path=self.path,
            budget=Budget(steps=steps),
            seed=seed,
        )


def read(path: Path, language: str = "python") -> list[Task]:
    """Return the tasks of a file, in order; `language` is the default for tasks without one.

    Raises EvalError, with the line number, if a line is not a task or repeats an id, and if there is no task.
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
            raise EvalError(f"{path}, line {number}: task_id {task.task_id!r} appears twice")
        tasks[task.task_id] = task
    if not tasks:
        raise EvalError(f"{path} has no tasks")
    return list(tasks.values())


def parse(line: str, language: str = "python") -> Task:
    """Return the task in a line; raise ValueError with a sentence about it."""
    fields = messages.parse(line, "the task")
    values = {name: fields.text(name) for name in (*NEEDED, *OPTIONAL) if name in NEEDED or fields.has(name)}
    if wrong := [name for name, value in values.items() if _HALF_PAIR.search(value)]:
        raise ValueError(f"{wrong[0]} has half of a surrogate pair")
    if not values["task_id"]:
        raise ValueError("task_id is empty")
    language_name = values.setdefault("language", language)
    if language_name and languages.get(language_name) is None:
        raise ValueError(f"language is {language_name!r}, which is unknown")
    match = _NAMED.fullmatch(values["task_id"])
    values.setdefault("kind", (match["kind"] or "") if match else "")
    answer = values.pop("canonical_solution")
    # Who asks for whole lines has an empty line there: the answer's last line end is the file's. So one line is no block.
    lines = answer.removesuffix("\n")
    values["suffix"] = answer[len(lines) :] + values["suffix"]
    return Task(answer=lines, **values)


def spread(tasks: Sequence[Task], limit: int) -> list[Task]:
    """Return `limit` of the tasks in order: equally many of each kind if possible, evenly spread over the file."""
    if not 0 < limit < len(tasks):
        return list(tasks)
    kinds: dict[str, list[int]] = {}
    for place, task in enumerate(tasks):
        kinds.setdefault(task.kind, []).append(place)
    # The kinds with the fewest tasks come first, so that the other kinds can fill the rest.
    indexes: list[int] = []
    for number, places in enumerate(sorted(kinds.values(), key=len)):
        share = min(-(-(limit - len(indexes)) // (len(kinds) - number)), len(places))
        indexes += [places[index * len(places) // share] for index in range(share)]
    return [tasks[place] for place in sorted(indexes)]
