"""The benchmarks for a GPU run, within limits, and what a machine without a network lacks is packed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import candidates, gpu_causal, on_gpu, pack, stages
from benchmarks.on_gpu import Part
from dg_lsp.core.values import InfillRequest
from dg_lsp.engine.model.recording import ROWS


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


def test_two_devices_are_compared_fill_by_fill(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the processor as both of them, nothing may differ."""
    file, answers = str(on_gpu.ROOT / on_gpu.HELD_OUT), candidates.answers
    assert candidates.main(file, "embedded", "cpu", 2) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "2 of 2 holes filled on the processor and on cpu, in 32 bits and from the same seeds:"
    assert printed[1].startswith("2 have the same candidates in the same order, whose probabilities differ by at most 0;")
    assert printed[2] == "2 have the same best candidate"
    n_answers = itertools.count()

    def other(model: Any, request: InfillRequest) -> list[candidates.Answer]:
        found = answers(model, request)
        return [(("wrong",), "noise", 0.5), *found] if next(n_answers) % 2 else found

    monkeypatch.setattr(candidates, "answers", other)
    assert candidates.main(file, "embedded", "cpu", 1) == 1
    [hole, *_, last] = capsys.readouterr().out.splitlines()
    assert json.loads(hole)[2][0][0] == ["wrong"]
    assert last == "0 have the same best candidate"


def test_the_pack_lacks_only_what_comes_with_torch() -> None:
    packages = pack.needed()
    assert {"transformers", "tree-sitter-php", "pygls", "attrs", "httpcore", "pytest"} <= packages.keys()
    assert not packages.keys() & {"torch", "triton", "numpy", "sympy", "bitsandbytes"}


def test_a_model_s_pieces_join_to_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "PIECE", 4000)
    model, folder, carried = (tmp_path / name for name in ("model", "pack", "carried"))
    for each in (model, folder, carried):
        each.mkdir()
    (model / "model.safetensors").write_bytes(bytes(range(256)) * 60)
    (model / "config.json").write_text("{}")
    n_pieces = pack._cut(model, folder)
    assert n_pieces == len(list(folder.glob("model-*"))) > 3
    for piece in sorted(folder.glob("model-*/*")):
        assert piece.stat().st_size <= 4000
        (carried / piece.name).write_bytes(piece.read_bytes())
    (folder / "join.sh").write_text(pack.JOIN)
    join = ["sh", str(folder / "join.sh"), str(carried), str(tmp_path / "joined")]
    subprocess.run(join, check=True)
    for path in model.iterdir():
        assert (tmp_path / "joined" / path.name).read_bytes() == path.read_bytes()
    (carried / "model.tar.01").write_bytes(b"damaged")
    assert subprocess.run(join, check=False, capture_output=True).returncode


def test_the_passes_of_a_causal_model_are_timed_each(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        assert gpu_causal.main(["--device", "cpu", "--small"]) == 0
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    for n_rows in ROWS:
        assert printed.count(f"\n| {n_rows} | ") == 2  # in 16 and in 8 bits
    assert "prefix of 40: " in printed


@pytest.mark.slow
@pytest.mark.parametrize("precision", [stages.WIDE, "fp8"])
def test_the_real_geometry_is_timed_with_random_weights_stage_by_stage(
    capsys: pytest.CaptureFixture[str], precision: str
) -> None:
    """All parts of the real configuration, as small as can be: unequal heads, both kinds of layer, experts."""
    assert stages.main("tiny", "cpu", 1, precision) == 0
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert [line.split("  ")[0] for line in printed.err.splitlines()] == [stage["name"] for stage in figures["stages"]]
    assert [stage["name"] for stage in figures["stages"]] == [
        *("step of 1 x 64", "step of 1 x 256", "step of 4 x 64", "prefix of 64 tokens", "one drafted token"),
        *("scores of 64 tokens", "fill of 12 steps of 1 x 64"),
    ]
    assert all(stage["ms"] > 0 and stage["floor_ms"] > 0 for stage in figures["stages"])
