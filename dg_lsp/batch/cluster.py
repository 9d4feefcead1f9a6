"""Run a batch's requests on a Ray cluster. Each worker has its own engine; plan, journal and patch stay the same.

Requests that are ready at the same time go through one Ray Data pipeline (`map_batches`): first those of all holes, later those
of each retry. Ray restarts a worker that died, and gives its requests to the others. A worker's answer depends only on the
request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import pickle
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from dg_lsp.batch.plan import PlanError
from dg_lsp.client.port import Engine, EngineError
from dg_lsp.core import wording
from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.common.task import UserError
from dg_lsp.wire.extras import install_command
from dg_lsp.wire.model_names import is_remote

BATCH_REQUESTS = 4  # small, so that the last requests are spread over the workers
QUIET_S = 0.05
N_IN_FLIGHT = 1 << 20  # Ray decides how many of the ready requests run at once
REMOTE_CPUS = 0.25  # for a worker that only waits for a server

# On a busy machine Ray's processes start more slowly than Ray's own timeouts allow.
_PATIENCE = {"RAY_raylet_start_wait_time_s": "180", "RAY_agent_register_timeout_ms": "180000"}

# Returns a filler (`engine.common.task.Filler`) for a model's name.
Load = Callable[[str], Any]
ClusterAnswer = tuple[tuple[Candidate, ...], str]
Waiting = asyncio.Future[tuple[Candidate, ...]]


def load_engine(model: str) -> Any:
    """Return a filler for the model in this process, which has one CPU."""
    from dg_lsp.engine import backends

    return backends.load_filler(model, threads=1)


class RayWorker:
    """The object in each Ray worker: a loaded model, called with a batch of rows."""

    def __init__(self, model: str, load: Load) -> None:
        """Load the model."""
        self._filler = load(model)

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return an answer for each row. A request that fails gets an error sentence and does not affect the others."""
        # As bytes, so that Ray does not convert the contents into tables. The bytes come from our own process.
        answers = [pickle.dumps(self._answer(pickle.loads(request))) for request in batch["request"]]  # noqa: S301
        return {"id": [int(number) for number in batch["id"]], "answer": answers}

    def _answer(self, request: InfillRequest) -> ClusterAnswer:
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
        # One failed request must not end the others. The error's message is left out, because it may contain code.
        except Exception as error:
            return (), f"the engine failed on this request ({type(error).__name__})"


def connecting(
    address: str, n_workers: int = 0, load: Load = load_engine
) -> Callable[[str, Callable[[str], None]], AbstractAsyncContextManager[Engine]]:
    """Return a way to connect to the engines of a cluster: `local`, `auto` or an address.

    `n_workers` is the number of workers; with 0 there is one per GPU, or else one per CPU.
    """

    @contextlib.asynccontextmanager
    async def connect(model: str, on_progress: Callable[[str], None]) -> AsyncIterator[Engine]:
        try:
            import ray
        except ImportError as error:
            raise PlanError(f"--ray needs Ray, which is not installed; install it with: {install_command('ray')}") from error
        on_progress("starting Ray" if address == "local" else "joining the cluster")
        await asyncio.to_thread(_join, ray, address, n_workers)
        engine = ClusterEngine(model, load, _shares(ray, model, n_workers))
        try:
            on_progress(f"starting {engine.shares['size']} workers")
            yield engine
        finally:
            await engine.close()
            await asyncio.to_thread(ray.shutdown)

    return connect


def _join(ray: Any, address: str, n_workers: int) -> None:
    # Ray must not send usage statistics.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == "local":
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
    local = {"include_dashboard": False, "num_cpus": max(n_workers, os.cpu_count() or 1)}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **(local if address == "local" else {}))
    # Ray raises different classes for the reasons why a cluster can't be joined.
    except Exception as error:
        what = "Ray can't start here" if address == "local" else f"there is no Ray cluster at {address}"
        raise EngineError(f"{what}: {wording.reason(error)}") from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def _shares(ray: Any, model: str, n_workers: int) -> dict[str, float]:
    """Return the number of workers, and the CPUs and GPUs of each."""
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
    """Satisfies `client.port.Engine`; requests that arrive together share one pipeline."""

    model: str
    load: Load
    shares: Mapping[str, float]
    _waiting: list[tuple[InfillRequest, Waiting]] = field(default_factory=list)
    _pump: asyncio.Task[None] | None = None

    async def fill(self, request: InfillRequest) -> tuple[Candidate, ...]:
        """Return a worker's candidates; raise EngineError if the request or the cluster failed."""
        future: Waiting = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.ensure_future(self._run())
        return await future

    async def close(self) -> None:
        """Stop the loop that starts pipelines."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)

    async def _run(self) -> None:
        while self._waiting:
            n_before = 0
            # Wait until no further request arrives, so that all requests that are ready share one pipeline.
            while len(self._waiting) > n_before:
                n_before = len(self._waiting)
                await asyncio.sleep(QUIET_S)
            wave, self._waiting = [(request, future) for request, future in self._waiting if not future.done()], []
            rows = [{"id": number, "request": pickle.dumps(request)} for number, (request, _) in enumerate(wave)]
            problem, loop = "Ray returned no answer", asyncio.get_running_loop()

            def answered(number: int, answer: ClusterAnswer) -> None:
                loop.call_soon_threadsafe(_settle, wave[number][1], answer)  # noqa: B023 -- the loop waits for the pipeline

            try:
                await asyncio.to_thread(self._map, rows, answered)
            # Ray raises many classes. For all of them, the holes stay open with the error's message.
            except Exception as error:
                problem = f"Ray failed: {wording.reason(error)}"
            for _, future in wave:
                _settle(future, ((), problem))

    def _map(self, rows: Sequence[Mapping[str, Any]], answered: Callable[[int, ClusterAnswer], None]) -> None:
        """Send the rows through the workers; call `answered` with each answer as it arrives."""
        import ray

        if not rows:
            return
        size = int(min(self.shares["size"], len(rows)))
        per_batch = max(1, min(BATCH_REQUESTS, len(rows) // size))
        pipeline = ray.data.from_items(list(rows), override_num_blocks=-(-len(rows) // per_batch)).map_batches(
            RayWorker,
            fn_constructor_args=(self.model, self.load),
            compute=ray.data.ActorPoolStrategy(size=size),
            batch_size=per_batch,
            num_cpus=self.shares["num_cpus"],
            num_gpus=self.shares["num_gpus"],
        )
        for row in pipeline.iter_rows():
            answered(int(row["id"]), pickle.loads(row["answer"]))  # noqa: S301 -- from our own workers


def _settle(future: Waiting, answer: ClusterAnswer) -> None:
    candidates, problem = answer
    if not future.done() and problem:
        future.set_exception(EngineError(problem))
    elif not future.done():
        future.set_result(candidates)
