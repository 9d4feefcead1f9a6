"""Fill the holes of a document: the one loop of code actions and the Python API. The batch has its own.

A group of holes shares a request, and the fills of its answer are accepted together. If no answer is accepted, each hole is
requested alone.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dg_lsp.client.port import Engine
from dg_lsp.core import confidence, context, polish, positions, values
from dg_lsp.core import syntax as syntaxes
from dg_lsp.core.confidence import Threshold
from dg_lsp.core.polish import Suggestion
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Budget, Confidence, Document, Edit, Hole, Ranked
from dg_lsp.infill import pipeline
from dg_lsp.infill.pipeline import FileContext, InfillAnswer

BREAKS, NO_REPAIR = "the answer breaks the syntax", "the answer does not repair the syntax"

EngineFor = Callable[[tuple[Hole, ...]], Awaitable[Engine]]
"""Returns the engine for one request, once it is connected."""

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Fill:
    """One possible fill of a hole: the edit, the model's confidence in it, and the number of steps it took.

    With `shrinks` it replaces working code by less code.
    """

    edit: Edit
    confidence: Confidence
    steps: int = 0
    shrinks: bool = False

    @property
    def start(self) -> int:
        """Where the replaced characters start, counted in code points."""
        return self.edit.span.start

    @property
    def end(self) -> int:
        """Where the replaced characters end, counted in code points."""
        return self.edit.span.end

    @property
    def text(self) -> str:
        """The new text."""
        return self.edit.text

    @property
    def probability(self) -> float | None:
        """The share of such fills that are right; None if the model is not calibrated."""
        return confidence.probability(self.confidence)


@dataclass(frozen=True, slots=True)
class FillResult:
    """The text with its holes filled, the fills in order, for each open hole its line and the reason, and how many holes."""

    text: str = ""
    fills: tuple[Fill, ...] = ()
    open_holes: tuple[tuple[int, str], ...] = ()
    n_holes: int = 0

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits of the fills, in order."""
        return tuple(fill.edit for fill in self.fills)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why holes are open, each reason once."""
        return tuple(dict.fromkeys(reason for _, reason in self.open_holes)) if self.n_holes else ("there is nothing to fill",)

    @property
    def shrinks(self) -> bool:
        """Whether a fill replaces working code by less code."""
        return any(fill.shrinks for fill in self.fills)

    def caution(self, threshold: Threshold) -> str:
        """Return a warning about uncertain fills, such as `best guess, 4 %`; "" when every fill reaches the threshold."""
        unsure = [fill.confidence for fill in self.fills if not confidence.is_sure(fill.confidence, threshold)]
        if not unsure:
            return ""
        return f"best guess, {confidence.words(min(unsure, key=confidence.order))}"

    def note(self, threshold: Threshold) -> str:
        """Return the note after a title: the caution or the lowest probability, and whether working code is replaced."""
        least = min((fill.confidence for fill in self.fills), key=confidence.order, default=Ranked())
        sure = "" if isinstance(least, Ranked) else confidence.words(least)
        parts = [self.caution(threshold) or sure, polish.SHRINKS if self.shrinks else ""]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Filling:
    """A document and how to fill its holes."""

    document: Document
    syntax: Syntax | None
    context: FileContext = field(default_factory=FileContext)
    budget: Callable[[int], Budget] = lambda _n_holes: Budget()  # of a request, by its number of holes
    is_file: bool = True  # False for a notebook cell
    allow_shrink: bool = False  # whether an answer may replace working code by less code
    repairs: bool = False  # whether a fill must reduce the number of syntax errors
    min_probability: float = 0.0  # that a fill needs, if it is above 0

    async def ask(self, engine: Engine, group: Sequence[Hole]) -> InfillAnswer:
        """Return the answer to one request. Raises EngineError, and ValueError as `pipeline.infill` does."""
        return await pipeline.infill(
            engine,
            self.document,
            group,
            replace(self.context, budget=self.budget(len(group))),
            syntax=self.syntax,
            is_file=self.is_file,
            allow_shrink=self.allow_shrink,
        )


def fills_of(suggestion: Suggestion) -> tuple[Fill, ...]:
    """Return a suggestion's fills, one for each hole of its request."""
    pairs = zip(suggestion.edits, suggestion.of_holes, strict=True)
    return tuple(Fill(edit, sure, suggestion.candidate.steps, suggestion.shrinks) for edit, sure in pairs)


def text_with(document: Document, fills: Iterable[Fill]) -> str:
    """Return the document's text with these fills; raise ValueError if two edits overlap."""
    return values.apply(document.text, tuple(fill.edit for fill in fills))


async def in_turn(
    group: tuple[Hole, ...],
    ask: Callable[[tuple[Hole, ...]], Awaitable[A]],
    accepts: Callable[[tuple[Hole, ...], A], Awaitable[bool]],
    *,
    splits: bool = True,
) -> None:
    """Ask for a group of holes; if its answer is not accepted, ask for each hole alone, unless `splits` is False."""
    if not await accepts(group, await ask(group)) and splits and len(group) > 1:
        for hole in group:
            await accepts((hole,), await ask((hole,)))


async def fill(
    attempts: Sequence[tuple[Hole, ...]],
    filling: Filling,
    engine_for: EngineFor,
    done: Callable[[int, int], None] = lambda _n_done, _n_holes: None,
) -> FillResult:
    """Return the result of the first set of holes with a fill, else of the last set.

    `done` is called with the number of holes that are done and their total.
    Raises EngineError.
    """
    result = FillResult(filling.document.text)
    for holes in attempts:
        result = await _fill(holes, filling, engine_for, done)
        if result.fills:
            break
    return result


async def _fill(
    holes: tuple[Hole, ...], filling: Filling, engine_for: EngineFor, done: Callable[[int, int], None]
) -> FillResult:
    state = _Text(filling)

    async def ask(asked: tuple[Hole, ...]) -> InfillAnswer:
        done(holes.index(asked[0]), len(holes))
        return await filling.ask(await engine_for(asked), asked)

    for group in context.group(holes):
        await in_turn(group, ask, state.accepts, splits=not filling.repairs)
    done(len(holes), len(holes))
    return state.result(len(holes))


@dataclass(slots=True)
class _Text:
    """A text whose holes are filled one after another; each fill must leave it valid."""

    filling: Filling
    fills: list[Fill] = field(default_factory=list)
    reasons: dict[Hole, str] = field(default_factory=dict)
    syntax: Syntax | None = None  # with the fills so far

    async def accepts(self, group: tuple[Hole, ...], answer: InfillAnswer) -> bool:
        """Accept the first suggestion that is probable enough and fits into the text; return whether there is one."""
        reason = answer.reason
        # If the holes were filled one after the other, only the first suggestion has the best text of each.
        is_sequence = any(suggestion.candidate.alone for suggestion in answer.suggestions)
        for suggestion in answer.suggestions[:1] if is_sequence else answer.suggestions:
            fills = fills_of(suggestion)
            probability = min(fill.probability or 0.0 for fill in fills)
            if probability < self.filling.min_probability:
                reason = reason or f"its probability is below {self.filling.min_probability:g}"
            elif not await pipeline.beside(self.filling.document, functools.partial(self._is_valid, fills)):
                reason = NO_REPAIR if self.filling.repairs else BREAKS
            else:
                self.fills += fills
                for hole in group:
                    self.reasons.pop(hole, None)
                return True
        self.reasons |= dict.fromkeys(group, reason)
        return False

    def result(self, n_holes: int) -> FillResult:
        """Return the filled text with its fills and open holes."""
        document = self.filling.document
        lines = positions.lines(document.text)
        fills = tuple(sorted(self.fills, key=lambda fill: fill.edit.span))
        open_holes = sorted(self.reasons.items(), key=lambda item: item[0].span)
        return FillResult(
            text_with(document, fills),
            fills,
            tuple((lines.at(hole.span.start) + 1, reason) for hole, reason in open_holes),
            n_holes,
        )

    def _is_valid(self, fills: Sequence[Fill]) -> bool:
        document, before, repairs = self.filling.document, self.filling.syntax, self.filling.repairs
        text = text_with(document, (*self.fills, *fills))
        if before is None:
            return not repairs
        after = syntaxes.of(replace(document, text=text), self.syntax or before)
        if after is None or not (syntaxes.adds_errors(before, after) if repairs else not syntaxes.adds_errors(after, before)):
            return False
        self.syntax = after
        return True
