"""Build the content of a `tokenizer.json` for the byte-level vocabularies of pretrained models, from their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
