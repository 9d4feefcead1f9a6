"""Words of sentences for users."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, such as `1 client` or `2 clients`."""
    return f"{n} {noun if n == 1 else noun + 's'}"


def size(n_bytes: int) -> str:
    """Return a number of bytes as readable text, in powers of two: `4.4 GiB`."""
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"
