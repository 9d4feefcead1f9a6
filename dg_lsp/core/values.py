"""The values that every part speaks of: documents, spans, holes, requests, candidates, edits.

All frozen; each checks itself once, where it is made. Offsets are code points. Knows nothing of files, editors or models.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from dg_lsp.core.confidence import Confidence, Ranked

HoleKind = Literal["cursor", "body", "marker", "selection", "error"]
RowKind = Literal["noise", "copy", "causal", "previous"]


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open range of code-point offsets, `start <= end`."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"not a span: {self.start}..{self.end}")

    def overlaps(self, other: Span) -> bool:
        """Return whether the two share a character; empty spans share none."""
        return self.start < other.end and other.start < self.end


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the spans in order, those that touch or overlap as one."""
    separate: list[Span] = []
    for span in sorted(spans):
        if separate and span.start <= separate[-1].end:
            separate[-1] = Span(separate[-1].start, max(separate[-1].end, span.end))
        else:
            separate.append(span)
    return tuple(separate)


def inside_any(offset: int, spans: Iterable[Span]) -> bool:
    """Return whether the offset lies within one of the spans, not at its edge."""
    return any(span.start < offset < span.end for span in spans)


@dataclass(frozen=True, slots=True)
class Document:
    """One version of one file. `language` is a name of `core.languages`, or "" where none is known."""

    uri: str
    language: str
    text: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Hole:
    r"""A span that the model may rewrite.

    `lead` and `trail` are fixed text that the edit writes around the answer and the model sees as given: for
    `function f() {}` the span is empty, lead is "\n  " and trail "\n". `indent` is the white space before the
    answer's own lines. A hole that is not a `block` ends with its line.
    """

    span: Span
    kind: HoleKind
    indent: str = ""
    block: bool = False
    instruction: str = ""
    lead: str = ""
    trail: str = ""


@dataclass(frozen=True, slots=True)
class Snippet:
    """Related text from elsewhere: where it stands, and its text."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Budget:
    """What an answer may cost: milliseconds (0: no deadline), denoising steps (0: the model's own), candidates wanted."""

    ms: int = 0
    steps: int = 0
    candidates: int = 1

    def __post_init__(self) -> None:
        if self.ms < 0 or self.steps < 0 or self.candidates < 1:
            raise ValueError(f"not a budget: {self}")


@dataclass(frozen=True, slots=True)
class InfillRequest:
    """Everything the engine needs: text on both sides, the holes, and the fixed text between them.

    The window reads `prefix, hole 0, between[0], hole 1, …, suffix`; leads and trails are already part of the fixed
    text. `path` is a short name of the file for the model, not a place to read. `previous` is what an earlier answer would
    still write in the only hole, though the user has gone another way since: a draft that has to prove itself.
    """

    prefix: str
    suffix: str
    holes: tuple[Hole, ...]
    between: tuple[str, ...] = ()
    language: str = ""
    path: str = ""
    related: tuple[Snippet, ...] = ()
    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    previous: str = ""

    def __post_init__(self) -> None:
        if not self.holes:
            raise ValueError("a request has at least one hole")
        if len(self.between) != len(self.holes) - 1:
            raise ValueError(f"{len(self.holes)} holes need {len(self.holes) - 1} texts between them, not {len(self.between)}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One text for each hole of a request, how sure the backend is that all are right, and how it was made.

    `confidences` holds one probability for each token of each text, and `lengths`, where the engine can tell, how many
    characters of the text each of those tokens is. `finished` is False when a deadline cut the
    denoising short. `row` says what the canvas started from.
    """

    texts: tuple[str, ...]
    confidence: Confidence = Ranked()
    confidences: tuple[tuple[float, ...], ...] = ()
    row: RowKind = "noise"
    steps: int = 0
    finished: bool = True
    lengths: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Edit:
    """New text for a span."""

    span: Span
    text: str


def apply(text: str, edits: tuple[Edit, ...]) -> str:
    """Return the text with all edits applied; raise ValueError when two of them overlap or one lies outside."""
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
