"""Convert text to token ids and back, through the bytes of each token."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from dg_lsp.wire import files

MAX_BYTES = 256 << 20  # eight times the size of the largest known tokenizer file
TAIL_CHARS = 400  # at least this much of a text is split to find its last pre-token
LONGEST_CUT = 60  # characters of a pre-token to write again
LONG_CHARS = 500  # the tokens of texts at least this long are cached

# The names of the tokens of `fim_tokens` in the vocabularies of published models.
FIM_TOKENS = (
    ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>"),
    ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>"),
    ("<|fim_middle|>", "<fim_middle>", "<fim-middle>"),
    ("<|endoftext|>", "<|end_of_text|>", "</s>"),
)


class Vocabulary:
    """A tokenizer. `pieces[id]` holds the bytes of a token, empty for special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # The text `<pre>` in code must not become a control token. Layouts add control tokens by id.
        tokenizer.encode_special_tokens = True
        # Many published files cut and fill up texts to what their model was trained with.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        byte_level = '"ByteLevel"' in tokenizer.to_str().partition('"decoder":')[2].partition('"model":')[0]
        if byte_level:
            _keep_every_character(tokenizer)
        self.tokenizer = tokenizer  # the library's own, which encodes special tokens as text
        self.size = tokenizer.get_vocab_size()
        special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        tokens = [tokenizer.id_to_token(index) for index in range(self.size)]
        self.pieces = tuple(
            b"" if i in special or token is None else _piece(token, byte_level) for i, token in enumerate(tokens)
        )
        self.special = frozenset(special) | {i for i, token in enumerate(tokens) if token is None}
        # One fill encodes the same side of a file several times, and a keystroke changes only one side. An array takes a
        # ninth of a list's memory.
        # Each step of a draft asks, and most texts are indentations.
        self.after_typed = lru_cache(maxsize=64)(self._after_typed)
        self._encode_long = lru_cache(maxsize=32)(lambda text: array("i", self._encode(text)))

    @classmethod
    def from_file(cls, path: Path) -> Vocabulary:
        """Return the vocabulary of a `tokenizer.json`; raise ValueError if it is no regular file, or the library's own errors.

        Reading a pipe or a device might never end. Links are followed, because folders of the hub's cache consist of links.
        """
        return cls(Tokenizer.from_buffer(_read(path)))

    @classmethod
    def from_qwen2_parts(cls, folder: Path) -> Vocabulary:
        """Return the vocabulary of a folder with the files of a Qwen2 tokenizer without `tokenizer.json`, as Dream has them.

        Raises ValueError, or the library's own errors.
        """
        vocabulary = json.loads(_read(folder / "vocab.json"))
        lines = _read(folder / "merges.txt").decode().split("\n")
        merges = [line.split(" ") for line in lines[lines[0].startswith("#version") :] if line]
        others = folder / "added_tokens.json"
        added = {name: (number, True) for name, number in json.loads(_read(others) if others.exists() else "{}").items()}
        for number, token in json.loads(_read(folder / "tokenizer_config.json")).get("added_tokens_decoder", {}).items():
            added[token["content"]] = (int(number), bool(token["special"]))
        values = tokenizer_values("qwen2", vocabulary, merges, dict(sorted(added.items(), key=lambda item: item[1])))
        return cls(Tokenizer.from_str(json.dumps(values)))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without added special tokens. Lone surrogates become U+FFFD."""
        return self._encode_long(text).tolist() if len(text) >= LONG_CHARS else self._encode(text)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without special tokens and without incomplete characters."""
        return self.bytes_of(ids).decode("utf-8", "ignore")

    def bytes_of(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of ids, without special tokens."""
        return b"".join(self.pieces[token] for token in ids)

    def lengths(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Return the number of characters that start in each id's bytes. Their sum is the length of the whole text."""
        return tuple(sum(byte & 0xC0 != 0x80 for byte in self.pieces[token]) for token in ids)

    def n_tokens(self, ids: Sequence[int], n_bytes: int) -> int:
        """Return the number of tokens that the first `n_bytes` bytes of the ids' text come from."""
        starts = accumulate((len(self.pieces[token]) for token in ids), initial=0)
        return sum(start < n_bytes for start, _ in zip(starts, ids, strict=False))

    def id(self, token: str) -> int | None:
        return self.tokenizer.token_to_id(token)

    def first_known(self, names: Sequence[str]) -> int | None:
        """Return the id of the first of these tokens that the vocabulary has, or None."""
        return next((token for name in names if (token := self.id(name)) is not None), None)

    @cached_property
    def fim_tokens(self) -> tuple[int, int, int, int] | None:
        """The tokens before the prefix, before the suffix, before the middle and after it; None if one is missing."""
        before, after, middle, end = (self.first_known(names) for names in FIM_TOKENS)
        return None if before is None or after is None or middle is None or end is None else (before, after, middle, end)

    @cached_property
    def regular(self) -> tuple[int, ...]:
        """The ids of all tokens with bytes: those that are drawn as noise."""
        return tuple(token for token, piece in enumerate(self.pieces) if piece and token not in self.special)

    @cached_property
    def with_newline(self) -> tuple[int, ...]:
        """The ids of all tokens that contain a line end."""
        return tuple(i for i, piece in enumerate(self.pieces) if b"\n" in piece or b"\r" in piece)

    @cached_property
    def _sorted(self) -> tuple[list[bytes], list[int]]:
        """The tokens with bytes in the order of their bytes, and their ids."""
        order = sorted((piece, token) for token, piece in enumerate(self.pieces) if piece)
        return [piece for piece, _ in order], [token for _, token in order]

    @cached_property
    def without_blank_start(self) -> tuple[int, ...]:
        """The ids of all tokens with bytes that do not start with a space or a tab."""
        return tuple(token for token, piece in enumerate(self.pieces) if piece and piece[:1] not in (b" ", b"\t"))

    def starting_with(self, head: bytes) -> tuple[int, ...]:
        """Return the ids of all tokens whose bytes start with `head`, in ascending order."""
        if not head:
            return tuple(range(len(self.pieces)))
        pieces, ids = self._sorted
        first = bisect_left(pieces, head)
        last = bisect_left(pieces, True, lo=first, key=lambda piece: not piece.startswith(head))
        return tuple(sorted(ids[first:last]))

    def _after_typed(self, typed: bytes) -> tuple[int, ...]:
        """Return the ids of all tokens that a text which starts with `typed` may start with: a part of it, or more than it.

        They add no white space to white space at its end.
        """
        (pieces, ids), n_typed = self._sorted, len(typed)
        places = [(bisect_left(pieces, typed[:n]), typed[:n]) for n in range(1, n_typed)]
        parts = [ids[place] for place, part in places if place < len(pieces) and pieces[place] == part]
        agreeing = sorted({*parts, *self.starting_with(typed)})
        if typed[-1:] in (b" ", b"\t"):
            agreeing = [token for token in agreeing if not self.pieces[token][n_typed:].isspace()]
        return tuple(agreeing)

    def safe_end(self, text: str) -> int:
        """Return the offset where the last pre-token of a text starts, which is the only one that more text can change.

        A pre-token is what the tokenizer encodes by itself, such as a word with the space before it. Without a pre-tokenizer,
        or if the pre-token is very long, it is the last token.
        """
        start = text.rfind("\n", 0, max(0, len(text) - TAIL_CHARS)) + 1 if len(text) > TAIL_CHARS else 0
        tail, splitter = text[start:], self.tokenizer.pre_tokenizer
        if not tail:
            return len(text)
        first = len(tail) if splitter is None else int(splitter.pre_tokenize_str(tail)[-1][1][0])
        if splitter is None or len(tail) - first > LONGEST_CUT:
            first = len(tail) - max(1, len(self.decode(self.encode(tail)[-1:])))
        return start + first


def _read(path: Path) -> bytes:
    try:
        return files.read_regular(path.resolve(), MAX_BYTES)
    except (files.NotRegularError, files.TooLargeError) as error:
        raise ValueError(f"{path} {error}") from error


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


# How the words of each pre-tokenizer are cut. Runs of digits are cut into single digits by both.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(*, cuts_words: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": cuts_words}


_SPLIT = {"type": "Split", "pattern": {"Regex": _WORDS}, "behavior": "Isolated", "invert": False}
PRE_TOKENIZERS: Mapping[str, tuple[list[dict[str, Any]], dict[str, str] | None]] = {
    "smollm": ([{"type": "Digits", "individual_digits": True}, _byte_level(cuts_words=True)], None),
    "qwen2": ([_SPLIT, _byte_level(cuts_words=False)], {"type": "NFC"}),
}
"""The steps before the merges, and the normalisation, by the name that GGUF has for them."""


def tokenizer_values(
    pre: str, vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]], added: Mapping[str, tuple[int, bool]]
) -> dict[str, Any]:
    """Return the content of `tokenizer.json` for one of `PRE_TOKENIZERS`.

    `merges` are pairs of tokens. `added` are the ids of added tokens by their text, and whether they are control tokens.
    """
    steps, normaliser = PRE_TOKENIZERS[pre]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": token, **flags, "special": is_special} for token, (number, is_special) in added.items()
        ],
        "normalizer": normaliser,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": _byte_level(cuts_words=False),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": dict(vocabulary),
            "merges": [list(pair) for pair in merges],
        },
    }
