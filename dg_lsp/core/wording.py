"""Words of sentences for users."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, such as `1 client` or `2 clients`."""
    return f"{n} {noun if n == 1 else noun + 's'}"
