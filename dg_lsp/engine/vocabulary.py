"""Tokens and the bytes they stand for.

Knows a `tokenizers` file. Knows nothing of models or layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from tokenizers import Tokenizer

LONG_CHARS = 500  # texts worth remembering the tokens of


class Vocabulary:
    """Text to token ids and back; `pieces[id]` holds the bytes a token stands for, empty for special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Code that reads `<pre>` is text: control tokens are written by their ids alone.
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self.size = tokenizer.get_vocab_size()
        special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        tokens = [tokenizer.id_to_token(index) for index in range(self.size)]
        byte_level = '"ByteLevel"' in tokenizer.to_str().partition('"decoder":')[2].partition('"model":')[0]
        self.pieces = tuple(
            b"" if i in special or token is None else _piece(token, byte_level) for i, token in enumerate(tokens)
        )
        self.special = frozenset(special) | {i for i, token in enumerate(tokens) if token is None}
        # One fill asks for the same side of a file several times, and a keystroke leaves the other side as it was.
        self._encode_long = lru_cache(maxsize=8)(self._encode)

    @classmethod
    def from_file(cls, path: Path) -> Vocabulary:
        """Return the vocabulary of a `tokenizer.json`."""
        return cls(Tokenizer.from_file(str(path)))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, no special token added. Lone surrogates become U+FFFD: they are no text."""
        return list(self._encode_long(text) if len(text) >= LONG_CHARS else self._encode(text))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; special tokens stand for nothing, a broken character at an end is dropped."""
        return b"".join(self.pieces[token] for token in ids).decode("utf-8", "ignore")

    def lengths(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Return how many characters begin in each id's text; together they are the length of the text of all."""
        return tuple(sum(byte & 0xC0 != 0x80 for byte in self.pieces[token]) for token in ids)

    def id(self, token: str) -> int | None:
        """Return the id of a token by its name, or None where the vocabulary lacks it."""
        return self._tokenizer.token_to_id(token)

    @cached_property
    def with_newline(self) -> tuple[int, ...]:
        """The ids of all tokens whose text has a line end."""
        return tuple(i for i, piece in enumerate(self.pieces) if b"\n" in piece or b"\r" in piece)

    def starting_with(self, head: bytes) -> tuple[int, ...]:
        """Return the ids of all tokens whose bytes begin with `head`."""
        return _starting_with(self.pieces, head)


@lru_cache(maxsize=512)
def _starting_with(pieces: tuple[bytes, ...], head: bytes) -> tuple[int, ...]:
    return tuple(index for index, piece in enumerate(pieces) if piece.startswith(head))


def _piece(token: str, byte_level: bool) -> bytes:
    if byte_level:
        table = _byte_level_table()
        return bytes(table[character] for character in token if character in table)
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


@lru_cache(maxsize=1)
def _byte_level_table() -> dict[str, int]:
    """Return which byte each character of a byte-level token stands for (GPT-2's printable alphabet)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many leading ids two rows share, both of the same type."""
    # Slices are compared much faster than one id after another: keystrokes ask this of every prefix that is known.
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle - 1)
    return low
