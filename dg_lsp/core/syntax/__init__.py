r"""Parse a document with tree-sitter, which tolerates errors, and answer questions about it in code points.

Captures in `queries/*.scm` say what a node means:

    @function @class @closure   a construct with a body; in the same pattern:
      @name                     its name
      @bases                    the base classes of a class
      @opener                   tokens that end before the body's inside starts; the last one counts
      @closer                   the token that ends the body, if there is one
      @body                     nodes that only group the statements of the body
    @type                       a definition without a body of statements that an outline lists
    @comment @string @docstring
    @decoration                 a decorator, attribute or template header between a comment and what it describes
    @string.alone               a statement that is only a string, and so does nothing
    @opens                      a token that starts a block of statements
    @leaves                     a statement after which the next one of its block does not run
    @placeholder                a statement that says "not written yet"
    @placeholder.weak           a statement that does nothing
    @placeholder.with           a statement that belongs to a placeholder, such as the `return 1` after a message
    @placeholder.inline         an expression that says "not written yet" in any position
    @abstract                   a function whose body is written elsewhere
    @abstract.members           a class whose functions are all abstract
    @empty                      a function or class for which an empty body is complete

The parser sees a lone `\r` as `\n` and a lone surrogate as U+FFFD. Both have the same length, so offsets stay valid.
"""

from __future__ import annotations

from dg_lsp.core.syntax.facts import Facts, Owner
from dg_lsp.core.syntax.tree import Syntax, adds_errors, indent_unit, of, parse

__all__ = ["Facts", "Owner", "Syntax", "adds_errors", "indent_unit", "of", "parse"]
