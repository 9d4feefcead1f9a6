"""What the engine said, or is about to say, at the places of the open documents: one table for all requests.

An answer is a task that is done or not. A request looks into the table each time something changes, so it never asks the
engine for what another request, or a look-ahead, has asked already.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dg_lsp.client.port import EngineError
from dg_lsp.core.syntax import difference
from dg_lsp.server.cursor import Cursor, rests, typed
from dg_lsp.server.reasons import Reason

if TYPE_CHECKING:
    from dg_lsp.core.polish import Suggestion  # imported for the first request

MAX_ANSWERS = 100
FRESH_S = 300.0
# A running answer that no request waits for goes on for this long, because the next keystroke's request may join it.
GRACE_S = 0.15
# A running answer probably doesn't begin with more text than this.
MAX_TYPED_CHARS = 8
# An import rarely begins so far before the cursor.
MAX_IMPORT_CHARS = 200


@dataclass(frozen=True, slots=True)
class Result:
    """What the engine said: the suggestions, best first, of so many candidates, or the reason why there are none.

    Only a result that `is_kept` is for later requests.
    """

    n_candidates: int
    suggestions: tuple[Suggestion, ...] = ()
    reason: Reason | None = None
    error: EngineError | None = None
    is_kept: bool = False


@dataclass(eq=False, slots=True)
class Answer:
    """The engine's answer for a place and a number of candidates: its work, which may still run.

    `until` is when later requests stop using it, and `n_waiting` how many requests wait for it.
    """

    cursor: Cursor
    n_candidates: int
    started: float
    is_ahead: bool
    task: asyncio.Task[Result]
    until: float = math.inf
    n_waiting: int = 0

    @property
    def result(self) -> Result | None:
        """What the engine said; None while it works, and when the work was cancelled."""
        return self.task.result() if self.task.done() and not self.task.cancelled() else None


def joins(then: Cursor, now: Cursor, *, age_ms: float, latency_ms: float) -> bool:
    """Return whether to wait for a running answer for an earlier place instead of asking the engine again.

    That is so when nothing changed, or when at most 8 characters were typed on the same line and at least half of the usual
    latency has passed. The answer may then begin with the typed text.
    """
    if (typing := typed(then, now)) is None:
        return False
    text, _ = typing
    return not text or (len(text) <= MAX_TYPED_CHARS and "\n" not in text and age_ms >= latency_ms / 2)


def _as_judged(suggestions: tuple[Suggestion, ...], then: Cursor, now: Cursor) -> tuple[Suggestion, ...]:
    """Return the suggestions for an earlier place, without imports if other files have changed, which may lack them now."""
    lines = then.before[-MAX_IMPORT_CHARS:]
    return tuple(each for each in suggestions if then.others == now.others or "import" not in lines + each.text)


class Answers:
    """The answers of one session, oldest first. At most one is made for a document at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with no answer; `clock` returns the time in seconds."""
        self._clock = clock
        self._answers: list[Answer] = []
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._answers)

    def find(
        self, now: Cursor, shows: Callable[[tuple[Suggestion, ...]], bool] = lambda _: True, own: Answer | None = None
    ) -> Result | None:
        """Return the result for this place, or the rest of one from which the user has typed on; None when nothing fits.

        Typed text makes the rest of an answer likelier than it was. So one from another place fits only if `shows` says that
        some of it may be shown already, and then goes before an answer for this place of which nothing may. `own` is the
        answer that the request has waited for; it also counts if it isn't kept.
        """
        here: Result | None = None
        fits: list[tuple[int, Result]] = []  # each with the number of characters typed since
        time = self._clock()
        for answer in [own, *reversed(self._answers)] if own else reversed(self._answers):
            typing = typed(answer.cursor, now)
            if (result := answer.result) is None or typing is None or (answer is not own and time > answer.until):
                continue
            if typing == ("", "") and answer.cursor == now:
                here = here or result
            elif left := rests(_as_judged(result.suggestions, answer.cursor, now), typing):
                fits.append((len(typing[0]), replace(result, suggestions=left)))
        if here is not None and (not here.suggestions or shows(here.suggestions)):
            return here
        # Prefer the answer with the least typed text: it was made with the most of the current context.
        shown = [(n_typed, result) for n_typed, result in fits if shows(result.suggestions)]
        return min(shown, key=lambda fit: fit[0], default=(0, here))[1]

    def running(self, now: Cursor, n_candidates: int, latency_ms: float = 0.0) -> Answer | None:
        """Return the running answer that may fit a cursor and has so many candidates; None when there is none.

        With the engine's usual `latency_ms`, only one that is worth waiting for; see `joins`.
        """
        for answer in self._answers:
            age_ms = 1000 * (self._clock() - answer.started)
            is_wanted = not answer.task.done() and answer.n_candidates >= n_candidates and answer.until == math.inf
            if is_wanted and joins(answer.cursor, now, age_ms=age_ms, latency_ms=latency_ms):
                return answer
        return None

    def is_asked(self, uri: str) -> bool:
        """Return whether the engine works on an answer for a document, other than one that is asked ahead."""
        return any(answer.cursor.uri == uri and not answer.task.done() and not answer.is_ahead for answer in self._answers)

    def start(
        self, cursor: Cursor, n_candidates: int, work: Coroutine[None, None, Result], *, is_ahead: bool = False
    ) -> Answer:
        """Return a new answer; the document's older work is cancelled, because the engine would do that first."""
        for older in self._of(cursor.uri):
            older.task.cancel()
        task = asyncio.get_running_loop().create_task(work)
        answer = Answer(cursor, n_candidates, self._clock(), is_ahead, task)
        self._answers.append(answer)
        task.add_done_callback(lambda _: self._settle(answer))
        return answer

    async def change(self, answer: Answer | None = None, timeout_s: float | None = None) -> None:
        """Wait until an answer has come, a request was replaced, or the time is over. Meanwhile the work for `answer` goes on.

        It is cancelled some time after the last request that waits for it, unless it is asked ahead.
        """
        if answer is not None:
            answer.n_waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            if answer is not None:
                answer.n_waiting -= 1
                if not (answer.n_waiting or answer.is_ahead or answer.task.done()):
                    asyncio.get_running_loop().call_later(GRACE_S, lambda: answer.n_waiting or answer.task.cancel())

    def wake(self) -> None:
        """Let all requests look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def forget(self, uri: str) -> None:
        """Forget a document that was closed."""
        for answer in self._of(uri):
            answer.task.cancel()
        self._answers = [answer for answer in self._answers if answer.cursor.uri != uri]

    def change_text(self, uri: str, before: str, text: str) -> None:
        """Move the places in a document whose text changed."""
        change = difference(before, text)
        for answer in self._of(uri):
            answer.cursor = answer.cursor.moved(before, change)

    def clear(self) -> None:
        """Forget all answers. Who waits for a running one gets it, and later requests don't."""
        self._answers = [answer for answer in self._answers if not answer.task.done()]
        for answer in self._answers:
            answer.until = -math.inf

    async def close(self) -> None:
        """Cancel all work."""
        tasks = [answer.task for answer in self._answers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _of(self, uri: str) -> list[Answer]:
        return [answer for answer in self._answers if answer.cursor.uri == uri]

    def _settle(self, answer: Answer) -> None:
        """Keep an answer that has come, in place of an older one for its place, or drop it."""
        if answer in self._answers:
            self._answers.remove(answer)
            if (result := answer.result) and result.is_kept and answer.until == math.inf:
                answer.until = self._clock() + FRESH_S
                others = [other for other in self._answers if other.cursor != answer.cursor or not other.task.done()]
                self._answers = [*others, answer][-MAX_ANSWERS:]
        self.wake()
