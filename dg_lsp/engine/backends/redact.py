"""Remove the key, other secrets and the user's code from a server's error message.

A server that refuses a request often quotes it: whole or in part, escaped or truncated. Error messages are shown and logged.
This module is pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from dg_lsp.core import secrets

# A shared run of this many letters and digits is no coincidence. Shorter ones reveal nothing.
SHARED_CHARS = 12
SHARED_KEY_CHARS = 6

# Fields of a request that hold no user text, and that help to understand a refusal.
_PUBLIC = frozenset({"model"})


def redact(text: str, key: str, body: Mapping[str, object] | None) -> str:
    """Return a server's message with a mask over each part that it shares with the key or the request's body."""
    private = {name: value for name, value in (body or {}).items() if name not in _PUBLIC}
    sent_text = _bare(json.dumps(private, ensure_ascii=False))[0]
    text = _masked(text, _bare(key)[0], min(SHARED_KEY_CHARS, max(len(_bare(key)[0]), 1)))
    return secrets.mask(_masked(text, sent_text, SHARED_CHARS))


def _masked(text: str, private: str, size: int) -> str:
    """Return the text with a mask over each run of at least `size` letters and digits that also occurs in `private`."""
    letters, places = _bare(text)
    hidden = [False] * len(text)
    for start in range(len(letters) - size + 1):
        if letters[start : start + size] in private:
            # The mask also covers the characters between the letters.
            first, last = places[start], places[start + size - 1]
            hidden[first : last + 1] = [True] * (last + 1 - first)
    parts = []
    for at, char in enumerate(text):
        if not hidden[at]:
            parts.append(char)
        elif not at or not hidden[at - 1]:
            parts.append(secrets.MASK)
    return "".join(parts)


def _bare(text: str) -> tuple[str, list[int]]:
    """Return only the letters and digits, with their positions. Escapes, line ends and indents may differ in a quotation."""
    places = [at for at, char in enumerate(text) if char.isalnum() and not (at and text[at - 1] == "\\" and char in "nrtbfu")]
    return "".join(text[at] for at in places), places
