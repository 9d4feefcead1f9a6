"""Find names that an answer uses and that nothing binds.

A name counts only if the answer introduced the problem: a name that was unbound in the file before does not. Only in
Python is the result certain, because a Python file shows every name that it binds. In other languages a name may come
from another file or from the environment.

If the code is too broken, or may bind any name (as `import *` does), no name is reported.
"""

from __future__ import annotations

from collections.abc import Sequence

from dg_lsp.core import languages
from dg_lsp.core.scope import python, uses
from dg_lsp.core.syntax import Syntax
from dg_lsp.core.values import Document, Span


def is_certain(language: str) -> bool:
    """Return whether a name reported by `unbound_names` is certainly unbound in this language."""
    return language == "python"


def is_whole_file(document: Document) -> bool:
    """Return whether the document is a source file, which shows the names that it binds, and not a cell or a build file."""
    language = languages.get(document.language)
    if language is None or language.name == "python":
        return language is not None and python.is_module(document.text, document.uri)
    return document.uri.endswith(language.extensions)


def unbound_names(filled: Syntax, answers: Sequence[tuple[Span, str]], uri: str = "") -> frozenset[str]:
    """Return the names that the answers leave unbound in the filled file.

    Each answer is the span of its text in the filled file, and the text that it replaced.
    """
    if filled.language.name == "python":
        return python.unbound_names(filled, answers, uri)
    return uses.unbound_names(filled, [span for span, _ in answers])
