"""Lay a request out as a sheet: the tokens that a causal model reads before it writes the middle.

*left*: other files, the path and the prefix. *fim*: also the suffix, between the checkpoint's own fill-in-the-middle tokens.
Such a model has not seen prefixes that end inside a word. So the prefix is cut before its last pre-token, which the answer
must begin with, in whichever tokens. Knows nothing of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.causal.profile import LayoutName, Profile
from dg_lsp.engine.common.layout import STRETCH, before_last_word, suffix_ids, whole_lines
from dg_lsp.engine.model.vocabulary import Vocabulary

FILE_TOKENS = ("<|file_sep|>", "<file_sep>")  # what pretrained models have between files
START_TOKENS = ("<|endoftext|>", "<s>", "<bos>", "<|begin_of_text|>")  # and before a text


@dataclass(frozen=True, slots=True)
class Sheet:
    """A request as tokens: the `ids` that the model reads, and the first ids of the suffix in two other uses.

    `heal` are the prefix's last bytes, removed from `ids`; the answer starts with them, with any tokens. `heal_ids` are their
    ids. `end` is the token that ends an answer, if the model has one. `tail` holds whole lines of the suffix, which the pass
    that scores answers reads after them. If `ids` contains the suffix, its first `n_left` are those before it, and `follow` is
    read after the likeliest answers.
    """

    ids: tuple[int, ...]
    tail: tuple[int, ...]
    heal: bytes
    heal_ids: tuple[int, ...]
    end: int | None = None
    n_left: int = 0
    follow: tuple[int, ...] = ()


class LeftToRight:
    """The layout of causal models that were not trained to fill in the middle: other files, the path and the prefix.

    The suffix is only held, and read by the pass that scores the answers.
    """

    end: int | None = None  # no token ends an answer

    def __init__(self, profile: Profile, vocabulary: Vocabulary) -> None:
        self.profile, self.vocabulary = profile, vocabulary
        self.start, self.file = vocabulary.first_known(START_TOKENS), vocabulary.first_known(FILE_TOKENS)

    def lay_out(self, request: InfillRequest) -> Sheet:
        """Return a request with one hole as a sheet."""
        profile, hole = self.profile, request.holes[0]
        prefix = before_last_word(self.vocabulary, request, profile.prefix_tokens)
        held, is_end = suffix_ids(self.vocabulary, request.suffix, profile.held_tokens * STRETCH)
        tail = whole_lines(self.vocabulary, held, profile.held_tokens, is_end=is_end)
        if not hole.block and not tail:  # a long line: the hole's own rest decides where the answer ends
            tail = held[: profile.held_tokens]
        return Sheet(self._read(request, prefix.ids), tuple(tail), prefix.heal, prefix.heal_ids, self.end)

    def _read(self, request: InfillRequest, prefix: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens that the model reads before it writes the answer."""
        return (*self._head(request), *prefix)

    def _head(self, request: InfillRequest) -> list[int]:
        """Return the tokens before the prefix: other files and the path, as such models have seen repositories."""
        encode, files = self.vocabulary.encode, list[int]()
        if self.file is not None:
            room = self.profile.related_tokens
            for snippet in request.related:
                own = [self.file, *encode(f"{snippet.path}\n{snippet.text.rstrip()}\n")]
                if not snippet.for_copying and len(own) <= room:
                    room, files = room - len(own), [*files, *own]
            if request.path:
                files = [*files, self.file, *encode(f"{request.path}\n")]
        return files if files or self.start is None else [self.start]


class FillInTheMiddle(LeftToRight):
    """The layout of causal models with fill-in-the-middle tokens: prefix, suffix, middle.

    The suffix is encoded again after each keystroke, so it is short, and ends with a paragraph.
    """

    def __init__(self, profile: Profile, vocabulary: Vocabulary) -> None:
        super().__init__(profile, vocabulary)
        if vocabulary.fim_tokens is None:
            raise ValueError("the checkpoint's tokenizer lacks a fill-in-the-middle token, which its layout needs")
        self.before, self.after, self.middle, self.end = vocabulary.fim_tokens

    def lay_out(self, request: InfillRequest) -> Sheet:
        """Return a request with one hole as a sheet."""
        sheet = super().lay_out(request)
        follow, _ = suffix_ids(self.vocabulary, request.suffix, self.profile.follow_tokens)
        return replace(sheet, n_left=sheet.ids.index(self.after), follow=tuple(follow))

    def _read(self, request: InfillRequest, prefix: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens that the model reads before it writes the answer."""
        suffix, is_end = suffix_ids(self.vocabulary, request.suffix, self.profile.suffix_tokens)
        whole = suffix if is_end else _paragraphs(self.vocabulary, suffix)
        head = [] if (head := self._head(request)) == [self.start] else head
        return (*head, self.before, *prefix, self.after, *whole, self.middle)


LAYOUTS: dict[LayoutName, Callable[[Profile, Vocabulary], LeftToRight]] = {"left": LeftToRight, "fim": FillInTheMiddle}


def for_profile(profile: Profile, vocabulary: Vocabulary) -> LeftToRight:
    """Return the profile's layout; raise ValueError if the vocabulary lacks a token that it needs."""
    return LAYOUTS[profile.layout](profile, vocabulary)


def _paragraphs(vocabulary: Vocabulary, suffix: list[int]) -> list[int]:
    """Return the suffix up to its last blank line after some text; without one, up to its last line end.

    A model that reads a suffix which is cut within a block writes the rest of that block instead of an answer.
    """
    lines = vocabulary.decode(suffix).split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip()), len(lines))
    blank = max((index for index in range(first, len(lines) - 1) if not lines[index].strip()), default=0)
    n_whole = blank or len(lines) - 1
    return vocabulary.encode("\n".join([*lines[:n_whole], ""])) if n_whole > first else suffix
