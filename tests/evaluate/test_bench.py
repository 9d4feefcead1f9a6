"""`dg-lsp bench`, from its command line to its output."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.evaluate import write_tasks
from dg_lsp.cli import calibrate, engine
from dg_lsp.cli.bench import app, measure, table
from dg_lsp.engine.backends import local
from dg_lsp.engine.model import fit, memory
from tests.engine.real_geometry import PUBLISHED
from tests.engine.test_matmul import needs_16_bits
from tests.evaluate.scripted import drawn


@pytest.mark.parametrize(
    ("text", "layout", "sentence"),
    [
        ("x = ⟦1⟧\n", "infill-trained", "the checkpoint's tokenizer has no token "),
        ("def f():\n⟦    x = 1\n    y = 2\n⟧", "instruct", "t.jsonl has no single-line task"),
        ("x = ⟦1⟧\n", "", "there is no model folder "),
    ],
)
def test_an_impossible_benchmark_is_reported_in_one_sentence(
    tmp_path: Path, instruct_layout: Path, text: str, layout: str, sentence: str
) -> None:
    model = tmp_path / "model"
    if layout:
        shutil.copytree(instruct_layout, model)
        (model / "dg_lsp.json").write_text(json.dumps({"layout": layout}))
    write_tasks(tmp_path / "t.jsonl", [drawn(text)])
    result = CliRunner().invoke(app, [str(tmp_path / "t.jsonl"), "--model", str(model), "--threads", "1"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr.splitlines()[-1]
    assert result.stderr.startswith("dg-lsp bench: ")


@pytest.mark.parametrize(
    ("command", "arguments", "sentence"),
    [
        (app, [], "no tasks given"),
        (app, [" "], "a path is empty; give it a value, or leave it out"),
        (calibrate.app, ["--tasks", ""], "a path is empty; give it a value, or leave it out"),
        (calibrate.app, ["--repo", " "], "a path is empty; give it a value, or leave it out"),
        (engine.app, ["pull", "--from", " "], "a path is empty; give it a value, or leave it out"),
    ],
)
def test_a_missing_or_empty_path_is_named(command: typer.Typer, arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float32", "float32"), pytest.param("", "bfloat16", marks=needs_16_bits), ("bfloat16", "bfloat16")]
)
def test_bench_says_in_which_precision_products_are_computed(trained_layout: Path, dtype: str, expected: str) -> None:
    loaded = local.load_model(str(trained_layout), device="cpu", threads=1, dtype=dtype)
    assert f"All passes, with products in {expected}, took " in table([], loaded)


def test_bench_times_lines_and_blocks_with_a_known_prefix(trained_layout: Path) -> None:
    loaded = local.load_model(str(trained_layout), device="cpu", threads=1)
    line, block = drawn("x = ⟦1⟧\n"), drawn("def f():\n⟦    return 1\n⟧", kind="block")
    lines = measure(loaded, [line], [block])
    names = ["dg-lsp", "dg-lsp, prefix known", "dg-lsp, a block", "dg-lsp, a block, prefix known"]
    assert [(way.name, way.n) for way in lines] == [(name, 1) for name in names]
    shown = table(lines, loaded)
    assert "| dg-lsp, a block, prefix known | " in shown
    assert re.search(
        r"\nAll passes, .*, took \d+\.\d s, and \d+\.\d s of processor time; the last ones had 1 thread \(at most 1,", shown
    )
    assert len(measure(loaded, [line])) == 2


@pytest.mark.parametrize("layout", ["trained_layout", "instruct_layout"])
def test_bench_compares_a_pass_with_what_memory_allows(
    layout: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "COPIED", 1 << 20)
    write_tasks(tmp_path / "t.jsonl", [drawn("x = ⟦1⟧\n")])
    folder = str(request.getfixturevalue(layout))
    shown = CliRunner().invoke(app, [str(tmp_path / "t.jsonl"), "--model", folder, "--threads", "1"]).stdout
    assert re.search(
        r"\nA pass over one token takes .* times what reading its weights takes .*: \d+ tokens a second\.\n", shown
    )
    assert re.search(r"\n\S+ [MG]B are free beside the model: [\d,]+ tokens' keys and values\.\n$", shown)


def test_a_pass_reads_few_experts() -> None:
    shape = fit.of_config({"model_type": "diffusion_gemma", "canvas_length": 64, "text_config": PUBLISHED})
    assert memory.share_read(shape) == pytest.approx(1 - shape.n_experts * (1 - 8 / 128) / shape.n_weights)
