"""The patterns that read a repository's text, on 64 KB of the text that is the worst for each."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import PurePath

import pytest

from dg_lsp.batch import check, discover, plan, rounds, write
from dg_lsp.infill import workspace

N = 1 << 16
MOST_CPU_S = 0.25


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (discover._conflict_line, ("<" * 7 + "\n", "<<<<<<< a\n=======\n", "<", "<<<<<<< \r", "=======\n")),
        (check._STOPPED.search, ("!", "! ", "! stopping after 1 ", "! stopping after 1\n", "1")),
        (lambda text: rounds._VOLATILE.sub("", text), ("0x", "1", "1.", "1.1 msec", "1.1s ")),
        (plan._PLACE.match, ("a:1", ":1:1-", "a", "a:1:")),
        (plan._COMMENT.match, ("a:1:1", ":1:1-1:1", "a:1:1 ")),
        (write._TOKEN.findall, ("a", "a ", "(")),
        (lambda text: workspace._COMMENT.sub("", text), (" ", "#", " #", "\n", " ;")),
        (workspace._SECTION.split, ("[", "[]", "[] ", " ", "[]]  x\n", "[] \t\r", "] x")),
        (workspace._pairs, ("=", "a=", ":\n", " ")),
        (
            lambda text: workspace._fits(text, PurePath("a" * 200, "1b" * 100)),
            ("{a,b}", "{1..9}", "{", "{a,", "{,", "*a", "**a", "{1..99}{a,b}"),
        ),
    ],
)
def test_no_pattern_takes_long(read: Callable[[str], object], texts: tuple[str, ...]) -> None:
    for text in texts:
        for worst in (text * (N // len(text)), f"{text * (N // len(text))}x", f"[{text * (N // len(text))}"):
            start = time.process_time()
            read(worst)
            assert time.process_time() - start < MOST_CPU_S, text
