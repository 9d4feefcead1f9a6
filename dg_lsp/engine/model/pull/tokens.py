"""Build a `tokenizer.json` from the vocabulary in a GGUF file, so that text is encoded exactly as for the original model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dg_lsp.engine.model.pull.gguf_file import GgufError

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # kinds of tokens in GGUF; the others are ordinary
# How the words of each pre-tokenizer are cut. Runs of digits are cut into single digits by both.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(*, cuts_words: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": cuts_words}


_SPLIT = {"type": "Split", "pattern": {"Regex": _WORDS}, "behavior": "Isolated", "invert": False}
_PRE_TOKENIZERS: Mapping[str, tuple[list[dict[str, Any]], dict[str, str] | None]] = {
    "smollm": ([{"type": "Digits", "individual_digits": True}, _byte_level(cuts_words=True)], None),
    "qwen2": ([_SPLIT, _byte_level(cuts_words=False)], {"type": "NFC"}),
}
"""The steps before the merges, and the normalisation, by the name that GGUF has for them."""


def tokenizer_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `tokenizer.json` for a GGUF file's fields; raise GgufError if its tokenizer is not known."""
    tokens, kinds, merges = (_list(fields, f"tokenizer.ggml.{name}") for name in ("tokens", "token_type", "merges"))
    pre = fields.get("tokenizer.ggml.pre")
    if fields.get("tokenizer.ggml.model") != "gpt2" or not isinstance(pre, str) or pre not in _PRE_TOKENIZERS:
        raise GgufError(f"has a tokenizer that is not known ({pre}); known ones are {', '.join(_PRE_TOKENIZERS)}")
    steps, normaliser = _PRE_TOKENIZERS[pre]
    # Rows of the embedding that only fill it up have names that no text contains. The original leaves them out.
    used = {str(token): number for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != _UNUSED}
    if len(used) != len(tokens) - kinds.count(_UNUSED):
        raise GgufError("has a vocabulary with a token that occurs twice")
    pairs = [str(merge).split(" ") for merge in merges]
    if not all(len(pair) == 2 and pair[0] in used and pair[1] in used and "".join(pair) in used for pair in pairs):
        raise GgufError("has a merge of tokens that are not in its vocabulary")
    added = [
        _added(number, str(token), is_special=kind == _CONTROL)
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
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
            "vocab": used,
            "merges": pairs,
        },
    }


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise GgufError(f"has no {name}")
    return value


def _added(number: int, token: str, *, is_special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, **flags, "special": is_special}
