"""A keystroke on a prefix that is known, next to the same request cold: python tests/benchmarks/prefix_warm.py

Held-out tasks with long files, one thread, on the embedded model and on one of its shape whose window admits 1,000 tokens
of prefix; that one has random weights, on which its speed does not depend. "Known" is after the same request with a
character less, and what the engine does ahead while it idles. The two take turns, so that a busy machine is busy for
both. Prints a table; asserts nothing, as clocks differ.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import DiffusionGemmaForBlockDiffusion

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.backends.local import filler_of, load_model
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.common.local import LocalFiller
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.evaluate import tasks

TASKS = Path(__file__).parents[2] / "fixtures" / "eval" / "heldout.jsonl.gz"
WANTED = 5.0  # times less to the first candidate
N_TASKS = 24
LONG = 1000  # tokens


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds from a request's start, by the clock and of the processor."""

    first: float
    first_cpu: float
    done: float
    done_cpu: float
    n_prefix: int


def main() -> None:
    embedded = load_model(threads=1)
    longest = embedded.profile.prefix_tokens
    print("| model | prefix tokens | to | cold ms p50 | known ms p50 | times less | of the processor's | wanted | |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | --- |")
    for name, loaded, n_tokens in (
        ("embedded", embedded, longest),
        ("its shape, random weights", with_window(embedded, LONG), LONG),
    ):
        pairs = measured(filler_of(loaded), n_tokens)
        n_prefix = statistics.median(warm.n_prefix for _, warm in pairs)
        for moment in ("first", "done"):
            cold, warm = (statistics.median(getattr(pair[side], moment) for pair in pairs) for side in (0, 1))
            ratio, cpu = (
                statistics.median(getattr(cold, key) / getattr(warm, key) for cold, warm in pairs)
                for key in (moment, f"{moment}_cpu")
            )
            verdict = f"{WANTED:.1f} | {'held' if ratio >= WANTED else 'missed'}" if moment == "first" else "| "
            what = "first candidate" if moment == "first" else "done"
            print(f"| {name} | {n_prefix:.0f} | {what} | {cold:.0f} | {warm:.0f} | {ratio:.1f} | {cpu:.1f} | {verdict} |")


def with_window(loaded: Loaded[Any, Any], prefix_tokens: int) -> Loaded[Any, Any]:
    """Return a model of the same shape with fresh weights that reads so many tokens of prefix."""
    torch.manual_seed(0)
    model = DiffusionGemmaForBlockDiffusion(loaded.passes.model.config).eval().requires_grad_(False)
    return replace(loaded, passes=Passes(model), profile=replace(loaded.profile, prefix_tokens=prefix_tokens))


def measured(filler: LocalFiller, n_tokens: int) -> list[tuple[Times, Times]]:
    """Return the times of each task, cold and known."""
    requests = [
        request
        for task in tasks.read(TASKS)
        if not task.hole.block and len(filler.loaded.vocabulary.encode((request := task.request()).prefix)) > n_tokens
    ][:N_TASKS]
    timed(filler, requests[0])  # what a process does for the first time is slow
    pairs = []
    for request in requests:
        filler.cache.clear()
        cold = timed(filler, request)
        filler.cache.clear()
        before = replace(request, prefix=request.prefix[:-1])
        filler.expect(before)
        timed(filler, before)
        while filler.foresee():
            pass
        pairs.append((cold, timed(filler, request)))
    return pairs


def timed(filler: LocalFiller, request: InfillRequest) -> Times:
    """Fill a request; the first candidate is the first proposal, without a score."""
    began, began_cpu = time.perf_counter(), time.process_time()
    task = filler.start(request)
    first = first_cpu = 0.0
    more = True
    while more:
        more = task.step()
        if not first and (task.proposals() or not more):
            first, first_cpu = time.perf_counter() - began, time.process_time() - began_cpu
    total, total_cpu = time.perf_counter() - began, time.process_time() - began_cpu
    return Times(1000 * first, 1000 * first_cpu, 1000 * total, 1000 * total_cpu, task.cache()["tokens"])


if __name__ == "__main__":
    main()
