"""Guess the language at 500 cursor positions in held-out files: python tests/benchmarks/guess_language.py [N] [SEED]

All of them are Python. Each is asked about with all of the text, and with 2,000 characters on each side, as clients of
completion endpoints cut it. Prints how often it was said, how often another was, and the processor time that it took.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from dg_lsp.core import guess  # noqa: E402  # found only now
from tests.benchmarks import arguments  # noqa: E402
from tests.e2e import positions  # noqa: E402


def main(n: int, seed: int) -> int:
    samples = positions.positions(n, seed)
    guess.language("def f():\n    return 1\n")  # loads a grammar
    rows = [("text", "said", "another", "ms p50", "p95", "most")]
    for name, most in (("all", 10**9), ("2,000 characters on each side", 2_000)):
        guesses, took = list[str](), list[float]()
        for position in samples:
            before, after = position.before[-most:], position.after[:most]
            begin = time.process_time()
            guesses.append(guess.language(before, after))
            took.append(1000 * (time.process_time() - begin))
        took.sort()
        another = sum(each not in ("", "python") for each in guesses)
        times = (took[len(took) // 2], took[len(took) * 95 // 100], took[-1])
        p50, p95, longest = (f"{ms:.1f}" for ms in times)
        rows.append((name, f"{guesses.count('python') / len(guesses):.0%}", str(another), p50, p95, longest))
    print(positions.table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*arguments.parsed(__doc__, n=500, seed=1)))
