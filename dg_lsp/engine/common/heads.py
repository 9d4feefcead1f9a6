"""Keep what requests of a file show of other files, because a model reads it first.

Another paragraph there makes everything behind it useless that a model, or a server with a prefix cache, has encoded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from dg_lsp.core.values import InfillRequest, Snippet

STALE_SHARE = 0.5  # of the names in what would be shown now: so many are new
MOST_FILES = 64

_NAME = re.compile(r"[^\W\d]\w+")


def is_stale(shown: Sequence[Snippet], best: Sequence[Snippet]) -> bool:
    """Return whether what is shown lacks more than half of the names of what would be shown now."""
    names, known = ({name for each in part for name in _NAME.findall(each.text)} for part in (best, shown))
    return len(names - known) > STALE_SHARE * len(names)


def split(related: Sequence[Snippet]) -> tuple[tuple[Snippet, ...], tuple[Snippet, ...]]:
    """Return the snippets that a model sees, and those that are only copied from."""
    shown = tuple(snippet for snippet in related if not snippet.for_copying)
    return shown, tuple(snippet for snippet in related if snippet.for_copying)


class Heads:
    """What was shown last with each file."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[Snippet, ...]] = {}

    def kept(self, request: InfillRequest) -> InfillRequest:
        """Return the request with what was shown before with its file, unless that is stale."""
        best, copied = split(request.related)
        before = self._shown.pop(request.path, best)
        shown = best if is_stale(before, best) else before
        self._shown[request.path] = shown
        if len(self._shown) > MOST_FILES:
            del self._shown[next(iter(self._shown))]
        return replace(request, related=(*shown, *copied))
