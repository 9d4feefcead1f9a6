"""Train a checkpoint on the generated language, in minutes on one core, the same for the same seed.

The windows are those of a checkpoint that knows no infilling, in the order of the infill-trained layout: the text after
the hole, the text before it, and then all that follows, answer and suffix in one; a canvas begins anywhere in it and is
noised everywhere, as DiffusionGemma was trained (arXiv 2608.00146). Nothing is ever held, no length is ever marked. The
variant with a delete token goes on from there as `dg_lsp.train` does: a gap padded with delete tokens, the suffix held.

Knows the language and `dg_lsp.train`. Knows nothing of how lengths are found.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dg_lsp.engine.model import EMBEDDED, find, load
from dg_lsp.engine.passes import Passes
from dg_lsp.engine.profile import FILE, Profile, Sampling, dump
from dg_lsp.train.loop import causal_loss, mixed_loss
from dg_lsp.train.objective import CanvasBatch, CausalBatch
from dg_lsp.train.precision import dtype_of
from dg_lsp.train.shape import Shape, build
from dg_lsp.train.tokenizer import RESERVED, SPECIAL
from dg_lsp.train.windows import BOS, DELETE, EOS, N_SPECIAL, PAD, PRE, SUF
from tests.benchmarks.worlds import language
from tests.benchmarks.worlds.language import ALPHABET, MAX_DOCUMENT, MAX_SUFFIX, Hole

CANVAS = 96
HELD = 24
GAPS = (8, 16, 24, 32, 40, 48, 64)
PROFILE = Profile(
    layout="infill-trained",
    prefix_tokens=MAX_DOCUMENT,
    suffix_tokens=MAX_SUFFIX,
    held_tokens=HELD,
    canvas_tokens=CANVAS,
    gaps_per_canvas=1,
    sampling=Sampling(conditioning_tokens=16),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a checkpoint is trained, in steps."""

    short_steps: int = 20  # causal, on short documents
    causal_steps: int = 40
    open_steps: int = 440
    delete_steps: int = 0
    rows: int = 8
    canvases: int = 2
    learning_rate: float = 2e-3
    embedding_rate: float = 3e-3
    seed: int = 0


PLAN = Plan()
DELETE_PLAN = Plan(short_steps=0, causal_steps=0, open_steps=0, delete_steps=200, learning_rate=1e-3, seed=1)
LAYERS = (0, 1, 2, 4)  # of the embedded model


def tokenizer() -> Tokenizer:
    """Return the language's tokenizer: control tokens, and one token for each character."""
    to_byte_level = {"\n": "Ċ", " ": "Ġ"}
    names = [*SPECIAL, *RESERVED, *(to_byte_level.get(character, character) for character in ALPHABET)]
    made = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True) for name in (*SPECIAL, *RESERVED)])
    return made


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


class Sampler:
    """Draws windows and canvases; two samplers with one seed draw the same."""

    def __init__(self, seed: int, *, most: int = MAX_DOCUMENT, delete: bool = False) -> None:
        self.random, self.delete = np.random.default_rng(seed), delete
        self._holes = language.holes(seed, most=most)
        self._waiting: list[list[Hole]] = []

    def batch(self, rows: int, canvases: int) -> CanvasBatch:
        """Return `rows` windows with `canvases` canvases each, as long as the longest window."""
        if not self._waiting:  # windows of about the same length go together: padding costs as much as text
            drawn = sorted(islice(self._holes, rows * 8), key=lambda hole: len(hole.prefix) + len(hole.answer))
            self._waiting = [drawn[first : first + rows] for first in range(0, len(drawn), rows)]
            self.random.shuffle(self._waiting)
        holes = self._waiting.pop()
        windows = []
        for hole in holes:
            rest = encode(hole.suffix)
            windows.append([*head(hole), *encode(hole.answer), *rest, *([EOS] if len(rest) < MAX_SUFFIX else [])])
        n, length = rows * canvases, max(map(len, windows)) - 1
        ids = np.full((rows, length + 1), PAD, np.int64)
        for index, window in enumerate(windows):
            ids[index, : len(window)] = window
        clean, starts = np.full((n, CANVAS), EOS, np.int64), np.zeros(n, np.int64)
        gap, weights = np.ones((n, CANVAS), np.bool_), np.full((n, CANVAS), 0.02, np.float32)
        for index in range(n):
            hole, window = holes[index // canvases], windows[index // canvases]
            start = len(head(hole))
            if index % canvases and not self.delete:  # any other place is as good to learn from
                start = len(hole.suffix) + 4 + int(self.random.integers(0, start - len(hole.suffix) - 4 + len(hole.answer)))
            if self.delete:
                self._padded(hole, clean[index], gap[index], weights[index])
            else:
                text = window[start : start + CANVAS]
                clean[index, : len(text)] = text
                weights[index, : len(text)] = 1
            starts[index] = start
        used = np.ones((n, CANVAS), np.bool_)
        if self.delete:
            used = clean != PAD
        noisy = np.where(gap, self._noised(clean), clean)
        parts = np.zeros(ids[:, 1:].shape, np.uint8)  # only a run's curve tells them apart
        causal = CausalBatch(ids[:, :-1], ids[:, 1:], self._weights(holes, ids[:, 1:]), parts)
        return CanvasBatch(causal, clean, noisy, gap, weights, used, starts)

    def _weights(self, holes: list[Hole], targets: Any) -> Any:
        """Return what each target counts: what is declared, or stands in the suffix, can be foreseen by nobody."""
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
        uniform = self.random.integers(N_SPECIAL, N_SPECIAL + len(ALPHABET), clean.shape)
        return np.where(self.random.random(clean.shape) < levels, uniform, clean)


def begin(name: str, layers: Sequence[int]) -> Any:
    """Return a model of some layers of a checkpoint of `dg_lsp.train`, its last one among them, with the rows of its
    vocabulary that are single characters: what it knows of copying saves the time in which a model comes to it.
    """
    loaded = load(name, device="cpu", threads=1)
    config, vocabulary = loaded.passes.config, loaded.vocabulary
    rows = [*range(N_SPECIAL), *(vocabulary.encode(character)[0] for character in ALPHABET)]
    model: Any = build(_shape(config, len(layers)))
    state = model.state_dict()
    for name, tensor in loaded.passes.model.state_dict().items():
        layer = re.search(r"language_model\.layers\.(\d+)\.|decoder\.layers\.(\d+)\.", name)
        if layer:
            number = int(layer[1] or layer[2])
            if number not in layers:
                continue
            name = name.replace(f"layers.{number}.", f"layers.{layers.index(number)}.")
        state[name].copy_(tensor if tensor.shape == state[name].shape else tensor[rows])
    model.load_state_dict(state)
    return model


def train(model: Any, plan: Plan, *, say: Callable[[str], None] = print) -> Any:
    """Return the model, trained."""
    torch.manual_seed(plan.seed)
    passes, optimizers = Passes(model.train()), list(_optimizers(model, plan))
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    seed = plan.seed * 4
    stages = [
        *[("short", Sampler(seed + 1, most=140))] * plan.short_steps,
        *[("causal", Sampler(seed + 2))] * plan.causal_steps,
        *[("open", Sampler(seed + 3))] * plan.open_steps,
        *[("delete", Sampler(seed + 4, delete=True))] * plan.delete_steps,
    ]
    chance, began, n_steps = np.random.default_rng(plan.seed), time.monotonic(), len(stages)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    sums, dtype = [0.0, 0.0, 0], dtype_of("cpu")
    for step, (stage, sampler) in enumerate(stages):
        scale = min(1.0, (step + 1) / 20) * min(1.0, max(0.02, (n_steps - step) / n_steps / 0.5))
        for group, rate in zip((g for optimizer in optimizers for g in optimizer.param_groups), rates, strict=True):
            group["lr"] = rate * scale
        batch = sampler.batch(plan.rows, plan.canvases)
        own = co_loss = torch.zeros(())
        if stage in ("short", "causal"):
            loss = co_loss = causal_loss(passes, batch.causal, "cpu", dtype)[0]
        else:
            conditioned = bool(chance.random() < 0.5)
            own, co_loss = mixed_loss(
                passes, batch, "cpu", dtype, conditioned=conditioned, on_policy=bool(chance.random() < 0.5)
            )
            loss = own + 0.5 * co_loss
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        sums = [sums[0] + float(own.detach()), sums[1] + float(co_loss.detach()), sums[2] + 1]
        if step % 20 == 19 or step == n_steps - 1:
            losses = f"canvas {sums[0] / sums[2]:.3f}, causal {sums[1] / sums[2]:.3f}"
            sums = [0.0, 0.0, 0]
            say(f"step {step + 1} of {n_steps}, {stage}, {time.monotonic() - began:.0f} s: {losses}")
    return model.eval().requires_grad_(False)


def _optimizers(model: Any, plan: Plan) -> Iterator[torch.optim.Optimizer]:
    trained = [(name, item) for name, item in model.named_parameters() if item.requires_grad]
    is_matrix = {name: item.ndim == 2 and "embed" not in name and "lm_head" not in name for name, item in trained}
    yield torch.optim.Muon(
        [item for name, item in trained if is_matrix[name]],
        lr=plan.learning_rate,
        weight_decay=0.02,
        adjust_lr_fn="match_rms_adamw",
    )
    rest = [item for name, item in trained if not is_matrix[name]]
    yield torch.optim.AdamW(rest, lr=plan.embedding_rate, betas=(0.9, 0.98), weight_decay=0.0)


def made(cache: Path, *, delete: bool, say: Callable[[str], None] = print) -> Path:
    """Return the folder of the checkpoint without a delete token, or of its continuation with one; train what is missing."""
    plan = DELETE_PLAN if delete else PLAN
    folder = cache / f"{'delete' if delete else 'plain'}-{_mark(plan)}"
    if (folder / FILE).exists():
        return folder
    if delete:
        loaded = load(str(made(cache, delete=False, say=say)), device="cpu", threads=1, dtype="float32")
        model = _trainable(loaded.passes.model)
    else:
        model = begin(EMBEDDED, LAYERS)
    say(f"training {folder.name}")
    save(train(model, plan, say=say), folder, PROFILE)
    return folder


def _mark(plan: Plan) -> str:
    """Return what tells checkpoints apart: how they are trained, on what language, and from which weights."""
    parts = [repr(plan), repr(PLAN), repr(LAYERS), Path(language.__file__).read_text(encoding="utf-8")]
    state = hashlib.sha256("".join(parts).encode())
    state.update((find(EMBEDDED) / "model.safetensors").read_bytes())
    return state.hexdigest()[:12]


def save(model: Any, folder: Path, profile: Profile) -> None:
    """Write a checkpoint that the engine loads; its profile last, so that a folder with one is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder, safe_serialization=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / FILE).write_text(dump(profile), encoding="utf-8")


def _trainable(model: Any) -> Any:
    """Return a model with what `build` trains being trained again."""
    fresh: Any = build(_shape(model.config.text_config, model.config.text_config.num_hidden_layers))
    fresh.load_state_dict(model.state_dict())
    return fresh


def _shape(config: Any, n_layers: int) -> Shape:
    return Shape(
        config.hidden_size, n_layers, config.num_attention_heads, config.intermediate_size, N_SPECIAL + len(ALPHABET), CANVAS
    )
