"""What all models in this process share: a request as a task of units, and a filler that starts it.

Knows requests, candidates and the prefix cache. Knows nothing of how a model proposes texts or ranks them.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from dg_lsp.core import confidence
from dg_lsp.core.calibration import Evidence
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.common import answering
from dg_lsp.engine.common.calibration_store import Calibrations
from dg_lsp.engine.common.inputs import RequestInputs
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.common.pace import Pace, Timing
from dg_lsp.engine.common.task import Answering, Concurrency, Filler, HoleTask
from dg_lsp.engine.model import memory
from dg_lsp.engine.model.memory import Headroom
from dg_lsp.engine.model.prefix_cache import LEAST_BYTES, PrefixCache
from dg_lsp.engine.model.room import PrefixEncoder

AHEAD_CHUNK = 64  # tokens encoded in one step ahead of a request, for which a new request has to wait
LONGEST_QUIET_S = 8.0  # before `better_prompt` is read: twice `quiet_s` after each time that it was not read to its end


class LocalTask(HoleTask):
    """One running request of a model in this process."""

    def __init__(self, request: InfillRequest, filler: LocalFiller) -> None:
        super().__init__(request, fills_together=filler.fills_together(request))
        self._filler = filler
        self.inputs: RequestInputs | None = None  # of the hole under way
        self._due_at = math.inf
        self._timing = Timing(filler.pace)
        self.milliseconds = self._timing.milliseconds

    def step(self) -> bool:
        self._timing.began = time.perf_counter()
        try:
            with self._filler.loaded.cores.used(), torch.inference_mode():
                return super().step()
        finally:
            self._timing.switch(self._timing.stage)

    def finish_in(self, milliseconds: float) -> None:
        self._due_at = self._filler.pace.clock() + milliseconds / 1000

    def cache(self) -> dict[str, int]:
        return {"tokens": self._timing.prefix_tokens, "reused": self._timing.reused_tokens}

    def evidence(self) -> tuple[Evidence, ...]:
        if self.inputs is None or len(self.request.holes) > 1:
            return ()
        return tuple(answering.evidence(self.inputs, self.progress.proposals))

    def _fill(self, request: InfillRequest, n_left: int) -> Answering:
        now, timing = self._filler.pace.clock(), self._timing
        timing.switch("prefill")
        timing.due_at = now + (self._due_at - now) / n_left
        self.inputs = self._filler.inputs(request, timing.left_ms())
        answers = yield from self._filler.answer(self.inputs, timing)
        # An answer that is less likely than those shown will not be accepted.
        chance = confidence.probability(answers[0].confidence) if answers else None
        if answers and (chance is None or chance >= request.budget.least):
            self._filler.expect(request, accepted=answers[0].texts[0])
        return answers


class LocalFiller(Filler):
    """A loaded model that fills requests in this process. A request of full size has `canvas_tokens` to write.

    `clock` returns the seconds for planning deadlines. Keys and values are cached in `cache_dtype` if given.
    """

    calibrations: Calibrations
    concurrency: Concurrency = "in turns"
    quiet_s = math.inf
    """Seconds without a new request before `better_prompt` is read; infinite if there is never one."""

    def __init__(
        self,
        loaded: Loaded[Any, Any],
        layout: Any,
        canvas_tokens: int,
        clock: Callable[[], float],
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        profile, cost = loaded.profile, memory.cost(loaded.passes)
        n_read = profile.prefix_tokens + profile.suffix_tokens
        n_bytes = memory.cache_bytes(memory.free_bytes(loaded.device), n_read * cost.prefix_token, LEAST_BYTES)
        self.cache = PrefixCache(n_bytes, cache_dtype)
        self.loaded, self.layout, self.is_on_gpu = loaded, layout, loaded.device != "cpu"
        self.calibrations, self.pace = Calibrations(profile.calibration), Pace(clock)
        self.prefixes = PrefixEncoder(loaded.passes, loaded.device, self.cache)
        self.headroom = Headroom(loaded.device, self.cache, cost, n_read, canvas_tokens)
        self._expected: InfillRequest | None = None
        self._reading: Iterator[float] = iter(())  # ahead, for the expected request
        self._patience_s = self.quiet_s

    def start(self, request: InfillRequest) -> LocalTask:
        if request.question is not None and self.edit_refusal:
            raise ValueError(self.edit_refusal)
        return LocalTask(request, self)

    def prompt(self, request: InfillRequest, left_ms: float) -> Any:
        """Return a request as a prompt, for an answer in the time left."""
        return self.layout.lay_out(request)

    def better_prompt(self, request: InfillRequest) -> Any:
        """Return a prompt that gives better answers and needs more time than that for an answer; None without one."""
        return None

    @property
    def edit_refusal(self) -> str:
        """Why no question for the next edit can be answered, as a sentence; "" if it can."""
        return f"{self.loaded.name} writes no next edits: it does not write from left to right"

    @abstractmethod
    def inputs(self, request: InfillRequest, left_ms: float = math.inf) -> Any:
        """Return a request that is filled together as the inputs of its answer, for the time left."""

    @abstractmethod
    def answer(self, inputs: Any, timing: Timing) -> Answering:
        """Return the work that answers a request."""

    def fills_together(self, request: InfillRequest) -> bool:
        """Return whether the model fills several holes of a request together, and not in sequence."""
        return False

    def expect(self, request: InfillRequest, *, accepted: str | None = None) -> None:
        """Expect this request next, instead of any other. If this one is expected, expect it with its answer `accepted`."""
        if accepted is not None:
            if self._expected is not request or request.question is not None:
                return
            request = replace(request, prefix=request.prefix + accepted)
        # With several holes, the later prefixes depend on the answers, so only the single-hole case is prepared.
        is_able = request.question is None or not self.edit_refusal
        self._expected = request if len(request.holes) == 1 and is_able else None
        self._reading = self._read_ahead(request) if self._expected is not None else iter(())

    def limit(self, threads: int) -> None:
        self.loaded.cores.limit_to(threads)

    def foresee(self) -> float | None:
        """Encode one chunk of what is expected: for an answer, and when nothing happens, for a better one."""
        with torch.inference_mode():
            return next(self._reading, None)  # after an error, too: a retry would fail again

    def _read_ahead(self, request: InfillRequest) -> Iterator[float]:
        quiet_at = self.pace.clock() + self._patience_s
        for _ in self._encoded(self.prompt(request, request.budget.ms or math.inf)):
            yield 0.0
        while 0 < (left_s := quiet_at - self.pace.clock()) < math.inf:
            yield left_s
        if left_s <= 0 and (better := self.better_prompt(request)) is not None:
            # A user who always moves on sooner would make the model read one after another in vain.
            self._patience_s = min(2 * self._patience_s, LONGEST_QUIET_S)
            for n_left in self._encoded(better):
                if not n_left:
                    self._patience_s = self.quiet_s
                yield 0.0

    def _encoded(self, prompt: Any) -> Iterator[int]:
        """Encode a prefix chunk by chunk; yield how many tokens are left."""
        prefixes = self.prefixes
        if prefixes.cache.known(prompt.ids) == len(prompt.ids):
            return
        room = prefixes.room(prompt.ids)
        while len(room.positions) < len(prompt.ids):
            with self.loaded.cores.used():
                prefixes.encode(prompt.ids, room, prefixes.at_once(AHEAD_CHUNK))
            yield len(prompt.ids) - len(room.positions)

    def has_room(self) -> bool:
        return self.headroom.admits_request()

    def about(self) -> dict[str, object]:
        loaded = self.loaded
        return {
            "device": loaded.device,
            "dtype": loaded.dtype,
            "threads": loaded.cores.threads,
            "why": {**loaded.why, "threads": loaded.cores.why},
            "device_bytes": loaded.passes.n_bytes() + self.cache.bytes,
            "device_free_bytes": memory.free_bytes(loaded.device),
        }

    def trim(self) -> None:
        self.cache.clear()
        if (buffers := getattr(self.loaded.passes, "buffers", None)) is not None:  # those that no request uses
            buffers.clear()
