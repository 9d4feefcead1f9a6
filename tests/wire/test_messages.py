"""Messages come back equal, and what is malformed is named in a sentence."""

import contextlib
import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dg_lsp.core.values import (
    MAX_CANDIDATES,
    MAX_STEPS,
    Budget,
    Calibrated,
    Candidate,
    Confidence,
    Extent,
    Hole,
    InfillRequest,
    Ranked,
    Snippet,
    Span,
)
from dg_lsp.wire import messages, stream
from dg_lsp.wire.messages import Ask, Bye, Done, Draft, Problem, Status, WireError, parse
from dg_lsp.wire.stream import Message

EXTENTS: list[Extent] = ["line", "lines", "block"]
TEXTS = st.text(st.characters(), max_size=20)
LINES = st.sampled_from(["\n", "\r\n", "\u2028", "\x0b", "\x85", "data: x\n\n"])
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e30, max_value=1e30)
COUNTS = st.integers(0, 2**31)
CHANCES = st.floats(0, 1)


@st.composite
def holes(draw: st.DrawFn) -> Hole:
    start = draw(COUNTS)
    return Hole(
        Span(start, start + draw(COUNTS)),
        draw(st.sampled_from(["cursor", "body", "marker", "selection", "error"])),
        *(draw(TEXTS), draw(st.sampled_from(EXTENTS)), draw(TEXTS), draw(TEXTS), draw(TEXTS)),
    )


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    wanted = tuple(draw(st.lists(holes(), min_size=1, max_size=3)))
    request = InfillRequest(
        prefix=draw(TEXTS) + draw(LINES),
        suffix=draw(TEXTS),
        holes=wanted,
        between=tuple(draw(TEXTS) for _ in wanted[1:]),
        language=draw(TEXTS),
        path=draw(TEXTS),
        related=tuple(draw(st.lists(st.builds(Snippet, TEXTS, TEXTS, st.booleans()), max_size=2))),
        budget=Budget(
            draw(COUNTS),
            draw(st.integers(0, MAX_STEPS)),
            draw(st.integers(1, MAX_CANDIDATES)),
            draw(st.integers(0, MAX_CANDIDATES)),
        ),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
    )
    priority: messages.Priority = "batch" if draw(st.booleans()) else "interactive"
    return Ask(request, draw(TEXTS), draw(TEXTS), priority, drafts=draw(st.booleans()))


CONFIDENCES = st.builds(Calibrated, st.floats(0, 1)) | st.builds(Ranked, COUNTS, st.booleans())
CANDIDATES = st.builds(
    Candidate,
    texts=st.lists(TEXTS, max_size=3).map(tuple),
    confidence=CONFIDENCES,
    confidences=st.lists(st.lists(CHANCES, max_size=4).map(tuple), max_size=3).map(tuple),
    row=st.sampled_from(["noise", "copy", "causal"]),
    steps=COUNTS,
    finished=st.booleans(),
    lengths=st.lists(st.lists(COUNTS, max_size=4).map(tuple), max_size=3).map(tuple),
)
MS = st.floats(0, 1e9)
EVENTS = st.one_of(
    st.builds(Draft, st.lists(TEXTS | LINES, max_size=3).map(tuple), COUNTS),
    CANDIDATES,
    st.builds(
        Done,
        st.sampled_from(["finished", "deadline", "superseded", "cancelled"]),
        COUNTS,
        MS,
        MS,
        COUNTS,
        COUNTS,
    ),
    st.builds(Problem, st.sampled_from(["busy", "engine_failed", "out_of_memory"]), TEXTS),
    st.builds(Status, st.sampled_from(["loading", "ready", "unloaded", "failed"]), TEXTS, CHANCES),
    st.builds(Bye, TEXTS),
)


def returned(event: messages.Event) -> messages.Event:
    """Return an event as a client reads it from its line."""
    line = stream.encode(Message(*messages.encode_event(event)))
    assert line.count(b"\n") == 1
    message = stream.decode(line)
    return messages.decode_event(message.name, messages.Fields(message.fields))


@given(asks())
def test_an_ask_comes_back_equal(ask: Ask) -> None:
    assert messages.decode_ask(parse(messages.as_json(asdict(ask)))) == ask


@given(EVENTS)
def test_an_event_comes_back_equal_from_one_line(event: messages.Event) -> None:
    assert returned(event) == event


def test_no_field_of_a_candidate_is_lost() -> None:
    alone = (Ranked(1, doubted=True),)
    candidate = Candidate(("x",), Calibrated(0.5), ((0.5,),), "copy", steps=2, finished=False, lengths=((1,),), alone=alone)
    plain = Candidate(())
    assert all(getattr(candidate, name) != getattr(plain, name) for name in Candidate.__match_args__)
    assert returned(candidate) == candidate


def test_non_finite_numbers_become_zero() -> None:
    candidate = Candidate(("x",), Calibrated(0.0), ((float("inf"),),))
    assert returned(candidate) == Candidate(("x",), Calibrated(0.0), ((0.0,),))
    for event in (Status("loading", fraction=float("nan")), Done("finished", 1, answer_ms=float("inf"))):
        assert returned(event) in (Status("loading"), Done("finished", 1))


@pytest.mark.parametrize(
    ("stated", "confidence"),
    [
        ({"probability": 0.25, "rank": None, "doubted": False}, Calibrated(0.25)),
        ({"probability": None, "rank": 2, "doubted": True}, Ranked(2, doubted=True)),
    ],
)
def test_a_candidate_states_a_probability_or_a_rank(stated: dict[str, object], confidence: Confidence) -> None:
    _, data = messages.encode_event(Candidate(("x",), confidence))
    assert {name: data[name] for name in stated} == stated
    found = messages.decode_event("candidate", parse(json.dumps({"texts": ["x"], **stated})))
    assert isinstance(found, Candidate)
    assert found.confidence == confidence


def test_the_confidences_of_texts_that_were_written_one_after_the_other_are_kept() -> None:
    candidate = Candidate(("x", "y"), Calibrated(0.1), alone=(Calibrated(0.5), Ranked(1, doubted=True)))
    name, data = messages.encode_event(candidate)
    assert messages.decode_event(name, parse(json.dumps(data))) == candidate
    # An engine might state too few.
    for n_stated in (0, 1):
        found = messages.decode_event(name, parse(json.dumps({**data, "alone": data["alone"][:n_stated]})))
        assert isinstance(found, Candidate)
        assert found.alone == ()


@pytest.mark.parametrize("stated", [{"probability": 1.5}, {"probability": "1"}, {"rank": -1}, {"rank": None}, {}])
def test_an_invalid_confidence_is_refused(stated: dict[str, object]) -> None:
    with pytest.raises(WireError, match=r"probability|rank"):
        messages.decode_event("candidate", parse(json.dumps({"texts": ["x"], **stated})))


def hole(**changed: object) -> dict[str, object]:
    return {"span": {"start": 0, "end": 0}, "kind": "cursor", **changed}


def body(**changed: object) -> dict[str, object]:
    return {"request": {"prefix": "a", "suffix": "b", "holes": [hole()], **changed}}


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ("[]", "the message must be an object, but is a list"),
        ("{", "the message is not valid JSON"),
        ("[" * 100_000, "the message is not valid JSON"),
        ("1" * 5000, "the message is not valid JSON"),
        ("{}", "request is missing"),
        ({"request": {}}, "request.prefix is missing"),
        (body(prefix=1), "request.prefix must be a string, but is a number"),
        (body(suffix=None), "request.suffix must be a string, but is null"),
        (body(holes=[]), "request is malformed: a request needs at least one hole"),
        (body(holes={}), "request.holes must be a list, but is an object"),
        (body(holes=[1]), "request.holes[0] must be an object, but is a number"),
        (body(holes=[hole(kind="pit")]), "request.holes[0].kind must be one of cursor, body, marker, selection, error"),
        (body(holes=[hole(span=[0, 0])]), "request.holes[0].span must be an object, but is a list"),
        (body(holes=[hole(span={"start": 5, "end": 4})]), "request.holes[0].span is malformed: not a span: 5..4"),
        (body(holes=[hole(span={"start": -1, "end": 4})]), "request.holes[0].span.start must be at least 0"),
        (body(holes=[hole(span={"start": 0, "end": 10**4000})]), f"request.holes[0].span.end must be at most {2**53}"),
        (body(holes=[hole(needed=["x"] * 1025)]), "request.holes[0].needed must have at most 1024 entries"),
        (body(holes=[hole(extent="all")]), "request.holes[0].extent must be one of line, lines, block"),
        (body(holes=[hole()] * 300, between=["x"] * 299), "request.holes must have at most 256 entries"),
        (body(between=["x"]), "request is malformed: 1 holes need 0 texts between them, not 1"),
        (body(between=[1]), "request.between[0] must be a string, but is a number"),
        (body(related=[{"path": "x"}]), "request.related[0].text is missing"),
        (body(related=[{"path": "", "text": ""}] * 1025), "request.related must have at most 1024 entries"),
        (body(budget={"ms": -1}), "request.budget.ms must be at least 0"),
        (body(budget={"ms": 1.5}), "request.budget.ms must be a whole number, but is a number"),
        (body(budget={"ms": True}), "request.budget.ms must be a whole number, but is true or false"),
        (body(budget={"ms": 10**400}), f"request.budget.ms must be at most {2**53}"),
        (body(budget={"candidates": 65}), "request.budget.candidates must be at most 64"),
        (body(budget={"steps": 2**40}), "request.budget.steps must be at most 4096"),
        (body(budget=[]), "request.budget must be an object, but is a list"),
        (body(seed=2**63), f"request.seed must be at most {2**63 - 1}"),
        (body(seed=-(2**63) - 1), f"request.seed must be at least {-(2**63)}"),
        ({**body(), "priority": "urgent"}, "priority must be one of interactive, batch"),
        ({**body(), "priority": "x - at `$.request"}, "priority must be one of interactive, batch"),
        ({**body(), "drafts": 1}, "drafts must be true or false, but is a number"),
    ],
)
def test_malformed_values_are_named(sent: str | dict[str, object], sentence: str) -> None:
    with pytest.raises(WireError) as caught:
        messages.decode_ask(parse(sent if isinstance(sent, str) else json.dumps(sent)))
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("draft", '{"texts": [], "step": -1}', "step must be at least 0"),
        ("draft", '{"texts": ["x"], "step": -1}', "step must be at least 0"),
        ("draft", json.dumps({"texts": ["x"] * 1025}), "texts must have at most 1024 entries"),
        ("done", "{}", "reason is missing"),
        ("done", '{"reason": "bored"}', "reason must be one of finished, deadline, superseded, cancelled"),
        ("done", '{"reason": "finished", "steps": -1}', "steps must be at least 0"),
        ("done", '{"reason": "finished", "prompt_tokens": -1}', "prompt_tokens must be at least 0"),
        ("done", '{"reason": "finished", "answer_ms": Infinity}', "answer_ms must be at most 1e+300"),
        ("state", '{"state": "loading", "fraction": -1e999}', "fraction must be at least -1e+300"),
        ("state", '{"state": "ill"}', "state must be one of loading, ready, unloaded, failed"),
        ("candidate", '{"texts": ["x"], "rank": 0, "row": "?"}', "row must be one of noise, copy, causal"),
        ("candidate", '{"texts": ["x"], "rank": 0, "steps": -1}', "steps must be at least 0"),
        ("candidate", f'{{"texts": ["x"], "rank": {10**4000}}}', f"rank must be at most {2**53}"),
        (
            "candidate",
            json.dumps({"texts": ["x"], "rank": 0, "lengths": [[1] * 65537]}),
            "lengths[0] must have at most 65536 entries",
        ),
    ],
)
def test_malformed_values_of_an_event_are_named(name: str, data: str, sentence: str) -> None:
    with pytest.raises(WireError) as caught:
        messages.decode_event(name, parse(data))
    assert str(caught.value) == sentence


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PLACES = st.sampled_from(["prefix", "suffix", "holes", "between", "related", "budget", "seed", "language", "path"])


@given(PLACES, JSON)
def test_any_value_in_any_field_is_read_or_named(name: str, value: Any) -> None:
    with contextlib.suppress(WireError):
        messages.decode_ask(messages.of(body(**{name: value}), "the message"))
