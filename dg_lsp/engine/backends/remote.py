"""A request to a remote model as a task: its calls are sent together, and cancelled when the task is closed.

A step waits only briefly for an answer, so that cancellation, deadlines and other requests get their turn. This module
knows calls and candidates. The backend knows what a call contains and what an answer means.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from dg_lsp.core import calibration, secrets
from dg_lsp.core.calibration import Evidence
from dg_lsp.core.extent import Bounds
from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.backends.http_client import Call, RemoteError, ServerClient, outcome_of
from dg_lsp.engine.common.calibration_store import Calibrations
from dg_lsp.engine.common.question import Heads
from dg_lsp.engine.common.rank import NamesInText
from dg_lsp.engine.common.task import Answering, Filler, HoleTask, Progress
from dg_lsp.wire.config import Shown, shown
from dg_lsp.wire.messages import Fields, WireError

LEAST_CHANCE = 1e-9
STEP_S = 0.01
"""The longest wait of a step. A new request waits as long, because its calls are sent in its first step."""


Replies = Sequence[tuple[Call, Fields]]
"""Calls, each with its answer."""


class Backend(Protocol):
    """What `RemoteTask` needs to know of one kind of server. `model` is the name of the served model."""

    model: str

    def writes_edits(self) -> bool:
        """Return whether it can ask the server for the next edit."""
        return False

    def takes_together(self, request: InfillRequest) -> bool:
        """Return whether all of a request's holes can be filled in one call; by default each needs its own."""
        return False

    def calls(self, request: Shown) -> Sequence[Call]:
        """Return the calls to send together; raise RemoteError if the request does not fit the server."""

    def evidence(self, request: InfillRequest, replies: Replies) -> tuple[Evidence, ...]:
        """Return the answers so far as candidates with features; raise RemoteError or WireError for malformed ones."""

    def about(self) -> Mapping[str, object]:
        """Return facts about the model by name."""


class RemoteFiller(Filler):
    """Fills requests with a remote model."""

    calibrations: Calibrations

    def __init__(self, backend: Backend, client: ServerClient, local_only: tuple[str, ...] = ()) -> None:
        """Create a filler that owns the client and closes it."""
        self.backend, self.client, self.local_only = backend, client, local_only
        self.newer_patterns: Callable[[], tuple[str, ...]] = lambda: ()
        """Returns the `privacy.local_only` patterns of the current configuration, which may have changed since the start."""
        self.unread: set[Future[Fields]] = set()
        """The sent calls of all tasks whose answers no step has read. A waiting step ends as soon as one of them has one."""
        self._heads = Heads()
        self.calibrations = Calibrations()
        self._end = weakref.finalize(self, client.close)

    def start(self, request: InfillRequest) -> RemoteTask:
        """Return a task for the request; nothing is sent yet. Raises ValueError for a file that must stay on this machine.

        Text that looks like a secret is masked here, before the backend sees the request.
        """
        if request.question is not None and not self.backend.writes_edits():
            raise ValueError(f"{self.backend.model} is not asked for next edits this way; name it as fim:openai:URL#MODEL")
        # Servers encode what they have seen before only once, up to its first change.
        allowed_request = shown(self._heads.kept(request), (*self.local_only, *self.newer_patterns()))
        masked_request = Shown(secrets.mask_request(allowed_request))
        return RemoteTask(self, masked_request)

    def about(self) -> Mapping[str, object]:
        """Return where the model runs, and the backend's facts about it."""
        return {"device": self.client.host, "dtype": "", **self.backend.about()}

    def close(self) -> None:
        """Close the connection; running tasks fail."""
        self._end()


class RemoteTask(HoleTask):
    """One running request."""

    def __init__(self, filler: RemoteFiller, request: Shown) -> None:
        super().__init__(request, fills_together=filler.backend.takes_together(request))
        # What was measured of fills says nothing about edits.
        self._calibration = filler.calibrations.current() if request.question is None else None
        self._evidence = tuple[Evidence, ...]()
        self._backend, self._client, self._unread = filler.backend, filler.client, filler.unread
        self._part = request  # that is being filled
        self._sent: list[tuple[Call, Future[Fields]]] = []
        self._tokens = {"tokens": 0, "reused": 0}

    def evidence(self) -> tuple[Evidence, ...]:
        return self._evidence if len(self.request.holes) == 1 else ()

    def cache(self) -> Mapping[str, int]:
        """Return how many prompt tokens the server read, and how many of them were cached, if it reports this."""
        return dict(self._tokens)

    def close(self) -> None:
        super().close()
        self._drop()

    def _fill(self, request: InfillRequest, n_left: int) -> Answering:
        self._part = Shown(request)
        self._sent += [(call, self._client.send(call)) for call in self._backend.calls(self._part)]
        own = [future for _, future in self._sent]
        self._unread.update(own)
        is_waiting = True
        while is_waiting:
            yield Progress(self._texts, self._so_far)
            futures.wait(self._unread, STEP_S, futures.FIRST_COMPLETED)
            self._unread.difference_update(future for future in own if future.done())
            is_waiting = not all(future.done() for future in own)
        return self._received()

    def _received(self) -> tuple[Candidate, ...]:
        """Turn the finished calls into candidates."""
        outcomes = [(call, outcome_of(future)) for call, future in self._sent]
        replies = [(call, outcome) for call, outcome in outcomes if isinstance(outcome, Fields)]
        failures = [outcome for _, outcome in outcomes if isinstance(outcome, RemoteError)]
        # The request fails only if every call failed.
        if failures and not replies:
            raise failures[0]
        for _, answer in replies:  # the token counts, if the answer has them in OpenAI's shape
            with contextlib.suppress(WireError):
                usage = answer.inner("usage")
                self._tokens["tokens"] += usage.integer("prompt_tokens", 0)
                self._tokens["reused"] += usage.inner("prompt_tokens_details").integer("cached_tokens", 0)
        self._evidence = self._evidence_in(replies)
        self._drop()
        return calibration.to_candidates(self._evidence, self._calibration)

    def _drop(self) -> None:
        """Cancel the running calls, which closes their connections."""
        for _, future in self._sent:
            future.cancel()
            self._unread.discard(future)
        self._sent.clear()

    def _evidence_in(self, replies: Replies) -> tuple[Evidence, ...]:
        try:
            return self._backend.evidence(self._part, replies)
        except WireError as error:
            raise RemoteError(f"the answer of {self._client.host} can't be understood: {error}") from error

    def _so_far(self) -> tuple[Candidate, ...]:
        replies: list[tuple[Call, Fields]] = []
        for call, future in self._sent:
            if future.done() and not future.cancelled() and future.exception() is None:
                replies.append((call, future.result()))
            elif not future.done() and call.listener and (answer := call.listener.answer(is_whole=False)):
                replies.append((call, answer))
        # Malformed answers are reported once all have arrived.
        with contextlib.suppress(RemoteError):
            found = calibration.to_candidates(self._evidence_in(replies), self._calibration) if replies else ()
            return tuple(replace(candidate, finished=False) for candidate in found)
        return ()

    def _texts(self) -> tuple[str, ...]:
        return next((candidate.texts for candidate in self._so_far()), ())


def choices(fields: Fields) -> tuple[Fields, ...]:
    """Return the answers in the shape of OpenAI's API; raise WireError if there are none."""
    answers = fields.objects("choices")
    if not answers:
        raise WireError("choices is empty")
    return answers


def to_probability(logarithm: object) -> float:
    """Return the probability for a log-probability from a server; 0 if it is not a number."""
    if not isinstance(logarithm, (int, float)):
        return 0.0
    try:
        probability = math.exp(min(float(logarithm), 0.0))
    except OverflowError:
        return 0.0 if logarithm < 0 else 1.0
    return 0.0 if math.isnan(probability) else probability


def trimmed(text: str, confidences: tuple[float, ...], bounds: Bounds) -> tuple[str, tuple[float, ...]]:
    """Return the answer in a server's text, and about its share of the confidences."""
    own = bounds.of_server(text)
    return own, confidences if own == text else confidences[: -(-len(confidences) * len(own) // len(text))]


def token_features(chances: Sequence[float], text: str) -> dict[str, float]:
    """Return the features that a calibration weighs, from the probabilities of an answer's tokens."""
    logs = [math.log(max(chance, LEAST_CHANCE)) for chance in chances]
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


def compared(evidence: Sequence[Evidence], request: InfillRequest) -> tuple[Evidence, ...]:
    """Return the evidence with added features: the share of equal answers, their names, and the hole's position."""
    n_same = Counter(item.candidate.texts for item in evidence)
    n_others = len(evidence) - 1
    names, where = NamesInText(request), calibration.position(request)
    return tuple(
        replace(
            item,
            features=calibration.for_position(
                {
                    **item.features,
                    **names.features(item.candidate.texts[0]),
                    "asked": math.log1p(n_others),
                    "agree": (n_same[item.candidate.texts] - 1) / n_others if n_others else 0.0,
                },
                where,
            ),
        )
        for item in evidence
    )
