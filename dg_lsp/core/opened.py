"""The block that an answer opens in the cursor's line: whether it does, and where it ends. Pure; reads lines only."""

from __future__ import annotations

import re

from dg_lsp.core import languages

# A line that closes a block, or a part of one, at the indentation of the line that opened it; and those of them that are words.
_WORDS = (
    *("case", "catch", "default", "done", "elif", "else", "elseif", "elsif", "end", "ensure", "esac", "except", "fi"),
    *("finally", "rescue", "until"),
)
_CLOSES = re.compile(rf"[)\]}}]|(?:{'|'.join(_WORDS)})\b(?!\s*[=.,])")
_LABEL = re.compile(r"(?:case\b.*|default\s*):$")


def block(head: str, text: str, indent: str, language: str) -> tuple[str, bool] | None:
    """Return an answer up to the end of the block that its first line opens, and whether it reaches that end.

    `head` is the text before the answer in its line, which has the indentation. None if the first line opens no block.
    """
    lines, depth = text.split("\n"), _width(indent)
    if not _opens(head + lines[0], language):
        return None
    n_kept = 1
    for number, line in enumerate(lines[1:], 2):
        code = line.strip()
        if not code:
            continue
        is_inside = _width(line) > depth
        if not is_inside and (_width(line) < depth or not _CLOSES.match(code)):
            return "\n".join(lines[:n_kept]), True
        n_kept = number
        if not is_inside and not _opens(line, language):
            return "\n".join(lines[:n_kept]), True
    return "\n".join(lines[:n_kept]), False


def may_go_on(line: str, indent: str) -> bool:
    """Return whether a line of which only the start is written may belong to the block: by its depth or its first word."""
    code = line.strip()
    if not code or _width(line) > _width(indent):
        return True
    return _width(line) == _width(indent) and (_CLOSES.match(code) is not None or any(word.startswith(code) for word in _WORDS))


def is_whole(head: str, text: str, language: str) -> bool:
    """Return whether the block in an answer has lines of its own, and the answer closes all brackets that it opens."""
    return "\n" in text.strip() and not languages.n_open(head, text, language)


def _opens(line: str, language: str) -> bool:
    code = line.rstrip()
    return re.search(languages.row(language).opens, code) is not None or _LABEL.match(code.strip()) is not None


def _width(line: str) -> int:
    return len(line[: len(line) - len(line.lstrip())].expandtabs(4))
