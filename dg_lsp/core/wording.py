"""Words of sentences for users."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, such as `1 client` or `2 clients`."""
    return f"{n} {noun if n == 1 else noun + 's'}"


def size(n_bytes: float) -> str:
    """Return a number of bytes as readable text, in powers of ten: `4.4 GB`."""
    if n_bytes >= 99.5e6:
        return f"{n_bytes / 1e9:.1f} GB"
    return f"{n_bytes / 1e6:.0f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:.0f} kB"
