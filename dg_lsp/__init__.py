"""Fill holes in code with a language model on your machine, using the text on both sides."""

__version__ = "0.1.0"

INTERRUPTED = 130
"""The exit status after Ctrl-C."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error came from Ctrl-C. Some libraries, and Python's class creation, wrap it in another exception."""
    to_look_at, seen = [error], set[int]()
    while to_look_at:
        each = to_look_at.pop()
        if isinstance(each, KeyboardInterrupt):
            return True
        if id(each) not in seen:  # causes may form a circle
            seen.add(id(each))
            to_look_at += [other for other in (each.__cause__, each.__context__) if other is not None]
    return False
