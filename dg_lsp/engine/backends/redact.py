"""Take out of a server's own words what must not be repeated: the key, other secrets, and the user's code.

Servers quote what they were sent when they refuse it, whole or in part, escaped or cut, and errors end up on screens and in
logs. Pure; knows texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from dg_lsp.core import secrets

# Runs of letters and digits that are as long as this are no coincidence; shorter ones tell nothing.
SHARED_CHARS = 12
SHARED_KEY_CHARS = 6

# What stands in a request besides the user's text, and helps to understand a refusal.
_PUBLIC = frozenset({"model"})


def redact(said: str, key: str, body: Mapping[str, object] | None) -> str:
    """Return a server's words with a mask in place of what they share with the key and the request's body."""
    private = {name: value for name, value in (body or {}).items() if name not in _PUBLIC}
    sent = _bare(json.dumps(private, ensure_ascii=False))[0]
    said = _masked(said, _bare(key)[0], min(SHARED_KEY_CHARS, max(len(_bare(key)[0]), 1)))
    return secrets.mask(_masked(said, sent, SHARED_CHARS))


def _masked(said: str, private: str, size: int) -> str:
    """Return the text with a mask over each run that has so many letters and digits in common with another's."""
    letters, places = _bare(said)
    hidden = [False] * len(said)
    for start in range(len(letters) - size + 1):
        if letters[start : start + size] in private:
            # With what stands between its letters.
            first, last = places[start], places[start + size - 1]
            hidden[first : last + 1] = [True] * (last + 1 - first)
    parts = []
    for at, char in enumerate(said):
        if not hidden[at]:
            parts.append(char)
        elif not at or not hidden[at - 1]:
            parts.append(secrets.MASK)
    return "".join(parts)


def _bare(text: str) -> tuple[str, list[int]]:
    """Return the letters and digits alone, and where each stood: escapes, line ends and indents differ in a quotation."""
    places = [at for at, char in enumerate(text) if char.isalnum() and not (at and text[at - 1] == "\\" and char in "nrtbfu")]
    return "".join(text[at] for at in places), places
