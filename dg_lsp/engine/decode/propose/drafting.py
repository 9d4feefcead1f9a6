"""Make drafts for a single hole: copies from the file, the rest of an earlier answer, and causal drafts by the encoder.

Several holes get no drafts. Knows fills and the three sources. Knows nothing of canvases.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, replace

from dg_lsp.core import placeholders
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.decode import layout
from dg_lsp.engine.decode.file_model import FileModel
from dg_lsp.engine.decode.fill import Fill
from dg_lsp.engine.decode.propose import causal, drafts
from dg_lsp.engine.decode.propose.causal import Draft
from dg_lsp.engine.decode.rank import RowResult
from dg_lsp.engine.decode.scoring import Scorer
from dg_lsp.engine.model.passes import KV

MAX_CAUSAL_TOKENS = 128
MOST_BEHIND = 3.0  # nats: a draft that is so much less likely than another of its hole is hardly ever right


def file_model(fill: Fill) -> FileModel | None:
    """Return the model of the text around the hole, or None if it is disabled.

    Healed tokens are omitted, because the gap writes them.
    """
    profile = fill.profile
    if fill.n_holes > 1 or not profile.file_weight or not fill.switches.file:
        return None
    source = _source(fill.request)
    before = fill.vocabulary.encode(source.prefix[-profile.file_chars :])
    return FileModel(
        before[: len(before) - len(fill.sheet.heal_ids)],
        fill.vocabulary.encode(source.suffix[: profile.file_chars]),
        related=[fill.vocabulary.encode(text) for text in reversed(source.related)],
        full=profile.file_weight,
        half_at=profile.file_half_at,
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """The texts that drafts are copied from: both sides of the hole, and other files."""

    prefix: str
    suffix: str
    related: tuple[str, ...]


def _source(request: InfillRequest) -> _Source:
    """Return the texts to copy from.

    For a body they have no placeholders. A file with many holes repeats its placeholders, so without this, they are what
    most drafts of a body say, and all such drafts are useless.
    """
    source = _Source(request.prefix, request.suffix, tuple(snippet.text for snippet in request.related))
    if request.holes[0].kind not in ("body", "marker"):
        return source
    clean = placeholders.removed
    return _Source(clean(source.prefix), clean(source.suffix), tuple(map(clean, source.related)))


def copied_drafts(fill: Fill) -> list[RowResult]:
    """Return the drafts that need no model: copies from the file, and the rest of an earlier answer."""
    if fill.n_holes > 1:
        return []
    hole, request, gathered = fill.request.holes[0], fill.request, list[RowResult]()
    if fill.switches.copy and fill.profile.copy_rows:
        source = _source(request)
        copies = drafts.copies(
            source.prefix,
            source.suffix,
            block=hole.block,
            indent=hole.indent,
            most=fill.profile.copy_rows,
            related=source.related,
        )
        gathered += [RowResult(copy.text, "copy", left=copy.left, right=copy.right) for copy in copies]
    if request.previous.strip() and fill.profile.refine_steps:
        # It is worth a row only if the canvas corrects it, because it is rarely right unchanged.
        gathered.append(RowResult(drafts.shortened(request.previous, block=hole.block), "previous"))
    return [replace(result, text=fill.of_draft(result.text)) for result in gathered]


def causal_drafts(fill: Fill, kv: KV, file: FileModel | None) -> Generator[list[Draft], bool | None, list[Draft]]:
    """Return drafts that the encoder writes from left to right, as `causal.drafts` does.

    Within a line there is one that starts with the likeliest token, because its branches start with other likely tokens too.
    In blocks, branches found hardly any right answer more. At its end, another draft than the first may be the likeliest.
    """
    if fill.n_holes > 1 or not fill.switches.causal or not fill.profile.causal_rows:
        return []
    end, line_ends = _stops(fill)
    has_branches = fill.profile.branches > 0 and not fill.is_block
    return (
        yield from causal.drafts(
            fill.passes,
            kv,
            fill.sheet.kv[-1],
            rows=1 if has_branches else fill.profile.causal_rows,
            most=min(MAX_CAUSAL_TOKENS, max(fill.gap_lengths())),
            first=fill.first_tokens(),
            banned=[token for token in fill.tokens.unwritable if token not in end],
            stops=end | line_ends,
            end=fill.sheet.end,
            file=file,
            alone=fill.profile.branches > 0,
            branches=fill.profile.branches if has_branches else 0,
            # Of blocks, the likeliest are the shortest.
            most_behind=MOST_BEHIND if has_branches else math.inf,
        )
    )


def causal_results(fill: Fill, written: Sequence[Draft], scorer: Scorer) -> list[RowResult]:
    """Return the distinct texts of causal drafts. The scorer learns the log-probabilities that drafting computed."""
    end, line_ends = _stops(fill)
    results: dict[str, RowResult] = {}
    for draft in written:
        text = _text(fill, draft, end, line_ends)
        if draft.end is not None:
            scorer.learn(text, draft.ids, draft.logps, draft.end)
        results.setdefault(text, RowResult(text, "causal"))
    return list(results.values())


def text_so_far(fill: Fill, draft: Draft) -> str:
    """Return the text of a causal draft that may still be written."""
    return fill.of_draft(layout.answer(fill.vocabulary, draft.ids, fill.sheet.heal))


def _stops(fill: Fill) -> tuple[set[int], set[int]]:
    """Return the tokens that end an answer, and those that end the line of an answer within one line."""
    end = {fill.sheet.end} if fill.sheet.end is not None else set(fill.vocabulary.special)
    return end, set() if fill.is_block else set(fill.vocabulary.with_newline)


def _text(fill: Fill, draft: Draft, end: Collection[int], line_ends: Collection[int]) -> str:
    """Return a causal draft's text, without a copy of the suffix unless the draft ended with an end token."""
    has_ended = draft.stop is not None and draft.stop in end
    # A token with a line end may contain text before it.
    is_line = draft.stop is not None and draft.stop in line_ends and not has_ended and fill.profile.line_ends
    ids = [*draft.ids, draft.stop] if is_line and draft.stop is not None else draft.ids
    text = layout.answer(fill.vocabulary, ids, fill.sheet.heal)
    return text if has_ended and fill.sheet.end is not None else fill.of_draft(text)
