"""Drafts of a single hole: copies from the file, what an earlier answer left, and a causal draft by the encoder.

Several holes get no drafts. Knows fills and the three sources. Knows nothing of canvases.
"""

from __future__ import annotations

from collections.abc import Generator

from dg_lsp.engine import causal, drafts, layout
from dg_lsp.engine.file_model import FileModel
from dg_lsp.engine.local.fill import Fill
from dg_lsp.engine.passes import KV
from dg_lsp.engine.rank import RowResult

MAX_CAUSAL_TOKENS = 128


def file_model(fill: Fill) -> FileModel | None:
    """Return what the text around the hole says of itself, None where that is not asked for.

    The tokens that are healed are left out, as the gap writes them.
    """
    profile = fill.profile
    if fill.n_holes > 1 or not profile.file_weight or not fill.switches.file:
        return None
    before = fill.vocabulary.encode(fill.request.prefix[-profile.file_chars :])
    return FileModel(
        before[: len(before) - len(fill.sheet.heal_ids)],
        fill.vocabulary.encode(fill.request.suffix[: profile.file_chars]),
        full=profile.file_weight,
        half_at=profile.file_half_at,
    )


def copied_drafts(fill: Fill) -> list[RowResult]:
    """Return the drafts that cost no model: copies from the file, and what an earlier answer would still write."""
    if fill.n_holes > 1:
        return []
    hole, request, gathered = fill.request.holes[0], fill.request, list[RowResult]()
    if fill.switches.copy and fill.profile.copy_rows:
        copies = drafts.copies(
            request.prefix, request.suffix, block=hole.block, indent=hole.indent, most=fill.profile.copy_rows
        )
        gathered += [RowResult(copy.text, "copy", left=copy.left, right=copy.right) for copy in copies]
    if request.previous.strip() and fill.profile.refine_steps:
        # Only worth a row where the canvas corrects it: unchanged, it is rarely right.
        gathered.append(RowResult(drafts.kept(request.previous, block=hole.block), "previous"))
    return gathered


def causal_drafts(fill: Fill, kv: KV, file: FileModel | None) -> Generator[bool, None, list[RowResult]]:
    """Return the gap written from left to right by the encoder, from its likeliest first tokens on.

    Yields after each token, the unit that is never interrupted.
    """
    if fill.n_holes > 1 or not fill.switches.causal or not fill.profile.causal_rows:
        return []
    end = {fill.sheet.end} if fill.sheet.end is not None else set(fill.vocabulary.special)
    rows = yield from causal.drafts(
        fill.passes,
        kv,
        fill.sheet.kv[-1],
        rows=fill.profile.causal_rows,
        most=min(MAX_CAUSAL_TOKENS, max(fill.gap_lengths())),
        first=fill.first_tokens(),
        banned=[token for token in fill.tokens.unwritable if token not in end],
        file=file,
        stops=end if fill.is_block else end | set(fill.vocabulary.with_newline),
    )
    return [RowResult(layout.answer(fill.vocabulary, row, fill.sheet.heal), "causal") for row in rows]
