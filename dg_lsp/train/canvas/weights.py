"""A frozen Llama or Qwen2 model whose canvas pass has a gradient for an adapter's weights.

The engine's own passes compute it. Only the adapted matrices differ: once a step, W + B A is stored in the precision of the
products, so that the adapter costs no products at all forward, and none for the gradient of the inputs. The gradients of A and
B need products of the rank only. All weights of the adapter are views of one vector, as are their gradients.

Shapes: N rows, I inputs, O outputs, P projections of a fused matrix, r rank, H hidden, V vocabulary.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dg_lsp.engine.causal.passes import CausalLlama
from dg_lsp.engine.model.fit.geometry import PROJECTIONS, LlamaSizes
from dg_lsp.engine.model.prefix_cache import KV
from dg_lsp.engine.model.weights.llama_files import Weight
from dg_lsp.engine.model.weights.llama_layers import FUSED, Inputs, Linear, WideMatrix, fused_order, layer_of

CHUNK = 256  # rows whose logits are in memory at once


class TrainedPasses(CausalLlama):
    """The passes of a frozen model with an adapter that can be trained. `weights` are in the type of the products.

    `flat` holds all weights of the adapter, `grad` their gradients. After a change of `flat`, call `merge`.
    """

    def __init__(self, sizes: LlamaSizes, weights: Mapping[str, Weight], rank: int, seed: int = 0) -> None:
        super().__init__(sizes, weights, "plain")
        self.rank = rank
        table = self._embed.table if sizes.tied else weights["lm_head.weight"]
        assert isinstance(table, Tensor)
        self._table = table
        # The adapter's weights in the order in which `flat` holds them.
        shapes: dict[str, tuple[int, ...]] = {}
        for index in range(sizes.layers):
            for place, letters in enumerate(FUSED):
                projections = [sizes.projection(PROJECTIONS[letter]) for letter in letters]
                shapes[f"{index}.{place}.a"] = rank * len(letters), projections[0][1]
                shapes[f"{index}.{place}.b"] = rank, sum(n_outputs for n_outputs, _ in projections)
        self.flat = torch.zeros(sum(math.prod(shape) for shape in shapes.values()))
        self.grad = torch.zeros_like(self.flat)
        self.parts: dict[str, Tensor] = {}
        start = 0
        for name, shape in shapes.items():
            end = start + math.prod(shape)
            self.parts[name] = self.flat[start:end].view(shape).requires_grad_()
            self.parts[name].grad = self.grad[start:end].view(shape)
            start = end
        self._merged: list[Merged] = []
        for index, layer in enumerate(self.layers):
            linears = (layer.queries_keys_values, layer.out, layer.gate_up, layer.down)
            made = [replace(one, matrix=self._merged_of(index, place, one)) for place, one in enumerate(linears)]
            self._adapted_layers.append(layer_of((layer.before_attention, layer.before_mlp), made))
        self.adapted = copy.copy(self)
        self.adapted.layers = self._adapted_layers
        # Random A and B = 0, so that the adapter changes nothing at first.
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, part in self.parts.items():
                if name.endswith(".a"):
                    part.copy_(torch.randn(part.shape, generator=random) / part.shape[1] ** 0.5)
        self.merge()

    def canvas(self, canvas: Tensor, kv: KV, positions: Tensor, mask: Tensor, *, adapted: bool = True) -> Tensor:
        """Return the last hidden states [R, C, H] of a canvas [R, C] with a gradient, as `decode` does without one."""
        passes = self.adapted if adapted and self.adapted is not None else self
        return passes._pass(canvas, positions, kv, mask)[0]

    def losses(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the losses of `targets` [N], given `hidden` [N, H]; and without a gradient, each loss [N]."""
        results: tuple[Tensor, Tensor] = _CanvasLoss.apply(hidden, self._table, targets)  # type: ignore[no-untyped-call]
        return results

    @torch.no_grad()
    def merge(self) -> None:
        """Make the canvas pass use the current weights of the adapter."""
        for one in self._merged:
            one.refresh()

    @torch.no_grad()
    def adapter(self) -> dict[str, Tensor]:
        """Return copies of the adapter's tensors by the names of `lora`."""
        return {name: part.clone().contiguous() for name, part in self._named()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the adapter's weights from tensors by the names of `lora`."""
        own = dict(self._named())
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
        self.merge()

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each projection's A [r, I] and B [O, r], as views, by their names in an adapter."""
        for index in range(self.sizes.layers):
            for place, letters in enumerate(FUSED):
                start = 0
                for part, letter in enumerate(letters):
                    end = start + self.sizes.projection(PROJECTIONS[letter])[0]
                    a, b = self.parts[f"{index}.{place}.a"], self.parts[f"{index}.{place}.b"]
                    yield f"{index}{letter}_a", a[part * self.rank : (part + 1) * self.rank]
                    yield f"{index}{letter}_b", b[:, start:end].t()
                    start = end

    def _merged_of(self, index: int, place: int, linear: Linear) -> Merged:
        assert isinstance(linear.matrix, WideMatrix)
        order = fused_order(self.sizes, FUSED[place]) if place == 0 else None
        ends = [self.sizes.projection(PROJECTIONS[letter])[0] for letter in FUSED[place]]
        merged = Merged(linear.matrix.weight, self.parts[f"{index}.{place}.a"], self.parts[f"{index}.{place}.b"], order, ends)
        self._merged.append(merged)
        return merged


@dataclass(slots=True)
class Merged:
    """A fused matrix W [O, I], and W + B A in the same type. B [r, O] is transposed, and in the order of a checkpoint."""

    weight: Tensor
    a: Tensor  # [P * r, I]
    b: Tensor
    order: Tensor | None
    sizes: list[int]  # the outputs of each projection
    merged: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.merged = torch.empty_like(self.weight)

    def refresh(self) -> None:
        """Compute W + B A."""
        weights, merged = torch.split(self.weight, self.sizes), torch.split(self.merged, self.sizes)
        parts = torch.split(self.a, len(self.b)), torch.split(self._b, self.sizes, 1)
        for weight, out, a, b in zip(weights, merged, *parts, strict=True):
            torch.add(weight, b.t() @ a, out=out)

    def times(self, inputs: Inputs, more: Tensor | None = None) -> Tensor:
        """Return the products [N, O] of inputs [N, I] with W + B A in 32 bits, plus `more` [O] or [N, O]."""
        result: Tensor = _Product.apply(inputs.rows, self.merged, self.a, self._b, self.sizes)  # type: ignore[no-untyped-call]
        return result if more is None else result + more

    def unscaled(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Return the products [N, O] of inputs [N, I], and None."""
        return self.times(inputs), None

    def n_bytes(self) -> int:
        """Return the bytes of W + B A."""
        return self.merged.numel() * self.merged.element_size()

    @property
    def _b(self) -> Tensor:
        """B, in the order of the fused matrix."""
        return self.b if self.order is None else self.b[:, self.order]


class _Product(torch.autograd.Function):
    """The product with a merged matrix, whose gradient is that of the inputs, A and B."""

    @staticmethod
    def forward(context: Any, rows: Tensor, merged: Tensor, a: Tensor, b: Tensor, sizes: list[int]) -> Tensor:
        narrow = rows.to(merged.dtype)
        context.save_for_backward(narrow, merged, a, b)
        context.sizes = sizes
        return F.linear(narrow, merged).float()

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, merged, a, b = context.saved_tensors
        grad = grads[0].to(merged.dtype)
        small_a, small_b, rank = a.to(merged.dtype), b.to(merged.dtype), len(b)
        through_a = rows @ small_a.t()  # [N, P * r]
        of_b, through_b = [], []
        for part, own, b_part in zip(
            torch.split(through_a, rank, 1),
            torch.split(grad, context.sizes, 1),
            torch.split(small_b, context.sizes, 1),
            strict=True,
        ):
            of_b.append(part.t() @ own)
            through_b.append(own @ b_part.t())
        grad_a = torch.cat(through_b, 1).t() @ rows
        return (grad @ merged).float(), None, grad_a.float(), torch.cat(of_b, 1).float(), None


class _CanvasLoss(torch.autograd.Function):
    """Cross-entropy over the vocabulary, with its gradient computed in the same chunks."""

    @staticmethod
    def forward(context: Any, hidden: Tensor, table: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        grad_hidden, losses = torch.empty_like(hidden), list[Tensor]()
        for start in range(0, len(hidden), CHUNK):
            place = slice(start, start + CHUNK)
            target = targets[place, None]
            logits = (hidden[place].to(table.dtype) @ table.t()).float()
            normaliser = logits.logsumexp(-1, keepdim=True)
            losses.append((normaliser - logits.gather(1, target))[:, 0])
            if not context.needs_input_grad[0]:
                continue
            grad = logits.sub_(normaliser).exp_()
            grad.scatter_add_(1, target, torch.full_like(target, -1, dtype=grad.dtype))
            grad_hidden[place] = grad.to(table.dtype) @ table
        context.save_for_backward(grad_hidden)
        each = torch.cat(losses)
        context.mark_non_differentiable(each)
        return each.sum(), each

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad_hidden,) = context.saved_tensors
        return grad_hidden * grads[0], None, None
