"""A request laid out as tokens for one model: what every stage of an answer reads, and none changes.

Knows requests, token ids and text. Knows nothing of how an answer is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from dg_lsp.core import calibration, extent, placeholders
from dg_lsp.core.calibration import Calibration
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.common.file_model import FileModel
from dg_lsp.engine.common.layout import answer
from dg_lsp.engine.common.loading import Loaded

FILE_CHARS = 12_000  # the characters on each side of the hole that are searched for repetitions


class RequestInputs:
    """A request with its `prompt`, and the model that answers it. `weights` is the current calibration.

    What every stage asks of the request is computed once. `hole` is the first one, and often the only one; `bounds` say where
    its answer ends, for a model that `knows_end` or not. `is_block` says whether a hole may take several lines, and `is_body`
    whether the answer may not be another placeholder. `needed` are the names that the code after the hole needs and only the
    answer can bind. `typed` are the characters of the answer's first tokens that are already typed. A text that the model
    writes is the hole's part, or if it `may_exceed` that, begins with it.
    """

    prompt: Any  # of any layout: it has the `ids` to encode first, and the typed bytes `heal` that the answer begins with
    loaded: Loaded[Any, Any]
    may_exceed = True

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
        self.bounds = extent.of(self.hole, request.place, request.language, knows_end=knows_end)
        self.is_body = self.hole.kind in ("body", "marker")
        self.needed = self.hole.needed
        self.typed = prompt.heal.decode("utf-8", "ignore")

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
        """The tokens that no draft has."""
        return [token for token in self.control if token not in self.ends]

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The texts to copy from: the prefix, the suffix, and the related texts.

        For a body these have no placeholders: a file with many holes repeats its placeholders, so they would be what most
        drafts of a body say, and all such drafts are useless.
        """
        request = self.request
        sources = (request.prefix, request.suffix, *(snippet.text for snippet in request.related))
        return tuple(map(placeholders.removed, sources)) if self.is_body else sources

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

    def says_nothing(self, text: str) -> bool:
        """Return whether a text is blank, or no body where a body is asked for."""
        return placeholders.says_nothing(text) if self.is_body else not text.strip()

    def file_model(self, weight: float, half_at: float = 4.0) -> FileModel | None:
        """Return the model of the text around the hole, None without a weight; typed tokens are left out: the answer has them.

        At the match length `half_at`, in tokens, it has half of the weight.
        """
        if len(self.request.holes) > 1 or not weight:
            return None
        encode, (prefix, suffix, *related) = self.vocabulary.encode, self.sources
        before = encode(prefix[-FILE_CHARS:])
        others = [encode(text) for text in reversed(related)]
        known = before[: len(before) - len(self.prompt.heal_ids)]
        return FileModel(known, encode(suffix[:FILE_CHARS]), related=others, full=weight, half_at=half_at)
