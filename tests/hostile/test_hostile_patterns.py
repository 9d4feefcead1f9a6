"""Patterns that search a whole text take time in proportion to its length, also in their worst text."""

from __future__ import annotations

import re
import time

import pytest

from dg_lsp.core import repository, secrets
from dg_lsp.core.scope import python
from dg_lsp.engine.backends import chat, http_client

SHORT, LONG = 16_384, 65_536
MOST_GROWTH = 9.0  # a time that grows with the square of the length grows 16 times
LEAST_S = 0.05  # a shorter time says nothing about growth
WORST = [
    *((shape, unit) for hint, shape in secrets._SHAPES for unit in (hint, f"{hint}a", f"{hint}a-")),
    (repository._TOKEN, "\t"),
    (repository._TOKEN, "\n"),
    (python._BLOCK_TARGET, "for a "),
    (python._BLOCK_TARGET, "a"),
    *((pattern, f"{word} [a] ") for word, pattern in python._COMPUTES),
    (chat._FENCE, "~"),
    (http_client._MARKUP, "<!a"),
    (http_client._MARKUP, "<script a"),
]


def seconds(pattern: re.Pattern[str], text: str) -> float:
    """Return the processor time of a search for all matches, the least of three."""
    times = list[float]()
    for _ in range(3):
        start = time.process_time()
        sum(1 for _ in pattern.finditer(text))
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize(("pattern", "unit"), WORST)
def test_the_time_of_a_search_grows_with_the_length_of_its_worst_text(pattern: re.Pattern[str], unit: str) -> None:
    short, long = (seconds(pattern, unit * (n // len(unit))) for n in (SHORT, LONG))
    assert long < max(LEAST_S, MOST_GROWTH * short)
