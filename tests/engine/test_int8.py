"""Products in 8-bit integers: exact, with a scale per row, and the same for a row alone and among others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from dg_lsp.engine.model import matmul
from dg_lsp.engine.model.matmul import (
    LARGEST,
    ZERO,
    Inputs,
    Int8Matrix,
    Quantised,
    QuantisedRows,
    matrix,
    quantised,
    quantised_rows,
)

pytestmark = pytest.mark.skipif(not matmul.int8_is_supported(), reason="this processor has no instructions for 8-bit products")

ROWS = (1, 2, 7, 8, 15, 16, 17, 33, 64, 100)


def rows_of(n: int, size: int) -> torch.Tensor:
    """Return rows as different in size as those of a model: some are a thousand times larger than the others."""
    rows = torch.randn(n, size, generator=torch.Generator().manual_seed(n))
    rows[::3] *= 1000
    rows[1::5, 0] = 3000
    return rows


@pytest.mark.parametrize("n", ROWS)
def test_products_are_those_of_the_integers(n: int) -> None:
    weight = quantised(torch.randn(48, 96, generator=torch.Generator().manual_seed(1)))
    rows = quantised_rows(rows_of(n, 96))
    exact = (rows.values.double() - ZERO) @ weight.values.double().t() * weight.scales.double().t()
    torch.testing.assert_close(Int8Matrix(weight).product(rows).double(), exact, rtol=1e-6, atol=1e-6)


def test_largest_values_do_not_overflow() -> None:
    full = torch.full((40, 4864), LARGEST, dtype=torch.int8)
    for sign in (1, -1):
        rows = QuantisedRows((sign * full[:3].short() + ZERO).to(torch.uint8), torch.ones(3, 1))
        products = Int8Matrix(Quantised(full, torch.ones(40, 1))).product(rows)
        assert torch.equal(products, torch.full((3, 40), sign * LARGEST**2 * 4864.0))


def test_inputs_are_rounded_to_the_nearest() -> None:
    rows = rows_of(30, 96)
    values, scales = quantised_rows(rows)
    assert torch.all((values.double().sub(ZERO) * scales - rows).abs() <= scales * 0.5001)
    assert int(values.min()) >= ZERO - LARGEST
    assert int(values.max()) <= ZERO + LARGEST


@pytest.mark.parametrize("instructions", ["AVX512_CORE_VNNI", "AVX2_VNNI"])
@pytest.mark.e2e
def test_no_product_takes_the_reference_code(instructions: str) -> None:
    """On a processor with more instructions, oneDNN behaves as on one that has only these. Its log names each kernel."""
    lines = [
        "import torch",
        "from dg_lsp.engine.model import matmul",
        "matrix = matmul.Int8Matrix(matmul.quantised(torch.randn(48, 64)))",
        "for n in (1, 2, 16, 64): matrix.product(matmul.quantised_rows(torch.randn(n, 64)))",
    ]
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": instructions, "ONEDNN_VERBOSE": "profile_exec"}
    log = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], env=environment, capture_output=True, text=True, check=True
    ).stdout
    kernels = [line.split(",") for line in log.splitlines() if ",exec," in line and ",matmul," in line]
    names = [fields[fields.index("matmul") + 1] for fields in kernels]
    assert len(names) == 4, log
    assert all("ref" not in name for name in names), names


def test_row_does_not_depend_on_the_rows_beside_it() -> None:
    weight = matrix(torch.randn(48, 96), "int8")
    rows = rows_of(100, 96)
    together = weight.times(Inputs(rows))
    for n in ROWS:
        for start in (0, 100 - n):
            assert torch.equal(weight.times(Inputs(rows[start : start + n])), together[start : start + n])


def test_rows_of_very_different_sizes_keep_their_precision() -> None:
    """With a scale per tensor, the small rows would all be zero."""
    torch.manual_seed(2)
    weight, rows = torch.randn(64, 512), rows_of(30, 512)
    products, exact = matrix(weight, "int8").times(Inputs(rows)), rows @ weight.t()
    regular = [row for row in range(30) if row % 5 != 1]  # the other rows have one large number that rounds the rest
    errors = (products - exact).norm(dim=1) / exact.norm(dim=1)
    assert float(errors[regular].max()) < 0.02


def test_fine_rows_have_16_bits() -> None:
    weight, rows = torch.randn(64, 512), rows_of(9, 512)
    rows[:3, 7] = 1e6
    narrow, factors = matrix(weight, "int8"), torch.rand(9, 1)
    exact = rows.double() @ matmul.quantised(weight).dense().double().t() * factors
    for more in (None, torch.ones(9, 64)):
        products = narrow.times(Inputs(rows, factors, n_fine=3), more)
        products = products if more is None else products - more
        coarse = narrow.times(Inputs(rows, factors))
        assert torch.equal(products[3:], coarse[3:]) or more is not None
        errors = [float((found - exact)[:3].norm() / exact[:3].norm()) for found in (products, coarse)]
        assert errors[0] < errors[1] / 100


def test_zeros_and_biases() -> None:
    bias = torch.randn(8)
    products = matrix(torch.randn(8, 32), "int8").times(Inputs(torch.zeros(3, 32)), bias)
    assert torch.equal(products, bias.expand(3, -1))


def test_processors_without_the_instructions_are_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul.int8_is_supported.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
        patch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        patch.setattr(torch.cpu, "get_capabilities", dict)
        assert not matmul.int8_is_supported()
    matmul.int8_is_supported.cache_clear()
    with monkeypatch.context() as patch:  # a torch whose operations compute something else
        patch.setattr(Int8Matrix, "product", lambda _matrix, rows: rows.values.float().sum(-1, keepdim=True).expand(-1, 32))
        assert not matmul.int8_is_supported()
    matmul.int8_is_supported.cache_clear()
    assert matmul.int8_is_supported()
