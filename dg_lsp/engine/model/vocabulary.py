"""Convert text to token ids and back, through the bytes of each token.

Knows a `tokenizers` file. Knows nothing of models or layouts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from dg_lsp.wire import files

MAX_BYTES = 256 << 20  # eight times the size of the largest known tokenizer file
LONG_CHARS = 500  # the tokens of texts at least this long are cached


class Vocabulary:
    """A tokenizer. `pieces[id]` holds the bytes of a token, empty for special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # The text `<pre>` in code must not become a control token. Layouts add control tokens by id.
        tokenizer.encode_special_tokens = True
        byte_level = '"ByteLevel"' in tokenizer.to_str().partition('"decoder":')[2].partition('"model":')[0]
        if byte_level:
            _keep_every_character(tokenizer)
        self._tokenizer = tokenizer
        self.size = tokenizer.get_vocab_size()
        special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        tokens = [tokenizer.id_to_token(index) for index in range(self.size)]
        self.pieces = tuple(
            b"" if i in special or token is None else _piece(token, byte_level) for i, token in enumerate(tokens)
        )
        self.special = frozenset(special) | {i for i, token in enumerate(tokens) if token is None}
        # One fill encodes the same side of a file several times, and a keystroke changes only one side. An array takes a
        # ninth of a list's memory.
        self._encode_long = lru_cache(maxsize=32)(lambda text: array("i", self._encode(text)))

    @classmethod
    def from_file(cls, path: Path) -> Vocabulary:
        """Return the vocabulary of a `tokenizer.json`; raise ValueError if it is no regular file, or the library's own errors.

        Reading a pipe or a device might never end. Links are followed, because folders of the hub's cache consist of links.
        """
        try:
            data = files.read_regular(path.resolve(), MAX_BYTES)
        except (files.NotRegularError, files.TooLargeError) as error:
            raise ValueError(f"{path} {error}") from error
        return cls(Tokenizer.from_buffer(data))

    @property
    def tokenizer(self) -> Tokenizer:
        """The library's own tokenizer, which encodes special tokens as text."""
        return self._tokenizer

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without added special tokens. Lone surrogates become U+FFFD."""
        return self._encode_long(text).tolist() if len(text) >= LONG_CHARS else self._encode(text)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without special tokens and without incomplete characters."""
        return b"".join(self.pieces[token] for token in ids).decode("utf-8", "ignore")

    def lengths(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Return the number of characters that start in each id's bytes. Their sum is the length of the whole text."""
        return tuple(sum(byte & 0xC0 != 0x80 for byte in self.pieces[token]) for token in ids)

    def id(self, token: str) -> int | None:
        """Return the id of a token by its name, or None if the vocabulary lacks it."""
        return self._tokenizer.token_to_id(token)

    @cached_property
    def with_newline(self) -> tuple[int, ...]:
        """The ids of all tokens that contain a line end."""
        return tuple(i for i, piece in enumerate(self.pieces) if b"\n" in piece or b"\r" in piece)

    def starting_with(self, head: bytes) -> tuple[int, ...]:
        """Return the ids of all tokens whose bytes start with `head`."""
        return _starting_with(self.pieces, head)


@lru_cache(maxsize=512)
def _starting_with(pieces: tuple[bytes, ...], head: bytes) -> tuple[int, ...]:
    return tuple(index for index, piece in enumerate(pieces) if piece.startswith(head))


def _keep_every_character(tokenizer: Tokenizer) -> None:
    """Stop a byte-level tokenizer from changing text, and from encoding text such as `<tool_call>` as a control token.

    Qwen's composes characters, which would change the user's code, and marks some control tokens as not special.
    """
    if type(tokenizer.normalizer).__name__ in ("NFC", "NFD", "NFKC", "NFKD"):
        tokenizer.normalizer = None
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values() if not token.special]
    control = [content for content in added if content.startswith("<") and content.endswith(">")]
    tokenizer.add_special_tokens([AddedToken(content, special=True, normalized=False) for content in control])


def _piece(token: str, byte_level: bool) -> bytes:
    if byte_level:
        table = _byte_level_table()
        return bytes(table[character] for character in token if character in table)
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


@lru_cache(maxsize=1)
def _byte_level_table() -> dict[str, int]:
    """Return the byte for each character of a byte-level token (GPT-2's printable alphabet)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of leading ids that two sequences share. Both must have the same type."""
    # Comparing slices is much faster than comparing ids one by one. Each keystroke compares with every cached prefix.
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    return low
