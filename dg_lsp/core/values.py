"""The values that all parts share: documents, spans, holes, requests, confidences, candidates, edits.

All are frozen, and each checks itself when it is created. The bounds in their types hold for values from another process,
which `wire.messages` checks. Offsets count code points. This module knows nothing of files, editors or models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal, get_args

from msgspec import Meta

from dg_lsp.core import place
from dg_lsp.core.edits import Question
from dg_lsp.core.place import Place

HoleKind = Literal["cursor", "body", "marker", "selection", "error"]
RowKind = Literal["noise", "copy", "causal"]
Extent = Literal["line", "lines", "block"]
"""How far an answer may go: to the end of its line, to the end of the block that it is in, or over any lines."""

MAX_CANDIDATES = 64
MAX_HOLES = 256
MAX_STEPS = 4096
MAX_ENTRIES = 1024

Count = Annotated[int, Meta(ge=0, le=2**53)]
"""JSON's numbers are exact up to 2**53 in every language."""
Texts = Annotated[tuple[str, ...], Meta(max_length=MAX_ENTRIES)]


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open range of code-point offsets, `start <= end`."""

    start: Count
    end: Count

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"not a span: {self.start}..{self.end}")

    def touches(self, other: Span) -> bool:
        """Return whether the spans share a character or an edge."""
        return self.start <= other.end and other.start <= self.end

    def holds(self, other: Span) -> bool:
        """Return whether the other span lies within this one."""
        return self.start <= other.start and other.end <= self.end

    def overlaps(self, other: Span) -> bool:
        """Return whether the spans share a character; an empty span shares none."""
        return self.start < other.end and other.start < self.end


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the spans in order, with those that touch or overlap merged."""
    separate: list[Span] = []
    for span in sorted(spans):
        if separate and span.start <= separate[-1].end:
            separate[-1] = Span(separate[-1].start, max(separate[-1].end, span.end))
        else:
            separate.append(span)
    return tuple(separate)


def n_common(left: Sequence[object], right: Sequence[object]) -> int:
    """Return the length of the common prefix of two sequences of one type. Comparing slices leaves the work to C."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle - 1)
    return low


@dataclass(frozen=True, slots=True)
class Document:
    """One version of one file. `language` is a name from `core.languages`, or "" if it is unknown.

    `indent` is one indentation level in its project, for a text that shows none; "" if it is unknown.
    `language_id` is the editor's name of the language.
    """

    uri: str
    language: str
    text: str
    version: int | None = None
    indent: str = ""
    language_id: str = ""


@dataclass(frozen=True, slots=True)
class Hole:
    r"""A span that the model may rewrite.

    `lead` and `trail` are fixed text that the edit writes around the answer. The model sees them as given: for
    `function f() {}` the span is empty, lead is "\n  " and trail is "\n".

    `indent` is the white space before each line of the answer. Its `extent` says how far that may go: of "lines", a model that
    knows where an answer ends writes several (`core.extent`).
    `needed` are the names that the code after the hole uses and that only the answer can bind (`core.scope.needed_names`).
    """

    span: Span
    kind: HoleKind
    indent: str = ""
    extent: Extent = "line"
    instruction: str = ""
    lead: str = ""
    trail: str = ""
    needed: Texts = ()


@dataclass(frozen=True, slots=True)
class Snippet:
    """Related text from another place: its path, and the text.

    With `for_copying` it is only a source of drafts and token statistics on this machine. No model reads it, and it is never
    sent to a remote one. With `was_shown`, an earlier request of the document showed it: it may stay in what a model has read.
    """

    path: str
    text: str
    for_copying: bool = False
    was_shown: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of an answer: milliseconds (0: no deadline), denoising steps (0: the model's default) and number of candidates.

    `spares` is how many more candidates to return if the model has them anyway. They replace candidates that the front end
    can't use. A candidate that is right with a probability below `least` is not wanted, so the model need not write it.
    """

    ms: Count = 0
    steps: Annotated[int, Meta(ge=0, le=MAX_STEPS)] = 0
    candidates: Annotated[int, Meta(ge=1, le=MAX_CANDIDATES)] = 1
    spares: Annotated[int, Meta(ge=0, le=MAX_CANDIDATES)] = 0
    least: Annotated[float, Meta(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        if self.ms < 0 or self.steps < 0 or self.candidates < 1 or self.spares < 0:
            values = f"ms={self.ms}, steps={self.steps}, candidates={self.candidates}, spares={self.spares}"
            raise ValueError(f"the limits of an answer must be at least 0, and its candidates at least 1, but got {values}")


# The class has no slots, so that its place can be computed on first use.
@dataclass(frozen=True)
class InfillRequest:
    """Everything that the engine needs: the text on both sides, the holes, and the fixed text between them.

    The window reads `prefix, hole 0, between[0], hole 1, …, suffix`. Leads and trails are already part of the fixed
    text. `path` is a short file name that the model sees; nothing is read from it.

    With a `question`, the model is asked for the next edit: its one hole is the question's window, whose text it rewrites.
    There is no text on both sides then, because the question has it.
    """

    prefix: str
    suffix: str
    holes: Annotated[tuple[Hole, ...], Meta(max_length=MAX_HOLES)]
    between: Texts = ()
    language: str = ""
    path: str = ""
    related: Annotated[tuple[Snippet, ...], Meta(max_length=MAX_ENTRIES)] = ()
    budget: Budget = field(default_factory=Budget)
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0
    question: Question | None = None

    def __post_init__(self) -> None:
        if not self.holes:
            raise ValueError("a request needs at least one hole")
        if len(self.between) != len(self.holes) - 1:
            raise ValueError(f"{len(self.holes)} holes need {len(self.holes) - 1} texts between them, not {len(self.between)}")

    @property
    def extent(self) -> Extent:
        """The widest extent of its holes."""
        return max((hole.extent for hole in self.holes), key=get_args(Extent).index)

    @cached_property
    def place(self) -> Place:
        """The place between the prefix and the suffix."""
        return place.between(self.prefix, self.suffix)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A measured probability: about 30 % of the candidates that state 0.3 are right."""

    probability: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability <= 1.0:
            raise ValueError(f"not a probability: {self.probability}")


@dataclass(frozen=True, slots=True)
class Ranked:
    """A rank among the candidates, 0 for the best, used where no probability is known.

    A candidate is `doubted` when something contradicts it: a deadline or the token limit cut it short, or the model
    reads the surrounding text differently.
    """

    position: int = 0
    doubted: bool = False

    def __post_init__(self) -> None:
        if self.position < 0:
            raise ValueError(f"not a position: {self.position}")


Confidence = Calibrated | Ranked
BEST = Ranked(0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One text for each hole of a request, with the backend's confidence that all are right and how they were made.

    `confidences` holds one probability for each token of each text. `lengths` holds the number of characters of each of
    those tokens, if the engine knows it. `finished` is False if a deadline cut the denoising short. `row` says how
    the text was proposed, or what its canvas started from. `alone` holds the confidence in each text, given the best ones
    before it, if they were written one after the other.
    """

    texts: tuple[str, ...]
    confidence: Confidence = BEST
    confidences: tuple[tuple[float, ...], ...] = ()
    row: RowKind = "noise"
    steps: int = 0
    finished: bool = True
    lengths: tuple[tuple[int, ...], ...] = ()
    alone: tuple[Confidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Edit:
    """New text for a span."""

    span: Span
    text: str


def apply(text: str, edits: tuple[Edit, ...]) -> str:
    """Return the text with all edits applied; raise ValueError if two overlap or one lies outside the text."""
    ordered = sorted(edits, key=lambda edit: edit.span)
    if any(left.span.end > right.span.start for left, right in pairwise(ordered)):
        raise ValueError("edits overlap")
    if ordered and ordered[-1].span.end > len(text):
        raise ValueError(f"an edit ends at {ordered[-1].span.end}, beyond the text's {len(text)} characters")
    parts, at = [], 0
    for edit in ordered:
        parts += [text[at : edit.span.start], edit.text]
        at = edit.span.end
    return "".join([*parts, text[at:]])
