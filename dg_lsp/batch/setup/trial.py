"""Fill our own sample with a model, so that users can test it before it sees their code."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from dg_lsp.batch import diff
from dg_lsp.core import confidence, holes, syntax
from dg_lsp.core.values import Budget, Document
from dg_lsp.infill import client, pipeline
from dg_lsp.infill.client import ConnectOptions

# Another class shows what belongs into the body, so that small models can fill it.
SAMPLE = """\
class Rectangle:
    def __init__(self, width, height):
        self.width = width
        self.height = height

    def area(self):
        return self.width * self.height

    def perimeter(self):
        return 2 * (self.width + self.height)


class Window:
    def __init__(self, width, height):
        self.width = width
        self.height = height

    def area(self):
        ...

    def perimeter(self):
        return 2 * (self.width + self.height)


window = Window(3, 4)
print(window.area(), window.perimeter())
"""
DEADLINE_MS = 120_000


@dataclass(frozen=True, slots=True)
class Trial:
    """A sample fill: the diff, the confidence in words, and milliseconds; or the problem."""

    diff: str = ""
    confidence: str = ""
    ms: float = 0.0
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the trial as `--json` prints it."""
        return {"diff": self.diff, "confidence": self.confidence, "ms": round(self.ms), "problem": self.problem}


async def measure(options: ConnectOptions) -> tuple[float, float]:
    """Return the milliseconds of a line and of a block with a known prefix; raise EngineError if the engine fails."""
    block = Document("sample:shapes.py", "python", SAMPLE)
    at = SAMPLE.index("...")
    line = Document("sample:line.py", "python", f"{SAMPLE[:at]}return self.wid{SAMPLE[at + len('...') :]}")
    taken_ms = []
    async with client.connect(options) as engine:
        for document in (line, block):
            tree = syntax.of(document)
            bodies = holes.in_document(document, tree, frozenset({"bodies"}))
            hole = bodies or (holes.at_cursor(document, at + len("return self.wid"), tree),)
            request = pipeline.FileContext(budget=Budget(ms=DEADLINE_MS), path="shapes.py")
            # The first request loads the model and encodes the prefix, as in an editor before the first key.
            for _ in range(2):
                began = time.perf_counter()
                await pipeline.infill(engine, document, hole, request, syntax=tree, is_file=True)
                ms = 1000 * (time.perf_counter() - began)
            taken_ms.append(ms)
    return taken_ms[0], taken_ms[1]


async def take(options: ConnectOptions) -> Trial:
    """Return the model's fill of the sample, and start the engine if needed; raise EngineError if it fails."""
    document = Document("sample:shapes.py", "python", SAMPLE)
    tree = syntax.of(document)
    places = holes.in_document(document, tree, frozenset({"bodies"}))
    options_of_request = pipeline.FileContext(budget=Budget(ms=DEADLINE_MS), path="shapes.py")
    async with client.connect(options) as engine:
        began = time.perf_counter()
        answer = await pipeline.infill(engine, document, places, options_of_request, syntax=tree, is_file=True)
        ms = 1000 * (time.perf_counter() - began)
    if not answer.suggestions:
        return Trial(confidence=answer.reason, ms=ms)
    best = answer.suggestions[0]
    return Trial(diff.unified("shapes.py", SAMPLE, best.edits), confidence.words(best.candidate.confidence), ms)
