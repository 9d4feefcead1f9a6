"""Choose what a causal model reads of a request, and lay it out as a prompt: all tokens before the middle that it writes.

*left*: other files, the path and the prefix. *fim*: also the suffix, between the checkpoint's own fill-in-the-middle tokens.
Such a model has not seen prefixes that end inside a word. So the prefix is cut before its last pre-token, which the answer
must begin with, in whichever tokens. A checkpoint's profile has its layout and budgets.

A window is what stands first (other files) and the text of the file from some place on. A request goes on with a window that
begins in its text, wherever the cursor has moved meanwhile, so the tokens of a window grow at their end and never slide. What
is typed since the suffix was read counts as the beginning of the answer, so the suffix need not be read again.

Knows texts, tokens, and for how many leading tokens there are keys and values. Knows nothing of rows, tensors and clocks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

from dg_lsp.core.calibration import Calibration
from dg_lsp.core.edits import LEAST_LOGP, FilePart
from dg_lsp.core.place import first_line, last_line
from dg_lsp.core.values import InfillRequest, Snippet, n_common
from dg_lsp.engine.common import question
from dg_lsp.engine.common.drafts import CausalDraft, FileModel
from dg_lsp.engine.common.inputs import Reading, RequestInputs
from dg_lsp.engine.common.layout import STRETCH, Left, before_last_word, next_after_typed, required_ids, suffix_ids, whole_lines
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.model.vocabulary import Vocabulary

LayoutName = Literal["left", "fim", "infill-trained"]


@dataclass(frozen=True, slots=True)
class CausalProfile:
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
    block_rows: int = 1  # greedy drafts of several lines, each with another likely first token
    branches: int = 3  # of a draft: others that differ from it first in one token
    file_weight: float = 0.0  # the weight of the file's own repetitions beside the model; 0: they only predict tokens
    file_half_at: float = 4.0  # the match length, in tokens, at which they have half of that weight
    calibration: Calibration | None = None  # None: its confidence was never measured
    draft_calibration: Calibration | None = None  # of the first draft by its own tokens, before anything else is known
    # The first draft is sure from this log-probability on, or if it is so many nats likelier than the start of any branch.
    sure_logp: float = -0.6
    sure_margin: float = 1.0
    # Of the next edit: how much of the file is read, None for less on a processor than elsewhere; and the least log-probability
    # of the whole window as the model writes it, of one that repeats an edit of the last ones and of another. Below it, nothing
    # is offered unprompted.
    edit_file: FilePart | None = None
    edit_threshold: float = LEAST_LOGP
    new_edit_threshold: float = LEAST_LOGP


FILE_TOKENS = ("<|file_sep|>", "<file_sep>")  # what pretrained models have between files
LONGEST_TOKEN = 16  # characters, about; so the start of a long file need not be encoded
SLACK_CHARS = 480  # before the place where a window must begin: the least indented line in them is its first
PATH_TOKENS = 12  # of a path's last two parts
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
class CausalPrompt:
    """A request as tokens: the ids that the model reads, and the first ids of the suffix in two other uses."""

    ids: tuple[int, ...]  # that the model reads
    tail: tuple[int, ...]  # whole lines of the suffix, which the pass that scores answers reads after them
    heal: bytes  # the prefix's last bytes, removed from `ids`; the answer starts with them, with any tokens
    heal_ids: tuple[int, ...]  # of `heal`
    end: int | None = None  # the token that ends an answer, if the model has one
    n_text: int = 0  # how many of the ids are the file's text before the hole
    # If `ids` contains the suffix:
    n_left: int = 0  # how many ids are before it
    typed: tuple[int, ...] = ()  # the last ids, of text before the hole that is read after the suffix
    follow: tuple[int, ...] = ()  # what is read of the suffix after the likeliest answers


class LeftToRight:
    """The layout of causal models that were not trained to fill in the middle: other files, the path and the prefix.

    The suffix is only held, and read by the pass that scores the answers.
    """

    end: int | None = None  # no token ends an answer

    def __init__(self, profile: CausalProfile, vocabulary: Vocabulary) -> None:
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

    def lay_out(self, request: InfillRequest, view: View | None = None) -> CausalPrompt:
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
        return CausalPrompt(ids, tuple(tail), left.heal, left.heal_ids, self.end, n_text)

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

    def __init__(self, profile: CausalProfile, vocabulary: Vocabulary) -> None:
        super().__init__(profile, vocabulary)
        if vocabulary.fim_tokens is None:
            raise ValueError("the checkpoint's tokenizer lacks a fill-in-the-middle token, which its layout needs")
        self.before, self.after, self.middle, self.end = vocabulary.fim_tokens

    def lay_out(self, request: InfillRequest, view: View | None = None) -> CausalPrompt:
        prompt = super().lay_out(request, view)
        follow, _ = suffix_ids(self.vocabulary, request.suffix, self.profile.follow_tokens)
        typed = prompt.ids[len(prompt.ids) - prompt.ids[::-1].index(self.middle) :]
        return replace(prompt, n_left=prompt.ids.index(self.after), follow=tuple(follow), typed=typed)

    def _read(self, request: InfillRequest, view: View, prefix: Sequence[int], typed: Sequence[int]) -> tuple[int, ...]:
        suffix, is_end = suffix_ids(self.vocabulary, request.suffix, view.n_suffix)
        whole = suffix if is_end else _paragraphs(self.vocabulary, suffix)
        head = [] if (head := self.head(request.path, view.related)) == [self.start] else head
        return (*head, self.before, *prefix, self.after, *whole, self.middle, *typed)


class SuffixFirst(LeftToRight):
    """The layout of the embedded model, which was trained with it: the path, the suffix, the kind of hole, and the prefix.

    The suffix comes first, so that typing only extends the encoded tokens (SPM order, arXiv 2207.14255). It reads no other
    files. No token of its vocabulary goes on behind a line end or an indentation.
    """

    def __init__(self, profile: CausalProfile, vocabulary: Vocabulary) -> None:
        super().__init__(profile, vocabulary)
        names = ("<bos>", "<eos>", "<path>", "<suf>", "<pre>", "<eom>")
        self.bos, self.eos, self.path, self.suf, self.pre, self.end = required_ids(vocabulary, names)
        # Older checkpoints have no tokens for the kinds of hole.
        self.kinds = {kind: vocabulary.id(f"<{kind}>") for kind in ("span", "line", "lines", "block", "body")}

    def left(self, request: InfillRequest) -> Left:
        left = super().left(request)
        is_healed = last_line(request.prefix).strip()
        return left if is_healed else Left(left.text + left.heal.decode(), b"", ())

    def new_view(
        self, request: InfillRequest, n_tokens: int, n_suffix: int | None = None, related: Sequence[Snippet] | None = None
    ) -> View:
        return super().new_view(request, n_tokens, n_suffix, ())

    def _read(self, request: InfillRequest, view: View, prefix: Sequence[int], typed: Sequence[int]) -> tuple[int, ...]:
        suffix, is_end = suffix_ids(self.vocabulary, request.suffix, view.n_suffix)
        name = self.vocabulary.encode("/".join(request.path.split("/")[-2:]))[:PATH_TOKENS] if request.path else []
        head = [self.bos, *([self.path, *name] if name else []), self.suf, *suffix, *([self.eos] if is_end else [])]
        kind = self.kinds[_kind(request)]
        return (*head, *([kind] if kind is not None else []), self.pre, *prefix, *typed)


def _kind(request: InfillRequest) -> str:
    """Return the name of the token for the kind of the only hole."""
    hole = request.holes[0]
    if hole.kind == "body":
        return "body"
    if hole.extent == "block":
        return "lines" if not request.prefix or request.prefix.endswith("\n") else "block"
    return "line" if request.place.ends_line else "span"


LAYOUTS: dict[LayoutName, Callable[[CausalProfile, Vocabulary], LeftToRight]] = {
    "left": LeftToRight,
    "fim": FillInTheMiddle,
    "infill-trained": SuffixFirst,
}


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


@dataclass(frozen=True, slots=True)
class Written:
    """The drafts of an answer, while they are written and after, and the last tokens before its hole."""

    before: Sequence[int]
    drafts: Sequence[CausalDraft]

    @property
    def ids(self) -> tuple[int, ...]:
        """The first draft as far as it is written, after what is before the hole."""
        return (*self.before, *(token for draft in self.drafts[:1] for token in (*draft.ids, draft.stop) if token is not None))


AHEAD_WEIGHT = 0.9  # of the file's repetitions, which only predict what to read ahead


class CausalInputs(RequestInputs):
    """A laid out request with one hole.

    A draft has at most `most_tokens`. `wants_likeliest`: one answer is asked for, and nothing but its likelihood and copies
    decide which.
    `wants_first`: the first draft and copies are enough, because it is also known how often such a draft is right.
    """

    prompt: CausalPrompt
    loaded: Loaded[Any, CausalProfile]

    def __init__(
        self,
        request: InfillRequest,
        prompt: CausalPrompt,
        loaded: Loaded[Any, CausalProfile],
        weights: Calibration | None,
        written: deque[Written],
    ) -> None:
        profile = loaded.profile
        # The model itself ends an answer in the layout that it was trained with.
        super().__init__(request, prompt, loaded, weights, knows_end=profile.layout == "fim")
        self._written = written
        self.most_tokens = profile.block_tokens if self.bounds.takes_lines else profile.line_tokens
        # Where the file's repetitions count, the model's own probabilities bound no text's.
        asks_one = request.budget.candidates == 1 and not profile.file_weight
        self.wants_likeliest = asks_one and not (self.needed or self.hole.instruction)
        self.wants_first = self.wants_likeliest and profile.draft_calibration is not None

    @cached_property
    def ahead(self) -> FileModel | None:
        """What the file and the last answers repeat, which predicts tokens to read ahead.

        A user who types on makes the model write most of its last answer again.
        """
        return self.file_model(AHEAD_WEIGHT, written=[each.ids for each in self._written])

    @cached_property
    def mixed(self) -> FileModel | None:
        """What the file repeats, as it is mixed into drafts and scores; None without a weight."""
        return self.file_model(self.loaded.profile.file_weight, self.loaded.profile.file_half_at)

    def remember(self, drafts: Sequence[CausalDraft]) -> None:
        """Let later requests predict the first of these drafts, also as far as it will be written."""
        if self.ahead is not None:
            self._written.append(Written(self.ahead.before, drafts))

    def next_tokens(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens that may follow, because of what is already typed; empty means any."""
        return next_after_typed(self.vocabulary, self.prompt.heal, ids)

    def reading(self, text: str) -> Reading:
        """Return how a text is read: its ids, and those of the end token or of the held suffix.

        A pretrained model knows code only as its tokenizer encodes it. So where no token ends an answer, the text and the
        suffix are encoded together, and a token of both counts as the suffix's.
        """
        prompt = self.prompt
        return self.joined(text, self.vocabulary.decode(prompt.tail)) if prompt.end is None else super().reading(text)

    def joined(self, text: str, after: str) -> Reading:
        """Return the ids of a text, and those of what is after it, encoded together."""
        vocabulary, own = self.vocabulary, self.typed + text
        ids, n_bytes = vocabulary.encode(own + after), len(own.encode())
        n_own = sum(length <= n_bytes for length in accumulate(len(vocabulary.pieces[token]) for token in ids))
        return ids[:n_own], ids[n_own:]


# --- Windows


LEAST_TOKENS = 200  # of the file before the hole, unless it has fewer
LEAST_NEW = 256  # the same for a new window
SHORT_SUFFIX = 32  # tokens of the suffix where there is no time for more
LONG_SHARE = 0.75  # of the profile's prefix: a window of so many tokens is long
MOST_LENGTHS = 2  # a window has at most so many times the profile's prefix
TOKEN_CHARS = 6  # more than the tokens of code have on average; a window with more text than that is not even encoded
MUCH, LITTLE = 2, 16  # a longer window may need so many times as many new tokens as another, and so many more
MOST_TYPED = 200  # characters that count as the beginning of the answer
MARK_LINES = 3  # of a window, by which its beginning is found in a text that may have changed
MOST_STARTS = 32  # places of these lines, the nearest ones, that are compared
MOST_WINDOWS = 16


@dataclass(frozen=True, slots=True)
class Window:
    """A window as it was read last: of which file, what stood first, its text, and what followed it."""

    path: str
    related: tuple[Snippet, ...]
    text: str
    suffix: str
    n_suffix: int

    @property
    def mark(self) -> str:
        """The first lines of its text."""
        return "".join(self.text.splitlines(keepends=True)[:MARK_LINES])

    def is_of(self, request: InfillRequest) -> bool:
        """Return whether a request's file is that of the window, and what stood first may stay."""
        return self.path == request.path and question.may_stay(self.related, request)


@dataclass(frozen=True, slots=True)
class Choice:
    """A view of a request, its tokens, and how many of these are missing."""

    view: View
    prompt: CausalPrompt
    missing: int


class Windows:
    """The windows of one model, the last one first. `known` returns how many leading ids are encoded."""

    def __init__(self, layout: LeftToRight, known: Callable[[Sequence[int]], int]) -> None:
        self._layout, self._known, self._long = layout, known, layout.profile.prefix_tokens
        self._windows: tuple[Window, ...] = ()

    def prompt(self, request: InfillRequest, n_tokens: float = math.inf) -> CausalPrompt:
        """Return the tokens to read for a request if there is time for `n_tokens` new ones.

        It is the window that needs the fewest, or a longer one that needs at most twice as many. If there is any time, it is a
        long one.
        """
        choices = self._known_choices(request)
        if n_tokens == math.inf:
            choices = [choice for choice in choices if self._is_long(choice)]
        choices.append(self._choice(request, self._new_view(request, n_tokens)))
        most = MUCH * min(choice.missing for choice in choices) + LITTLE
        able = [choice for choice in choices if choice.missing <= most]
        return self._chosen(request, max(able, key=lambda choice: (min(choice.prompt.n_text, self._long), -choice.missing)))

    def better_prompt(self, request: InfillRequest) -> CausalPrompt | None:
        """Return the tokens of a long window after other files that resemble the place; None if they are encoded."""
        choices = [
            choice
            for choice in self._known_choices(request)
            if self._is_long(choice) and not question.is_stale(choice.view.related, question.split(request.related)[0])
        ]
        choices = choices or [self._choice(request, self._layout.new_view(request, self._long))]
        best = min(choices, key=lambda choice: choice.missing)
        return self._chosen(request, best) if best.missing else None

    def _chosen(self, request: InfillRequest, choice: Choice) -> CausalPrompt:
        """Return the prompt of a choice, whose window is the last one now, in place of the one that it goes on with."""
        view, text = choice.view, self._layout.left(request).text
        new = Window(request.path, view.related, text[view.start : view.typed_at], request.suffix, view.n_suffix)
        others = [each for each in self._windows if (each.path, each.related, each.mark) != (new.path, new.related, new.mark)]
        self._windows = (new, *others)[:MOST_WINDOWS]
        return choice.prompt

    def _choice(self, request: InfillRequest, view: View) -> Choice:
        prompt = self._layout.lay_out(request, view)
        return Choice(view, prompt, len(prompt.ids) - self._known(prompt.ids))

    def _is_long(self, choice: Choice) -> bool:
        return choice.view.start == 0 or choice.prompt.n_text >= LONG_SHARE * self._long

    def _known_choices(self, request: InfillRequest) -> list[Choice]:
        """Return the choices that go on with an encoded window."""
        found, left = list[Choice](), self._layout.left(request).text
        for view in views(self._windows, request, left):
            if len(left) - view.start > MOST_LENGTHS * self._long * TOKEN_CHARS:
                continue
            choice = self._choice(request, view)
            n_text, n_head = choice.prompt.n_text, len(self._layout.head(request.path, view.related))
            is_encoded = len(choice.prompt.ids) - choice.missing > n_head + LITTLE
            has_enough = n_text >= LEAST_TOKENS or view.start == 0
            if has_enough and is_encoded and n_text <= MOST_LENGTHS * self._long:
                found.append(choice)
        return found

    def _new_view(self, request: InfillRequest, n_tokens: float) -> View:
        """Return a view with a new window, as long as there is time to read, after what stands first already."""
        profile = self._layout.profile
        related = next((window.related for window in self._windows if window.is_of(request)), ())
        head = self._layout.head(request.path, related)
        is_encoded = self._known(head) == len(head)
        if not is_encoded or (n_tokens == math.inf and question.is_stale(related, question.split(request.related)[0])):
            has_time = n_tokens >= LEAST_NEW + profile.related_tokens + profile.suffix_tokens
            related = request.related if has_time else ()
            n_tokens -= profile.related_tokens if has_time else 0
        n_suffix = profile.suffix_tokens if n_tokens >= LEAST_NEW + profile.suffix_tokens else SHORT_SUFFIX
        n_text = min(max(n_tokens - n_suffix, LEAST_NEW), self._long)
        return self._layout.new_view(request, int(n_text), n_suffix, related)


def views(windows: Sequence[Window], request: InfillRequest, left: str) -> list[View]:
    """Return the views of a request that go on with a window, in their order. `left` is its text before the hole."""
    found = list[View]()
    for window in windows:
        if not window.is_of(request) or (start := _start_in(left, window)) is None:
            continue
        typed_at, end = start + len(window.text), len(left)
        if window.suffix == request.suffix and end - typed_at <= MOST_TYPED and left.startswith(window.text, start):
            found.append(View(window.related, start, typed_at, window.n_suffix))
        found.append(View(window.related, start, end, window.n_suffix))
    return list(dict.fromkeys(found))


def _start_in(left: str, window: Window) -> int | None:
    """Return where a window begins in a text: where most of its text follows. None if its first lines are not there."""
    mark, starts = window.mark, list[int]()
    at = left.rfind(mark) if mark else -1
    while at >= 0 and len(starts) < MOST_STARTS:
        starts.append(at)
        at = left.rfind(mark, 0, at + len(mark) - 1)
    n_chars = len(window.text)
    return max(starts, key=lambda start: (n_common(left[start : start + n_chars], window.text), start), default=None)
