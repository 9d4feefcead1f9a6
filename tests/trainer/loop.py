"""The training loop: a causal stage, then a stage with causal and diffusion losses, resumable at any time.

The causal stage comes first because a trial without it learnt nothing in the parallel stage. The diffusion loss is
uniform over the gap, with uniform noise and self-conditioning by a second pass (DiffusionGemma report, arXiv
2608.00146; Analog Bits, arXiv 2208.04202).

This module knows the objective, the optimizers and the schedule. It knows nothing of editors, source files or prompts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dg_lsp.engine.model import before_torch  # noqa: F401 -- before torch

# isort: split
import torch
from tokenizers import Tokenizer
from torch import Tensor

from dg_lsp.engine.model.passes import KV, Passes
from dg_lsp.engine.model.profile import Profile
from dg_lsp.train.canvas.loop import dtype_of
from tests.trainer import pack
from tests.trainer.export import PROFILE
from tests.trainer.losses import head_loss, token_losses
from tests.trainer.objective import PARTS, CanvasBatch, CausalBatch, Sampler
from tests.trainer.schedule import Progress, Schedule
from tests.trainer.shape import Shape, build, resume
from tests.trainer.windows import DELETE, N_SPECIAL

IDLE_LOOK_S = 20.0  # how often a run with `threads` 0 looks for idle cores
DRAFT_NOISE = 0.6
CO_LOSS = 1.0  # the weight of the causal loss of windows with canvases relative to the canvases' loss
CHECK_ROWS = 24  # rows of one batch of the held-out windows


@dataclass(frozen=True, slots=True)
class Plan:
    """How one run trains. A part is one batch; a step adds the gradients of as many parts as the schedule says."""

    schedule: Schedule = field(default_factory=Schedule)
    length: int = 192  # the length of short windows
    long_length: int = 640
    tokens_per_part: int = 3840
    rows: int = 6  # of a mixed part, each with `canvases`
    canvases: int = 6
    mixed_length: int = 256
    learning_rate: float = 3e-3
    embedding_rate: float = 2e-3
    average_tokens: int = 1_000_000  # the number of tokens over which the exported weights are averaged
    seed: int = 0
    threads: int = 1  # 0: one, and a second while another core is idle
    device: str = "cpu"
    compiled: bool = False
    instruct_share: float = 0.15  # the fraction of windows with canvases in the instruct layout, which the 26B checkpoint uses
    profile: Profile = PROFILE
    check_windows: int = 480
    save_every_s: float = 240.0


def run(folder: Path, shape: Shape, plan: Plan, *, on_message: Callable[[str], None] = print) -> None:
    """Train on `folder/train.npz` with `folder/tokenizer.json` until the schedule is done, resuming from `folder/state.pt`.

    Every few minutes it writes `state.pt`, with everything needed to resume, and a line of `curve.jsonl`.
    """
    trainer = Trainer(folder, shape, plan)
    last = saved = time.monotonic()
    losses: list[Tensor] = []
    while not plan.schedule.is_done(trainer.progress):
        losses.append(trainer.step())
        now = time.monotonic()
        trainer.progress.minutes += (now - last) / 60
        last = now
        if now - saved > plan.save_every_s:
            on_message(trainer.record(losses))
            trainer.save()
            losses, saved = [], now
            last = time.monotonic()
    on_message(trainer.record(losses))
    trainer.save()


class Trainer:
    """The state of one run: a model, its optimizers, and the data that it reads."""

    def __init__(self, folder: Path, shape: Shape, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        torch.set_num_threads(plan.threads or 1)
        if not plan.threads:  # makes compiled code read the number of threads at each call
            torch._inductor.config.cpp.dynamic_threads = True
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.model: Any = build(shape).to(plan.device).train()
        self.passes = Passes(self.model)
        if plan.compiled:
            self.passes.compile()
        self.dtype = dtype_of(plan.device)
        self.optimizers, self.rates = _optimizers(self.model, plan)
        self.trained = {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        self.progress, self.leg_steps = Progress(), 0
        self._state_file = folder / "state.pt"
        self.average = {name: parameter.detach().clone() for name, parameter in self.trained.items()}
        if self._state_file.exists():
            self._resume()
        seed = plan.seed + self.progress.tokens
        torch.manual_seed(seed)
        sampler = Sampler(
            pack.load_packed(folder / "train.npz"),
            tokenizer,
            seed=seed,
            canvas=shape.canvas,
            instruct=plan.instruct_share,
            profile=plan.profile,
        )
        self._batches = _Ahead(sampler, plan)
        valid = Sampler(pack.load_packed(folder / "valid.npz"), tokenizer, seed=7, canvas=shape.canvas)
        self._causal_checks = [valid.causal(CHECK_ROWS, plan.length) for _ in range(-(-plan.check_windows // CHECK_ROWS))]
        self._checks = [valid.canvases(12, plan.mixed_length, 6, noise=noise) for noise in (1.0, 0.5)]
        self._looked = 0.0

    def step(self) -> Tensor:
        """Run one step of the current stage and return its loss, which is still on the device."""
        plan, progress = self.plan, self.progress
        causal = plan.schedule.is_causal(progress)
        scale = plan.schedule.rate(progress, self.leg_steps)
        for group, rate in zip((g for item in self.optimizers for g in item.param_groups), self.rates, strict=True):
            group["lr"] = rate * scale
        parts = plan.schedule.parts_of_step(progress)
        tokens, total = 0, torch.zeros((), device=plan.device)
        for is_causal_part in parts:
            batch = self._batches.next(is_causal_part, progress)
            if isinstance(batch, CausalBatch):
                loss = causal_loss(self.passes, batch, plan.device, self.dtype)[0]
                tokens += batch.ids.size
            else:
                diffusion, co_loss = mixed_loss(
                    self.passes,
                    batch.batch,
                    plan.device,
                    self.dtype,
                    conditioned=batch.conditioned,
                    on_policy=batch.on_policy,
                )
                loss = diffusion + CO_LOSS * co_loss
                tokens += batch.batch.causal.ids.size + batch.batch.clean.size
            (loss / len(parts)).backward()  # type: ignore[no-untyped-call]
            total += loss.detach() / len(parts)
        torch.nn.utils.clip_grad_norm_(self.trained.values(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self._average(tokens)
        self.leg_steps += 1
        if causal:
            progress.causal_tokens, progress.causal_steps = progress.causal_tokens + tokens, progress.causal_steps + 1
        else:
            progress.mixed_tokens, progress.mixed_steps = progress.mixed_tokens + tokens, progress.mixed_steps + 1
        self._take_idle_cores()
        return total

    def save(self) -> None:
        """Write `state.pt` atomically."""
        state = {
            "model": self.model.state_dict(),
            "average": self.average,
            "optimizers": [item.state_dict() for item in self.optimizers],
            "progress": asdict(self.progress),
        }
        partial = self._state_file.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self._state_file)

    def record(self, losses: list[Tensor]) -> str:
        """Append a line to `curve.jsonl` and return it: the mean of the losses, and the losses on held-out windows."""
        # Losses are read only here, so that a GPU does not wait for the host at every step.
        loss = round(float(torch.stack(losses).mean()), 4) if losses else 0.0
        line = json.dumps(asdict(self.progress) | {"tokens": self.progress.tokens, "loss": loss} | self._measure())
        with (self.folder / "curve.jsonl").open("a") as curve:
            curve.write(line + "\n")
        return line

    def _resume(self) -> None:
        state = resume(self.model, self._state_file, self.plan.device)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.progress = Progress(**state["progress"])
        self.average = state["average"]

    @torch.no_grad()
    def _average(self, tokens: int) -> None:
        share = min(1.0, tokens / self.plan.average_tokens)
        torch._foreach_lerp_(list(self.average.values()), [item.detach() for item in self.trained.values()], share)

    def _take_idle_cores(self) -> None:
        if self.plan.threads or time.monotonic() - self._looked < IDLE_LOOK_S:
            return
        self._looked = time.monotonic()
        others = os.getloadavg()[0] - torch.get_num_threads()
        torch.set_num_threads(2 if others < 0.3 and (os.cpu_count() or 1) > 1 else 1)

    @torch.no_grad()
    def _measure(self) -> dict[str, float]:
        """Return the losses on held-out windows: by part of a causal window, and of canvases by noise level."""
        self.model.eval()
        sums, counts = torch.zeros(len(PARTS)), torch.zeros(len(PARTS))
        for batch in self._causal_checks:
            ids, targets, parts = (
                torch.from_numpy(item).to(self.plan.device) for item in (batch.ids, batch.targets, batch.parts)
            )
            with autocast(self.plan.device, self.dtype):
                hidden, _ = self.passes.encode(ids)
            flat = hidden.to(self.dtype).flatten(0, 1)
            losses = token_losses(flat, self.model.lm_head.weight, targets.flatten(), self.model.final_logit_softcapping).cpu()
            index = parts.flatten().long().cpu()
            sums.index_add_(0, index, losses)
            counts.index_add_(0, index, torch.ones_like(losses))
        by_part = dict(zip(PARTS, (sums / counts.clamp(min=1)).tolist(), strict=True))
        measured = {f"{part}_loss": by_part[part] for part in PARTS[1:]}
        full, half = self._checks
        for name, check, conditioned in (
            ("noise_1", full, False),
            ("noise_half", half, False),
            ("noise_half_conditioned", half, True),
        ):
            loss, _ = mixed_loss(self.passes, check, self.plan.device, self.dtype, conditioned=conditioned, on_policy=False)
            measured[name] = float(loss)
        self.model.train()
        return {name: round(value, 4) for name, value in measured.items()}


@dataclass(frozen=True, slots=True)
class _Mixed:
    batch: CanvasBatch
    conditioned: bool
    on_policy: bool


class _Ahead:
    """Draws the next batch while the device computes the current one."""

    def __init__(self, sampler: Sampler, plan: Plan) -> None:
        self._sampler, self._plan = sampler, plan
        self._thread = ThreadPoolExecutor(1)
        self._waiting: dict[bool, Future[CausalBatch | _Mixed]] = {}

    def next(self, causal: bool, progress: Progress) -> CausalBatch | _Mixed:
        """Return a batch of causal windows, or one of windows with canvases."""
        schedule = self._plan.schedule
        share = schedule.long_windows(progress) if causal else float(schedule.is_conditioned(progress))
        ready = self._waiting.get(causal) or self._thread.submit(self._draw, causal, share)
        batch = ready.result()
        self._waiting[causal] = self._thread.submit(self._draw, causal, share)
        return batch

    def _draw(self, causal: bool, share: float) -> CausalBatch | _Mixed:
        """Draw one batch. `share` is the fraction of long causal windows; for canvases, 0 rules out conditioning."""
        plan, sampler = self._plan, self._sampler
        if causal:
            length = plan.long_length if sampler.random.random() < share else plan.length
            return sampler.causal(max(1, plan.tokens_per_part // length), length)
        batch = sampler.canvases(plan.rows, plan.mixed_length, plan.canvases)
        conditioned = share > 0 and bool(sampler.random.random() < 0.6)
        return _Mixed(batch, conditioned, bool(sampler.random.random() < 0.5))


def causal_loss(passes: Passes, batch: CausalBatch, device: str, dtype: torch.dtype) -> tuple[Tensor, KV, Tensor]:
    """Return the mean causal cross-entropy, the window's keys and values, and its last hidden states [B, T, H]."""
    ids, targets, weights = (torch.from_numpy(array).to(device) for array in (batch.ids, batch.targets, batch.weights))
    with autocast(device, dtype):
        hidden, kv = passes.encode(ids)
    flat, model = hidden.to(dtype).flatten(0, 1), passes.model
    total = head_loss(flat, model.lm_head.weight, targets.flatten(), weights.flatten(), model.final_logit_softcapping)
    return total / weights.sum(), kv, hidden.detach()


def mixed_loss(
    passes: Passes, batch: CanvasBatch, device: str, dtype: torch.dtype, *, conditioned: bool, on_policy: bool
) -> tuple[Tensor, Tensor]:
    """Return the mean diffusion cross-entropy on the gap, and the causal co-loss.

    `conditioned` adds a first pass without gradient, whose prediction conditions the second pass. With `on_policy`, the
    first pass also writes the canvas, as the sampler would.
    """
    model = passes.model
    co_loss, kv, window = causal_loss(passes, batch.causal, device, dtype)
    clean, noisy, gap, used, starts, weights = (
        torch.from_numpy(array).to(device)
        for array in (batch.clean, batch.noisy, batch.gap, batch.used, batch.starts, batch.weights)
    )
    rows, width = clean.shape
    length, per_row = batch.causal.ids.shape[1], rows // len(batch.causal.ids)
    if batch.drafted.any():
        own = torch.from_numpy(batch.drafted).to(device)[:, None] & gap & (clean != DELETE)
        with autocast(device, dtype):
            noisy = with_own_draft(passes, noisy, own, window.repeat_interleave(per_row, 0), starts)
    visible = torch.arange(length, device=device)[None] < starts[:, None]
    mask = torch.cat([visible, used], 1)[:, None, None].expand(rows, 1, width, length + width)
    positions = starts[:, None] + torch.arange(width, device=device)
    shared = [(keys.repeat_interleave(per_row, 0), values.repeat_interleave(per_row, 0)) for keys, values in kv]
    embed, weight = model.model.decoder.embed_tokens, model.lm_head.weight
    # a held token conditions with its own embedding, a free position with zeros
    held_embeddings = embed(clean) * ~gap[..., None]
    soft = held_embeddings
    if conditioned:
        with torch.no_grad(), autocast(device, dtype):
            detached = [(keys.detach(), values.detach()) for keys, values in shared]
            first = passes.decode(noisy, detached, held_embeddings, positions=positions, mask=mask)
            probabilities = passes.logits(first[gap]).softmax(-1)
            soft = held_embeddings.clone()
            soft[gap] = ((probabilities.to(dtype) @ weight.to(dtype)) * embed.embed_scale).to(soft.dtype)
            if on_policy:
                noisy = _sampled(probabilities, noisy, gap, weight.shape[0])
    with autocast(device, dtype):
        hidden = passes.decode(noisy, shared, soft, positions=positions, mask=mask)[gap]
    on_gap = weights[gap]
    total = head_loss(hidden.to(dtype), weight, clean[gap], on_gap, model.final_logit_softcapping)
    return total / on_gap.sum(), co_loss


@torch.no_grad()
def with_own_draft(
    passes: Passes, noisy: Tensor, own: Tensor, window: Tensor, starts: Tensor, *, noise: float = DRAFT_NOISE
) -> Tensor:
    """Return the canvases [N, C] with drafts: at the positions in `own`, the causal pass's likeliest token, or noise if unsure.

    Each row draws a bound between 0 and `noise`. A likeliest token with a probability below it becomes noise. `window`
    [N, T, H] holds the causal pass's last hidden states.

    Each token is predicted from the true text before it, so one pass gives all of them. A draft written token by token
    would take one pass per token.
    """
    row, position = own.nonzero(as_tuple=True)
    before = (starts[row] + position - 1).clamp(0, window.shape[1] - 1)
    logits = passes.logits(window[row, before])
    logits[:, :N_SPECIAL] = -torch.inf  # a gap can't hold an end token or a control token of the layout
    chance, likeliest = logits.softmax(-1).max(-1)
    uniform = torch.randint(N_SPECIAL, logits.shape[-1], likeliest.shape, device=noisy.device)
    renoised = chance < torch.rand(len(noisy), device=noisy.device)[row] * noise
    drafted = noisy.clone()
    drafted[row, position] = torch.where(renoised, uniform, likeliest)
    return drafted


def _sampled(probabilities: Tensor, noisy: Tensor, gap: Tensor, vocabulary: int) -> Tensor:
    """Return the canvas after one accept-and-renoise step; a position is accepted if its entropy is low."""
    entropy = torch.special.entr(probabilities).sum(-1)
    accepted = entropy < entropy.median() * torch.rand((), device=entropy.device) * 2
    samples = torch.multinomial(probabilities, 1)[:, 0]
    uniform = torch.randint(N_SPECIAL, vocabulary, samples.shape, device=samples.device)
    canvas = noisy.clone()
    canvas[gap] = torch.where(accepted, samples, uniform)
    return canvas


def _optimizers(model: Any, plan: Plan) -> tuple[list[torch.optim.Optimizer], list[float]]:
    matrices: list[Tensor] = []
    rest: list[Tensor] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (matrices if parameter.ndim == 2 and "embed" not in name and "lm_head" not in name else rest).append(parameter)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=plan.learning_rate, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=plan.embedding_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    return optimizers, [plan.learning_rate, plan.embedding_rate]


def autocast(device: str, dtype: torch.dtype) -> AbstractContextManager[object]:
    """Return a context in which matrices are multiplied in `dtype`."""
    return torch.autocast(device.partition(":")[0], dtype) if dtype is not torch.float32 else nullcontext()
