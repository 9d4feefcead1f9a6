"""Generate a body that raises an error, which proves whether a check depends on a hole. Pure.

The error contains a token, so that the check's output shows which hole was executed. In Python the body also writes the token
to a file. So the proof works for a check that prints nothing, and not for one that fails for another reason, such as an
import that is unused while the hole raises.
"""

from __future__ import annotations

import hashlib

from dg_lsp.core.values import Document, Edit, Hole

_STATEMENTS = {
    "javascript": "throw new Error({});",
    "typescript": "throw new Error({});",
    "tsx": "throw new Error({});",
    "java": "throw new RuntimeException({});",
    "csharp": "throw new System.Exception({});",
    "go": "panic({})",
    "rust": "panic!({});",
    "ruby": "raise NotImplementedError, {}",
    "php": "throw new \\RuntimeException({});",
    "lua": "error({})",
    "bash": "echo {} >&2; exit 70",
}
# A compiler refuses code after an unconditional `throw`, but not after a conditional one.
_CONDITIONAL = frozenset({"java"})


def token_of(document: Document, hole: Hole) -> str:
    """Return the text that identifies the hole in a check's output."""
    place = f"{document.uri} {hole.span.start} {hole.span.end}"
    return f"dg-lsp-hole-{hashlib.sha256(place.encode()).hexdigest()[:12]}"


def edit_for(document: Document, hole: Hole, note_file: str) -> Edit | None:
    """Return the edit that makes the hole raise an error; None if it holds no statements or the language is not supported."""
    if not hole.block:
        return None
    token = token_of(document, hole)
    if document.language == "python":
        text = f"open({note_file!r}, 'a').write({token!r}); raise NotImplementedError({token!r})"
    elif document.language in _STATEMENTS:
        text = _STATEMENTS[document.language].format(f'"{token}"')
        if document.language in _CONDITIONAL and hole.kind != "body":
            text = f"if (true) {text}"
    else:
        return None
    return Edit(hole.span, f"{hole.lead}{text}{hole.trail}")
