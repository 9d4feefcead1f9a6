"""Encode the prefix of the next probable request while the engine is idle.

Knows requests, prefixes and the texts of answers. Knows nothing of rows or scores.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.layout import Layout
from dg_lsp.engine.local.prefixes import PrefixEncoder

AHEAD_CHUNK = 64  # tokens encoded in one step, for which a new request has to wait


class ReadAhead:
    """The expected request, and the progress of encoding its prefix."""

    def __init__(self, layout: Layout, prefixes: PrefixEncoder) -> None:
        self._layout, self._prefixes = layout, prefixes
        self._expected: InfillRequest | None = None
        self._ids: tuple[int, ...] = ()
        self._is_guess = False

    def expect(self, request: InfillRequest) -> None:
        """Expect this request next, instead of any other."""
        # With several holes, the later prefixes depend on the answers, so only the single-hole case is prepared.
        self._expected, self._ids, self._is_guess = request if len(request.holes) == 1 else None, (), False

    def expect_accepted(self, request: InfillRequest, text: str) -> None:
        """Expect the same request with its answer accepted, unless another request is expected by now."""
        if self._expected is request:
            self.expect(replace(request, prefix=request.prefix + text))
            self._is_guess = True

    def read(self) -> bool:
        """Encode one chunk of the expected prefix; return whether more remains."""
        if self._expected is None:
            return False
        try:
            ids = self._ids or self._layout.lay_out(self._expected).kv
            n_encoded, kv = self._prefixes.cache.longest(ids, ahead=True)
            if n_encoded < len(ids):
                with torch.inference_mode():
                    n_encoded, _ = self._prefixes.encode(ids, n_encoded, kv, AHEAD_CHUNK, is_guess=self._is_guess)
        except BaseException:
            self._expected = None  # a retry would fail again
            raise
        self._ids = ids
        if n_encoded == len(ids):
            self._expected = None
        return self._expected is not None
