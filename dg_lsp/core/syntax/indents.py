"""Find what one indentation level is in a text."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from itertools import pairwise


@lru_cache(maxsize=64)
def indent_unit(text: str, default: str) -> str:
    """Return one indentation level as most of the text's lines use it, or the default if no line is indented."""
    indents = _INDENTS.findall("\n" + text)
    counts: dict[str, int] = {}
    # Counted as pairs, because even ten thousand lines have only a few different pairs of neighbours.
    for (before, indent), n_lines in Counter(pairwise(("", *indents))).items():
        if len(indent) > len(before) and indent.startswith(before):
            step = indent[len(before) :]
            # A wider step is a continued line that is aligned with a bracket.
            if step == "\t" or (step.isspace() and set(step) == {" "} and 2 <= len(step) <= 8):
                counts[step] = counts.get(step, 0) + n_lines
    return max(counts, key=lambda step: (counts[step], -len(step)), default=default)


# The indentation of each line that is not blank. The captured group prevents backtracking.
_INDENTS = re.compile(r"[\r\n](?=([ \t\f]*))\1(?=[^\S\r\n]*\S)")
