"""The model card takes its figures from files that commands wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dg_lsp.engine.model.profile import Profile, dump
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.train import card
from dg_lsp.train.curve import LOSSES

LINE = {"minutes": 25, "tokens": 5e6} | dict.fromkeys(LOSSES, 1.5)
SHAPE = dict.fromkeys(("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"), 8)
SOURCES: dict[str, Any] = {
    "sources": [{"name": "good", "version": "1", "licence": "MIT", "files": 2, "chars": 3_000_000}],
    "held_out": ["flask"],
}


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "sources.json").write_text(json.dumps(SOURCES))
    (tmp_path / "curve.jsonl").write_text(json.dumps(LINE) + "\n")
    (tmp_path / "config.json").write_text(json.dumps({"text_config": SHAPE}))
    (tmp_path / "model.safetensors").write_bytes(bytes(1 << 20))
    (tmp_path / "dg_lsp.json").write_text(
        dump(Profile(prefix_tokens=700, suffix_tokens=150, line_gaps=(16,), block_gaps=(72,)))
    )
    return tmp_path


def written(folder: Path) -> str:
    return card.write(folder, folder, results="RESULTS\n", ablation="ABLATION\n")


def test_the_card_states_the_checkpoint_s_lengths(run_folder: Path) -> None:
    text = written(run_folder)
    assert "It reads 700 tokens before a hole and 150 after it, and its canvas has room for 72 tokens in one hole." in text
    assert text.index("RESULTS") < text.index("ABLATION") < text.index("## Limits")
    assert "3 MB of sources in 1 parts" in text


def test_a_table_beside_the_card_names_each_source_with_its_licence(run_folder: Path) -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    small = {"name": "go/a__b", "version": commit, "licence": "MIT, or BSD", "files": 1, "chars": 1_000_000}
    (run_folder / "corpus" / "sources.json").write_text(json.dumps({**SOURCES, "sources": [small, *SOURCES["sources"]]}))
    assert card.sources_table(run_folder).splitlines() == [
        "source,version,licence,files,MB",
        "good,1,MIT,2,3.00",
        'go/a__b,0123456789,"MIT, or BSD",1,1.00',
    ]
    assert f"[{card.TABLE}]" in written(run_folder)


@pytest.mark.parametrize(
    ("legs", "where"),
    [
        (None, ""),
        ([{"device": "cpu", "name": "", "threads": 1}], ", on one thread of a CPU"),
        ([{"device": "cpu", "name": "", "threads": 4}], ", on 4 threads of a CPU"),
        (
            [{"device": "cpu", "name": "", "threads": 1}, {"device": "cuda", "name": "NVIDIA H200", "threads": 1}],
            ", on one thread of a CPU and on one NVIDIA H200",
        ),
    ],
)
def test_the_card_states_the_training_hardware_if_recorded(
    run_folder: Path, legs: list[dict[str, Any]] | None, where: str
) -> None:
    if legs is not None:
        (run_folder / "plan.json").write_text(json.dumps({"legs": legs}))
    assert f"It was trained from scratch{where}, in 25 minutes and 5.0 million tokens." in written(run_folder)


def test_the_card_names_the_weights_that_a_run_began_with(run_folder: Path) -> None:
    (run_folder / "start.json").write_text(json.dumps({"weights": "embedded"}))
    assert "It was trained from the weights of embedded, in 25 minutes and 5.0 million tokens." in written(run_folder)


def test_the_card_states_the_languages_of_the_sources(run_folder: Path) -> None:
    assert "Its training data had no language other than python." in written(run_folder)
    parts = [("python/a__b", 3_000_000), ("go/c__d", 900_000), ("go/e__f", 100_000)]
    rows = [{"name": name, "version": "1", "licence": "MIT", "files": 1, "chars": chars} for name, chars in parts]
    (run_folder / "corpus" / "sources.json").write_text(json.dumps({"sources": rows, "held_out": []}))
    text = written(run_folder)
    assert "Characters of the training data: python 75.0%, go 25.0%." in text
    assert "held out" not in text


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("curve.jsonl", "", "is empty: the training has recorded nothing yet"),
        ("corpus/sources.json", "{", "can't be read"),
        ("dg_lsp.json", "{", "is not a profile that this version can read"),
    ],
)
def test_an_unusable_file_is_named(run_folder: Path, file: str, text: str, sentence: str) -> None:
    (run_folder / file).write_text(text)
    with pytest.raises(EvalError, match=sentence):
        written(run_folder)
