"""Apply `privacy.local_only`: decide which files and which parts of a request a remote model may see.

Remote backends accept only the type that `shown` returns, so no request can skip the check.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import NewType

from dg_lsp.core.values import InfillRequest
from dg_lsp.wire.settings import EVERYTHING

LOCAL_ONLY = "is for local models only (privacy.local_only), and the chosen model is remote"
"""Why a file gets no answer from a remote model: the end of a sentence that begins with the file."""

Shown = NewType("Shown", InfillRequest)
"""A request without the parts that must stay on this machine."""


class LocalOnlyError(ValueError):
    """The request's file must stay on this machine. The message is a sentence."""


def keeps_everything(patterns: tuple[str, ...]) -> bool:
    """Return whether the patterns keep every file local."""
    return any(pattern.strip() in (*EVERYTHING, "**", "/*", "/**") for pattern in patterns)


def stays_local(path: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a file must not be sent anywhere. `path` is relative to its workspace.

    If there are patterns and the path is unknown, the file stays local.
    """
    if not patterns:
        return False
    name = posixpath.normpath(path.replace("\\", "/")) if path else "."
    if name in (".", "..") or name.startswith(("/", "../")):
        return True
    from dg_lsp.core import gitignore  # imported here because most runs have no pattern

    try:
        return gitignore.covers(patterns, name)
    except gitignore.PatternError:
        return True  # a pattern that is too expensive to match keeps every file local


def shown(request: InfillRequest, patterns: tuple[str, ...]) -> Shown:
    """Return the parts of a request that a remote model may see; raise LocalOnlyError if its file must stay local."""
    if stays_local(request.path, patterns):
        raise LocalOnlyError(f"{request.path or 'a file without a path'} {LOCAL_ONLY}")
    related = tuple(
        snippet for snippet in request.related if not snippet.for_copying and not stays_local(snippet.path, patterns)
    )
    return Shown(replace(request, related=related))
