"""Tasks in the background that end with the object that holds them, and a thread for work on long texts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)
Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")


# More threads would share one interpreter, and the memory that each has freed stays its own.
_TEXTS = ThreadPoolExecutor(1, "texts")


async def in_thread(work: Callable[[], T]) -> T:
    """Return what work on a long text returns, while other tasks run; one text is worked on at a time."""
    return await asyncio.get_running_loop().run_in_executor(_TEXTS, work)


def log_error(error: BaseException) -> None:
    log.error("a background task failed", exc_info=error)


class Tasks(Generic[Key]):
    """The running tasks of one holder, by key."""

    def __init__(self, on_error: Callable[[BaseException], object] = log_error) -> None:
        """Start with no task. `on_error` is called with the error of a task that fails; by default it is logged."""
        self._on_error = on_error
        self._tasks: dict[Key, asyncio.Task[Any]] = {}

    def __iter__(self) -> Iterator[Key]:
        """Yield the keys of the running tasks; tasks may end meanwhile."""
        return iter(tuple(self._tasks))

    def start(self, key: Key, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Return a new task for the work; the key's older one is cancelled."""
        self.end(key)
        task = self._tasks[key] = asyncio.get_running_loop().create_task(work)

        def ended(task: asyncio.Task[T]) -> None:
            if self._tasks.get(key) is task:
                del self._tasks[key]
            if not task.cancelled() and (error := task.exception()) is not None:
                self._on_error(error)

        task.add_done_callback(ended)
        return task

    def get(self, key: Key) -> asyncio.Task[Any] | None:
        return self._tasks.get(key)

    def end(self, key: Key) -> None:
        """Cancel the key's task, if one runs."""
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks.values():
            task.cancel()

    async def finish(self) -> None:
        """Wait until all tasks have ended, also those that start meanwhile."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks.values()))

    async def close(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        self.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
