"""Lay a request out for a model that reads the whole text in both directions: the prefix, the gap and the suffix.

Everything is on the canvas, and nothing is encoded before. Knows nothing of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.common.layout import before_last_word, recent, required_ids, suffix_ids, truncated, whole_lines
from dg_lsp.engine.diffusion.masked.profile import Profile
from dg_lsp.engine.model.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as tokens: those left and right of the gap, with the token before a text and the one after it.

    `heal` are the prefix's last bytes, removed from `left`; the gap starts with them, with any tokens. `delete` is the token
    that ends a text, and shrinks a gap; None if the checkpoint has none.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    heal: bytes = b""
    delete: int | None = None
    ids: tuple[int, ...] = ()  # nothing is encoded before


class Layout:
    """Lays out requests with one hole; raises ValueError if the vocabulary lacks a token of the profile."""

    def __init__(self, profile: Profile, vocabulary: Vocabulary) -> None:
        self.profile, self.vocabulary, own = profile, vocabulary, profile.unmasking
        names = (own.start, own.delete, own.mask, own.expand)
        self.before, self.after, *_ = (required_ids(vocabulary, (name,) if name else ()) for name in names)

    def lay_out(self, request: InfillRequest) -> Prompt:
        """Return the request as tokens."""
        # These models learnt to fill whole lines after a line end, and their indentation is part of that.
        left = before_last_word(self.vocabulary, request, keeps_lines=True)
        suffix, is_end = suffix_ids(self.vocabulary, request.suffix, self.profile.suffix_tokens)
        if not is_end:
            suffix = whole_lines(self.vocabulary, suffix, len(suffix), is_end=False) or suffix
        right, delete = (*suffix, *(self.after if is_end else ())), next(iter(self.after), None)
        limit = self.profile.prefix_tokens
        prefix = truncated(self.vocabulary, self.vocabulary.encode(recent(left.text, limit)), limit)
        return Prompt((*self.before, *prefix), right, left.heal, delete)
