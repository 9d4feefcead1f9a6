"""Train a checkpoint on the generated language, in minutes on one core, the same for the same seed.

The windows are those of a checkpoint that knows no infilling, in the order of the infill-trained layout: the text after
the hole, the text before it, and then all that follows, answer and suffix in one. A canvas begins anywhere in the text
that counts, in the second stage also ends anywhere, and is noised everywhere, as DiffusionGemma was trained (arXiv
2608.00146). Nothing is ever held, no length is ever marked. The variant with a delete token goes on from there as
`tests.trainer` does: a gap padded with delete tokens, the suffix held.

Knows the language and `tests.trainer`. Knows nothing of how lengths are found.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dg_lsp.engine.model.loading import load_model
from dg_lsp.engine.model.passes import Passes
from dg_lsp.engine.model.profile import FILE, Profile, Sampling, dump
from dg_lsp.train.canvas.loop import dtype_of
from tests.benchmarks.worlds import language
from tests.benchmarks.worlds.language import ALPHABET, MAX_SUFFIX, Hole
from tests.trainer.loop import mixed_loss
from tests.trainer.objective import CanvasBatch, CausalBatch
from tests.trainer.shape import Shape, build
from tests.trainer.tokenizer import RESERVED, SPECIAL
from tests.trainer.windows import BOS, DELETE, EOS, N_SPECIAL, PAD, PRE, SUF

CANVAS = 80
HELD = 16
GAPS = (8, 16, 24, 32, 40, 48, 64)
PROFILE = Profile(
    layout="infill-trained",
    prefix_tokens=160,
    suffix_tokens=MAX_SUFFIX,
    held_tokens=HELD,
    canvas_tokens=CANVAS,
    gaps_per_canvas=1,
    sampling=Sampling(conditioning_tokens=16),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a checkpoint is trained, in steps."""

    open_steps: int = 960
    cut_steps: int = 360
    cooled_steps: int = 280
    delete_steps: int = 0
    rows: int = 16
    canvases: int = 2
    learning_rate: float = 4e-3
    embedding_rate: float = 6e-3
    seed: int = 0
    is_compiled: bool = True


PLAN = Plan()
DELETE_PLAN = Plan(open_steps=0, cut_steps=0, cooled_steps=0, delete_steps=200, learning_rate=1e-3, embedding_rate=1e-3, seed=1)
SHAPE = Shape(hidden=128, layers=4, heads=4, feed_forward=384, vocabulary=N_SPECIAL + len(ALPHABET), canvas=CANVAS)
SHIPPED = Path(__file__).parents[3] / "fixtures" / "worlds"
MADE_OF = "made_of.txt"
WARM_UP, COOLING = 50, 0.4  # steps at the beginning, share of the steps at the end, in which the learning rate is lower
SAID_EVERY = 20
Size = tuple[int, int]  # of a window and of the canvases over it
SIZES: tuple[Size, ...] = ((80, 48), (144, CANVAS))  # few: a compiled pass is made for each


def tokenizer() -> Tokenizer:
    """Return the language's tokenizer: control tokens, and one token for each character."""
    to_byte_level = {"\n": "Ċ", " ": "Ġ"}
    names = [*SPECIAL, *RESERVED, *(to_byte_level.get(character, character) for character in ALPHABET)]
    result = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    result.decoder = decoders.ByteLevel()
    result.add_special_tokens([AddedToken(name, special=True) for name in (*SPECIAL, *RESERVED)])
    return result


def encode(text: str) -> list[int]:
    """Return a text's token ids."""
    return [N_SPECIAL + ALPHABET.index(character) for character in text]


def decode(ids: list[int]) -> str:
    """Return the text of ids, control tokens left out."""
    return "".join(ALPHABET[token - N_SPECIAL] for token in ids if token >= N_SPECIAL)


def head(hole: Hole) -> list[int]:
    """Return what the encoder reads before the canvas."""
    suffix = encode(hole.suffix)
    if len(suffix) < MAX_SUFFIX:
        suffix.append(EOS)
    return [BOS, SUF, *suffix, PRE, *encode(hole.prefix)]


def held(hole: Hole, most: int = HELD) -> list[int]:
    """Return the suffix's head as it is held behind a gap."""
    suffix = encode(hole.suffix[:most])
    return suffix if len(suffix) == most else [*suffix, EOS]


def _window(hole: Hole) -> list[int]:
    """Return all that the encoder reads of a document: what stands around the hole first, then the text as it is."""
    return [*head(hole), *encode(hole.answer), *encode(hole.suffix), EOS]


def _size(hole: Hole) -> Size | None:
    """Return the smallest size that a hole fits, None where it fits none."""
    n_window = len(_window(hole)) - 1
    n_behind = len(hole.answer) + len(hole.suffix) + hole.n_counted // 2
    return next((size for size in SIZES if n_window <= size[0] and (n_behind < size[1] or size == SIZES[-1])), None)


class Sampler:
    """Draws windows and canvases; two samplers with one seed draw the same."""

    def __init__(self, seed: int, *, cut: bool = False, delete: bool = False) -> None:
        self.random, self.cut, self.delete = np.random.default_rng(seed), cut, delete
        self._holes = language.holes(seed)
        self._waiting: list[tuple[Size, list[Hole]]] = []

    def batch(self, rows: int, canvases: int) -> CanvasBatch:
        """Return `rows` windows with `canvases` canvases each, of one of the sizes."""
        while not self._waiting:
            candidates = list(islice(self._holes, rows * 8))
            for size in SIZES:
                fitting = [hole for hole in candidates if _size(hole) == size]
                whole = len(fitting) - len(fitting) % rows
                self._waiting += [(size, fitting[first : first + rows]) for first in range(0, whole, rows)]
            self.random.shuffle(self._waiting)
        (length, width), holes = self._waiting.pop()
        windows = [_window(hole) for hole in holes]
        n = rows * canvases
        ids = np.full((rows, length + 1), PAD, np.int64)
        for index, window in enumerate(windows):
            ids[index, : len(window)] = window
        width = CANVAS if self.delete else width
        clean, starts = np.full((n, width), EOS, np.int64), np.zeros(n, np.int64)
        gap, weights = np.ones((n, width), np.bool_), np.full((n, width), 0.02, np.float32)
        for index in range(n):
            hole, window = holes[index // canvases], windows[index // canvases]
            start = len(head(hole))
            if index % canvases and not self.delete:  # another place in the hole's text is as good to learn from
                start += int(self.random.integers(0, len(hole.answer) + 1)) - int(self.random.integers(0, hole.n_counted + 1))
            if self.delete:
                self._padded(hole, clean[index], gap[index], weights[index])
            else:
                text = window[start : start + width]
                clean[index, : len(text)] = text
                weights[index, : len(text)] = 1
            starts[index] = start
        is_used = np.ones((n, width), np.bool_)
        if self.cut:  # canvases of all widths, as a gap and the held head behind it make them
            ends = np.where(self.random.random(n) < 0.7, self.random.integers(HELD + 1, width + 1, n), width)
            is_used = np.arange(width)[None] < ends[:, None]
            gap, weights = gap & is_used, weights * is_used
        if self.delete:
            is_used = clean != PAD
        noisy = np.where(gap, self._noised(clean), clean)
        parts = np.zeros(ids[:, 1:].shape, np.uint8)  # only a run's curve tells them apart
        causal = CausalBatch(ids[:, :-1], ids[:, 1:], self._weights(holes, ids[:, 1:]), parts)
        return CanvasBatch(causal, clean, noisy, gap, weights, is_used, starts, np.zeros(n, np.bool_))

    def _weights(self, holes: list[Hole], targets: Any) -> Any:
        """Return what each target counts: declared names, and tokens of the suffix, can't be predicted."""
        weights = (targets != PAD).astype(np.float32)
        for index, hole in enumerate(holes):
            weights[index, : len(head(hole)) - len(hole.prefix) + hole.n_declared] *= 0.05
        return weights

    def _padded(self, hole: Hole, clean: Any, gap: Any, weights: Any) -> None:
        """Write an answer, delete tokens and the held suffix."""
        answer, after = encode(hole.answer), held(hole)
        fitting = [n for n in GAPS if n >= len(answer)]
        free = fitting[0] if self.random.random() < 0.3 else int(self.random.choice(fitting))
        clean[:] = PAD
        clean[: free + len(after)] = [*answer, *[DELETE] * (free - len(answer)), *after][:CANVAS]
        gap[free:], weights[:] = False, 0
        weights[: len(answer) + 1], weights[len(answer) + 1 : free] = 1, 0.2

    def _noised(self, clean: Any) -> Any:
        levels = np.where(self.random.random(len(clean)) < 0.2, 1.0, self.random.random(len(clean)))[:, None]
        if self.cut:  # most of a canvas that holds much is known
            levels = np.where(self.random.random(levels.shape) < 0.25, levels * 0.2, levels)
        uniform = self.random.integers(N_SPECIAL, N_SPECIAL + len(ALPHABET), clean.shape)
        return np.where(self.random.random(clean.shape) < levels, uniform, clean)


def begin(plan: Plan) -> Any:
    """Return a model before its first step, the same for the same seed."""
    torch.manual_seed(plan.seed)
    return build(SHAPE)


def train(model: Any, plan: Plan, *, on_message: Callable[[str], None] = print) -> Any:
    """Return the model, trained. Each stage begins with fresh optimizers."""
    passes, seed, began = Passes(model.train()), plan.seed * 4, time.monotonic()
    if plan.is_compiled:
        passes.compile()
    stages = [
        ("open", Sampler(seed + 3), plan.open_steps),
        ("cut", Sampler(seed + 5, cut=True), plan.cut_steps),
        ("cooled", Sampler(seed + 6, cut=True), plan.cooled_steps),
        ("delete", Sampler(seed + 4, delete=True), plan.delete_steps),
    ]
    step, n_steps = 0, sum(n for _, _, n in stages)
    for stage, sampler, n in stages:
        torch.manual_seed(plan.seed)
        optimizers, chance = list(_optimizers(model, plan)), np.random.default_rng(plan.seed)
        rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
        sums = [0.0, 0.0]
        for _ in range(n):
            scale = min(1.0, (step + 1) / WARM_UP) * min(1.0, max(0.01, (n_steps - step) / n_steps / COOLING))
            for group, rate in zip((g for optimizer in optimizers for g in optimizer.param_groups), rates, strict=True):
                group["lr"] = rate * scale
            losses = _step(passes, sampler.batch(plan.rows, plan.canvases), chance, optimizers)
            sums, step = [total + loss for total, loss in zip(sums, losses, strict=True)], step + 1
            if step % SAID_EVERY == 0:
                canvas, causal = (total / SAID_EVERY for total in sums)
                sums = [0.0, 0.0]
                seconds = time.monotonic() - began
                on_message(f"step {step}, {stage}, {seconds:.0f} s: canvas {canvas:.3f}, causal {causal:.3f}")
    return model.eval().requires_grad_(False)


def _step(
    passes: Passes, batch: CanvasBatch, chance: np.random.Generator, optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[float, float]:
    """Take one step; return the losses of the canvases and of the causal model."""
    conditioned, on_policy = bool(chance.random() < 0.5), bool(chance.random() < 0.5)
    own, co_loss = mixed_loss(passes, batch, "cpu", dtype_of("cpu"), conditioned=conditioned, on_policy=on_policy)
    (own + 0.5 * co_loss).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_((item for item in passes.model.parameters() if item.requires_grad), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return float(own.detach()), float(co_loss.detach())


def _optimizers(model: Any, plan: Plan) -> Iterator[torch.optim.Optimizer]:
    parameters = [(name, item) for name, item in model.named_parameters() if item.requires_grad]
    is_matrix = {name: item.ndim == 2 and "embed" not in name and "lm_head" not in name for name, item in parameters}
    yield torch.optim.Muon(
        [item for name, item in parameters if is_matrix[name]],
        lr=plan.learning_rate,
        weight_decay=0.02,
        adjust_lr_fn="match_rms_adamw",
    )
    rest = [item for name, item in parameters if not is_matrix[name]]
    yield torch.optim.AdamW(rest, lr=plan.embedding_rate, betas=(0.9, 0.98), weight_decay=0.0)


def made(cache: Path, *, delete: bool, on_message: Callable[[str], None] = print) -> Path:
    """Return the folder of the checkpoint without a delete token, or of its continuation with one; train what is missing.

    The one without is shipped: `SHIPPED` says of what it was made.
    """
    plan = DELETE_PLAN if delete else PLAN
    if not delete and (SHIPPED / MADE_OF).exists() and (SHIPPED / MADE_OF).read_text(encoding="utf-8").strip() == mark(plan):
        return SHIPPED
    folder = cache / f"{'delete' if delete else 'plain'}-{mark(plan)}"
    if (folder / FILE).exists():
        return folder
    if delete:
        loaded = load_model(str(made(cache, delete=False, on_message=on_message)), device="cpu", threads=1, dtype="float32")
        model = _trainable(loaded.diffusion.model)
    else:
        model = begin(plan)
    on_message(f"training {folder.name}")
    save(train(model, plan, on_message=on_message), folder, PROFILE)
    (folder / MADE_OF).write_text(mark(plan) + "\n", encoding="utf-8")
    return folder


def mark(plan: Plan) -> str:
    """Return what tells checkpoints apart: how they are trained, and on what language."""
    holes = list(islice(language.holes(0), 100))
    return hashlib.sha256(repr((plan, PLAN, SHAPE, SIZES, holes)).encode()).hexdigest()[:12]


def save(model: Any, folder: Path, profile: Profile) -> None:
    """Write a checkpoint that the engine loads; its profile last, so that a folder with one is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder, safe_serialization=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / FILE).write_text(dump(profile), encoding="utf-8")


def _trainable(model: Any) -> Any:
    """Return a model with what `build` trains being trained again."""
    fresh: Any = build(SHAPE)
    fresh.load_state_dict(model.state_dict())
    return fresh
