"""Time the first answer of a new process, beyond importing torch: python tests/benchmarks/cold_engine.py [RUNS]

Each run is a process that imports torch, then loads the embedded model and fills one line, on one thread. Prints the medians in
seconds, by the clock and of the processor. It does not include starting Python and the HTTP server. Asserts nothing, as
clocks differ.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

FILL = "def mean(numbers):\n    total = 0\n    for number in numbers:\n        total += number\n" * 20 + "    return "


def once() -> dict[str, float]:
    """Return the seconds of importing torch, and of all that follows until the first answer, in this process."""
    times = [(time.perf_counter(), time.process_time())]
    import torch  # noqa: F401

    times.append((time.perf_counter(), time.process_time()))
    from dg_lsp.core.values import Hole, InfillRequest, Span
    from dg_lsp.engine.backends.local import filler_of, load_model

    task = filler_of(load_model(threads=1)).start(InfillRequest(FILL, "\n", (Hole(Span(0, 0), "cursor"),)))
    while task.step():
        pass
    assert task.candidates()
    times.append((time.perf_counter(), time.process_time()))
    (began, began_cpu), (imported, imported_cpu), (answered, answered_cpu) = times
    return {
        "torch": imported - began,
        "torch cpu": imported_cpu - began_cpu,
        "answer": answered - imported,
        "answer cpu": answered_cpu - imported_cpu,
    }


def main(n_runs: int) -> None:
    """Print the medians of some processes."""
    command = [sys.executable, __file__, "--once"]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(n_runs)]
    print("| part | seconds | of the processor |\n| --- | --- | --- |")
    for name, part in (("import torch", "torch"), ("from there to the first answer", "answer")):
        clock, processor = (statistics.median(run[key] for run in runs) for key in (part, f"{part} cpu"))
        print(f"| {name} | {clock:.2f} | {processor:.2f} |")


if __name__ == "__main__":
    if sys.argv[1:] == ["--once"]:
        print(json.dumps(once()))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
