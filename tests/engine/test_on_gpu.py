"""The benchmark for a GPU runs its parts within limits, and packs what a machine without a network lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import on_gpu, pack
from tests.benchmarks.on_gpu import Part


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


def test_an_unknown_part_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        on_gpu.main(["--parts", "tests,steps"])
    assert "unknown part steps; choose from tests, causal, experts, full, full8, fills" in capsys.readouterr().err


def test_all_parts_fit_into_ten_minutes() -> None:
    assert sum(part.seconds for part in on_gpu.parts("cuda", "", is_small=False)) <= 600


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
