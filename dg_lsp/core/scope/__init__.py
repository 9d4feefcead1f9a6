"""Find names that an answer uses and that nothing binds.

A name counts only if the answer introduced the problem: a name that was unbound in the file before does not. Only in
Python is the result certain, because a Python file shows every name that it binds. In other languages a name may come
from another file or from the environment.

If the code is too broken, or may bind any name (as `import *` does), no name is reported.
"""

from __future__ import annotations

from collections.abc import Sequence

from dg_lsp.core.scope import python, uses
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span


def is_certain(language: str) -> bool:
    """Return whether a name reported by `unbound_names` is certainly unbound in this language."""
    return language == "python"


def unbound_names(filled: Syntax, answers: Sequence[tuple[Span, str]], uri: str = "") -> frozenset[str]:
    """Return the names that the answers leave unbound in the filled file.

    Each answer is the span of its text in the filled file, and the text that it replaced.
    """
    if filled.language.name == "python":
        return python.unbound_names(filled, answers, uri)
    return uses.unbound_names(filled, [span for span, _ in answers])
