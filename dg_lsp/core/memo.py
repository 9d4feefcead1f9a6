"""Cache what functions derive of texts and trees, in bounded memory, so that what is derived of closed documents goes.

What is derived of a tree is cached in it. What is derived of texts is cached for the last ones, up to a number of bytes.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

MOST_BYTES = 2_600_000
NAME_BYTES = 100  # of each name in a set

Params = ParamSpec("Params")
Result = TypeVar("Result")


class Memo:
    """The last results by their keys, together at most so large."""

    def __init__(self, most: int) -> None:
        self._most, self._size, self._lock = most, 0, threading.Lock()
        self._results = OrderedDict[Hashable, tuple[Any, int]]()

    def find(self, key: Hashable, size: int, compute: Callable[[], Result]) -> Result:
        """Return the result of this key, computed if it is not cached. `size` is that of the key."""
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                cached: Result = self._results[key][0]
                return cached
        result = compute()
        size += NAME_BYTES * len(result) if isinstance(result, frozenset) else 0
        with self._lock:
            self._size += size - self._results.pop(key, (None, 0))[1]
            self._results[key] = result, size
            while self._size > self._most:
                self._size -= self._results.popitem(last=False)[1][1]
        return result

    def clear(self) -> None:
        with self._lock:
            self._results.clear()
            self._size = 0


class HasMemo(Protocol):
    """Something that what is derived of it is cached in."""

    @property
    def memo(self) -> Memo: ...


Tree = TypeVar("Tree", bound=HasMemo)


def in_tree(function: Callable[Concatenate[Tree, Params], Result]) -> Callable[Concatenate[Tree, Params], Result]:
    """Cache the function's results in its first argument."""

    @functools.wraps(function)
    def cached(tree: Tree, /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        return tree.memo.find((function, args), 1, lambda: function(tree, *args, **kwargs))

    return cached


def of_texts(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Cache the function's results for the last texts among its arguments; the bytes of those of all functions are bounded."""

    @functools.wraps(function)
    def cached(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        size = sum(sys.getsizeof(arg) for arg in args if isinstance(arg, str))
        return _OF_TEXTS.find((function, args, *kwargs.items()), size, lambda: function(*args, **kwargs))

    return cached


_OF_TEXTS = Memo(MOST_BYTES)
