"""Tell what one level of indentation is in a text."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from itertools import pairwise


@lru_cache(maxsize=64)
def indent_unit(text: str, default: str) -> str:
    """Return one level of indentation as most of the text's lines use it, or the default where none is indented."""
    indents = _INDENTS.findall("\n" + text)
    counts: dict[str, int] = {}
    # Of ten thousand lines only a few pairs of neighbours differ from all others.
    for (before, indent), n_lines in Counter(pairwise(("", *indents))).items():
        if len(indent) > len(before) and indent.startswith(before):
            step = indent[len(before) :]
            # A wide step is a continued line, aligned with a bracket.
            if step == "\t" or (step.isspace() and set(step) == {" "} and 2 <= len(step) <= 8):
                counts[step] = counts.get(step, 0) + n_lines
    return max(counts, key=lambda step: (counts[step], -len(step)), default=default)


# The white space behind a line end that something else than white space follows on its line; never tried twice.
_INDENTS = re.compile(r"[\r\n](?=([ \t\f]*))\1(?=[^\S\r\n]*\S)")
