"""Run a program under test and report its verdict. `execute` passes the text of this file to a new Python with `-c`.

So this module imports only the standard library, and only inside functions: an imported module stays within the program's
reach.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program from standard input. A secret word precedes the verdict, so that no output passes for one by accident.

    A program that inspects the frames of this process can still read the word: the verdict is no protection.
    """
    import json
    import os
    import resource
    import types

    order = json.loads(sys.stdin.buffer.read())
    word, out = order.pop("secret"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for name, bound in order["limits"].items():
        try:
            resource.setrlimit(getattr(resource, name), (bound, bound))
        except (AttributeError, ValueError, OSError):
            continue  # this system lacks the limit but may have the others
    # The program becomes the main module, as if it ran alone; this module is no longer reachable by name.
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(order["program"], "program.py", "exec"), module.__dict__)  # noqa: S102 -- running the program is the purpose
        verdict = "passed"
    except BaseException:  # any exception means that the program failed
        verdict = "failed"
    os.write(out, f"{word} {verdict}".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
