"""Choose what a model reads of a request, so that what it has read before stays useful.

A window is what stands first (other files) and the text of the file from some place on. A request goes on with a window that
begins in its text, wherever the cursor has moved meanwhile, so the tokens of a window grow at their end and never slide. What
is typed since the suffix was read counts as the beginning of the answer, so the suffix need not be read again.

Knows texts, and of how many leading tokens the keys and values are there. Knows nothing of tensors and clocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dg_lsp.core.values import InfillRequest, Snippet, n_common
from dg_lsp.engine.causal.layout import LeftToRight, Prompt, View
from dg_lsp.engine.common import question

LEAST_TOKENS = 200  # of the file before the hole, unless it has fewer
LEAST_NEW = 256  # the same for a new window
SHORT_SUFFIX = 32  # tokens of the suffix where there is no time for more
LONG_SHARE = 0.75  # of the profile's prefix: a window of so many tokens is long
MOST_LENGTHS = 2  # a window has at most so many times the profile's prefix
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


@dataclass(frozen=True, slots=True)
class Choice:
    """A view of a request, its tokens, and how many of these are missing."""

    view: View
    prompt: Prompt
    missing: int


class Windows:
    """The windows of one model, the last one first. `known` returns how many leading ids are encoded."""

    def __init__(self, layout: LeftToRight, known: Callable[[Sequence[int]], int]) -> None:
        self._layout, self._known, self._long = layout, known, layout.profile.prefix_tokens
        self._windows: tuple[Window, ...] = ()

    def prompt(self, request: InfillRequest, n_tokens: float = math.inf) -> Prompt:
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

    def better_prompt(self, request: InfillRequest) -> Prompt | None:
        """Return the tokens of a long window after other files that resemble the place; None if they are encoded."""
        choices = [
            choice
            for choice in self._known_choices(request)
            if self._is_long(choice) and not question.is_stale(choice.view.related, question.split(request.related)[0])
        ]
        choices = choices or [self._choice(request, self._layout.new_view(request, self._long))]
        best = min(choices, key=lambda choice: choice.missing)
        return self._chosen(request, best) if best.missing else None

    def _chosen(self, request: InfillRequest, choice: Choice) -> Prompt:
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
        found = list[Choice]()
        for view in views(self._windows, request, self._layout.left(request).text):
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
        related = next((window.related for window in self._windows if window.path == request.path), ())
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
        if window.path != request.path or (start := _start_in(left, window)) is None:
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
