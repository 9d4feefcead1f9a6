"""Lay a request out as a prompt: the tokens that a causal model reads before it writes the middle, and what it may write there.

*left*: other files, the path and the prefix. *fim*: also the suffix, between the checkpoint's own fill-in-the-middle tokens.
Such a model has not seen prefixes that end inside a word. So the prefix is cut before its last pre-token, which the answer
must begin with, in whichever tokens. A checkpoint's profile has its layout and budgets. Knows nothing of rows or tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dg_lsp.core.calibration import Calibration
from dg_lsp.core.place import first_line
from dg_lsp.core.values import InfillRequest, Snippet
from dg_lsp.engine.common import question
from dg_lsp.engine.common.drafts import FileModel
from dg_lsp.engine.common.generation import RequestInputs
from dg_lsp.engine.common.layout import STRETCH, Left, before_last_word, next_after_typed, suffix_ids, whole_lines
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.model.vocabulary import Vocabulary

LayoutName = Literal["left", "fim"]


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings for one checkpoint, one per entry of its file. Lengths are in tokens.

    The defaults suit pretrained models, with fill-in-the-middle tokens ("fim") or without ("left").
    """

    layout: LayoutName
    prefix_tokens: int = 768
    suffix_tokens: int = 64  # that the layout "fim" reads
    related_tokens: int = 192
    held_tokens: int = 8  # of the suffix, that answers are scored with; more make the ranking no better, and slower
    follow_tokens: int = 16  # of the suffix, read after the likeliest answers if the model read the suffix before them
    line_tokens: int = 32  # the longest draft within a line
    block_tokens: int = 96  # and of several lines
    copy_rows: int = 3
    branches: int = 3  # of a draft: others that differ from it first in one token
    calibration: Calibration | None = None  # None: its confidence was never measured
    draft_calibration: Calibration | None = None  # of the first draft by its own tokens, before anything else is known
    # The first draft is sure from this log-probability on, or if it is so many nats likelier than the start of any branch.
    sure_logp: float = -0.6
    sure_margin: float = 1.0


FILE_TOKENS = ("<|file_sep|>", "<file_sep>")  # what pretrained models have between files
LONGEST_TOKEN = 16  # characters, about; so the start of a long file need not be encoded
SLACK_CHARS = 480  # before the place where a window must begin: the least indented line in them is its first
START_TOKENS = ("<|endoftext|>", "<s>", "<bos>", "<|begin_of_text|>")  # and before a text


@dataclass(frozen=True, slots=True)
class View:
    """What a model reads of a request: `related` text of other files, the text before the hole from `start` on, and a suffix.

    From `typed_at` on, the text before the hole is read after the suffix, as the beginning of the answer.
    """

    related: tuple[Snippet, ...]
    start: int
    typed_at: int
    n_suffix: int  # tokens, at most


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as tokens: the `ids` that the model reads, and the first ids of the suffix in two other uses.

    `heal` are the prefix's last bytes, removed from `ids`; the answer starts with them, with any tokens. `heal_ids` are their
    ids. `end` is the token that ends an answer, if the model has one. `tail` holds whole lines of the suffix, which the pass
    that scores answers reads after them. `n_text` of the ids are the file's text before the hole. If `ids` contains the suffix,
    its first `n_left` are those before it, its last ones are the `typed` part of the text before the hole, which is read after
    the suffix, and `follow` is read after the likeliest answers.
    """

    ids: tuple[int, ...]
    tail: tuple[int, ...]
    heal: bytes
    heal_ids: tuple[int, ...]
    end: int | None = None
    n_text: int = 0
    n_left: int = 0
    typed: tuple[int, ...] = ()
    follow: tuple[int, ...] = ()


class LeftToRight:
    """The layout of causal models that were not trained to fill in the middle: other files, the path and the prefix.

    The suffix is only held, and read by the pass that scores the answers.
    """

    end: int | None = None  # no token ends an answer

    def __init__(self, profile: Profile, vocabulary: Vocabulary) -> None:
        self.profile, self.vocabulary = profile, vocabulary
        self.start, self.file = vocabulary.first_known(START_TOKENS), vocabulary.first_known(FILE_TOKENS)

    def left(self, request: InfillRequest) -> Left:
        """Return the text before the only hole of a request, without the word that is being typed."""
        return before_last_word(self.vocabulary, request)

    def new_view(
        self, request: InfillRequest, n_tokens: int, n_suffix: int | None = None, related: Sequence[Snippet] | None = None
    ) -> View:
        """Return a view of a request that begins with its own related text, and about `n_tokens` before the hole."""
        related = request.related if related is None else related
        shown, _ = question.split(related)
        left, vocabulary = self.left(request).text, self.vocabulary
        ids = vocabulary.encode(left[-n_tokens * LONGEST_TOKEN :])
        n_chars = sum(vocabulary.lengths(ids[-n_tokens:])) if len(ids) > n_tokens else len(left)
        n_suffix = self.profile.suffix_tokens if n_suffix is None else n_suffix
        return View(shown, _block_start(left, len(left) - n_chars), len(left), n_suffix)

    def lay_out(self, request: InfillRequest, view: View | None = None) -> Prompt:
        """Return a request with one hole as a prompt, by default with a new and long window."""
        view = view or self.new_view(request, self.profile.prefix_tokens)
        profile, hole, left = self.profile, request.holes[0], self.left(request)
        prefix, typed = (
            self.vocabulary.encode(text) for text in (left.text[view.start : view.typed_at], left.text[view.typed_at :])
        )
        held, is_end = suffix_ids(self.vocabulary, request.suffix, profile.held_tokens * STRETCH)
        tail = whole_lines(self.vocabulary, held, profile.held_tokens, is_end=is_end)
        if hole.extent != "block" and not tail:  # a long line: the hole's own rest decides where the answer ends
            tail = held[: profile.held_tokens]
        ids, n_text = self._read(request, view, prefix, typed), len(prefix) + len(typed)
        return Prompt(ids, tuple(tail), left.heal, left.heal_ids, self.end, n_text)

    def _read(self, request: InfillRequest, view: View, prefix: Sequence[int], typed: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens that the model reads before it writes the answer."""
        return (*self.head(request.path, view.related), *prefix, *typed)

    def head(self, path: str, related: Sequence[Snippet]) -> list[int]:
        """Return the tokens before the prefix: other files and the path, as such models have seen repositories."""
        encode, files = self.vocabulary.encode, list[int]()
        if self.file is not None:
            room = self.profile.related_tokens
            for snippet in related:
                own = [self.file, *encode(f"{snippet.path}\n{snippet.text.rstrip()}\n")]
                if len(own) <= room:
                    room, files = room - len(own), [*files, *own]
            if path:
                files = [*files, self.file, *encode(f"{path}\n")]
        return files if files or self.start is None else [self.start]


class FillInTheMiddle(LeftToRight):
    """The layout of causal models with fill-in-the-middle tokens: prefix, suffix, middle.

    The suffix is encoded again in each place, so it is short, and ends with a paragraph. What is typed there is read after it.
    """

    def __init__(self, profile: Profile, vocabulary: Vocabulary) -> None:
        super().__init__(profile, vocabulary)
        if vocabulary.fim_tokens is None:
            raise ValueError("the checkpoint's tokenizer lacks a fill-in-the-middle token, which its layout needs")
        self.before, self.after, self.middle, self.end = vocabulary.fim_tokens

    def lay_out(self, request: InfillRequest, view: View | None = None) -> Prompt:
        prompt = super().lay_out(request, view)
        follow, _ = suffix_ids(self.vocabulary, request.suffix, self.profile.follow_tokens)
        typed = prompt.ids[len(prompt.ids) - prompt.ids[::-1].index(self.middle) :]
        return replace(prompt, n_left=prompt.ids.index(self.after), follow=tuple(follow), typed=typed)

    def _read(self, request: InfillRequest, view: View, prefix: Sequence[int], typed: Sequence[int]) -> tuple[int, ...]:
        suffix, is_end = suffix_ids(self.vocabulary, request.suffix, view.n_suffix)
        whole = suffix if is_end else _paragraphs(self.vocabulary, suffix)
        head = [] if (head := self.head(request.path, view.related)) == [self.start] else head
        return (*head, self.before, *prefix, self.after, *whole, self.middle, *typed)


LAYOUTS: dict[LayoutName, Callable[[Profile, Vocabulary], LeftToRight]] = {"left": LeftToRight, "fim": FillInTheMiddle}


def _block_start(left: str, at: int) -> int:
    """Return where the least indented line of those begins that are at or a little before a place."""
    starts = [place for place in range(max(0, at - SLACK_CHARS), at + 1) if not place or left[place - 1] == "\n"]
    lines = [(start, first_line(left[start:])) for start in starts]
    indents = [(len(line) - len(line.lstrip()), -start) for start, line in lines if line.strip()]
    return -min(indents)[1] if indents else at


def _paragraphs(vocabulary: Vocabulary, suffix: list[int]) -> list[int]:
    """Return the suffix up to its last blank line after some text; without one, up to its last line end.

    A model that reads a suffix which is cut within a block writes the rest of that block instead of an answer.
    """
    lines = vocabulary.decode(suffix).split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip()), len(lines))
    blank = max((index for index in range(first, len(lines) - 1) if not lines[index].strip()), default=0)
    n_whole = blank or len(lines) - 1
    return vocabulary.encode("\n".join([*lines[:n_whole], ""])) if n_whole > first else suffix


AHEAD_WEIGHT = 0.9  # of the file's repetitions, which only predict what to read ahead


class CausalInputs(RequestInputs):
    """A laid out request with one hole.

    A draft has at most `most_tokens`. `wants_likeliest`: one answer is asked for, and nothing but its likelihood and copies
    decide which.
    `wants_first`: the first draft and copies are enough, because it is also known how often such a draft is right.
    """

    prompt: Prompt
    loaded: Loaded[Any, Profile]

    def __init__(
        self, request: InfillRequest, prompt: Prompt, loaded: Loaded[Any, Profile], weights: Calibration | None
    ) -> None:
        profile = loaded.profile
        # The model itself ends an answer in the layout that it was trained with.
        super().__init__(request, prompt, loaded, weights, knows_end=profile.layout == "fim")
        self.most_tokens = profile.block_tokens if self.bounds.takes_lines else profile.line_tokens
        self.wants_likeliest = request.budget.candidates == 1 and not (self.needed or self.hole.instruction)
        self.wants_first = self.wants_likeliest and profile.draft_calibration is not None

    @property
    def ahead(self) -> FileModel | None:
        """What the file repeats, which predicts tokens to read ahead."""
        return self.file_model(AHEAD_WEIGHT)

    def next_tokens(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens that may follow, because of what is already typed; empty means any."""
        return next_after_typed(self.vocabulary, self.prompt.heal, ids)
