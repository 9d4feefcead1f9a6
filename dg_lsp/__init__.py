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


OUT_OF_MEMORY = "memory ran out, or a limit of memory or processes was reached; close other programs, or raise the limit"
"""The sentence about an error of which `is_out_of_memory` is true, and nothing else is known."""
_WORDS_OF_MEMORY = (
    *("annot allocate memory", "can't allocate memory", "can't start new thread", "CUDA error: out of memory"),
    # The last words of processes: of OpenBLAS and Rust, and of C++.
    *("emory allocation", "std::bad_alloc"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error or one of its causes means that there is no memory, or no room for a thread or a process.

    Libraries raise errors of many kinds then, and others are raised from them: "the file can't be read".
    """
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    if MemoryError in map(type, chain):  # without a generator, for which there may be no memory
        return True
    return any(
        isinstance(each, MemoryError)
        or type(each).__name__ == "OutOfMemoryError"  # torch's, for a GPU
        or any(words in str(each) for words in _WORDS_OF_MEMORY)
        or str(each).endswith("failed to map segment from shared object")  # a library, with no other reason
        # A thread of a library in Rust. An OSError that says so may come from a socket.
        or ("Resource temporarily unavailable" in str(each) and not isinstance(each, OSError))
        for each in chain
    )
