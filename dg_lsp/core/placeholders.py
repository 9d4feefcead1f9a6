"""Recognise lines that stand for missing code, such as `pass` and `todo!()`, in all languages alike.

Where there is a syntax tree, `holes` is more precise. This module is for text without one: what a model wrote, and what
drafts are copied from.
"""

from __future__ import annotations

import re

_STATEMENT = r"""(?:pass|\.\.\.|:|(?:todo|unimplemented)!\(.*\)|(?:raise[ ])?NotImplemented(?:Error)?(?:\(.*\))?
    |throw[ ]new[ ](?:\w+\.)*NotImplemented\w*\(.*\)
    |(?:throw[ ]new[ ][\w.\\]+|panic|error|die)[ ]?\(["'](?:TODO|not[ ](?:yet[ ])?implemented|unimplemented)\b.*\));?"""
_FLAGS = re.IGNORECASE | re.VERBOSE | re.MULTILINE
_LINE = re.compile(_STATEMENT, _FLAGS)
_DOCSTRING = re.compile(r"""^[ \t]*[rRuU]?(\"{3}|'{3}).*?\1[ \t]*$""", re.MULTILINE | re.DOTALL)
_WHOLE_LINE = re.compile(rf"^[ \t]*(?:{_STATEMENT})[ \t]*\n", _FLAGS)


# What may follow a placeholder on its line: the end of the block, or another placeholder.
_FOLLOWING = frozenset({"end", "fi", "done", "esac", "pass", "..."})


def is_line(line: str) -> bool:
    """Return whether the line, without white space around it, is a placeholder of some language.

    It may be followed by more of them and by the ends of blocks, as in `pass   end`.
    """
    while _LINE.fullmatch(line) is None:
        start, _, last = line.rstrip(" \t;").replace("\t", " ").rpartition(" ")
        if last not in _FOLLOWING:
            return False
        line = start.rstrip(" \t")
    return True


def says_nothing(text: str) -> bool:
    """Return whether a text has only placeholders and docstrings, so that it is no body."""
    return not removed(f"{_DOCSTRING.sub('', text)}\n").strip()


def removed(text: str) -> str:
    r"""Return the text without its lines that are placeholders; a last line without a `\n` stays."""
    return _WHOLE_LINE.sub("", text)
