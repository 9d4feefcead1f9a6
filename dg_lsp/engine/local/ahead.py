"""Read ahead while the engine is idle: the prefix of the request that will probably come next.

Knows requests and prefixes. Knows nothing of answers but their text.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.layout import Layout
from dg_lsp.engine.local.prefixes import PrefixEncoder

AHEAD_CHUNK = 64  # tokens encoded in one step: whoever asks meanwhile has to wait for it


class ReadAhead:
    """The request that is expected next, and how far its prefix is read."""

    def __init__(self, layout: Layout, prefixes: PrefixEncoder) -> None:
        self._layout, self._prefixes = layout, prefixes
        self._expected: InfillRequest | None = None
        self._ids: tuple[int, ...] = ()
        self._is_guess = False

    def expect(self, request: InfillRequest) -> None:
        """Take a request as the one that will probably come next."""
        # What several holes are read behind depends on how they are filled.
        self._expected, self._ids, self._is_guess = request if len(request.holes) == 1 else None, (), False

    def expect_accepted(self, request: InfillRequest, text: str) -> None:
        """Expect the request with its answer accepted, unless another request is expected by now."""
        if self._expected is request:
            self.expect(replace(request, prefix=request.prefix + text))
            self._is_guess = True

    def read(self) -> bool:
        """Encode a little of the expected prefix; return whether there is more of it."""
        if self._expected is None:
            return False
        try:
            ids = self._ids or self._layout.lay_out(self._expected).kv
            known, kv = self._prefixes.cache.longest(ids, ahead=True)
            if known < len(ids):
                with torch.inference_mode():
                    known, _ = self._prefixes.encode(ids, known, kv, AHEAD_CHUNK, is_guess=self._is_guess)
        except BaseException:
            self._expected = None  # what failed would fail again
            raise
        self._ids = ids
        if known == len(ids):
            self._expected = None
        return self._expected is not None
