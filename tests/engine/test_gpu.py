"""On a GPU the passes and the denoiser compute what they do on a processor, to the rounding of its products."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks import stages
from dg_lsp.engine.diffusion import readout
from dg_lsp.engine.diffusion.denoise import Denoiser, Row, TokenLimits
from dg_lsp.engine.diffusion.fixed_step import FixedSteps
from dg_lsp.engine.diffusion.gemma import fused
from dg_lsp.engine.diffusion.gemma.passes import Passes
from dg_lsp.engine.diffusion.gemma.quantised import Fp8Weight
from dg_lsp.engine.diffusion.layout import Sampling
from dg_lsp.engine.model import gpu, memory
from dg_lsp.engine.model.fit import llama_sizes
from dg_lsp.engine.model.kv import KV
from dg_lsp.engine.model.llama import Llama
from dg_lsp.engine.model.recording import WARM_UPS, Buffers, Recorder, StepGraph
from dg_lsp.engine.model.room import Room
from dg_lsp.engine.model.tree import ROOT, Tree
from tests.checkpoints import llama
from tests.engine import reference
from tests.engine.filler_kit import hidden_of, room_of, tree_of
from tests.engine.reference import PlainDecoder, decoded, take_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
    pytest.mark.usefixtures("without_gradients"),
]

LIMITS = TokenLimits(tuple(range(10, 110)), tuple(range(6)))
ROWS = [
    Row((20,) * 8 + (40, 41), (True,) * 8 + (False,) * 2, 5, seed=1),
    Row((20,) * 5 + (50,), (True,) * 5 + (False,), 4, seed=2, greedy=False),
]


@pytest.fixture(scope="module")
def both(with_experts: Any) -> tuple[Passes, Passes]:
    """The passes of one model on the processor and on the GPU, in 32 bits."""
    torch.backends.cuda.matmul.allow_tf32 = False
    return Passes(with_experts), Passes(copy.deepcopy(with_experts).to("cuda"))


@pytest.mark.parametrize("length", [5, 9, 40])
def test_gpu_passes_equal_cpu_passes(both: tuple[Passes, Passes], length: int) -> None:
    ids = torch.arange(length)[None] + 10
    found = []
    for passes, device in zip(both, ("cpu", "cuda"), strict=True):
        room = Room(passes, length + 10)
        hidden, kv = room.read(ids[0].tolist()), room.kv
        canvas = torch.tensor([[11, 50, 60], [12, 13, 14]], device=device)
        tree = Tree(room, int(ids[0, -1]), hidden[-1])
        [[first, second], [_, third]] = tree.grow([(ROOT, [30, 31]), (ROOT, [30, 32])])
        found.append([hidden, passes.logits(decoded(passes, canvas, kv)), tree.hidden([first, second, third])])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs.cpu(), ours, atol=1e-3, rtol=1e-3)


def test_gpu_rows_equal_cpu_rows(both: tuple[Passes, Passes]) -> None:
    found = []
    for passes, device in zip(both, ("cpu", "cuda"), strict=True):
        kv = room_of(passes, torch.arange(10, 40)[None]).kv
        denoiser = Denoiser(ROWS, LIMITS, Sampling(), 120, device)
        while not denoiser.done:
            take_step(denoiser, PlainDecoder(passes, kv))
        found.append([denoiser.read(row).ids for row in range(len(ROWS))])
    assert found[0] == found[1]


SETTLING = Sampling(entropy_bound=30.0, stop_entropy=9.0, conditioning_tokens=8)


def read_after(denoiser: Denoiser, step: Callable[[Denoiser], object]) -> list[tuple[int, ...]]:
    while not denoiser.done:
        step(denoiser)
    return [denoiser.read(row).ids for row in range(len(denoiser.rows))]


def fixed(passes: Passes, recorder: Recorder | None) -> FixedSteps:
    return FixedSteps(passes, lambda: memory.free_bytes("cuda"), recorder=recorder)


def a_prefix(passes: Passes, length: int) -> KV:
    ids = torch.randint(10, 110, (1, length), generator=torch.Generator().manual_seed(length))
    return room_of(passes, ids).kv


@pytest.mark.parametrize("length", [9, 30, 600])
def test_steps_in_fixed_buffers_equal_those_outside(both: tuple[Passes, Passes], length: int) -> None:
    """In 32 bits, in which the library's experts may be computed in a way that can't be recorded."""
    passes, rows = both[1], [replace(row, steps=9) for row in ROWS]
    kv, steps = a_prefix(passes, length), fixed(passes, Recorder())
    direct = Denoiser(rows, LIMITS, SETTLING, 120, "cuda")
    expected = read_after(direct, lambda one: take_step(one, PlainDecoder(passes, kv)))
    for _ in range(3):
        denoiser = Denoiser(rows, LIMITS, SETTLING, 120, "cuda")
        assert read_after(denoiser, stepping(steps, kv)) == expected
        assert denoiser.canvas.steps == direct.canvas.steps


def test_recorded_steps_equal_those_that_are_not_recorded(with_experts: Any) -> None:
    """In 16 bits, as the real model runs."""
    passes = Passes(copy.deepcopy(with_experts).to("cuda", torch.bfloat16))
    rows, recorder = [replace(row, steps=9) for row in ROWS], Recorder()
    ways = [fixed(passes, None), fixed(passes, recorder)]
    for length in (9, 600, 30, 601):
        kv = a_prefix(passes, length)
        for _ in range(3):
            read = []
            for steps in ways:
                denoiser = Denoiser(rows, LIMITS, SETTLING, 120, "cuda")
                read.append((read_after(denoiser, stepping(steps, kv)), denoiser.canvas.steps))
            assert read[0] == read[1]
    assert recorder.is_usable
    assert recorder.n_recorded >= 2  # one for each length of a prefix's bucket


def stepping(steps: FixedSteps, kv: KV) -> Callable[[Denoiser], object]:
    return lambda denoiser: steps.step(denoiser, kv, denoiser.live)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recorded_drafts_and_scores_equal_those_that_are_not_recorded(with_experts: Any, dtype: torch.dtype) -> None:
    """In 32 bits, torch multiplies expert by expert and reads their bounds on the host, so that the passes run directly."""
    model = copy.deepcopy(with_experts).to("cuda", dtype)
    plain, recorded, recorder = Passes(model), Passes(model), Recorder("drafts and scores")
    recorded.buffers = Buffers(recorded, lambda: memory.free_bytes("cuda"), recorder)
    most = 1e-3 if dtype is torch.float32 else 0.1
    for length in (9, 600):
        ids = torch.randint(10, 110, (1, length), generator=torch.Generator().manual_seed(length))
        trees = [tree_of(passes, ids, knows_root=True) for passes in (plain, recorded)]
        for seed in range(8):
            tokens = torch.randint(10, 110, (1 + 5 * (seed % 3),), generator=torch.Generator().manual_seed(seed)).tolist()
            ours, theirs = (tree.hidden(tree.grow([(ROOT, tokens)])[0]) for tree in reversed(trees))
            torch.testing.assert_close(ours, theirs, atol=most, rtol=most)
            scores = [torch.tensor(tree.log_probabilities([[*tokens, 11], [12, 13]])[0]) for tree in trees]
            torch.testing.assert_close(*scores, atol=most, rtol=most)
    if dtype is torch.bfloat16:
        assert recorder.is_usable, recorder.reason
        assert recorder.n_recorded >= 2
    else:
        assert recorder.is_usable or "graph capture" in recorder.reason


@pytest.mark.parametrize("tokens", [1, 7, 64, 300])
@pytest.mark.parametrize("in_8_bits", [False, True])
def test_fused_experts_of_real_size_equal_the_library(tokens: int, in_8_bits: bool) -> None:
    widths = stages.Widths(experts=16)
    model = stages.build(replace(widths, vocabulary=512), 1, "cuda", torch.bfloat16)
    bank = model.model.decoder.layers[0].experts
    hidden = torch.randn(tokens, widths.hidden, device="cuda", dtype=torch.bfloat16)
    weights, ids = torch.rand(tokens, 16, device="cuda").topk(8)
    banks = [fused.Bank(bank.gate_up_proj), fused.Bank(bank.down_proj)]
    if in_8_bits:
        narrow = [Fp8Weight.of(each.values) for each in banks]
        banks = [each.bank for each in narrow]
        bank.gate_up_proj.data, bank.down_proj.data = (each.dense(torch.bfloat16) for each in narrow)
    found = fused.experts(hidden, ids, weights, *banks)
    assert found is not None
    expected = bank(hidden, ids, weights)
    torch.testing.assert_close(found, expected, atol=float(expected.abs().max()) / 50, rtol=0.05)


def test_a_step_that_waits_for_the_device_is_not_recorded_and_still_right(both: tuple[Passes, Passes]) -> None:
    recorder = Recorder()
    total = torch.zeros((), device="cuda")

    def work() -> None:
        total.add_(1)
        total.item()  # ends a recording

    graph = StepGraph(work, recorder)
    for _ in range(WARM_UPS + 3):
        graph.run()
    assert not recorder.is_usable
    assert total.item() == WARM_UPS + 3


def causal(dtype: torch.dtype, device: str) -> Llama:
    """Return the passes of one random model in a type on a device; its weights are the same in each."""
    model = llama("biases")
    weights = {
        name: tensor.to(torch.bfloat16).to(device, torch.float32 if tensor.ndim == 1 else dtype)
        for name, tensor in model.state_dict().items()
    }
    weights["model.norm.weight"] *= 20  # so that the logits differ by more than rounding
    return Llama(llama_sizes(model.config.to_dict()), weights, "plain")


def scores(passes: Llama, length: int) -> list[list[float]]:
    """Return the log-probabilities of rows that grow a tree behind a prefix, one token at a time and many at once."""
    ids = torch.randint(0, 300, (1, length), generator=torch.Generator().manual_seed(length))
    room, found = room_of(passes, ids, 10), []
    for cut in (length, length - 3):
        room.keep(cut - 1)
        tree = Tree(room, int(ids[0, cut - 1]))
        rows = [[token % 300 for token in range(start, start + 40)] for start in (1, 1, 60, 170)]
        rows[1] = [*rows[0][:20], *rows[2][:30]]
        node = ROOT
        for token in rows[0][:6]:
            [[node]] = tree.grow([(node, [token])])
        found += tree.log_probabilities(rows[:1]) + tree.log_probabilities(rows)
    return found


@pytest.mark.parametrize("length", [20, 240, 256, 600])
def test_recorded_causal_passes_score_as_a_processor_does(length: int) -> None:
    """In 32 bits, behind prefixes at the borders of buckets, with more new tokens than a recorded pass has."""
    torch.backends.cuda.matmul.allow_tf32 = False
    expected, passes = scores(causal(torch.float32, "cpu"), length), causal(torch.float32, "cuda")
    recorder = Recorder("passes")
    passes.use_buffers(gpu.PLAIN, lambda: None, recorder)
    for _ in range(4):  # the passes of the first rounds are not recorded yet
        for one, other in zip(scores(passes, length), expected, strict=True):
            assert one == pytest.approx(other, abs=2e-2)
    assert recorder.is_usable, recorder.reason
    assert recorder.n_recorded >= 2


@pytest.mark.parametrize("length", [20, 600])
@pytest.mark.parametrize("chosen", ["torch", "triton"])
def test_recorded_causal_passes_in_16_bits_score_nearly_so(length: int, chosen: str) -> None:
    expected, passes = scores(causal(torch.float32, "cpu"), length), causal(torch.bfloat16, "cuda")
    best = gpu.PLAIN if chosen == "torch" else gpu.best("cuda")
    assert isinstance(best, gpu.Fused) == (chosen == "triton"), "the log says why triton can't be used"
    recorder = Recorder("passes")
    passes.use_buffers(best, lambda: None, recorder)
    rounds = [scores(passes, length) for _ in range(4)]
    assert recorder.is_usable, recorder.reason
    for found in rounds:
        for one, other in zip(found, expected, strict=True):
            gaps = [abs(ours - theirs) for ours, theirs in zip(one, other, strict=True)]
            assert sum(gaps) / len(gaps) < 0.05
        for one, direct in zip(found, rounds[0], strict=True):
            assert one == pytest.approx(direct, abs=0.1)  # a recorded pass computes what a direct one does


def test_triton_kernels_on_a_gpu_compute_what_torch_does() -> None:
    from dg_lsp.engine.model.gpu import kernels

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert gpu.wrong_operation(gpu.Fused(kernels), "cuda", dtype) is None


def test_weights_in_8_bits_on_a_gpu_score_as_on_a_processor() -> None:
    model, ids = llama("biases"), torch.arange(23)[None] + 10
    sizes, found = llama_sizes(model.config.to_dict()), list[torch.Tensor]()
    for device in ("cpu", "cuda"):
        weights = {name: tensor.to(device) for name, tensor in model.state_dict().items()}
        passes = Llama(sizes, weights, "int8-weights")
        passes.use_buffers(gpu.best(device), lambda: None, None)
        found.append(passes.logits(hidden_of(passes, ids)).log_softmax(-1).cpu())
    assert float((found[0] - found[1]).abs().mean()) < 0.05 * float(found[0].std())


def test_the_sliced_readout_on_a_gpu_equals_the_plain_one() -> None:
    noise = torch.Generator().manual_seed(0)
    logits = (torch.randn(70, 100_000, generator=noise) * 4).to("cuda")
    forbidden = (torch.rand(100_000, generator=noise) < 0.1).to("cuda")
    rules = readout.Constraints(
        torch.full((70,), 0.7, device="cuda"), forbidden, forbidden, forbidden[:70], torch.rand(70, generator=noise).to("cuda")
    )
    found = readout.sliced(lambda first, last: logits[:, first:last].clone(), 100_000, rules, 64)
    plain = reference.plain_readout(logits.clone(), rules, 64)
    torch.testing.assert_close(found.top_chances, plain.top_chances, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(found.entropies, plain.entropies, atol=1e-4, rtol=1e-3)
    assert torch.equal(found.top_ids[:, 0], plain.top_ids[:, 0])
    assert found.sampled is not None
    assert plain.sampled is not None
    assert bool(((found.sampled - plain.sampled).abs() <= 1).float().mean() > 0.95)  # rounding may pick the next token
