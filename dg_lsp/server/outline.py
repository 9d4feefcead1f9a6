"""A cache of the signatures in long files.

A request sends the signatures outside its window. Collecting them walks the whole syntax tree, which takes a tenth of a
second in a file of ten thousand lines. This module collects them in a thread at most every 30 seconds, and each request
uses the last result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span
from dg_lsp.server.background import Background

FRESH_S = 30.0
# Wait this long before collecting, so that the request that needs the outline is sent first.
PAUSE_S = 0.05

Signatures = tuple[tuple[Span, str], ...]


class _SyntaxWithOutline(Syntax):
    """A syntax with a cached outline, which may be that of a slightly older text."""

    cached_outline: Signatures = ()

    def outline(self) -> Signatures:
        """Return the cached signatures."""
        return self.cached_outline


class Outlines:
    """The cached outlines of long documents, by URI."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start empty; `clock` returns the time in seconds."""
        self._signatures = Background[str, Signatures](clock, (), fresh_s=FRESH_S)

    def quick(
        self, uri: str, syntax: Syntax | None, window_chars: int, whole: Callable[[], Syntax | None] | None = None
    ) -> Syntax | None:
        """Return the syntax with its cached outline; start collecting it again when it is old.

        `whole` returns the syntax of the whole text, when `syntax` covers only a part. A text that fits into the window
        gets an empty outline, because no signature lies outside.
        """
        if syntax is None:
            return None
        signatures: Signatures = ()
        if len(syntax.text) > window_chars:
            self._signatures.renew(uri, lambda: _collect(whole or (lambda: syntax)))
            signatures = self._signatures.get(uri)
        quick = _SyntaxWithOutline(syntax.text, syntax.language, syntax.tree, syntax.offsets, syntax.parts)
        # Copy the cached properties too, so that they are not computed again. The class is frozen, so write to __dict__.
        quick.__dict__.update(syntax.__dict__)
        quick.__dict__["cached_outline"] = signatures
        return quick

    def forget(self, uri: str) -> None:
        """Forget a document that was closed."""
        self._signatures.forget(uri)

    async def close(self) -> None:
        """Stop all collecting."""
        await self._signatures.close()


async def _collect(whole: Callable[[], Syntax | None]) -> Signatures:
    await asyncio.sleep(PAUSE_S)
    syntax = whole()
    return await asyncio.to_thread(syntax.outline) if syntax is not None else ()
