"""`dg-lsp train tune DIR`: tune a small model on a repository, store it if it is better, and use it for its files."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dg_lsp.batch import doctor
from dg_lsp.core.values import Hole, InfillRequest, Span
from dg_lsp.engine.decode import tuned as tuned_models
from dg_lsp.engine.decode.filler import load_local
from dg_lsp.engine.model import loading
from dg_lsp.engine.model.profile import FILE
from dg_lsp.engine.model.weights import tuned_store
from dg_lsp.evaluate.tasks import EvalError
from dg_lsp.train import repository, tune_data
from dg_lsp.train import tokenizer as bpe
from dg_lsp.train.all_weights import Recipe, Training
from dg_lsp.train.commands import app
from dg_lsp.train.repository import Limits, Report
from dg_lsp.train.shape import Shape, build
from dg_lsp.wire import config
from tests.train.test_tune import FUNCTION, WORDS

pytestmark = pytest.mark.slow

RECIPE = Recipe(learning_rate=1e-2, tokens=512, length=128, rows=1, canvases=2, n_checks=4, check_rows=6)
LIMITS = Limits(minutes=15, holes=4, passes=4)
REQUEST = InfillRequest("rows = apples\ntotal = ", "\n", (Hole(Span(0, 0), "cursor"),), language="python")


@pytest.fixture(autouse=True)
def _own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv(config.FILE_VARIABLE, str(tmp_path / "config.toml"))
    torch.set_num_threads(1)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    for word in WORDS:
        (folder / f"{word}.py").write_text(f"import os\n{FUNCTION.format(name=word)}{FUNCTION.format(name=word + '_left')}")
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint in the layout of the embedded model."""
    folder = tmp_path_factory.mktemp("base")
    tokenizer = bpe.train([FUNCTION] * 3, vocabulary=420)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(1)
    shape = Shape(hidden=64, layers=2, heads=1, feed_forward=64, vocabulary=tokenizer.get_vocab_size())
    build(shape).save_pretrained(folder)
    settings = {"layout": "infill-trained", "prefix_tokens": 128, "suffix_tokens": 32, "held_tokens": 12, "canvas_tokens": 64}
    (folder / FILE).write_text(json.dumps({**settings, "line_gaps": [16], "block_gaps": [32]}))
    return folder


def tuned(
    sources: Path, base: Path, *, limits: Limits = LIMITS, progress: Callable[[str], None] = lambda _text: None
) -> Report:
    said: list[str] = []
    return repository.run(sources, str(base), limits, RECIPE, say=said.append, progress=progress)


def test_a_better_model_is_stored_and_used_for_the_repository_alone(sources: Path, base: Path, tmp_path: Path) -> None:
    filler = load_local(str(base), device="cpu")
    report = tuned(sources, base)
    assert report.entry is not None
    assert report.after.loss < 0.9 * report.before.loss
    assert report.after.exact >= report.before.exact
    assert (report.before.holes, report.n_files, report.n_held) == (4, 11, 1)
    inside, outside = (
        filler.start(replace(REQUEST, file=str(place / "a.py"))).resources for place in (sources.resolve(), tmp_path)
    )
    assert outside is filler.resources
    assert inside is not filler.resources
    found = doctor.tuned_weights(sources)
    assert found.facts == {"roots": [str(sources.resolve())], "here": True}
    assert not found.advice
    assert f"{report.before.exact} of 4 holes exact before, {report.after.exact} after" in found.state
    assert doctor.tuned_weights(tmp_path).facts["here"] is False


def test_the_stored_weights_have_the_reported_loss(sources: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainings: list[Training] = []
    kept = repository._train

    def noted(training: Training, *others: object) -> None:
        trainings.append(training)
        kept(training, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(repository, "_train", noted)
    report = tuned(sources, base)
    assert report.entry is not None
    (training,) = trainings
    weights = tuned_models.read(report.entry)
    named = dict(training.passes.model.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            named[name].copy_(weight)
    # The weights are stored with 8 bits of precision.
    assert training.measure() == pytest.approx(report.after.loss, rel=0.01)


def new_training(sources: Path, folder: Path) -> Training:
    """A training of the model in a folder that has not begun."""
    loaded = loading.load_model(str(folder), device="cpu", threads=1, dtype="float32", trainable=True)
    train, held = (tune_data.packed(part, loaded.vocabulary.tokenizer) for part in tune_data.texts(sources))
    return Training(loaded, train, held, RECIPE, 0)


def test_a_mean_with_the_model_before_may_be_the_best(sources: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = new_training(sources, base)
    name, norm = next(item for item in training.passes.model.named_parameters() if item[0].endswith("norm.weight"))
    first = norm.detach().clone()
    with torch.no_grad():
        norm += torch.arange(1.0, len(norm) + 1)
    middle = first + torch.arange(1.0, len(norm) + 1) / 2
    monkeypatch.setattr(training, "measure", lambda: float((norm - middle).abs().sum()))
    training.best_loss = math.inf
    assert training.finish() == training.best_loss == pytest.approx(0.0)
    torch.testing.assert_close(training.best[name], middle.bfloat16())


def test_a_model_is_taught_to_end_answers_only_if_it_already_does(sources: Path, base: Path) -> None:
    untaught = new_training(sources, base)
    assert not untaught.knows_end
    tokens = itertools.count(0.0, 0.02)
    untaught.run(lambda: next(tokens), lambda _share, _loss: None)
    assert untaught.end_loss() > 4
    untaught.knows_end = True
    tokens = itertools.count(0.0, 0.02)
    untaught.run(lambda: next(tokens), lambda _share, _loss: None)
    assert untaught.end_loss() < 2


def test_a_model_that_is_not_better_is_not_stored(sources: Path, base: Path) -> None:
    old = tuned(sources, base).entry
    harmful = replace(RECIPE, learning_rate=1e4)
    report = repository.run(sources, str(base), LIMITS, harmful, say=lambda _text: None)
    assert report.entry is None
    assert report.after == report.before
    assert tuned_store.entries() == (old,)


def test_fewer_exact_holes_are_not_better(sources: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = itertools.cycle([(3, 4), (2, 4)])
    monkeypatch.setattr(repository, "_exact", lambda *_: next(counts))
    report = tuned(sources, base)
    assert report.after.loss < report.before.loss
    assert report.entry is None
    assert tuned_store.entries() == ()


def test_an_interrupt_keeps_the_best_state_so_far(sources: Path, base: Path) -> None:
    seen: list[str] = []

    def interrupt(text: str) -> None:
        seen.append(text)
        if text.startswith("training") and sum(each.startswith("training") for each in seen) == 9:
            raise KeyboardInterrupt

    report = tuned(sources, base, limits=replace(LIMITS, passes=1e6), progress=interrupt)
    assert report.after.loss < report.before.loss
    assert (report.entry is not None) == (report.after.exact >= report.before.exact)
    assert all(text.endswith(" left") for text in seen if text.startswith("training"))


def test_the_time_limit_ends_the_training(sources: Path, base: Path) -> None:
    seconds = itertools.count(0.0, 0.25)
    report = repository.run(
        sources, str(base), replace(LIMITS, minutes=1, passes=1e6), RECIPE, say=lambda _text: None, clock=lambda: next(seconds)
    )
    assert 0 < report.minutes <= 1.1
    assert report.tokens > 0


@pytest.mark.parametrize(
    ("n_files", "said"), [(1, "too few source files: 1, and tuning needs at least 3"), (0, "no source file")]
)
def test_a_folder_with_too_few_files_is_refused(tmp_path: Path, base: Path, n_files: int, said: str) -> None:
    folder = tmp_path / "few"
    folder.mkdir()
    for word in WORDS[:n_files]:
        (folder / f"{word}.py").write_text(FUNCTION.format(name=word))
    with pytest.raises(EvalError, match=said):
        tuned(folder, base)


def test_a_large_model_is_refused(sources: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dg_lsp.engine.decode.tuned.MAX_BASE_WEIGHTS", 1000)
    with pytest.raises(EvalError, match="too large to be tuned per repository; use --out FOLDER"):
        tuned(sources, base)


def test_the_command_reports_stores_and_removes(sources: Path, base: Path) -> None:
    nothing = CliRunner().invoke(app, ["tune", str(sources), "--remove"])
    assert (nothing.exit_code, nothing.output) == (0, f"Nothing is stored for {sources.resolve()}.\n")
    done = CliRunner().invoke(app, ["tune", str(sources), "--init", str(base), "--minutes", "0.3", "--threads", "1"])
    assert "11 files to train on, 1 held out" in done.output
    assert "held-out files, before: loss" in done.output
    # The speed of the machine decides how well the model is trained, and so whether it is stored.
    is_stored = bool(tuned_store.entries())
    assert done.exit_code == (0 if is_stored else 1), done.output
    assert ("The tuned model is not better, so it was not stored." in done.output) is not is_stored
    assert (f"The engine now uses it for the files in {sources.resolve()}." in done.output) is is_stored
    assert (f"To remove it, run: dg-lsp train tune {sources} --remove" in done.output) is is_stored
    assert tuned(sources, base).entry is not None
    removed = CliRunner().invoke(app, ["tune", str(sources), "--remove"])
    assert removed.exit_code == 0
    assert f"The weights tuned on {sources.resolve()} are removed." in removed.output
    assert tuned_store.entries() == ()


def test_a_store_of_others_is_reported_in_one_sentence(sources: Path, base: Path) -> None:
    store = tuned_store.folder()
    store.mkdir(parents=True)
    store.chmod(0o777)
    removed = CliRunner().invoke(app, ["tune", str(sources), "--remove"])
    assert removed.exit_code == 2
    expected = f"dg-lsp train: {store} can be changed by other users; make it private (chmod 700)\n"
    assert removed.output == expected
    found = doctor.tuned_weights(sources)
    assert found.state == "the engine does not use them"
    assert found.advice == f"{store} can be changed by other users; make it private (chmod 700)."
