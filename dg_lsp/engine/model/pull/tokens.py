"""Build a `tokenizer.json` from the vocabulary in a GGUF file, so that text is encoded exactly as for the original model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dg_lsp.engine.model.pull.gguf_file import GgufError
from dg_lsp.engine.model.weights import byte_level

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # kinds of tokens in GGUF; the others are ordinary


def tokenizer_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `tokenizer.json` for a GGUF file's fields; raise GgufError if its tokenizer is not known."""
    tokens, kinds, merges = (_list(fields, f"tokenizer.ggml.{name}") for name in ("tokens", "token_type", "merges"))
    pre, known = fields.get("tokenizer.ggml.pre"), byte_level.PRE_TOKENIZERS
    if fields.get("tokenizer.ggml.model") != "gpt2" or not isinstance(pre, str) or pre not in known:
        raise GgufError(f"has a tokenizer that is not known ({pre}); known ones are {', '.join(known)}")
    # Rows of the embedding that only fill it up have names that no text contains. The original leaves them out.
    used = {str(token): number for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != _UNUSED}
    if len(used) != len(tokens) - kinds.count(_UNUSED):
        raise GgufError("has a vocabulary with a token that occurs twice")
    pairs = [str(merge).split(" ") for merge in merges]
    if not all(len(pair) == 2 and pair[0] in used and pair[1] in used and "".join(pair) in used for pair in pairs):
        raise GgufError("has a merge of tokens that are not in its vocabulary")
    added = {
        str(token): (number, kind == _CONTROL)
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    }
    return byte_level.tokenizer_values(pre, used, pairs, added)


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise GgufError(f"has no {name}")
    return value
