"""Signatures of long files, as they were a moment ago.

A request sends the signatures that lie outside its window, and finding them walks the whole tree: a tenth of a second in a
file of ten thousand lines, at each keystroke. Here they are found beside, now and then, and a request takes those of the
last time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span

FRESH_S = 30.0
# The request that finds the outline old goes out before it is found anew.
PAUSE_S = 0.05

Signatures = tuple[tuple[Span, str], ...]


class _Outlined(Syntax):
    """A syntax that knows its outline already, though perhaps that of the text a moment ago."""

    known: Signatures = ()

    def outline(self) -> Signatures:
        """Return the signatures as they were found."""
        return self.known


class Outlines:
    """The last outlines of long documents, by their URIs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Know none."""
        self._clock = clock
        self._found: dict[str, tuple[float, Signatures]] = {}
        self._finding: dict[str, asyncio.Task[None]] = {}

    def quick(
        self, uri: str, syntax: Syntax | None, window_chars: int, whole: Callable[[], Syntax | None] | None = None
    ) -> Syntax | None:
        """Return the syntax with an outline that costs nothing, and have it found anew where it is old.

        `whole` gives the syntax of all of the text, where this one is of a part. A text that fits the window on either side
        has no signatures outside of it.
        """
        if syntax is None:
            return None
        at, known = self._found.get(uri, (-FRESH_S, ()))
        if len(syntax.text) <= window_chars:
            known = ()
        elif self._clock() - at >= FRESH_S and uri not in self._finding:
            self._finding[uri] = asyncio.ensure_future(self._find(uri, whole or (lambda: syntax)))
        quick = _Outlined(syntax.text, syntax.language, syntax.tree, syntax.offsets, syntax.parts)
        # What was derived from the text already need not be derived again; a frozen value's attributes are set so.
        quick.__dict__.update(syntax.__dict__)
        quick.__dict__["known"] = known
        return quick

    def forget(self, uri: str) -> None:
        """Forget a document that was closed."""
        self._found.pop(uri, None)

    async def close(self) -> None:
        """End what is under way."""
        for task in self._finding.values():
            task.cancel()
        await asyncio.gather(*self._finding.values(), return_exceptions=True)

    async def _find(self, uri: str, whole: Callable[[], Syntax | None]) -> None:
        try:
            await asyncio.sleep(PAUSE_S)
            syntax = whole()
            self._found[uri] = (self._clock(), await asyncio.to_thread(syntax.outline) if syntax is not None else ())
        finally:
            self._finding.pop(uri, None)
