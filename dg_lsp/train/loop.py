"""Train: causal first, then causal and diffusion together, resumable at any moment.

Knows the objective, the optimizers and the clock. Knows nothing of editors, files of code or prompts.

Causal first because a probe that skipped it learnt nothing in parallel; diffusion loss flat over the gap, uniform
noise, self-conditioning by a second pass (DiffusionGemma report, arXiv 2608.00146; Analog Bits, arXiv 2208.04202).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dg_lsp.engine.passes import KV, Passes
from dg_lsp.engine.profile import Profile
from dg_lsp.train import pack
from dg_lsp.train.curve import PLAN
from dg_lsp.train.export import PROFILE
from dg_lsp.train.losses import head_loss
from dg_lsp.train.objective import N_SPECIAL, CanvasBatch, CausalBatch, Sampler
from dg_lsp.train.shape import Shape, build, resume


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run does. Minutes are of work, added up over legs; a leg may be cut off at any time."""

    causal_minutes: float = 60.0
    mixed_minutes: float = 35.0
    length: int = 640
    short_length: int = 320  # the first part of the causal stage, cheaper and no worse
    short_share: float = 0.4
    tokens_per_step: int = 3840
    rows: int = 5  # of a mixed step
    canvases: int = 6
    mixed_length: int = 512
    learning_rate: float = 4e-3
    embedding_rate: float = 3e-3
    self_conditioning_from: float = 0.4  # of the mixed stage
    seed: int = 0
    threads: int = 1
    device: str = "cpu"
    compiled: bool = False
    instruct_share: float = 0.2  # of the windows with canvases: the layout of the 26B checkpoint
    profile: Profile = PROFILE


@dataclass(slots=True)
class Progress:
    """Where a run stands: minutes spent and steps done in each stage, tokens seen in all."""

    causal_minutes: float = 0.0
    mixed_minutes: float = 0.0
    causal_steps: int = 0
    mixed_steps: int = 0
    tokens: int = 0


def run(folder: Path, shape: Shape, plan: Plan, *, say: Callable[[str], None] = print, save_every_s: float = 240.0) -> None:
    """Train on `folder/train.npz` with `folder/tokenizer.json` until the plan is done, resuming `folder/state.pt`.

    Writes `state.pt` (everything, to resume) and a line of `curve.jsonl` every few minutes; `plan.json` says on what it ran.
    """
    torch.set_num_threads(plan.threads)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model: Any = build(shape).to(plan.device).train()
    passes = Passes(model)
    if plan.compiled:
        passes.compile()
    optimizers, rates = _optimizers(model, plan)
    progress = Progress()
    state_file = folder / "state.pt"
    _note_where(folder, plan, resumed=state_file.exists())
    if state_file.exists():
        state = resume(model, state_file, plan.device)
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        progress = Progress(**state["progress"])
    torch.manual_seed(plan.seed + progress.tokens)
    sampler = Sampler(
        pack.load(folder / "train.npz"),
        tokenizer,
        seed=plan.seed + progress.tokens,
        canvas=shape.canvas,
        instruct=plan.instruct_share,
        profile=plan.profile,
    )
    valid = Sampler(pack.load(folder / "valid.npz"), tokenizer, seed=7, canvas=shape.canvas)
    checks = [valid.canvases(12, plan.mixed_length, 6, noise=noise) for noise in (1.0, 0.5)]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def save() -> None:
        state = {
            "model": model.state_dict(),
            "optimizers": [item.state_dict() for item in optimizers],
            "progress": asdict(progress),
        }
        partial = state_file.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(state_file)

    def record(loss: float) -> None:
        line = asdict(progress) | {"loss": round(loss, 4)} | _measure(passes, checks, plan)
        with (folder / "curve.jsonl").open("a") as curve:
            curve.write(json.dumps(line) + "\n")
        say(json.dumps(line))

    saved = last = time.monotonic()
    losses: list[Tensor] = []
    batches = _Ahead(sampler, plan)
    while True:
        causal = progress.causal_minutes < plan.causal_minutes
        share = (
            progress.causal_minutes / plan.causal_minutes if causal else progress.mixed_minutes / max(plan.mixed_minutes, 1e-9)
        )
        if not causal and share >= 1:
            break
        steps = progress.causal_steps if causal else progress.mixed_steps
        scale = _causal_rate(share, steps) if causal else _mixed_rate(share, steps)
        for group, rate in zip((g for item in optimizers for g in item.param_groups), rates, strict=True):
            group["lr"] = rate * scale
        drawn = batches.next(causal, share)
        if isinstance(drawn, CausalBatch):
            loss = causal_loss(passes, drawn, plan.device)[0]
            progress.tokens += drawn.ids.size
        else:
            diffusion, co_loss = mixed_loss(
                passes, drawn.batch, plan.device, conditioned=drawn.conditioned, on_policy=drawn.on_policy
            )
            loss = diffusion + 0.5 * co_loss
            progress.tokens += drawn.batch.causal.ids.size + drawn.batch.clean.size
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())  # read only when recorded: a GPU need not wait for the host
        now = time.monotonic()
        if causal:
            progress.causal_minutes, progress.causal_steps = progress.causal_minutes + (now - last) / 60, steps + 1
        else:
            progress.mixed_minutes, progress.mixed_steps = progress.mixed_minutes + (now - last) / 60, steps + 1
        last = now
        if now - saved > save_every_s:
            record(float(torch.stack(losses).mean()))
            save()
            losses, saved, last = [], now, time.monotonic()
    record(float(torch.stack(losses).mean()) if losses else 0.0)
    save()


def _note_where(folder: Path, plan: Plan, *, resumed: bool) -> None:
    """Add to `plan.json` what this leg runs on, unless an earlier leg did; a run whose first leg is unknown gets none."""
    file = folder / PLAN
    if resumed and not file.exists():
        return
    name = torch.cuda.get_device_name(plan.device) if plan.device.startswith("cuda") else ""
    where = {"device": plan.device, "name": name, "threads": plan.threads}
    legs = json.loads(file.read_text(encoding="utf-8"))["legs"] if resumed else []
    if where not in legs:
        file.write_text(json.dumps({"legs": [*legs, where]}) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Mixed:
    batch: CanvasBatch
    conditioned: bool
    on_policy: bool


class _Ahead:
    """Draws the next batch while the device works on this one."""

    def __init__(self, sampler: Sampler, plan: Plan) -> None:
        self._sampler, self._plan = sampler, plan
        self._thread = ThreadPoolExecutor(1)
        self._waiting: tuple[tuple[bool, bool], Future[CausalBatch | _Mixed]] | None = None

    def next(self, causal: bool, share: float) -> CausalBatch | _Mixed:
        """Return a batch for the stage and for the share of it that is done."""
        plan = self._plan
        wanted = (causal, share < plan.short_share if causal else share >= plan.self_conditioning_from)
        waiting = self._waiting
        ready = waiting[1] if waiting and waiting[0] == wanted else self._thread.submit(self._draw, *wanted)
        batch = ready.result()
        self._waiting = (wanted, self._thread.submit(self._draw, *wanted))
        return batch

    def _draw(self, causal: bool, late: bool) -> CausalBatch | _Mixed:
        plan, sampler = self._plan, self._sampler
        if causal:  # `late` then says that rows are still short
            length = plan.short_length if late else plan.length
            return sampler.causal(max(1, plan.tokens_per_step // length), length)
        batch = sampler.canvases(plan.rows, plan.mixed_length, plan.canvases)
        conditioned = late and sampler.random.random() < 0.6
        return _Mixed(batch, conditioned, bool(sampler.random.random() < 0.5))


def causal_loss(passes: Passes, batch: CausalBatch, device: str) -> tuple[Tensor, KV]:
    """Return the mean causal cross-entropy and the window's keys and values."""
    ids, targets, weights = (torch.from_numpy(array).to(device) for array in (batch.ids, batch.targets, batch.weights))
    with torch.autocast(device, torch.bfloat16):
        hidden, kv = passes.encode(ids)
    flat, model = hidden.to(torch.bfloat16).flatten(0, 1), passes.model
    total = head_loss(flat, model.lm_head.weight, targets.flatten(), weights.flatten(), model.final_logit_softcapping)
    return total / weights.sum(), kv


def mixed_loss(passes: Passes, batch: CanvasBatch, device: str, *, conditioned: bool, on_policy: bool) -> tuple[Tensor, Tensor]:
    """Return the mean diffusion cross-entropy on the gap and the causal co-loss.

    `conditioned` adds a first pass without gradient whose prediction conditions the second. `on_policy` lets that
    first pass also write the canvas, as the sampler would.
    """
    model = passes.model
    co_loss, kv = causal_loss(passes, batch.causal, device)
    clean, noisy, gap, used, starts, weights = (
        torch.from_numpy(array).to(device)
        for array in (batch.clean, batch.noisy, batch.gap, batch.used, batch.starts, batch.weights)
    )
    rows, width = clean.shape
    length, per_row = batch.causal.ids.shape[1], rows // len(batch.causal.ids)
    seen = torch.arange(length, device=device)[None] < starts[:, None]
    mask = torch.cat([seen, used], 1)[:, None, None].expand(rows, 1, width, length + width)
    positions = starts[:, None] + torch.arange(width, device=device)
    shared = [(keys.repeat_interleave(per_row, 0), values.repeat_interleave(per_row, 0)) for keys, values in kv]
    embed, weight = model.model.decoder.embed_tokens, model.lm_head.weight
    held = embed(clean) * ~gap[..., None]  # what is held conditions as a certainty, what is free as nothing yet
    soft = held
    if conditioned:
        with torch.no_grad(), torch.autocast(device, torch.bfloat16):
            detached = [(keys.detach(), values.detach()) for keys, values in shared]
            first = passes.decode(noisy, detached, held, positions=positions, mask=mask)
            probabilities = passes.logits(first[gap]).softmax(-1)
            soft = held.clone()
            soft[gap] = ((probabilities.to(torch.bfloat16) @ weight.to(torch.bfloat16)) * embed.embed_scale).to(soft.dtype)
            if on_policy:
                noisy = _sampled(probabilities, noisy, gap, weight.shape[0])
    with torch.autocast(device, torch.bfloat16):
        hidden = passes.decode(noisy, shared, soft, positions=positions, mask=mask)[gap]
    on_gap = weights[gap]
    total = head_loss(hidden.to(torch.bfloat16), weight, clean[gap], on_gap, model.final_logit_softcapping)
    return total / on_gap.sum(), co_loss


def _sampled(probabilities: Tensor, noisy: Tensor, gap: Tensor, vocabulary: int) -> Tensor:
    """Return the canvas after one accept-and-renoise step, each position accepted when its own entropy is small."""
    entropy = torch.special.entr(probabilities).sum(-1)
    accepted = entropy < entropy.median() * torch.rand((), device=entropy.device) * 2
    drawn = torch.multinomial(probabilities, 1)[:, 0]
    uniform = torch.randint(N_SPECIAL, vocabulary, drawn.shape, device=drawn.device)
    written = noisy.clone()
    written[gap] = torch.where(accepted, drawn, uniform)
    return written


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


def _causal_rate(share: float, steps: int) -> float:
    return min(1.0, (steps + 1) / 100) * min(1.0, max(0.2, (1 - share) / 0.5))


def _mixed_rate(share: float, steps: int) -> float:
    return 0.6 * min(1.0, (steps + 1) / 50) * min(1.0, max(0.02, (1 - share) / 0.7))


@torch.no_grad()
def _measure(passes: Passes, checks: list[CanvasBatch], plan: Plan) -> dict[str, float]:
    passes.model.eval()
    full, half = checks
    noise_full, causal = mixed_loss(passes, full, plan.device, conditioned=False, on_policy=False)
    noise_half, _ = mixed_loss(passes, half, plan.device, conditioned=False, on_policy=False)
    conditioned, _ = mixed_loss(passes, half, plan.device, conditioned=True, on_policy=False)
    passes.model.train()
    names = ("causal", "noise_1", "noise_half", "noise_half_conditioned")
    return {
        name: round(float(value), 4) for name, value in zip(names, (causal, noise_full, noise_half, conditioned), strict=True)
    }
