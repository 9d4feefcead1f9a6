"""Write an answer that is longer than one canvas: fill a canvas, commit and encode its whole lines, and continue after them.

DiffusionGemma writes any text this way (transformers 5.23, `generation_diffusion_gemma.py`). Two things differ: the answer
ends at the suffix or at the end of the model's turn, and each committed part ends with a line end. Knows fills and canvases.
Knows nothing of how answers are ranked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import torch

from dg_lsp.core import repeats
from dg_lsp.engine.decode import layout, scoring
from dg_lsp.engine.decode.canvas.denoise import Denoiser, Row, TokenLimits
from dg_lsp.engine.decode.fill import FillInput
from dg_lsp.engine.decode.filling import Filling, Proposing
from dg_lsp.engine.decode.pace import LEAST_STEPS
from dg_lsp.engine.decode.propose import rows
from dg_lsp.engine.decode.rank import Proposal
from dg_lsp.engine.decode.resources import MAX_ROWS
from dg_lsp.engine.model.family import KV

# Steps a denoiser on a prefix's keys and values until all its rows are finished.
Settle = Callable[[Denoiser, KV], Generator[None, None, None]]


def propose(filling: Filling) -> Proposing:
    """Yield an answer of several canvases in sequence, if the suffix follows none of the proposals."""
    fill, budget = filling.fill, filling.budget
    if not fill.may_go_on:
        return
    yield from filling.score()
    if not all(scoring.is_unclosed(fill, proposal) for proposal in filling.proposals):
        return
    n_steps = budget.units(filling.step_ms(fill.profile.canvas_tokens), filling.score_ms())
    if budget.is_limited and (n_steps is None or n_steps < LEAST_STEPS):
        return

    def settle(denoiser: Denoiser, kv: KV) -> Generator[None, None, None]:
        steps = filling.stepping(denoiser, kv)
        while not filling.is_over(steps):
            yield from steps.take_one()

    text = yield from written(fill, filling.kv, rows.seed(fill, MAX_ROWS), settle)
    filling.leave()
    if text.strip():
        yield Proposal(text, "noise")


def written(fill: FillInput, kv: KV, seed: int, settle: Settle) -> Generator[None, None, str]:
    """Return the text that several canvases write in sequence, up to the suffix or the end of the model's turn."""
    sheet, committed = fill.sheet, list[int]()
    first = fill.next_tokens(())
    for number in range(fill.profile.max_canvases):
        ids = yield from _canvas(fill, kv, seed + number, first, settle)
        is_last = number == fill.profile.max_canvases - 1
        end = next((index for index, token in enumerate(ids) if token in sheet.closing), None)
        whole = layout.answer(fill.vocabulary, [*committed, *ids[:end]], sheet.heal)
        text = closed(whole, fill.request.suffix)
        if end is not None or len(text) < len(whole) or is_last:
            return text
        part = commit(ids, fill.vocabulary.pieces)
        with_part = torch.tensor([part], device=fill.loaded.device)
        kv = fill.passes.encode(with_part, kv)[1]
        committed, first = [*committed, *part], ()
        yield
    return ""


def closed(text: str, suffix: str) -> str:
    """Return a text up to the suffix or the code fence that closes an answer, whichever comes first."""
    fence = 0 if text.startswith("```") else text.find("\n```") + 1
    if fence or text.startswith("```"):
        text = text[:fence].removesuffix("\n")
    return repeats.before_suffix(text, suffix)


def commit(ids: Sequence[int], pieces: Sequence[bytes]) -> list[int]:
    """Return a canvas's ids up to its last line end, or all of them if it has none."""
    ends = [index + 1 for index, token in enumerate(ids) if pieces[token].endswith(b"\n")]
    return list(ids[: ends[-1] if ends else len(ids)])


def _canvas(fill: FillInput, kv: KV, seed: int, first: tuple[int, ...], settle: Settle) -> Generator[None, None, list[int]]:
    """Return the ids of one canvas without a held suffix."""
    width, sampling = fill.profile.canvas_tokens, fill.profile.sampling
    steps = fill.request.budget.steps or sampling.block_steps
    closing = set(fill.sheet.closing)
    banned = tuple(token for token in fill.tokens.unwritable if token not in closing)
    row = Row((fill.tokens.regular[0],) * width, (True,) * width, steps, seed)
    limits = TokenLimits(fill.tokens.regular, banned, first)
    denoiser = Denoiser([row], limits, sampling, fill.tokens.n_logits, fill.loaded.device)
    yield from settle(denoiser, kv)
    return list(denoiser.read(0).ids)
