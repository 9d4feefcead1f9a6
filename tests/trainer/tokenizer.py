"""Train the byte-level BPE tokenizer of the embedded model.

No token crosses a newline, a run of spaces is a token of its own, and digits are single tokens. This module knows
nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

# A token's id is its position in this list. The configuration class expects ids 0-5 below the vocabulary's size.
SPECIAL = (
    "<pad>", "<eos>", "<bos>", "<boi>", "<eoi>", "<image>",
    "<delete>", "<suf>", "<pre>", "<eom>", "<path>",
    "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<hole>",
    "<span>", "<line>", "<lines>", "<block>", "<body>", "<related>",
)  # fmt: skip
RESERVED = tuple(f"<unused{index}>" for index in range(len(SPECIAL), 32))

SPLIT = r"\n| {2,}|\t+|[ _]?\p{L}+|[0-9]|_+| ?[^\s\p{L}0-9_]+|\s"


def train(texts: Iterable[str], *, vocabulary: int = 8192) -> Tokenizer:
    """Return a tokenizer of `vocabulary` tokens, with the special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[*SPECIAL, *RESERVED],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
