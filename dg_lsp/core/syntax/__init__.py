r"""Parse a document with tree-sitter, tolerant of errors, and answer questions about it in code points.

What a node means is said by captures in `queries/*.scm`:

    @function @class @closure   something with a body; in the same pattern:
      @name                     what it is called
      @bases                    what a class derives from
      @opener                   tokens that end before the body's inside starts; the last one counts
      @closer                   the token that ends the body, where there is one
      @body                     nodes that only group the statements of the body
    @type                       a definition without a body of statements, worth a line in an outline
    @comment @string @docstring
    @decoration                 a decorator, attribute or template header that stands between a comment and what it describes
    @string.alone               a statement that is a string and nothing else, and does nothing
    @opens                      a token after which a block of statements starts
    @placeholder                a statement that says "not written yet"
    @placeholder.weak           a statement that does nothing
    @placeholder.with           a statement that belongs to a placeholder, such as the `return 1` after a message
    @placeholder.inline         an expression that says "not written yet" wherever it stands
    @abstract                   a function whose body is written elsewhere
    @abstract.members           a class all of whose functions are such
    @empty                      a function or class for which an empty body is complete

The parser sees a lone `\r` as `\n` and a lone surrogate as U+FFFD; both are as long as what they replace, so offsets hold.
Knows nothing of holes.
"""

from __future__ import annotations

from dg_lsp.core.syntax.facts import Facts, Owner
from dg_lsp.core.syntax.indents import indent_unit
from dg_lsp.core.syntax.parsing import of, parse
from dg_lsp.core.syntax.tree import Syntax, adds_errors

__all__ = ["Facts", "Owner", "Syntax", "adds_errors", "indent_unit", "of", "parse"]
