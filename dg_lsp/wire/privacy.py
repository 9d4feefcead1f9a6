"""Which files no remote model may see, by `privacy.local_only`, and what of a request it may see.

`shown` is the only way to a request that a remote backend takes: its type says that it was asked. Knows patterns, paths
and requests; nothing of models.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import NewType

from dg_lsp.core.values import InfillRequest
from dg_lsp.wire.settings import EVERYTHING

LOCAL_ONLY = "is for local models only (privacy.local_only), and the chosen model is remote"
"""Why a file gets nothing from a remote model, as the end of a sentence that begins with the file."""

Shown = NewType("Shown", InfillRequest)
"""A request without what should stay on this machine."""


class LocalOnlyError(ValueError):
    """A request is for a file that stays on this machine; the message is a sentence."""


def keeps_everything(patterns: tuple[str, ...]) -> bool:
    """Return whether no file at all may be sent anywhere."""
    return any(pattern.strip() in (*EVERYTHING, "**", "/*", "/**") for pattern in patterns)


def stays_local(path: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a file, named by its path below its workspace, must not be sent anywhere.

    Where a pattern is given and nobody says which file it is, it stays.
    """
    if not patterns:
        return False
    name = posixpath.normpath(path.replace("\\", "/")) if path else "."
    if name in (".", "..") or name.startswith(("/", "../")):
        return True
    from dg_lsp.core import gitignore  # most runs have no such pattern

    try:
        return gitignore.covers(patterns, name)
    except gitignore.PatternError:
        return True  # a pattern that says too much to be matched keeps every file here


def shown(request: InfillRequest, patterns: tuple[str, ...]) -> Shown:
    """Return what of a request a remote model may see; raise LocalOnlyError when that is nothing."""
    if stays_local(request.path, patterns):
        raise LocalOnlyError(f"{request.path or 'a file without a name'} {LOCAL_ONLY}")
    related = tuple(snippet for snippet in request.related if not stays_local(snippet.path, patterns))
    return Shown(replace(request, related=related))
