"""Our own sample, filled by a model: how `dg-lsp setup` tries one, and how `dg-lsp doctor` times it.

It takes the same path as every request. No file of the user is read or sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dg_lsp.batch import report
from dg_lsp.client.engine import ConnectOptions, EngineClient, connect
from dg_lsp.client.port import EngineError
from dg_lsp.core import confidence, holes, syntax
from dg_lsp.core.values import Budget, Document, Hole, InfillRequest, Span, apply
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import FileContext, InfillAnswer
from dg_lsp.wire.messages import Done

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
LINE = "return self.wid"
"""The start of the body's line, for a fill within a line."""
BUDGET = Budget(ms=120_000)


@dataclass(frozen=True, slots=True)
class FillTime:
    """The times of one fill: total milliseconds at the client, and the engine's report of each stage."""

    ms: float
    done: Done


@dataclass(frozen=True, slots=True)
class Trial:
    """A sample fill: the diff, the confidence in words, and milliseconds; or the problem."""

    diff: str = ""
    confidence: str = ""
    ms: float = 0.0
    problem: str = ""


async def take(options: ConnectOptions) -> tuple[float, Mapping[str, object], FillTime, FillTime]:
    """Return the milliseconds to connect, the engine's description of itself, and two fills; start the engine if needed.

    The first fill is in a new file. The second is after one more character, when the rest of the file is cached. Raises
    EngineError if there is no engine or no answer.
    """
    before, after = SAMPLE.split("...")
    # The text is new each time, so that the first fill finds nothing in the cache.
    prefix = f"# {time.time_ns()}\n{before}{LINE}"
    hole = Hole(Span(len(prefix), len(prefix)), "cursor", indent=" " * 8)
    request = InfillRequest(prefix, after, (hole,), language="python", path="sample.py", budget=BUDGET)
    began = time.perf_counter()
    async with connect(options) as engine:
        join_ms = 1000 * (time.perf_counter() - began)
        fresh = await _timed(engine, request)
        typed = await _timed(engine, replace(request, prefix=prefix + "t"))
        return join_ms, await engine.info(), fresh, typed


async def measure(options: ConnectOptions) -> tuple[float, float]:
    """Return the milliseconds of a line and of a block with a known prefix; raise EngineError if the engine fails."""
    taken_ms = []
    async with connect(options) as engine:
        for text in (SAMPLE.replace("...", LINE), SAMPLE):
            # The first request loads the model and encodes the prefix, as in an editor before the first key.
            for _ in range(2):
                _, ms = await _filled(engine, text)
            taken_ms.append(ms)
    return taken_ms[0], taken_ms[1]


async def trial(options: ConnectOptions) -> Trial:
    """Return the model's fill of the sample, and start the engine if needed; raise EngineError if it fails."""
    async with connect(options) as engine:
        answer, ms = await _filled(engine, SAMPLE)
    if not answer.suggestions:
        return Trial(confidence=answer.reason, ms=ms)
    best = answer.suggestions[0]
    return Trial(report.unified("shapes.py", SAMPLE, apply(SAMPLE, best.edits)), confidence.words(best.confidence), ms)


async def _timed(engine: EngineClient, request: InfillRequest) -> FillTime:
    ends: list[Done] = []
    began = time.perf_counter()
    candidates = await engine.fill(request, on_done=ends.append)
    ms = 1000 * (time.perf_counter() - began)
    if not candidates:
        raise EngineError("the engine returned no answer to the sample")
    return FillTime(ms, ends[-1])


async def _filled(engine: EngineClient, text: str) -> tuple[InfillAnswer, float]:
    """Return the answer for the text's placeholder body, or else for its started line, and the milliseconds."""
    document = Document("sample:shapes.py", "python", text)
    tree = syntax.of(document)
    bodies = holes.in_document(document, tree, frozenset({"bodies"}))
    group = bodies or (holes.at_cursor(document, text.index(f"{LINE}\n") + len(LINE), tree),)
    began = time.perf_counter()
    answer = await pipeline.infill(
        engine, document, group, FileContext(budget=BUDGET, path="shapes.py"), syntax=tree, is_file=True
    )
    return answer, 1000 * (time.perf_counter() - began)
