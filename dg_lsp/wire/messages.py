"""The messages between front ends and the engine: a request in its envelope, and the events that answer it.

Values of `core` are written as JSON and read back equal. This module knows the shapes and checks them; it does no I/O.

`Fields` reads a JSON object from any other sender: a value of another type than expected raises an error with a clear
message. Fields that it does not ask for are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

import msgspec
from msgspec import Meta

from dg_lsp.core.values import (
    MAX_ENTRIES,
    Calibrated,
    Candidate,
    Confidence,
    Count,
    Extent,
    HoleKind,
    InfillRequest,
    Ranked,
    RowKind,
    Texts,
)

PROTOCOL = 6
"""The version of these messages. It is part of an engine's name, so a client never meets an engine of another version."""

MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_TOKENS = 65536

Priority = Literal["interactive", "batch"]
Reason = Literal["finished", "deadline", "superseded", "cancelled"]
EngineState = Literal["loading", "ready", "unloaded", "failed"]
ErrorCode = Literal["bad_request", "busy", "engine_failed", "not_loaded", "out_of_memory", "stopping", "unauthorized"]
_CHOICES: dict[str, Any] = {
    "extent": Extent,
    "kind": HoleKind,
    "priority": Priority,
    "reason": Reason,
    "row": RowKind,
    "state": EngineState,
}

Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]
"""The bounds exclude infinity and NaN, which Python's JSON reads."""
T = TypeVar("T")
Row = Annotated[tuple[T, ...], Meta(max_length=MAX_TOKENS)]
"""One value for each token of a text."""
Rows = Annotated[tuple[Row[T], ...], Meta(max_length=MAX_ENTRIES)]


class WireError(ValueError):
    """A message is malformed. The error's text names the field."""


_REQUIRED = object()
_WORDS = {"str": "a string", "int": "a whole number", "float": "a number", "bool": "true or false", "null": "null"}
_WORDS |= {"object": "an object", "array": "a list"}
# msgspec's sentences about a wrong value, and ours. Each completes a sentence that begins with the value's place.
_SENTENCES = (
    (re.compile(r"Expected `array` of length <= (\d+)"), "must have at most {} entries"),
    (re.compile(r"Expected `\w+` >= (\S+)"), "must be at least {}"),
    (re.compile(r"Expected `\w+` <= (\S+)"), "must be at most {}"),
    (re.compile(r"Expected `(\w+)`, got `(\w+)`"), "must be {}, but is {}"),
)


def parse(data: bytes | str, what: str = "the message") -> Fields:
    """Return the fields of a JSON object; raise WireError, naming `what`, if the data is not one."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{what} is not valid JSON") from error
    return Fields(_converted(value, dict[str, Any], what))


def of(value: object, what: str) -> Fields:
    """Return the fields of a value; raise WireError, naming `what`, if it is not an object."""
    return Fields(_converted(value, dict[str, Any], what), "" if what == "the message" else what)


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object, and its path in the message. Its methods return a field, and raise WireError if it is malformed."""

    values: Mapping[str, object]
    where: str = ""

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def text(self, name: str, default: object = _REQUIRED) -> str:
        value: str = self._read(name, str, default)
        return value

    def flag(self, name: str, default: object = _REQUIRED) -> bool:
        value: bool = self._read(name, bool, default)
        return value

    def integer(self, name: str, default: object = _REQUIRED, *, low: int = 0, high: int = 2**53) -> int:
        """Return a field that is a whole number from `low` to `high`; a float without a fraction counts as one."""
        value: int = self._read(name, Annotated[int, Meta(ge=low, le=high)], default)
        return value

    def number(self, name: str, default: object = _REQUIRED) -> float:
        value: float = self._read(name, Finite, default)
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: object = _REQUIRED) -> str:
        value = self.text(name, default)
        if value not in choices:
            raise WireError(f"{self._path(name)} must be one of {', '.join(choices)}")
        return value

    def items(self, name: str, default: object = _REQUIRED, *, high: int = 1024) -> tuple[object, ...]:
        """Return a field that is a list of at most `high` values."""
        return tuple(self._read(name, Annotated[list[Any], Meta(max_length=high)], default))

    def texts(self, name: str, default: object = _REQUIRED, *, high: int = 1024) -> tuple[str, ...]:
        return tuple(self._read(name, Annotated[list[str], Meta(max_length=high)], default))

    def inner(self, name: str) -> Fields:
        """Return the fields of a field that is an object; an absent object counts as empty."""
        return of(self._read(name, Any, {}), self._path(name))

    def objects(self, name: str, default: object = _REQUIRED) -> tuple[Fields, ...]:
        return tuple(of(value, f"{self._path(name)}[{idx}]") for idx, value in enumerate(self.items(name, default)))

    def _read(self, name: str, kind: Any, default: object) -> Any:
        value = self.values.get(name)
        if value is None and default is _REQUIRED:
            raise WireError(f"{self._path(name)} is missing")
        return _converted(default if value is None else value, kind, self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name


def _converted(value: object, kind: type[T], what: str = "the message") -> T:
    """Return a value as this type; raise WireError, which names the field, if it is malformed."""
    try:
        return msgspec.convert(value, kind)
    except UnicodeError as error:
        raise WireError(f"{what} has half of a surrogate pair, which is no text") from error
    except msgspec.ValidationError as error:
        sentence, *places = str(error).rsplit(" - at `$", 1)
        place = places[0].rstrip("`") if places else ""
        where = (place if what == "the message" else f"{what}{place}").removeprefix(".") or what
        if sentence.startswith("Invalid enum value"):
            choices = get_args(_CHOICES[place.rpartition(".")[2]])
            raise WireError(f"{where} must be one of {', '.join(choices)}") from error
        if missing := re.fullmatch(r"Object missing required field `(\w+)`", sentence):
            raise WireError(f"{f'{where}.' if place else ''}{missing[1]} is missing") from error
        for pattern, words in _SENTENCES:
            if match := pattern.fullmatch(sentence):
                first, *given = (_WORDS.get(one, one) for one in match.groups())
                stated = words.format(first, *(one.replace("whole ", "") for one in given))
                raise WireError(f"{where} {stated}") from error
        raise WireError(f"{where} is malformed: {sentence}") from error


# --- The messages


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, and the client and document that it is for.

    A newer ask replaces an older one of the same client and document; without a document, nothing is replaced. `drafts`
    asks for the canvas while it is denoised. An ask that `prepares` gets no candidates: the engine reads its text when it
    has nothing else to do.
    """

    request: InfillRequest
    client: str = ""
    document: str = ""
    priority: Priority = "interactive"
    drafts: bool = False
    prepares: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """The current text of the best canvas, one for each hole."""

    texts: Texts
    step: Count = 0


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a successful answer, and its cost.

    These are the steps, the milliseconds for the prompt and for the answer, and how many of the prompt's tokens were cached.
    """

    reason: Reason
    steps: Count = 0
    prompt_ms: Finite = 0.0
    answer_ms: Finite = 0.0
    prompt_tokens: Count = 0
    cached_tokens: Count = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """The end of a failed answer. The message is a sentence for the user.

    The request may succeed after `retry_s` seconds; 0.0 if that is unknown.
    """

    code: ErrorCode
    message: str
    retry_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """The engine's state, sent to clients that hold a lease. `fraction` is the part of the model loaded so far.

    If it failed, another try makes sense after `retry_s` seconds; 0.0 if that is unknown.
    """

    state: EngineState
    message: str = ""
    fraction: Finite = 0.0
    retry_s: Finite = 0.0


@dataclass(frozen=True, slots=True)
class Bye:
    """The engine shuts down as intended. A stream that ends without this event was cut by a crash."""

    message: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """The fields that answer a call."""

    values: Mapping[str, Any]


Event = Draft | Candidate | Done | Problem | Status | Bye | Reply
"""What the engine sends on a stream. Candidates are sent best first."""


def decode_ask(fields: Fields) -> Ask:
    """Return the ask in a body, which is its dict; raise WireError if it is malformed."""
    return _converted(fields.values, Ask)


_EVENTS: dict[str, type[Draft | Done | Status | Bye]] = {"draft": Draft, "done": Done, "state": Status, "bye": Bye}
_NAMES = {kind: name for name, kind in _EVENTS.items()}


def encode_event(event: Event) -> tuple[str, dict[str, Any]]:
    """Return an event's name and its data."""
    match event:
        case Candidate():
            alone = [stated(each) for each in event.alone]
            return "candidate", _finite({**asdict(event), **stated(event.confidence), "alone": alone})
        case Problem():
            return "error", encode_problem(event)
        case Reply(values):
            return "reply", _finite(dict(values))
    return _NAMES[type(event)], _finite(asdict(event))


def decode_event(name: str, fields: Fields) -> Event:
    """Return the event; raise WireError if its name is unknown or the data is malformed."""
    if name == "candidate":
        sent = _converted(fields.values, _SentCandidate)
        alone = tuple(each.read() for each in sent.alone)
        # No field can be lost: one that `_SentCandidate` lacks is an error.
        same = {each: getattr(sent, each) for each in Candidate.__match_args__ if each not in ("confidence", "alone")}
        return Candidate(**same, confidence=sent.read(), alone=alone if len(alone) == len(sent.texts) else ())
    if name == "error":
        return decode_problem(fields)
    if name == "reply":
        return Reply(fields.values)
    if name not in _EVENTS:
        raise WireError(f"there is no event {name!r}")
    return _converted(fields.values, _EVENTS[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A confidence as it is sent and stored, with either a probability or a rank."""

    probability: Annotated[float, Meta(ge=0, le=1)] | None = None
    rank: Count | None = None
    doubted: bool = False

    def read(self) -> Confidence:
        """Return the confidence; raise WireError if it has neither."""
        if self.probability is not None:
            return Calibrated(self.probability)
        if self.rank is None:
            raise WireError("a confidence needs a probability or a rank")
        return Ranked(self.rank, self.doubted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentCandidate(Stated):
    texts: Texts
    confidences: Rows[Finite] = ()
    row: RowKind = "noise"
    steps: Count = 0
    finished: bool = True
    lengths: Rows[Count] = ()
    alone: Annotated[tuple[Stated, ...], Meta(max_length=MAX_ENTRIES)] = ()


def stated(confidence: Confidence) -> dict[str, Any]:
    """Return the fields of `Stated` for a confidence."""
    match confidence:
        case Calibrated(probability):
            return asdict(Stated(probability=probability))
        case Ranked(position, doubted):
            return asdict(Stated(rank=position, doubted=doubted))


def _finite(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data as read from JSON, with 0 for what JSON can't express: a model's number that is none means nothing."""
    finite: dict[str, Any] = json.loads(json.dumps(data), parse_constant=lambda _: 0.0)
    return finite


def encode_problem(problem: Problem) -> dict[str, object]:
    """Return the body of an error in the format of OpenAI's API."""
    again = {"retry_s": problem.retry_s} if problem.retry_s else {}
    return {"error": {"message": problem.message, "type": problem.code, "param": None, "code": problem.code, **again}}


def decode_problem(fields: Fields) -> Problem:
    """Return the problem in a body; an unknown code becomes `engine_failed`."""
    inner = of(fields.values.get("error"), "error")
    code = inner.text("code", "engine_failed")
    known = cast("ErrorCode", code if code in get_args(ErrorCode) else "engine_failed")
    return Problem(known, inner.text("message"), inner.number("retry_s", 0.0))


def as_json(data: Mapping[str, object]) -> bytes:
    """Return a message as ASCII bytes without spaces between its parts, the only form that llama.vim accepts."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode()
