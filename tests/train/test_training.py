"""The training pipeline from source files to a checkpoint, small enough for any machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

from dg_lsp.core.values import Hole, InfillRequest, Span
from dg_lsp.engine.decode.filler import load_local
from dg_lsp.engine.decode.layout import InfillTrained
from dg_lsp.engine.model.passes import Passes
from dg_lsp.engine.model.profile import Profile
from dg_lsp.engine.model.vocabulary import Vocabulary
from tests.trainer import corpus, cuts, export, loop, objective, pack, tokenizer
from tests.trainer.export import PROFILE
from tests.trainer.losses import head_loss, token_losses
from tests.trainer.objective import GAPS, PARTS, CausalBatch, Sampler
from tests.trainer.schedule import Schedule
from tests.trainer.shape import Shape, build
from tests.trainer.windows import DELETE, EOM, KIND_IDS, N_SPECIAL, PRE, SUF

SOURCE = "".join(
    f"class Thing{n}:\n    def __init__(self, value):\n        self.value = value\n\n"
    f"    def get_{n}(self):\n        return self.value + {n}\n\n\n"
    for n in range(30)
)
SHAPE = Shape(hidden=64, layers=2, heads=1, feed_forward=64, vocabulary=400)
PLAN = loop.Plan(
    Schedule(causal_tokens=800, mixed_tokens=0, cool_tokens=300),
    length=96,
    long_length=192,
    mixed_length=96,
    tokens_per_part=192,
    rows=2,
    canvases=2,
    check_windows=24,
)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    made = tokenizer.train([SOURCE], vocabulary=400)
    made.save(str(folder / "tokenizer.json"))
    for use in ("train", "valid"):
        pack.save(pack.pack([(f"pkg/{use}.py", SOURCE), ("pkg/other.py", SOURCE[:900])], made), folder / f"{use}.npz")
    return folder


@pytest.fixture
def sampler(run_folder: Path) -> Sampler:
    return Sampler(pack.load_packed(run_folder / "train.npz"), Tokenizer.from_file(str(run_folder / "tokenizer.json")), seed=1)


def test_a_run_stops_resumes_and_ends_as_a_checkpoint_that_fills(run_folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    loop.run(run_folder, SHAPE, PLAN, on_message=said.append)
    first = json.loads(said[-1])
    assert first["causal_tokens"] >= 800 > first["causal_tokens"] - 192 * 4
    loop.run(run_folder, SHAPE, replace(PLAN, schedule=replace(PLAN.schedule, mixed_tokens=900)), on_message=said.append)
    last = json.loads(said[-1])
    assert last["causal_tokens"] == first["causal_tokens"]
    assert last["mixed_tokens"] >= 900
    lines = [json.loads(line) for line in (run_folder / "curve.jsonl").read_text().splitlines()]
    assert lines[-1] == last
    export.export(run_folder, tmp_path / "model", SHAPE)
    model = load_local(str(tmp_path / "model"), device="cpu")
    task = model.start(InfillRequest("def f():\n    return ", "\n", (Hole(Span(0, 0), "cursor"),)))
    while task.step():
        pass
    assert task.candidates()
    export.export(run_folder, tmp_path / "last", SHAPE, averaged=False)
    last_step = torch.load(run_folder / "state.pt", weights_only=True)["model"]["lm_head.weight"].to(torch.bfloat16)
    averaged, exported = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "last"))
    key = next(name for name, tensor in exported.items() if tensor.shape == last_step.shape)
    assert torch.equal(exported[key], last_step)
    assert not torch.equal(averaged[key], last_step)


def test_a_window_is_suffix_prefix_and_an_end_token(sampler: Sampler) -> None:
    batch = sampler.canvases(4, 200, 3)
    for row in range(4):
        ids = [*batch.causal.ids[row].tolist(), int(batch.causal.targets[row, -1])]
        assert SUF in ids
        assert ids.count(EOM) == 1
        assert ids[ids.index(PRE) - 1] in KIND_IDS.values()


def test_a_window_starts_like_a_request_also_in_a_vocabulary_without_kinds(run_folder: Path) -> None:
    packed = pack.load_packed(run_folder / "train.npz")
    for known in (True, False):
        values = json.loads((run_folder / "tokenizer.json").read_text())
        if not known:
            for token in values["added_tokens"]:
                if token["id"] in KIND_IDS.values():
                    old, token["content"] = token["content"], f"<unused{token['id']}>"
                    values["model"]["vocab"][token["content"]] = values["model"]["vocab"].pop(old)
        tokenizer = Tokenizer.from_str(json.dumps(values))
        windows = Sampler(packed, tokenizer, seed=1).windows
        laid_out = InfillTrained(PROFILE, Vocabulary(tokenizer)).lay_out(
            InfillRequest("x = 1\n", "\ny = 2\n", (Hole(Span(0, 0), "cursor"),))
        )
        in_request = {token for token in laid_out.kv if token in KIND_IDS.values()}
        in_windows = {token for _ in range(20) for token in windows.draw(128).ids if token in KIND_IDS.values()}
        assert bool(in_request) == bool(in_windows) == known


def test_a_canvas_contains_the_expected_tokens(sampler: Sampler) -> None:
    batch = sampler.canvases(6, 200, 4, noise=0.0)
    text = SOURCE.replace(" ", "").replace("\n", "")
    for index in range(24):
        gap = batch.clean[index][batch.gap[index]]
        assert len(gap) in GAPS
        np.testing.assert_array_equal(batch.clean[index], batch.noisy[index])
        prefix = batch.causal.ids[index // 4][: batch.starts[index]]
        middle = [int(token) for token in gap if token != DELETE]
        held = [int(token) for token in batch.clean[index][batch.used[index] & ~batch.gap[index]] if token >= N_SPECIAL]
        joined = sampler.windows.tokenizer.decode([*map(int, prefix[-3:]), *middle, *held])
        assert joined.replace(" ", "").replace("\n", "") in text


def test_noise_affects_only_the_gap(sampler: Sampler) -> None:
    batch = sampler.canvases(6, 200, 4, noise=1.0)
    np.testing.assert_array_equal(batch.clean[~batch.gap], batch.noisy[~batch.gap])
    assert (batch.noisy[batch.gap] >= N_SPECIAL).all()


def test_an_own_draft_has_the_causal_pass_s_likeliest_tokens(sampler: Sampler) -> None:
    passes = Passes(build(SHAPE).eval())
    batch = next(drawn for _ in range(20) if (drawn := sampler.canvases(2, 128, 4)).drafted.any())
    ids, clean, noisy = (torch.from_numpy(item) for item in (batch.causal.ids, batch.clean, batch.noisy))
    own = torch.from_numpy(batch.drafted)[:, None] & torch.from_numpy(batch.gap) & (clean != DELETE)
    with torch.no_grad():
        window = passes.encode(ids)[0].repeat_interleave(4, 0)
        written = loop.with_own_draft(passes, noisy, own, window, torch.from_numpy(batch.starts), noise=0.0)
        assert torch.equal(written[~own], noisy[~own])
        for row, position in own.nonzero().tolist():
            start = int(batch.starts[row])
            read = torch.cat([ids[row // 4, :start], clean[row, :position]])
            logits = passes.logits(passes.encode(read[None])[0])[0, -1]
            assert logits[int(written[row, position])] >= logits[N_SPECIAL:].max() - 1e-3
        noised = loop.with_own_draft(passes, noisy, own, window, torch.from_numpy(batch.starts), noise=1.0)
    assert (noised[own] >= N_SPECIAL).all()
    assert not torch.equal(noised, written)


@pytest.mark.parametrize("with_canvases", [False, True])
def test_an_answer_ends_anywhere_in_a_row(sampler: Sampler, *, with_canvases: bool) -> None:
    batch = sampler.canvases(200, 192, 1).causal if with_canvases else sampler.causal(200, 192)
    row, place = np.nonzero(batch.targets == EOM)
    counts = np.histogram(place, bins=12, range=(0, 192))[0]
    assert len(set(row)) > 100
    assert counts.max() < 0.3 * counts.sum(), "a model could learn the place instead of the end"


def test_samplers_with_the_same_seed_draw_the_same_batches(run_folder: Path) -> None:
    made = Tokenizer.from_file(str(run_folder / "tokenizer.json"))
    one, other = (Sampler(pack.load_packed(run_folder / "train.npz"), made, seed=5).canvases(2, 128, 2) for _ in range(2))
    np.testing.assert_array_equal(one.noisy, other.noisy)


def test_a_run_that_continues_reads_other_batches_with_another_seed(run_folder: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "train.npz", "valid.npz"):
        (tmp_path / name).symlink_to(run_folder / name)
    plan = replace(PLAN, schedule=replace(PLAN.schedule, causal_tokens=200), seed=3)
    loop.run(tmp_path, SHAPE, plan, on_message=lambda _line: None)

    def next_batch(seed: int) -> CausalBatch:
        trainer = loop.Trainer(tmp_path, SHAPE, replace(plan, seed=seed))
        assert trainer.progress.causal_tokens >= 200
        batch = trainer._batches.next(True, trainer.progress)
        assert isinstance(batch, CausalBatch)
        return batch

    np.testing.assert_array_equal(next_batch(3).ids, next_batch(3).ids)
    assert not np.array_equal(next_batch(3).ids, next_batch(4).ids)


def test_the_head_loss_is_cross_entropy_of_capped_logits() -> None:
    noise = torch.Generator().manual_seed(0)
    hidden = torch.randn(1100, 16, generator=noise, requires_grad=True)
    head = torch.randn(50, 16, generator=noise, requires_grad=True)
    targets, weights = torch.randint(0, 50, (1100,), generator=noise), torch.rand(1100, generator=noise)
    ours = head_loss(hidden, head, targets, weights, 30.0)
    theirs = (F.cross_entropy(torch.tanh(hidden @ head.t() / 30) * 30, targets, reduction="none") * weights).sum()
    torch.testing.assert_close(ours, theirs)
    for left, right in zip(torch.autograd.grad(ours, (hidden, head)), torch.autograd.grad(theirs, (hidden, head)), strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("text", ["def f():\n    return 1\n", "\tx = '日本'\n\n\n", "a  b   c\r\n", "_private __init__ 1234\n"])
def test_the_tokenizer_round_trips_text(run_folder: Path, text: str) -> None:
    made = Tokenizer.from_file(str(run_folder / "tokenizer.json"))
    assert made.decode(made.encode(text).ids) == text
    assert not any("\n" in made.decode([token]).strip("\n") or made.decode([token]).count("\n") > 1 for token in range(400))


def _distribution(root: Path, name: str, licence: str, text: str) -> None:
    (root / name).mkdir()
    (root / name / "core.py").write_text(text)
    info = root / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nLicense: {licence}\n")
    (info / "RECORD").write_text(f"{name}/core.py,,\n{name}/tests/test_core.py,,\n")


def test_the_corpus_takes_permissive_licences_once_and_sets_held_out_packages_aside(tmp_path: Path) -> None:
    for name, licence, text in (
        ("good", "MIT", SOURCE),
        ("twin", "BSD", SOURCE + "\n\n"),
        ("closed", "Proprietary", SOURCE.replace("value", "secret")),
        ("copyleft", "GPL-3.0", SOURCE.replace("value", "freedom")),
        ("flask", "BSD", SOURCE.replace("value", "held")),
        ("made", "MIT", "# This file was generated by a tool; do not edit.\n" + SOURCE.replace("value", "made")),
    ):
        _distribution(tmp_path, name, licence, text)
    found = corpus.collect([tmp_path], stdlib=False)
    assert len(found.train) + len(found.valid) == 1
    assert [path for path, _ in found.held] == ["flask/core.py"]
    assert {name for name, _ in found.skipped} == {"closed", "copyleft"}
    corpus.save(found, tmp_path / "out")
    assert list(corpus.load_corpus(tmp_path / "out" / "held.jsonl")) == found.held
    assert [source["name"] for source in json.loads((tmp_path / "out" / "sources.json").read_text())["sources"]] == ["good"]


def test_a_file_that_a_held_out_package_shares_with_another_is_held_out(tmp_path: Path) -> None:
    _distribution(tmp_path, "aaa", "MIT", SOURCE)
    _distribution(tmp_path, "tqdm", "MIT", SOURCE)
    found = corpus.collect([tmp_path], stdlib=False)
    assert [path for path, _ in found.held] == ["tqdm/core.py"]
    assert not found.train + found.valid + found.sources


@pytest.mark.parametrize(
    ("licence", "taken"),
    [
        ("MIT", True),
        ("BSD-3-Clause", True),
        ("0BSD", True),
        ("Apache2.0", True),
        ("ISC License (ISCL)", True),
        ("MIT License, for example", True),
        ("Copyright (c) Somebody Limited. All rights reserved", False),
        ("Submitted works; see MISC", False),
        ("MIT AND LGPLv3+", False),
        ("GPLv2 or BSD", False),
        ("MIT or MPL2", False),
        ("MIT, free for non-commercial use", False),
        ("MIT. THE SOFTWARE COMES WITHOUT IMPLIED WARRANTY", True),
    ],
)
def test_licences_match_whole_words(tmp_path: Path, licence: str, taken: bool) -> None:
    _distribution(tmp_path, "one", licence, SOURCE)
    found = corpus.collect([tmp_path], stdlib=False)
    assert bool(found.sources) == taken
    assert bool(found.skipped) != taken


def test_a_packed_file_round_trips(run_folder: Path, tmp_path: Path) -> None:
    made: Any = Tokenizer.from_file(str(run_folder / "tokenizer.json"))
    packed = pack.pack([("a/b/c.py", SOURCE), ("d.ts", ""), ("e.js", "function f(a) {\n  return a + 1;\n}\n" * 9)], made)
    pack.save(packed, tmp_path / "p.npz")
    again = pack.load_packed(tmp_path / "p.npz")
    for name in ("ids", "starts", "languages", "cut_kinds", "cut_spans"):
        np.testing.assert_array_equal(getattr(again, name), getattr(packed, name))
    assert (again.names, again.language_names) == (packed.names, ("javascript", "python"))
    assert [made.decode(name) for name in again.names] == ["b/c.py", "e.js"]


def test_a_fraction_of_windows_uses_the_instruct_layout(run_folder: Path) -> None:
    made = Tokenizer.from_file(str(run_folder / "tokenizer.json"))
    sampler = Sampler(pack.load_packed(run_folder / "train.npz"), made, seed=4, instruct=1.0, profile=export.PROFILE)
    batch = sampler.canvases(12, 700, 2, noise=0.0)
    asked = 0
    for index in range(0, 24, 2):
        text = made.decode(batch.causal.ids[index // 2].tolist(), skip_special_tokens=False)
        if "<|turn>user" not in text:
            continue  # a window that was too long for the instruct layout
        asked += 1
        start, gap = int(batch.starts[index]), batch.clean[index][batch.gap[index]]
        assert DELETE not in gap
        # The canvas writes the text that continues the answer.
        np.testing.assert_array_equal(batch.causal.ids[index // 2][start : start + len(gap)], gap)
        held = batch.clean[index][batch.used[index] & ~batch.gap[index]]
        # Behind it stands what the layout holds: the next whole lines, and the end of the turn only where the file ends.
        behind = batch.causal.ids[index // 2][start + len(gap) :][: len(held)]
        np.testing.assert_array_equal(behind, held[: len(behind)])
        ends = made.decode(held.tolist(), skip_special_tokens=False)
        assert ends.endswith(("\n", "```<turn|><eos>"))
    assert asked >= 6


def test_training_holes_are_cut_like_the_product_s_holes(run_folder: Path) -> None:
    text = (
        'import os\n\n\n# A comment.\ndef area(width, height):\n    """Return the area."""\n    return width * height\n\n\n'
        "class Box:\n    def grow(self, by):\n        if by > 0:\n            self.width += by\n        return self\n"
    )
    body, found = cuts.find("box.py", text)
    assert body == text
    by_kind = {kind: [text[cut.span.start : cut.span.end] for cut in found if cut.kind == kind] for kind in cuts.KINDS}
    assert by_kind == {
        "line": [
            "import os",
            "def area(width, height):",
            "return width * height",
            "class Box:",
            "def grow(self, by):",
            "if by > 0:",
            "self.width += by",
            "return self",
        ],
        "block": ["self.width += by"],
        "body": ["if by > 0:\n            self.width += by\n        return self"],
        "documented": ["return width * height"],
    }
    made = Tokenizer.from_file(str(run_folder / "tokenizer.json"))
    packed = pack.pack([("box.py", text)], made)
    spans = [made.decode(packed.ids[begin:end].tolist()) for begin, end in packed.cut_spans]
    assert spans == [text[cut.span.start : cut.span.end] for cut in found]


def test_a_window_is_labelled_by_the_hole_that_was_cut(sampler: Sampler) -> None:
    decode, kinds = sampler.windows.tokenizer.decode, set[str]()
    for _ in range(300):
        window = sampler.windows.draw(160)
        before, answer = (decode(part) for part in (window.prefix[: window.answer_at], window.answer))
        behind = decode(window.suffix)
        kinds.add(window.kind)
        assert before + answer + behind in SOURCE
        if window.kind == "line":
            assert "\n" not in answer
            assert behind.startswith("\n") or not behind
        if window.kind == "span":
            assert "\n" not in answer + behind[:1]
        if window.kind == "lines":
            assert not before or before.endswith("\n")
        if window.kind in ("block", "body"):
            assert before.rpartition("\n")[2].isspace()
    assert kinds == set(KIND_IDS) - {"block"}  # no statement of the source file has a block


def test_the_end_of_an_answer_weighs_most_and_the_suffix_least(sampler: Sampler) -> None:
    batch = sampler.causal(8, 160)
    weights = {part: set(batch.weights[batch.parts == number].tolist()) - {0.0} for number, part in enumerate(PARTS)}
    assert weights["suffix"] == {np.float32(0.3)}
    assert weights["end"] == {4.0}
    assert weights["prefix"] == {1.0}
    assert 4.0 in weights["answer"]
    assert (batch.targets[batch.parts == PARTS.index("end")] == EOM).all()


def test_token_losses_add_up_to_the_total_loss() -> None:
    noise = torch.Generator().manual_seed(0)
    hidden, head = torch.randn(700, 16, generator=noise), torch.randn(50, 16, generator=noise)
    targets = torch.randint(0, 50, (700,), generator=noise)
    torch.testing.assert_close(
        token_losses(hidden, head, targets, 30.0).sum(), head_loss(hidden, head, targets, torch.ones(700), 30.0)
    )


def test_a_folder_of_sources_is_a_corpus_with_the_licences_of_its_list(tmp_path: Path) -> None:
    tree = tmp_path / "sources"
    for file, text in (
        ("python/someone__good/pkg/core.py", SOURCE),
        ("python/pallets__flask/src/flask/app.py", SOURCE.replace("value", "held")),
        ("go/other__tool/main.go", "package main\n\n" + "func f(a int) int {\n\treturn a + 1\n}\n\n" * 20),
        ("go/other__tool/notes.txt", "no source"),
    ):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_text(text)
    (tree / "SOURCES.csv").write_text(
        "repository,commit,licence,language\nsomeone/good,abc,MIT,python\npallets/flask,d,BSD-3-Clause,python\nother/tool,e,MIT,go\n"
    )
    texts = corpus.from_folder(tree)
    assert sorted(path for path, _ in texts.train + texts.valid) == [
        "go/other__tool/main.go",
        "python/someone__good/pkg/core.py",
    ]
    assert [path for path, _ in texts.held] == ["python/pallets__flask/src/flask/app.py"]
    assert {(source.name, source.version, source.licence) for source in texts.sources} == {
        ("python/someone__good", "abc", "MIT"),
        ("go/other__tool", "e", "MIT"),
    }
    assert "\treturn" in next(text for path, text in texts.train + texts.valid if path.endswith(".go"))


def test_the_instruct_layout_keeps_a_row_of_noise() -> None:
    assert objective.as_instruct(Profile(layout="infill-trained", line_noise_rows=0)).line_noise_rows == 1
