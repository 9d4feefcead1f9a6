"""Write edits as a unified diff that `git apply` and `patch -p1` accept.

Both tools end a line only at a line feed, so carriage returns and form feeds are part of a line here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from dg_lsp.core.values import Edit, apply, n_common

N_CONTEXT = 3


def unified(name: str, text: str, edits: Sequence[Edit]) -> str:
    """Return the diff of one file; "" if the edits change nothing. `name` is its path from the folder where it will be applied.

    There is no `diff --git` line. With it, git reads names as relative to the top of the repository; without it, as relative
    to the current folder, like patch.
    """
    old, new = _lines(text), _lines(apply(text, tuple(edits)))
    # Only the lines from the first change to the last are compared, with those that are shown around them.
    first = max(0, n_common(old, new) - N_CONTEXT)
    n_after = max(0, n_common(old[:first:-1], new[:first:-1]) - N_CONTEXT)
    old, new = old[first : len(old) - n_after], new[first : len(new) - n_after]
    parts = []
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(N_CONTEXT):
        (_, old_start, _, new_start, _), (_, _, old_end, _, new_end) = group[0], group[-1]
        parts.append(f"@@ -{_range(first + old_start, first + old_end)} +{_range(first + new_start, first + new_end)} @@\n")
        for kind, start, end, new_start, new_end in group:
            if kind == "equal":
                parts += _marked(" ", old[start:end])
            else:
                parts += [*_marked("-", old[start:end]), *_marked("+", new[new_start:new_end])]
    return "".join([f"--- {_quoted('a/' + name)}\n+++ {_quoted('b/' + name)}\n", *parts]) if parts else ""


def _lines(text: str) -> list[str]:
    """Return the lines with their line ends."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _marked(mark: str, lines: Sequence[str]) -> list[str]:
    return [mark + (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n") for line in lines]


def _range(start: int, end: int) -> str:
    return f"{start + 1 if end > start else start},{end - start}"


def _quoted(name: str) -> str:
    """Return the name as git writes it: quoted if it contains a quote, a backslash or a character that can't be shown.

    These are control characters, also those above 0x7f and those that reverse the direction of text, and bytes that are not
    UTF-8. A tab follows a name with a space, because patch stops reading there.
    """
    if any(char in '"\\' or not char.isprintable() for char in name):
        return '"' + "".join(_escaped(char) for char in name) + '"'
    return f"{name}\t" if " " in name else name


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return char if char.isprintable() else "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))
