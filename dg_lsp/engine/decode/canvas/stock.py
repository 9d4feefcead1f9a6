"""Infill with transformers' own `generate`, as well as it allows, as a baseline for measurements.

We pass the starting canvas, a logits processor makes held positions one-hot (so that every step accepts them), and control
tokens are banned in the gap. The rest is the library's: a canvas of the checkpoint's fixed length, encoding the prompt in
each call, its sampler and its stopping rule. Knows the same layouts as the filler. Knows nothing of drafts or ranking.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DiffusionGemmaForBlockDiffusion, LogitsProcessor, LogitsProcessorList

from dg_lsp.core.values import Candidate, InfillRequest
from dg_lsp.engine.decode import layout
from dg_lsp.engine.model.loading import Loaded, find
from dg_lsp.engine.task import Filler, Task

STEPS = 48  # the library's default for this model


def library_model(loaded: Loaded) -> Any:
    """Return the loaded model as transformers' class; load it again with the library if it is our own class."""
    if hasattr(loaded.diffusion.model, "generate"):
        return loaded.diffusion.model
    dtype = getattr(torch, loaded.dtype)
    model: Any = DiffusionGemmaForBlockDiffusion.from_pretrained(
        str(find(loaded.name, loaded.revision)),
        dtype=dtype,
        attn_implementation="sdpa",
        use_safetensors=True,
        local_files_only=True,
    )
    return model.eval().requires_grad_(False).to(loaded.device)


class StockFiller(Filler):
    """A loaded model that fills with the library's `generate`: one gap length, no drafts, no ranking."""

    def __init__(self, loaded: Loaded, *, steps: int = STEPS) -> None:
        self.loaded, self.steps = loaded, steps
        self.model = library_model(loaded)
        self.layout = layout.for_profile(loaded.profile, loaded.vocabulary)

    def start(self, request: InfillRequest) -> StockTask:
        """Return a task with a single step; raise ValueError if the request has more than one hole."""
        if len(request.holes) > 1:
            raise ValueError("the library's generate fills one hole at a time")
        return StockTask(self, request)


class StockTask(Task):
    """One call of `generate`."""

    def __init__(self, filler: StockFiller, request: InfillRequest) -> None:
        self._filler, self._request = filler, request
        self._text = ""

    def step(self) -> bool:
        """Fill the hole in one step, because the library's `generate` can't be interrupted; return False."""
        loaded, request = self._filler.loaded, self._request
        model, vocabulary, profile = self._filler.model, loaded.vocabulary, loaded.profile
        sheet = self._filler.layout.lay_out(request)
        length: int = model.config.canvas_length
        gap = (profile.block_gaps if request.holes[0].block else profile.line_gaps)[0]
        # The canvas has the checkpoint's fixed length, so more of the suffix is held, then the end token.
        tail = vocabulary.encode(request.suffix[: length * 16])[: length - gap]
        tail += [vocabulary.id("<eos>") or 1] * (length - gap - len(tail))
        regular = torch.tensor(
            [token for token, piece in enumerate(vocabulary.pieces) if piece and token not in vocabulary.special]
        )
        noise = regular[torch.randint(len(regular), (gap,), generator=torch.Generator().manual_seed(request.seed))]
        canvas = torch.cat([noise, torch.tensor(tail)])[None]
        banned = [token for token in vocabulary.special if token != sheet.delete]
        if not request.holes[0].block:
            banned += vocabulary.with_newline
        hold = _Hold(canvas[0, gap:], gap, banned, layout.allowed(vocabulary, sheet.heal, by_parts=False))
        torch.manual_seed(request.seed)
        with torch.inference_mode():
            out: Any = model.generate(
                torch.tensor([sheet.kv], device=loaded.device),
                decoder_input_ids=canvas.to(loaded.device),
                logits_processor=LogitsProcessorList([hold]),
                max_new_tokens=length,
                max_denoising_steps=self._filler.steps,
                eos_token_id=None,
            )
        ids = out.sequences[0, len(sheet.kv) : len(sheet.kv) + gap].tolist()
        self._text = layout.answer(vocabulary, ids, sheet.heal)
        return False

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the only candidate."""
        return (Candidate((self._text,)),)

    def drafts(self) -> tuple[str, ...]:
        """Return the filled text, or "" before the step."""
        return (self._text,)


class _Hold(LogitsProcessor):  # type: ignore[misc]  # the library ships no types
    def __init__(self, tail: Tensor, gap: int, banned: list[int], first: tuple[int, ...]) -> None:
        self.tail, self.gap, self.banned, self.first = tail, gap, banned, list(first)

    def __call__(self, input_ids: Tensor, scores: Tensor, cur_step: Any) -> Tensor:
        scores = scores.clone()
        lowest = torch.finfo(scores.dtype).min / 4
        scores[:, : self.gap, self.banned] = lowest
        if self.first:
            first_scores = scores[:, 0, self.first].clone()
            scores[:, 0] = lowest
            scores[:, 0, self.first] = first_scores
        scores[:, self.gap :] = lowest
        scores[:, self.gap :].scatter_(2, self.tail[None, :, None].to(scores.device), 0.0)
        return scores
