"""The messages between front ends and the engine: a request in its envelope, and the events that answer it.

Values of `core` are written as JSON and read back equal. This module knows the shapes and checks them; it does no I/O.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

import msgspec
from msgspec import Meta

from dg_lsp.core.confidence import Calibrated, Confidence, Ranked
from dg_lsp.core.values import Candidate, InfillRequest, RowKind
from dg_lsp.wire.fields import Fields, WireError, of

PROTOCOL_MAJOR = 1
"""Engines of different majors can run at the same time, because the number is part of their name."""
PROTOCOL_MIN = 2
"""The oldest protocol that this code supports."""
PROTOCOL_MAX = 2
"""The newest protocol; two processes use the highest that both support. Since 2, a candidate has a probability or a rank."""

MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_CANDIDATES = 64
MAX_HOLES = 256
MAX_STEPS = 4096

Priority = Literal["interactive", "batch"]
Reason = Literal["finished", "deadline", "superseded", "cancelled"]
EngineState = Literal["loading", "ready", "unloaded", "failed"]
ErrorCode = Literal[
    "bad_request", "busy", "engine_failed", "not_loaded", "out_of_memory", "protocol", "stopping", "unauthorized"
]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, and the client and document that it is for.

    A newer ask replaces an older one of the same client and document; without a document, nothing is replaced. `drafts`
    asks for the canvas while it is denoised.
    """

    request: InfillRequest
    client: str = ""
    document: str = ""
    priority: Priority = "interactive"
    drafts: bool = False
    protocol: int = PROTOCOL_MAX


@dataclass(frozen=True, slots=True)
class Accepted:
    """The engine accepted the request; `ahead` requests wait or run before it."""

    id: str
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """The current text of the best canvas, one for each hole."""

    texts: tuple[str, ...]
    step: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """One candidate; they are sent best first."""

    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Timings:
    """The milliseconds that a request spent in each stage."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    draft_ms: float = 0.0
    denoise_ms: float = 0.0
    score_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The number of prefix tokens, and how many of them the cache provided."""

    tokens: int = 0
    reused: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a successful answer."""

    reason: Reason = "finished"
    steps: int = 0
    timings: Timings = field(default_factory=Timings)
    cache: CacheUse = field(default_factory=CacheUse)


@dataclass(frozen=True, slots=True)
class Problem:
    """The end of a failed answer. The message is a sentence for the user."""

    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class Status:
    """The engine's state, sent to clients that hold a lease. `fraction` is the part of the model loaded so far."""

    state: EngineState
    message: str = ""
    fraction: float = 0.0


@dataclass(frozen=True, slots=True)
class Bye:
    """The engine shuts down as intended. A stream that ends without this event was cut by a crash."""

    message: str = ""


Event = Accepted | Draft | Found | Done | Problem | Status | Bye
T = TypeVar("T")


def encode_ask(ask: Ask) -> dict[str, Any]:
    """Return the body of `POST /v1/infill`."""
    return asdict(ask)


def decode_ask(fields: Fields) -> Ask:
    """Return the ask in a body; raise WireError if it is malformed."""
    ask = _converted(fields, Ask)
    request, budget = ask.request, ask.request.budget
    for what, value, most in (
        ("request.holes", len(request.holes), MAX_HOLES),
        ("request.seed", abs(request.seed), 2**63 - 1),
        ("request.budget.ms", budget.ms, 2**53),
        ("request.budget.steps", budget.steps, MAX_STEPS),
        ("request.budget.candidates", budget.candidates, MAX_CANDIDATES),
        ("request.budget.spares", budget.spares, MAX_CANDIDATES),
    ):
        if value > most:
            raise WireError(f"{what} must be at most {most}, but is {value}")
    return ask


_EVENTS: dict[str, type[Accepted | Draft | Done | Status | Bye]] = {
    "accepted": Accepted,
    "draft": Draft,
    "done": Done,
    "state": Status,
    "bye": Bye,
}
_NAMES = {kind: name for name, kind in _EVENTS.items()}


def encode_event(event: Event) -> tuple[str, dict[str, Any]]:
    """Return an event's name and its data."""
    match event:
        case Found(candidate):
            # A model that computed no number has no meaningful confidence, and JSON can't express it.
            chances = [[chance if math.isfinite(chance) else 0.0 for chance in row] for row in candidate.confidences]
            alone = [_stated(each) for each in candidate.alone]
            return "candidate", {**asdict(candidate), **_stated(candidate.confidence), "confidences": chances, "alone": alone}
        case Problem():
            return "error", encode_problem(event)
    return _NAMES[type(event)], asdict(event)


def decode_event(name: str, fields: Fields) -> Event | None:
    """Return the event, or None for a name that only a newer engine knows; raise WireError if the data is malformed."""
    if name == "candidate":
        return Found(_converted(fields, _SentCandidate).candidate())
    if name == "error":
        return decode_problem(fields)
    return _converted(fields, _EVENTS[name]) if name in _EVENTS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stated:
    """A confidence as it is sent, with either a probability or a rank."""

    probability: Annotated[float, Meta(ge=0, le=1)] | None = None
    rank: Annotated[int, Meta(ge=0)] | None = None
    doubted: bool = False

    def read(self) -> Confidence:
        if self.probability is not None:
            return Calibrated(self.probability)
        if self.rank is None:
            raise WireError("a confidence needs a probability or a rank")
        return Ranked(self.rank, self.doubted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentCandidate(_Stated):
    texts: tuple[str, ...]
    confidences: tuple[tuple[float, ...], ...] = ()
    row: RowKind = "noise"
    steps: int = 0
    finished: bool = True
    lengths: tuple[tuple[Annotated[int, Meta(ge=0)], ...], ...] = ()
    alone: tuple[_Stated, ...] = ()

    def candidate(self) -> Candidate:
        alone = tuple(each.read() for each in self.alone)
        rest = (self.confidences, self.row, self.steps, self.finished, self.lengths)
        return Candidate(self.texts, self.read(), *rest, alone if len(alone) == len(self.texts) else ())


def _stated(confidence: Confidence) -> dict[str, Any]:
    match confidence:
        case Calibrated(probability):
            return asdict(_Stated(probability=probability))
        case Ranked(position, doubted):
            return asdict(_Stated(rank=position, doubted=doubted))


def _converted(fields: Fields, kind: type[T]) -> T:
    """Return a message of this type; raise WireError, which names the field, if it is malformed."""
    try:
        return msgspec.convert(dict(fields.values), kind)
    except msgspec.ValidationError as error:
        sentence, _, place = str(error).partition(" - at `$.")
        raise WireError(f"{place.rstrip('`') or 'the message'} is malformed: {sentence[:1].lower()}{sentence[1:]}") from error


def encode_problem(problem: Problem) -> dict[str, object]:
    """Return the body of an error in the format of OpenAI's API."""
    return {"error": {"message": problem.message, "type": problem.code, "param": None, "code": problem.code}}


def decode_problem(fields: Fields) -> Problem:
    """Return the problem in a body; an unknown code becomes `engine_failed`."""
    inner = of(fields.values.get("error"), "error")
    code = inner.text("code", "engine_failed")
    return Problem(cast("ErrorCode", code if code in get_args(ErrorCode) else "engine_failed"), inner.text("message"))


def to_sse(event: Event) -> bytes:
    """Return an event as a server-sent event, in ASCII, so that no text in it can break a line."""
    name, data = encode_event(event)
    return f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n".encode()


def common_protocol(other_min: int, other_max: int) -> int | None:
    """Return the highest protocol that both sides support, or None."""
    highest = min(PROTOCOL_MAX, other_max)
    return highest if highest >= max(PROTOCOL_MIN, other_min) else None


def as_json(data: Mapping[str, object]) -> bytes:
    """Return a message as ASCII bytes without spaces between its parts, the only form that llama.vim accepts."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode()
