"""A request laid out as tokens, with the model that answers it.

Knows what every stage of an answer asks of its request. Knows nothing of passes, trees and time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from dg_lsp.core import calibration, extent, placeholders
from dg_lsp.core.calibration import Calibration
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.common import rank
from dg_lsp.engine.common.drafts import FileModel
from dg_lsp.engine.common.layout import answer
from dg_lsp.engine.common.loading import Loaded
from dg_lsp.engine.common.rank import Describer

MAX_ROWS = 32  # the most rows, and so candidates, of one request; one pass has fewer if memory is short
LARGEST_SEED = 2**63 - 1
FILE_CHARS = 12_000  # the characters on each side of the hole that are searched for repetitions

# How a text is read: its ids, and those of what follows it.
Reading = tuple[list[int], list[int]]


class RequestInputs:
    """A request with its `prompt`, and the model that answers it. `weights` is the current calibration.

    What every stage asks of the request is computed once. `hole` is the first one, and often the only one; `bounds` say where
    its answer ends, for a model that `knows_end` or not. `is_block` says whether a hole may take several lines, and `is_body`
    whether the answer may not be another placeholder. `needed` are the names that the code after the hole needs and only the
    answer can bind. `typed` are the characters of the answer's first tokens that are already typed. A text that the model
    writes is the hole's part, or if it `may_exceed` that, begins with it. On a canvas, a gap has at most `longest_gap` tokens.
    """

    prompt: Any  # of any layout: it has the `ids` to encode first, and the typed bytes `heal` that the answer begins with
    loaded: Loaded[Any, Any]
    may_exceed = True
    longest_gap = 0
    order = rank.ORDER  # of the candidates without a calibration

    def __init__(
        self,
        request: InfillRequest,
        prompt: Any,
        loaded: Loaded[Any, Any],
        weights: Calibration | None,
        *,
        knows_end: bool = False,
    ) -> None:
        self.request, self.prompt, self.loaded = request, prompt, loaded
        self.calibration, self.position = weights, calibration.position(request)
        self.vocabulary, self.hole = loaded.vocabulary, request.holes[0]
        self.is_block = request.extent == "block"
        self.bounds = extent.of(self.hole, request.place, knows_end=knows_end)
        self.is_body = self.hole.kind in ("body", "marker")
        self.needed = self.hole.needed
        self.typed = prompt.heal.decode("utf-8", "ignore")

    @cached_property
    def describer(self) -> Describer:
        """Adds to proposals what follows from their texts."""
        return Describer(self.request, len(self.prompt.ids))

    @cached_property
    def mixed(self) -> FileModel | None:
        """What the file repeats, as it is mixed into drafts and scores; here nothing."""
        return None

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end a draft. A checkpoint without its own end token may write any special token."""
        return frozenset({self.prompt.end}) if self.prompt.end is not None else self.vocabulary.special

    @cached_property
    def line_ends(self) -> frozenset[int]:
        """The tokens that end a draft within a line."""
        return frozenset() if self.bounds.takes_lines else frozenset(self.vocabulary.with_newline)

    @cached_property
    def control(self) -> tuple[int, ...]:
        """The tokens without text: control tokens, and logits without a token."""
        return (*self.vocabulary.special, *range(self.vocabulary.size, self.loaded.passes.n_vocabulary))

    @property
    def banned(self) -> list[int]:
        return [token for token in self.control if token not in self.ends]

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The texts to copy from: the prefix, the suffix, and the related texts.

        For a body these have no placeholders: a file with many holes repeats its placeholders, so they would be what most
        drafts of a body say, and all such drafts are useless.
        """
        request = self.request
        sources = (request.prefix, request.suffix, *(each.text for each in request.related if not each.was_shown))
        return tuple(map(placeholders.removed, sources)) if self.is_body else sources

    def seed(self, number: int) -> int:
        """Return the seed of a row's noise."""
        return (self.request.seed * 1000 + number) & LARGEST_SEED

    def gap_lengths(self) -> tuple[int, ...]:
        """Return the gap lengths to try on a canvas: those of the profile that fit it."""
        profile = self.loaded.profile
        lengths: Sequence[int] = profile.block_gaps if self.is_block else profile.line_gaps
        return tuple(length for length in lengths if length <= self.longest_gap) or (max(self.longest_gap, 1),)

    def text_of(self, ids: Sequence[int]) -> str:
        """Return the text of an answer's tokens, without the characters that were already typed."""
        return answer(self.vocabulary, ids, self.prompt.heal)

    def of_draft(self, text: str) -> str:
        """Return the part of a draft for the only hole: its line or lines, without a copy of the suffix."""
        return self.bounds.of_draft(text) if self.may_exceed else text

    def draft_text(self, ids: Sequence[int], stop: int | None) -> str:
        """Return the hole's part of a draft that ended before the token `stop`, if with one."""
        has_ended = stop in self.ends
        # A token with a line end may contain text before it.
        if stop is not None and stop in self.line_ends and not has_ended and self.may_exceed:
            ids = [*ids, stop]
        text = self.text_of(ids)
        return text if has_ended and self.prompt.end is not None else self.of_draft(text)

    def ids_of(self, text: str) -> list[int]:
        """Return the ids of an answer, with those of the typed characters that it continues."""
        return self.vocabulary.encode(self.typed + text)

    def reading(self, text: str) -> Reading:
        """Return how a text is read: its ids, and those of the end token or of the held suffix."""
        prompt = self.prompt
        return self.ids_of(text), [prompt.end] if prompt.end is not None else list(prompt.tail)

    def says_nothing(self, text: str) -> bool:
        """Return whether a text is blank, or no body where a body is asked for."""
        return placeholders.says_nothing(text) if self.is_body else not text.strip()

    def file_model(self, weight: float, half_at: float = 4.0, written: Sequence[Sequence[int]] = ()) -> FileModel | None:
        """Return the model of the text around the hole, None without a weight; typed tokens are left out: the answer has them.

        At the match length `half_at`, in tokens, it has half of the weight. What was `written` counts as other files.
        """
        if len(self.request.holes) > 1 or not weight:
            return None
        encode, (prefix, suffix, *related) = self.vocabulary.encode, self.sources
        before = encode(prefix[-FILE_CHARS:])
        others = [*(encode(text) for text in reversed(related)), *written]
        known = before[: len(before) - len(self.prompt.heal_ids)]
        return FileModel(known, encode(suffix[:FILE_CHARS]), related=others, full=weight, half_at=half_at)
