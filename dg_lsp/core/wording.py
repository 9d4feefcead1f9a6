"""Words of sentences for users."""

from __future__ import annotations

from dg_lsp.core.place import first_line


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, such as `1 client` or `2 clients`."""
    return f"{n} {noun if n == 1 else noun + 's'}"


def reason(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its type if it has no text."""
    return first_line(str(error).strip()) or type(error).__name__


def size(n_bytes: float) -> str:
    """Return a number of bytes as readable text, in powers of ten: `4.4 GB`."""
    if n_bytes >= 99.5e6:
        return f"{n_bytes / 1e9:.1f} GB"
    return f"{n_bytes / 1e6:.0f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:.0f} kB"
