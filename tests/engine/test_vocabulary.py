"""Byte-level tokenizers as SmolLM2 and Qwen have them: every text comes back, and none becomes a control token."""

from __future__ import annotations

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from dg_lsp.engine.model.vocabulary import Vocabulary

FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
TEXTS = (
    "def f(x):\n\treturn x\r\n\r\n    # naïve 日本語 😀 \u200b\ufeff",
    "x = 1234567890.12e-5\n" + " " * 87 + "y\n",
    " \t \n\n\n  \r\r\n",
    "e\u0301 \u00e9 \u212b \ufb01 한글",
    "\x00\x01\x7f\u0085\u2028",
    "<|fim_middle|> <tool_call></tool_call> <|endoftext|>",
)


@pytest.fixture(params=["single digits", "groups"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    """A tokenizer with the parts of SmolLM2's or Qwen's, and three merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, "Ġd", "de", "Ġde", "ĠĠ"]
    tokenizer = Tokenizer(
        models.BPE({word: index for index, word in enumerate(words)}, [("Ġ", "d"), ("d", "e"), ("Ġd", "e"), ("Ġ", "Ġ")])
    )
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=request.param == "single digits")
    if request.param == "single digits":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    else:
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "merged_with_next"), level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (*FIM, "<|endoftext|>")])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in ("<tool_call>", "</tool_call>")])
    return Vocabulary(Tokenizer.from_str(tokenizer.to_str()))


def test_texts_come_back(vocabulary: Vocabulary) -> None:
    drawn = random.Random(1)
    letters = "ab \t\n\r0123_{}()=é日😀\u0301Ω<|>fim"
    for text in (*TEXTS, *("".join(drawn.choices(letters, k=drawn.randrange(60))) for _ in range(200))):
        ids = vocabulary.encode(text)
        assert vocabulary.decode(ids) == text
        assert sum(vocabulary.lengths(ids)) == len(text)
        assert not vocabulary.special.intersection(ids)


def test_control_tokens_have_ids_and_no_text(vocabulary: Vocabulary) -> None:
    for token in (*FIM, "<|endoftext|>", "<tool_call>", "</tool_call>"):
        index = vocabulary.id(token)
        assert index is not None
        assert index in vocabulary.special
        assert vocabulary.pieces[index] == b""
