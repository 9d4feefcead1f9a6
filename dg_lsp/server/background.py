"""Values that are read in the background, so that no request waits for them: each request uses the last one.

One of them is the outline of a long file. A request sends the signatures outside its window, and collecting them walks the
whole syntax tree, which takes a tenth of a second in a file of ten thousand lines.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Background(Generic[Key, Value]):
    """The last value of each key, and the tasks that read new ones."""

    def __init__(self, clock: Callable[[], float], unread: Value, *, fresh_s: float, share: float = 0.0) -> None:
        """Start with `unread` for every key.

        A value is old after `fresh_s` seconds, or after `share` times as long as it took to read.
        """
        self._clock, self._unread, self._fresh_s, self._share = clock, unread, fresh_s, share
        self._values: dict[Key, tuple[Value, float]] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def get(self, key: Key) -> Value:
        """Return the last value of a key."""
        return self._values.get(key, (self._unread, 0.0))[0]

    def renew(self, key: Key, read: Callable[[], Awaitable[Value]]) -> asyncio.Task[None] | None:
        """Start reading a value if it is old; return the task that reads it, or None if it is not old.

        The task is cancelled when the key is forgotten.
        """
        if key not in self._tasks and self._clock() >= self._values.get(key, (self._unread, -math.inf))[1]:
            self._tasks[key] = asyncio.ensure_future(self._read(key, read))
        return self._tasks.get(key)

    def forget(self, key: Key) -> None:
        """Forget a key's value, and stop reading it."""
        self._values.pop(key, None)
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()

    def clear(self) -> None:
        """Forget all keys."""
        for key in (*self._values, *self._tasks):
            self.forget(key)

    async def close(self) -> None:
        """Stop all reading, and wait until it has ended."""
        tasks = tuple(self._tasks.values())
        self.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, key: Key, read: Callable[[], Awaitable[Value]]) -> None:
        own_task, start, value = asyncio.current_task(), self._clock(), self.get(key)
        try:
            value = await read()
        finally:
            if self._tasks.get(key) is own_task:  # the key was not forgotten meanwhile
                del self._tasks[key]
                # After an error too, so that the next request does not try again.
                now = self._clock()
                self._values[key] = (value, now + max(self._fresh_s, self._share * (now - start)))


# --- The signatures in long files

OUTLINE_FRESH_S = 30.0
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
        self._signatures = Background[str, Signatures](clock, (), fresh_s=OUTLINE_FRESH_S)

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
