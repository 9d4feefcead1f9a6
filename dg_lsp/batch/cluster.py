"""Run a batch's requests on a Ray cluster: an engine of its own in each worker, and the same plan, journal and patch.

Requests that are ready at the same time go through one Ray Data pipeline (`map_batches`), so those that nothing comes before
are one; each level of the order, and each further round of answers, is another. Ray starts a worker that died anew, and
gives its requests to the others. A worker's answer to a request depends on the request alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import pickle
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.task import UserError
from dg_lsp.infill.port import Engine, EngineError
from dg_lsp.wire.model_names import is_remote

BATCH_REQUESTS = 4  # small, so that no worker has the last many to itself
QUIET_S = 0.05
N_IN_FLIGHT = 1 << 20  # Ray decides how many of the requests that are ready are under way
REMOTE_CPUS = 0.25  # of a worker that only waits for a server
INSTALL = "--ray needs Ray: pip install '/path/to/dg-lsp[ray]'"

# On a busy machine Ray's processes take longer to start than Ray waits for them.
_PATIENCE = {"RAY_raylet_start_wait_time_s": "180", "RAY_agent_register_timeout_ms": "180000"}

# Given a model's name, what is there to fill requests with it (`engine.task.Filler`).
Load = Callable[[str], Any]
Answer = tuple[tuple[Candidate, ...], str]
Waiting = asyncio.Future[tuple[Candidate, ...]]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Which cluster (`local`, `auto` or an address), and how many workers (0: one for each GPU, or else for each CPU)."""

    address: str
    n_workers: int = 0


def load_engine(model: str) -> Any:
    """Return a filler on the model, in this process, which has one CPU of its own."""
    from dg_lsp.engine import backends

    return backends.load_filler(model, threads=1)


class Worker:
    """What Ray keeps in each worker: a loaded model, called with a batch of rows."""

    def __init__(self, model: str, load: Load) -> None:
        """Load the model."""
        self._filler = load(model)

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return an answer for each row; a request that can't be answered has a sentence instead, and spoils no other."""
        # As bytes, so that Ray makes no tables of what is inside. They come from our own process.
        answers = [pickle.dumps(self._answer(pickle.loads(request))) for request in batch["request"]]  # noqa: S301
        return {"id": [int(number) for number in batch["id"]], "answer": answers}

    def _answer(self, request: InfillRequest) -> Answer:
        end = time.monotonic() + request.budget.ms / 1000 if request.budget.ms else math.inf
        try:
            task = self._filler.start(request)
            try:
                while task.step() and time.monotonic() < end:
                    pass
                return task.candidates()[: request.budget.candidates], ""
            finally:
                task.close()
        except (UserError, ValueError) as error:
            return (), str(error)
        # Whatever one request does to a model, the others go on. What the error says may hold code.
        except Exception as error:
            return (), f"the engine failed on this request ({type(error).__name__})"


def connecting(
    options: ClusterOptions, load: Load = load_engine
) -> Callable[[str, Callable[[str], None]], AbstractAsyncContextManager[Engine]]:
    """Return a way to connect to the cluster's engines."""

    @contextlib.asynccontextmanager
    async def connect(model: str, hear: Callable[[str], None]) -> AsyncIterator[Engine]:
        try:
            import ray
        except ImportError as error:
            raise EngineError(INSTALL) from error
        hear("starting Ray" if options.address == "local" else "joining the cluster")
        await asyncio.to_thread(_join, ray, options)
        engine = ClusterEngine(model, load, _shares(ray, model, options.n_workers))
        try:
            hear(f"starting {engine.shares['size']} workers")
            yield engine
        finally:
            await engine.close()
            await asyncio.to_thread(ray.shutdown)

    return connect


def _join(ray: Any, options: ClusterOptions) -> None:
    # Nothing is told to anybody about who uses Ray.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if options.address == "local":
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
    local = {"include_dashboard": False, "num_cpus": max(options.n_workers, os.cpu_count() or 1)}
    try:
        ray.init(
            address=options.address,
            log_to_driver=False,
            logging_level="ERROR",
            **(local if options.address == "local" else {}),
        )
    # Ray has an error for each way in which a cluster can be absent.
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise EngineError(f"there is no Ray cluster at {options.address}: {first}") from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def _shares(ray: Any, model: str, n_workers: int) -> dict[str, float]:
    """Return how many workers there are, and what share of the machines each has."""
    resources = ray.cluster_resources()
    n_cpus, n_gpus = resources.get("CPU", 1.0), int(resources.get("GPU", 0))
    if is_remote(model):
        return {"size": n_workers or max(1, int(n_cpus)), "num_cpus": REMOTE_CPUS, "num_gpus": 0}
    if n_gpus:
        return {"size": n_workers or n_gpus, "num_cpus": 1, "num_gpus": min(1.0, n_gpus / (n_workers or n_gpus))}
    size = n_workers or max(1, int(n_cpus))
    return {"size": size, "num_cpus": min(1.0, n_cpus / size), "num_gpus": 0}


@dataclass(slots=True)
class ClusterEngine:
    """Satisfies `infill.port.Engine`: whatever is asked at the same time is one pipeline."""

    model: str
    load: Load
    shares: Mapping[str, float]
    _waiting: dict[int, tuple[InfillRequest, Waiting]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _pump: asyncio.Task[None] | None = None

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        """Return the candidates that a worker found; raise EngineError when it could not, or the cluster failed."""
        future: Waiting = asyncio.get_running_loop().create_future()
        self._waiting[next(self._numbers)] = request, future
        if self._pump is None or self._pump.done():
            self._pump = asyncio.ensure_future(self._run())
        return await future

    async def close(self) -> None:
        """Wait for the pipeline that runs, whose results nobody wants any more, as far as it is still wanted."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)

    async def _run(self) -> None:
        while self._waiting:
            n_before = 0
            # What is ready at the same time is asked for before the loop has nothing else to do.
            while len(self._waiting) > n_before:
                n_before = len(self._waiting)
                await asyncio.sleep(QUIET_S)
            wave, self._waiting = self._waiting, {}
            rows = [
                {"id": number, "request": pickle.dumps(request)}
                for number, (request, future) in wave.items()
                if not future.done()
            ]
            futures = {number: future for number, (_, future) in wave.items()}
            problem = "Ray returned no answer"
            try:
                await asyncio.to_thread(self._map, rows, partial(_answered, asyncio.get_running_loop(), futures))
            # Ray has many errors; whichever it was, the holes stay open with its sentence.
            except Exception as error:
                problem = f"Ray failed: {str(error).strip().partition(chr(10))[0]}"
            for future in futures.values():
                _settle(future, ((), problem))

    def _map(self, rows: Sequence[Mapping[str, Any]], answered: Callable[[int, Answer], None]) -> None:
        """Send the rows through the workers, and tell each answer as it comes."""
        import ray

        if not rows:
            return
        size = int(min(self.shares["size"], len(rows)))
        per_batch = max(1, min(BATCH_REQUESTS, len(rows) // size))
        pipeline = ray.data.from_items(list(rows), override_num_blocks=-(-len(rows) // per_batch)).map_batches(
            Worker,
            fn_constructor_args=(self.model, self.load),
            compute=ray.data.ActorPoolStrategy(size=size),
            batch_size=per_batch,
            num_cpus=self.shares["num_cpus"],
            num_gpus=self.shares["num_gpus"],
        )
        for row in pipeline.iter_rows():
            answered(int(row["id"]), pickle.loads(row["answer"]))  # noqa: S301 -- from our own workers


def _answered(loop: asyncio.AbstractEventLoop, futures: Mapping[int, Waiting], number: int, answer: Answer) -> None:
    loop.call_soon_threadsafe(_settle, futures[number], answer)


def _settle(future: Waiting, answer: Answer) -> None:
    candidates, problem = answer
    if not future.done() and problem:
        future.set_exception(EngineError(problem))
    elif not future.done():
        future.set_result(candidates)
