"""Functions on lines of text: which are not blank, and which have more than brackets."""

from __future__ import annotations

import re


def filled_lines(text: str) -> list[str]:
    """Return the lines that are not blank, without trailing white space."""
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def says_something(text: str) -> bool:
    """Return whether the text is more than brackets and a closing word such as `end`."""
    return bool(re.search(r"\w{4}|\w\W+\w", text))
