"""The benchmark for a GPU runs its parts within limits, and packs what a machine without a network lacks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.benchmarks import on_gpu, pack
from tests.benchmarks.on_gpu import Part


@pytest.mark.e2e
def test_a_part_that_fails_or_does_not_end_prints_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def part(code: str) -> Part:
        return Part("causal", (sys.executable, "-u", "-c", code), 9)

    assert on_gpu.run(part("print('a table')"), tmp_path, 60)
    assert not on_gpu.run(part("import sys; print('half of it'); sys.exit('the reason')"), tmp_path, 60)
    assert not on_gpu.run(part("import time; print('begun', flush=True); time.sleep(600)"), tmp_path, 5)
    printed = capsys.readouterr().out
    for line in (
        "a table",
        "half of it",
        "the reason",
        "== causal: ended with 1 (",
        "begun",
        "== causal: was stopped after 5 s (",
    ):
        assert line in printed


def test_all_parts_fit_into_ten_minutes() -> None:
    assert sum(part.seconds for part in on_gpu.parts("cuda", "", is_small=False)) <= 600


def test_the_parts_run_programs_of_the_project() -> None:
    for part in on_gpu.parts("cuda", "", is_small=False):
        program, *_ = [word for word in part.command[1:] if word != "-u"]
        assert program == "-m" or (on_gpu.ROOT / program).is_file(), part.name


def test_the_pack_lacks_only_what_comes_with_torch() -> None:
    packages = pack.needed()
    assert {"transformers", "tree-sitter-php", "pygls", "attrs", "httpcore", "pytest"} <= packages.keys()
    assert not packages.keys() & {"torch", "triton", "numpy", "sympy", "bitsandbytes"}
