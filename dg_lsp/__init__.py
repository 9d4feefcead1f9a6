"""Fill holes in code with a text-diffusion model, using the text on both sides."""

__version__ = "0.1.0"

INTERRUPTED = 130
"""The exit status after Ctrl-C."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error came from Ctrl-C. Some libraries, and Python's class creation, wrap it in another exception."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen is not None
