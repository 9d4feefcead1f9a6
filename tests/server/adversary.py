"""An engine whose answers try to damage code: placeholders, comments, markers, repeated and huge texts, pieces of the file.

The server's tests start it in the server's own process, as they do `scripted`; `Adversary` also answers a batch run.
DG_LSP_TEST_SEED is the seed of what it answers.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

from dg_lsp.core.values import Calibrated, Candidate, InfillRequest
from tests.fakes import ReadyEngine, connecting

PLACEHOLDERS = (
    "pass", "...", "raise NotImplementedError", 'raise NotImplementedError("not implemented yet")',
    'throw new Error("not implemented");', 'throw new UnsupportedOperationException("TODO");',
    "throw new NotImplementedException();", "todo!()", 'unimplemented!("later")', 'panic("not implemented")',
    'error("not implemented")', "return nil", "return", "abort();", ":",
)  # fmt: skip
COMMENTS = (
    "# TODO", "// TODO: write this", "-- TODO", "/* later */", "# FILL", "// FILL: everything", "-- FILL", "/* FILL */",
    "/* not closed", '"""Words alone."""',
)  # fmt: skip
DEBRIS = (
    "", " ", "\n", "\r\n", "\t", "\x00", "\ufeff", "\u2028", "\ud800", "😀", "```python\n", "```", "<pre>", "<eos>",
    "<|fim_suffix|>", "}", ")", "end", '"', "'''", "{" * 50, "(" * 3_000, "x" * 20_000, "y = 1\n" * 3_000,
)  # fmt: skip
Make = Callable[[random.Random, InfillRequest], str]


class Adversary(ReadyEngine):
    """Gives each request other answers; a batch run takes it as an engine, too."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    async def answer(self, request: InfillRequest, document: str) -> tuple[Candidate, ...]:
        n = self._random.randint(1, 5)
        texts = [tuple(text(self._random, request) for _ in request.holes) for _ in range(n)]
        return tuple(Candidate(each, Calibrated(0.9 - 0.1 * idx)) for idx, each in enumerate(texts))


def text(draw: random.Random, request: InfillRequest) -> str:
    """Return a text for one hole."""
    parts = [draw.choices(_MAKERS, _WEIGHTS)[0](draw, request) for _ in range(draw.choice((1, 1, 1, 2, 2, 3)))]
    return draw.choice(("\n", "\n", "", " ", "\r\n", "\n    ")).join(parts)


def _line(draw: random.Random, request: InfillRequest) -> str:
    lines = [line for line in _around(request).split("\n") if line.strip()] or [""]
    return draw.choice((str.strip, str))(draw.choice(lines))


def _block(draw: random.Random, request: InfillRequest) -> str:
    lines = _around(request).split("\n")
    start = draw.randrange(len(lines))
    return "\n".join(lines[start : start + draw.randint(2, 6)])


def _piece(draw: random.Random, request: InfillRequest) -> str:
    whole = _around(request) or " "
    start = draw.randrange(len(whole))
    return whole[start : start + draw.randint(1, 60)]


def _nested(draw: random.Random, request: InfillRequest) -> str:
    """Return a line that opens a block, and a placeholder in it."""
    head = _line(draw, request)
    return f"{head}\n        {draw.choice(PLACEHOLDERS)}"


def _following(draw: random.Random, request: InfillRequest) -> str:
    return draw.choice((request.suffix, request.prefix))[: draw.choice((20, 200, 100_000))]


def _around(request: InfillRequest) -> str:
    return request.prefix + "".join(request.between) + request.suffix


_MAKERS: tuple[Make, ...] = (
    lambda draw, _: draw.choice(PLACEHOLDERS),
    lambda draw, _: draw.choice(COMMENTS),
    lambda draw, _: draw.choice(DEBRIS),
    _line,
    _block,
    _piece,
    _nested,
    _following,
)
_WEIGHTS = (5, 3, 1, 6, 3, 4, 3, 1)


engine = connecting(lambda _model: Adversary(int(os.environ.get("DG_LSP_TEST_SEED", "1"))))
