"""A request on a remote model as a task: its calls are sent at once, looked at as they come in, and dropped with the task.

A step waits for an answer, but never long, so that cancellation, deadlines and other requests get their turn. Knows calls
and candidates; what is asked and what an answer means is the backend's.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

from dg_lsp.core import secrets
from dg_lsp.core.confidence import Ranked
from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine import calibration, sequence
from dg_lsp.engine.backends.http_client import Call, RemoteError, Server, outcome_of
from dg_lsp.engine.calibration import Calibration, Evidence, HolePosition
from dg_lsp.engine.calibration_store import Calibrations
from dg_lsp.engine.task import Filler, Task
from dg_lsp.wire.fields import Fields, WireError
from dg_lsp.wire.privacy import Shown, shown

STEP_S = 0.01
"""So long a step waits at most, and a new request with it: its own calls are sent in its first step."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a call came to."""

    call: Call
    fields: Fields


class Backend(Protocol):
    """How one kind of server is asked, and the name of the model that it was found to serve."""

    model: str

    def takes_together(self, request: InfillRequest) -> bool:
        """Return whether all holes of a request, which has several, can be asked for at once."""

    def calls(self, request: Shown) -> Sequence[Call]:
        """Return what to ask, all at the same time; raise RemoteError when the request can't be asked."""

    def evidence(self, request: InfillRequest, replies: Sequence[Reply]) -> tuple[Evidence, ...]:
        """Return what the answers so far come to, and what is known of each; raise RemoteError or WireError for nonsense."""

    def about(self) -> Mapping[str, object]:
        """Return facts about the model by name."""


class Client(Protocol):
    """What sends calls: to one server, or to one of several."""

    @property
    def server(self) -> Server:
        """The server, or the first of several."""

    @property
    def host(self) -> str:
        """The names of all."""

    def send(self, call: Call, done: Callable[[], None] = ...) -> Future[Fields]:
        """Return the answer to come; cancelling it closes its connection. It fails with RemoteError alone."""

    def close(self) -> None:
        """Drop what is under way."""


class Board:
    """Which tasks have answers that they have not looked at. A step that waits ends when any task has one."""

    def __init__(self) -> None:
        """Know of no task."""
        # Not a plain lock: a task may be collected, and leave, on a thread that has it.
        self._changed = threading.Condition(threading.RLock())
        self._numbers = itertools.count()
        self._members: set[int] = set()
        self._fresh: set[int] = set()

    def join(self) -> int:
        """Return the number of a new task."""
        with self._changed:
            number = next(self._numbers)
            self._members.add(number)
            return number

    def leave(self, number: int) -> None:
        """Forget a task; answers that still come for it are nobody's."""
        with self._changed:
            self._members.discard(number)
            self._fresh.discard(number)

    def add(self, number: int) -> None:
        """Note that a task has an answer."""
        with self._changed:
            if number in self._members:
                self._fresh.add(number)
                self._changed.notify_all()

    def seen(self, number: int) -> None:
        """Note that a task has looked."""
        with self._changed:
            self._fresh.discard(number)

    def wait(self, timeout_s: float) -> None:
        """Wait until any task has an answer to look at, or the time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._fresh, timeout_s)


class RemoteFiller(Filler):
    """A remote model that is ready to fill."""

    def __init__(self, backend: Backend, client: Client, local_only: tuple[str, ...] = ()) -> None:
        """Take over the client; it is closed with the filler."""
        self.backend, self.client, self.local_only = backend, client, local_only
        self.newer_patterns: Callable[[], tuple[str, ...]] = lambda: ()
        """What the user has come to keep here since the model was loaded."""
        self._board = Board()
        self._calibrations = Calibrations()
        self._end = weakref.finalize(self, client.close)

    @property
    def calibrations(self) -> Calibrations:
        """What says how sure a candidate is."""
        return self._calibrations

    def start(self, request: InfillRequest) -> RemoteTask:
        """Return the request as a task, nothing sent yet; raise ValueError for a file that must stay on this machine.

        What looks like a secret in any of its text is masked: the server sees only what comes after this.
        """
        allowed = shown(request, (*self.local_only, *self.newer_patterns()))
        masked = Shown(secrets.mask_request(allowed))
        return RemoteTask(self.backend, self.client, self._board, masked, self._calibrations.current())

    def about(self) -> Mapping[str, object]:
        """Return where the model runs, and what else is known of it."""
        return {"device": self.client.host, "dtype": "", **self.backend.about()}

    def close(self) -> None:
        """End the connection; tasks under way fail."""
        self._end()


@dataclass(slots=True)
class Sent:
    """Calls under way and over, apart from their task: its end finds them here."""

    calls: list[tuple[Call, Future[Fields]]] = field(default_factory=list)

    def drop(self) -> None:
        """Cancel what is under way, which closes its connections."""
        for _, future in self.calls:
            future.cancel()
        self.calls.clear()


class RemoteTask(Task):
    """One request under way; holes that the server can't fill together are filled one after another."""

    def __init__(
        self,
        backend: Backend,
        client: Client,
        board: Board,
        request: Shown,
        calibration: Calibration | None = None,
    ) -> None:
        """Hold the request."""
        self._calibration = calibration
        self._evidence: tuple[Evidence, ...] = ()
        self._backend, self._client, self._board, self._request = backend, client, board, request
        n_holes = len(request.holes)
        self._together = n_holes if n_holes == 1 or backend.takes_together(request) else 1
        self._part: Shown | None = None
        self._sent = Sent()
        self._parts: list[Candidate] = []
        self._answers: tuple[Candidate, ...] = ()
        self._tokens = {"tokens": 0, "reused": 0}
        self.milliseconds: dict[str, float] = {"prefill": 0.0, "draft": 0.0, "denoise": 0.0, "score": 0.0}
        self._number = board.join()
        self._end = weakref.finalize(self, _forget, self._sent, board, self._number)

    def step(self) -> bool:
        """Send what is next, or wait a moment for an answer; return whether more is to do. Raises RemoteError."""
        began = time.perf_counter()
        try:
            if self._part is None:
                self._send()
                return True
            self._board.wait(STEP_S)
            self._board.seen(self._number)
            return not all(future.done() for _, future in self._sent.calls) or self._settle()
        finally:
            self.milliseconds["denoise"] += (time.perf_counter() - began) * 1000

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the best answers so far, best first; unfinished ones while answers are to come."""
        if self._answers:
            return self._answers
        now = self._now()
        if len(self._request.holes) == self._together:
            return tuple(replace(candidate, finished=False) for candidate in now)
        texts = self.drafts()
        return (Candidate(texts, Ranked(doubted=True), finished=False),) if any(texts) else ()

    def drafts(self) -> tuple[str, ...]:
        """Return one text for each hole as the best answer so far has it."""
        if self._answers:
            return self._answers[0].texts
        texts = [text for part in self._parts for text in part.texts]
        texts += [text for candidate in self._now()[:1] for text in candidate.texts]
        return (*texts, *[""] * (len(self._request.holes) - len(texts)))

    def evidence(self) -> tuple[Evidence, ...]:
        """Return what is known of each answer, when all are there."""
        return self._evidence if len(self._request.holes) == 1 else ()

    def cache(self) -> Mapping[str, int]:
        """Return how many tokens the server read, and how many of them it had read before, as far as it tells."""
        return dict(self._tokens)

    def close(self) -> None:
        """Drop the calls that are under way."""
        self._end()

    def _send(self) -> None:
        """Ask for the next hole, or all of them."""
        self._part = self._next()
        board, number = self._board, self._number
        for call in self._backend.calls(self._part):
            self._sent.calls.append((call, self._client.send(call, lambda: board.add(number))))

    def _next(self) -> Shown:
        request = self._request
        if self._together == len(request.holes):
            return request
        return Shown(sequence.next_hole(request, [part.texts[0] for part in self._parts]))

    def _settle(self) -> bool:
        """Make of all answers what they come to; return whether holes are left."""
        assert self._part is not None
        outcomes = [(call, outcome_of(future)) for call, future in self._sent.calls]
        replies = [Reply(call, outcome) for call, outcome in outcomes if isinstance(outcome, Fields)]
        failures = [outcome for _, outcome in outcomes if isinstance(outcome, RemoteError)]
        # One answer of several is an answer.
        if failures and not replies:
            raise failures[0]
        for reply in replies:
            self._count(reply.fields)
        self._evidence = self._known(replies)
        candidates = calibration.to_candidates(self._evidence, self._calibration)
        self._sent.drop()
        if self._together == len(self._request.holes):
            self._answers = candidates
            return False
        if not candidates:
            return False
        self._parts.append(candidates[0])
        self._part = None
        if len(self._parts) < len(self._request.holes):
            return True
        self._answers = (sequence.whole(self._parts),)
        return False

    def _known(self, replies: Sequence[Reply]) -> tuple[Evidence, ...]:
        assert self._part is not None
        try:
            return self._backend.evidence(self._part, replies)
        except WireError as error:
            raise RemoteError(f"the answer of {self._client.host} can't be understood: {error}") from error

    def _now(self) -> tuple[Candidate, ...]:
        """Return what the answers come to that are there already, whole or in part."""
        replies = []
        for call, future in self._sent.calls:
            if future.done() and not future.cancelled() and future.exception() is None:
                replies.append(Reply(call, future.result()))
            elif not future.done() and call.listener and (answer := call.listener.answer(is_whole=False)):
                replies.append(Reply(call, answer))
        if self._part is not None and replies:
            # What is wrong with them is told when all are there.
            with contextlib.suppress(RemoteError):
                return calibration.to_candidates(self._known(replies), self._calibration)
        return ()

    def _count(self, fields: Fields) -> None:
        """Add up the tokens that a server tells of in OpenAI's shape; others are not counted."""
        with contextlib.suppress(WireError):
            usage = fields.inner("usage")
            self._tokens["tokens"] += usage.integer("prompt_tokens", 0)
            self._tokens["reused"] += usage.inner("prompt_tokens_details").integer("cached_tokens", 0)


def to_probability(logarithm: object) -> float:
    """Return the probability that a server tells by its logarithm; 0 where that is no number."""
    if not isinstance(logarithm, (int, float)):
        return 0.0
    try:
        found = math.exp(min(float(logarithm), 0.0))
    except OverflowError:
        return 0.0 if logarithm < 0 else 1.0
    return 0.0 if math.isnan(found) else found


def trimmed(text: str, confidences: tuple[float, ...], *, block: bool) -> tuple[str, tuple[float, ...]]:
    """Return a text up to the end of its line unless its hole is a block, with the confidences of about as many tokens."""
    ends = [at for mark in "\r\n" if (at := text.find(mark)) >= 0]
    if block or not ends:
        return text, confidences
    first_line = text[: min(ends)]
    return first_line, confidences[: -(-len(confidences) * len(first_line) // len(text))]


def token_features(logs: Sequence[float], text: str) -> dict[str, float]:
    """Return what the log-probabilities of an answer's tokens say of it, as a calibration weighs it."""
    mean = sum(logs) / len(logs) if logs else 0.0
    return {
        "told": float(bool(logs)),
        "sum": sum(logs),
        "mean": mean,
        "least": min(logs, default=0.0),
        "first": logs[0] if logs else 0.0,
        "length": math.log1p(len(text)),
        "blank": float(not text.strip()),
    }


def with_agreement(evidence: Sequence[Evidence], where: HolePosition) -> tuple[Evidence, ...]:
    """Return the evidence with how many other answers are the same, as features of the hole's position."""
    n_same = Counter(item.candidate.texts for item in evidence)
    n_others = len(evidence) - 1
    return tuple(
        replace(
            item,
            features=calibration.for_position(
                {
                    **item.features,
                    "asked": math.log1p(n_others),
                    "agree": (n_same[item.candidate.texts] - 1) / n_others if n_others else 0.0,
                },
                where,
            ),
        )
        for item in evidence
    )


def _forget(sent: Sent, board: Board, number: int) -> None:
    sent.drop()
    board.leave(number)
