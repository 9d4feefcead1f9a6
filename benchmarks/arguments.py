"""The positional arguments of a benchmark, and its `--help`."""

from __future__ import annotations

import argparse
from typing import Any


def parsed(description: str | None, **defaults: Any) -> list[Any]:
    """Return the values of positional arguments, in order; `--help` prints the description instead.

    Each has a name and a default, which also gives its type. A type instead of a default makes the argument required.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        if isinstance(default, type):
            parser.add_argument(name, type=default)
        else:
            parser.add_argument(name, type=type(default), nargs="?", default=default, help=f"default: {default}")
    return list(vars(parser.parse_args()).values())
