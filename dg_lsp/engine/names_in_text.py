"""Compare the names and brackets of an answer with the text around its hole.

A small model writes names that do not exist, such as `validiterator` after `vali`. Whether the text around the hole contains
the names of an answer says much about whether the answer is right, for every model and in every language. The features were
chosen by cross-validation (docs/decisions/0015). Pure. Knows text. Knows nothing of models and candidates.
"""

from __future__ import annotations

import math
import re
from collections import Counter

from dg_lsp.core import languages
from dg_lsp.core.values import InfillRequest

MOST_CHARS = 12_000  # on each side of a hole
MOST_OPEN = 3  # brackets
RARE = 50  # names; so that a rare name of a short text does not count as frequent
_NAME = re.compile(r"[^\W\d]\w*")
# Without the first condition, a long word elsewhere in the text takes time quadratic in its length.
_WORD_AT_END = re.compile(r"(?<!\w)\w*\Z")
_WORD_AT_START = re.compile(r"\w*")
_STRING = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_BRACKETS = dict.fromkeys("([{", 1) | dict.fromkeys(")]}", -1)


class NamesInText:
    """The names in the text around a request's only hole, and the features of an answer that follow from them."""

    def __init__(self, request: InfillRequest) -> None:
        self._is_block = any(hole.block for hole in request.holes)
        before, after = request.prefix[-MOST_CHARS:], request.suffix[:MOST_CHARS]
        self._left, self._right = before.rpartition("\n")[2], after.partition("\n")[0]
        # The parts of a name next to the hole are no names. Together with the answer they become one.
        self._head, self._tail = _first(_WORD_AT_END, before), _first(_WORD_AT_START, after)
        around = f"{before[: len(before) - len(self._head)]}\n{after[len(self._tail) :]}"
        self._counts = Counter(_NAME.findall(around))
        language = languages.get(request.language)
        self._known = self._counts.keys() | (languages.words(language) if language else frozenset())

    def features(self, text: str) -> dict[str, float]:
        """Return the features of an answer by name; shares are from 0 to 1, and numbers of things are logarithms."""
        names = _NAME.findall(_STRING.sub("''", self._head + text + self._tail))
        n_new = sum(name not in self._known for name in names)
        values = {
            "new names": math.log1p(n_new),
            "new share": n_new / max(len(names), 1),
            "no names": float(not names),
            "frequency": self._frequency(names[0]) if names else 0.0,
            "chars": math.log1p(len(text)),
            "colon": float(text.rstrip().endswith(":")),
            "comma": float(text.rstrip().endswith(",")),
        }
        if self._head and text:
            values |= self._joined_left(text)
        if self._tail and text and _is_word(text[-1]):
            values["joins right"] = 1.0
        return values | self._balance(text)

    def _joined_left(self, text: str) -> dict[str, float]:
        """Return whether an answer continues the name before the cursor, and whether that name is known then."""
        name = _NAME.match(self._head + text + self._tail)
        is_known, continues = name is not None and name[0] in self._known, _is_word(text[0])
        return {
            "known name": float(is_known),
            "continues": float(continues),
            "unknown name": float(name is not None and not is_known and continues),
        }

    def _balance(self, text: str) -> dict[str, float]:
        """Return the number of brackets that stay open, in the answer's lines or in its line, and whether a quote does."""
        parts = (text,) if self._is_block else (self._left, text, self._right)
        n_open = sum(_BRACKETS.get(char, 0) for part in parts for char in _STRING.sub("", part))
        line = f"{self._left}{text}{self._right}"
        return {
            "open": float(min(abs(n_open), MOST_OPEN)),
            "quotes": float(line.count('"') % 2 + line.count("'") % 2 > 0),
        }

    def _frequency(self, name: str) -> float:
        """Return the logarithm of a name's share of all names around the hole."""
        return math.log((self._counts[name] + 1) / (self._counts.total() + RARE))


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[0] if match else ""


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"
