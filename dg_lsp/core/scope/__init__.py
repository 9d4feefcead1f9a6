"""Tell which names an answer uses that nothing binds.

A name counts only where the answer is to blame for it: one that was unbound in the file before is not. Only Python can tell
for sure, because a file says there what it binds; elsewhere a name may come from another file or from the environment.
Where code is too broken to tell, or may bind any name, as `import *` does, there is no judgement.
"""

from __future__ import annotations

from collections.abc import Sequence

from dg_lsp.core.scope import python, uses
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Span


def is_certain(language: str) -> bool:
    """Return whether a name that is unbound to `unbound_names` is certainly bound nowhere."""
    return language == "python"


def unbound_names(filled: Syntax, answers: Sequence[tuple[Span, str]], uri: str = "") -> frozenset[str]:
    """Return the names that the answers leave unbound in the file that they fill.

    Each answer is the span of its text in the filled file, with the text that it replaced.
    """
    if filled.language.name == "python":
        return python.unbound_names(filled, answers, uri)
    return uses.unbound_names(filled, [span for span, _ in answers])
