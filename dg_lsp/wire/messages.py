"""The messages between front ends and the engine: a request in its envelope, and the events that answer it.

Values of `core` are written as JSON and read back equal. This module knows the shapes and checks them; it does no I/O.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast, get_args

from dg_lsp.core.confidence import Calibrated, Confidence, Ranked
from dg_lsp.core.values import Budget, Candidate, Hole, HoleKind, InfillRequest, RowKind, Snippet, Span
from dg_lsp.wire.fields import Fields, WireError, of

__all__ = ["WireError"]

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


def encode_ask(ask: Ask) -> dict[str, Any]:
    """Return the body of `POST /v1/infill`."""
    body = asdict(ask)
    for hole in body["request"]["holes"]:
        hole["span"] = list(hole["span"].values())
    return body


def decode_ask(fields: Fields) -> Ask:
    """Return the ask in a body; raise WireError if it is malformed."""
    return Ask(
        request=_decode_request(of(fields.values.get("request"), "request")),
        client=fields.text("client", ""),
        document=fields.text("document", ""),
        priority=cast("Priority", fields.choice("priority", get_args(Priority), "interactive")),
        drafts=fields.flag("drafts", default=False),
        protocol=fields.integer("protocol", PROTOCOL_MAX),
    )


_NAMES: dict[type, str] = {Accepted: "accepted", Draft: "draft", Done: "done", Status: "state", Bye: "bye"}


def encode_event(event: Event) -> tuple[str, dict[str, object]]:
    """Return an event's name and its data."""
    match event:
        case Found(candidate):
            return "candidate", _encode_candidate(candidate)
        case Problem():
            return "error", encode_problem(event)
    data = asdict(event)
    if isinstance(event, Status):
        data["fraction"] = _finite(event.fraction)
    if isinstance(event, Done):
        data["timings"] = {name: _finite(ms) for name, ms in data["timings"].items()}
    return _NAMES[type(event)], data


def decode_event(name: str, fields: Fields) -> Event | None:
    """Return the event, or None for a name that only a newer engine knows; raise WireError if the data is malformed."""
    match name:
        case "accepted":
            return Accepted(fields.text("id"), fields.integer("ahead", 0))
        case "draft":
            return Draft(fields.texts("texts"), fields.integer("step", 0))
        case "candidate":
            return Found(_decode_candidate(fields))
        case "done":
            timings, cache = fields.inner("timings"), fields.inner("cache")
            return Done(
                reason=cast("Reason", fields.choice("reason", get_args(Reason))),
                steps=fields.integer("steps", 0),
                timings=Timings(**{name: timings.number(name, 0.0) for name in asdict(Timings())}),
                cache=CacheUse(cache.integer("tokens", 0), cache.integer("reused", 0)),
            )
        case "error":
            return decode_problem(fields)
        case "state":
            return Status(
                state=cast("EngineState", fields.choice("state", get_args(EngineState))),
                message=fields.text("message", ""),
                fraction=fields.number("fraction", 0.0),
            )
        case "bye":
            return Bye(fields.text("message", ""))
        case _:
            return None


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


def _decode_hole(fields: Fields) -> Hole:
    span = fields.items("span")
    if len(span) != 2:  # a start and an end
        raise WireError(f"{fields.where}.span must be two offsets")
    ends = Fields({"start": span[0], "end": span[1]}, f"{fields.where}.span")
    start = ends.integer("start")
    return Hole(
        span=Span(start, ends.integer("end", low=start)),
        kind=cast("HoleKind", fields.choice("kind", get_args(HoleKind))),
        indent=fields.text("indent", ""),
        block=fields.flag("block", default=False),
        instruction=fields.text("instruction", ""),
        lead=fields.text("lead", ""),
        trail=fields.text("trail", ""),
        needed=fields.texts("needed", ()),
    )


def _decode_request(fields: Fields) -> InfillRequest:
    budget = fields.inner("budget")
    try:
        return InfillRequest(
            prefix=fields.text("prefix"),
            suffix=fields.text("suffix"),
            holes=tuple(_decode_hole(hole) for hole in fields.objects("holes", high=MAX_HOLES)),
            between=fields.texts("between", ()),
            language=fields.text("language", ""),
            path=fields.text("path", ""),
            related=tuple(
                Snippet(item.text("path"), item.text("text"), item.flag("for_copying", default=False))
                for item in fields.objects("related", ())
            ),
            budget=Budget(
                ms=budget.integer("ms", 0),
                steps=budget.integer("steps", 0, high=MAX_STEPS),
                candidates=budget.integer("candidates", 1, low=1, high=MAX_CANDIDATES),
                spares=budget.integer("spares", 0, high=MAX_CANDIDATES),
            ),
            seed=fields.integer("seed", 0, low=-(2**63), high=2**63 - 1),
            previous=fields.text("previous", ""),
        )
    except WireError:
        raise
    except ValueError as error:
        raise WireError(f"request: {error}") from error


def _encode_candidate(candidate: Candidate) -> dict[str, object]:
    data = asdict(candidate)
    data["confidences"] = [[_finite(chance) for chance in row] for row in candidate.confidences]
    data["alone"] = [_encode_confidence(each) for each in candidate.alone]
    del data["confidence"]
    return data | _encode_confidence(candidate.confidence)


def _encode_confidence(confidence: Confidence) -> dict[str, object]:
    match confidence:
        case Calibrated(probability):
            return {"probability": probability, "rank": None, "doubted": False}
        case Ranked(position, doubted):
            return {"probability": None, "rank": position, "doubted": doubted}


def _decode_candidate(fields: Fields) -> Candidate:
    rows, lengths = fields.items("confidences", ()), fields.items("lengths", ())
    texts = fields.texts("texts")
    alone = tuple(_decode_confidence(each) for each in fields.objects("alone", ()))
    return Candidate(
        texts=texts,
        confidence=_decode_confidence(fields),
        confidences=tuple(Fields({"confidences": row}, fields.where).numbers("confidences") for row in rows),
        row=cast("RowKind", fields.choice("row", get_args(RowKind), "noise")),
        steps=fields.integer("steps", 0),
        finished=fields.flag("finished", default=True),
        lengths=tuple(Fields({"lengths": row}, fields.where).integers("lengths") for row in lengths),
        alone=alone if len(alone) == len(texts) else (),
    )


def _decode_confidence(fields: Fields) -> Confidence:
    if fields.values.get("probability") is None:
        return Ranked(fields.integer("rank", low=0), fields.flag("doubted", default=False))
    probability = fields.number("probability")
    if not 0 <= probability <= 1:
        raise WireError(f"{fields.where}.probability must be a number from 0 to 1, or null")
    return Calibrated(probability)


def _finite(value: float) -> float:
    """Return 0 for what JSON can't express: a model that produced it has no meaningful confidence."""
    return value if math.isfinite(value) else 0.0


def as_json(data: Mapping[str, object]) -> bytes:
    """Return a message as ASCII bytes without spaces between its parts, the only form that llama.vim accepts."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode()
