"""Which files no remote model may see, by `privacy.local_only`. Knows patterns and paths; nothing of models or requests."""

from __future__ import annotations

LOCAL_ONLY = "is for local models only (privacy.local_only), and the chosen model is remote"
"""Why a file gets nothing from a remote model, as the end of a sentence that begins with the file."""


def stays_local(path: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a file, named by its path below its workspace, must not be sent anywhere."""
    if not patterns or not path:
        return False
    from pathspec import GitIgnoreSpec  # most runs have no such pattern

    return GitIgnoreSpec.from_lines(patterns).match_file(path)
