"""Fill a sample of our own with a model, so that a user sees it at work before any code of theirs is used."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from dg_lsp.batch import diff
from dg_lsp.core import confidence, holes, syntax
from dg_lsp.core.values import Budget, Document
from dg_lsp.infill import client, pipeline
from dg_lsp.infill.client import ConnectOptions

# A sibling says what belongs into the body, so that small models know it as well.
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
ANSWER = "return self.width * self.height"
DEADLINE_MS = 120_000


@dataclass(frozen=True, slots=True)
class Trial:
    """A sample fill: the diff, how sure the model is in words, and milliseconds; or why there is none."""

    diff: str = ""
    confidence: str = ""
    ms: float = 0.0
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the trial as `--json` prints it."""
        return {"diff": self.diff, "confidence": self.confidence, "ms": round(self.ms), "problem": self.problem}


async def take(options: ConnectOptions) -> Trial:
    """Return what the model makes of the sample, with the engine started if need be; raise EngineError."""
    document = Document("sample:shapes.py", "python", SAMPLE)
    tree = syntax.of(document)
    places = holes.in_document(document, tree, frozenset({"bodies"}))
    asked = pipeline.RequestOptions(budget=Budget(ms=DEADLINE_MS), path="shapes.py")
    async with client.connect(options) as engine:
        began = time.perf_counter()
        answer = await pipeline.infill(engine, document, places, asked, syntax=tree, is_file=True)
        ms = 1000 * (time.perf_counter() - began)
    if not answer.suggestions:
        return Trial(confidence=answer.reason, ms=ms)
    best = answer.suggestions[0]
    return Trial(diff.unified("shapes.py", SAMPLE, best.edits), confidence.words(best.candidate.confidence), ms)
