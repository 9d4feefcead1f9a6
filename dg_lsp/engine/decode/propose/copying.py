"""Propose copies from the file and from related texts, without a model.

Knows fills and texts. Knows nothing of canvases or passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from dg_lsp.core import placeholders
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.decode.file_model import FileModel
from dg_lsp.engine.decode.fill import FillInput
from dg_lsp.engine.decode.filling import Filling, Proposing
from dg_lsp.engine.decode.propose import copies
from dg_lsp.engine.decode.rank import Proposal

PREVIOUS_CHARS = 80  # of the text before the rest of an earlier answer, which say when it is expected


def propose(filling: Filling) -> Proposing:
    """Yield the best copies for a single hole."""
    fill = filling.fill
    if fill.n_holes > 1 or not fill.switches.copy or not fill.profile.copy_rows:
        return
    hole, source = fill.request.holes[0], _source(fill.request)
    for copy in copies.find(
        source.prefix,
        source.suffix,
        block=hole.block,
        indent=hole.indent,
        most=fill.profile.copy_rows,
        related=source.related,
    ):
        text = fill.of_draft(copy.text)
        # The embedded model's probabilities were fitted with such copies.
        if not fill.sheet.heals_by_parts or not fill.says_nothing(text):
            yield Proposal(text, "copy", left=copy.left, right=copy.right)


def rest_of_previous(fill: FillInput) -> str:
    """Return the rest of an earlier answer for the only hole, no longer than a copy; "" if there is none."""
    previous, hole = fill.request.previous, fill.request.holes[0]
    if fill.n_holes > 1 or not previous.strip():
        return ""
    return fill.of_draft(copies.shortened(previous, block=hole.block))


def file_model(fill: FillInput, weight: float, *, with_previous: bool = False) -> FileModel | None:
    """Return the model of the text around the hole, with this weight beside the causal model; None if it has none.

    Healed tokens are omitted, because the gap writes them. If it may know the rest of an earlier answer, it expects it first.
    """
    profile = fill.profile
    if fill.n_holes > 1 or not weight or not fill.switches.file:
        return None
    source = _source(fill.request)
    before = fill.vocabulary.encode(source.prefix[-profile.file_chars :])
    related = [*reversed(source.related)]
    if with_previous and fill.request.previous:
        related.append(source.prefix[-PREVIOUS_CHARS:] + fill.request.previous)
    return FileModel(
        before[: len(before) - len(fill.sheet.heal_ids)],
        fill.vocabulary.encode(source.suffix[: profile.file_chars]),
        related=[fill.vocabulary.encode(text) for text in related],
        full=weight,
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
