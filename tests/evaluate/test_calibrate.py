"""Stated probabilities are accurate for every backend, and a threshold means the same for all of them."""

from __future__ import annotations

import json
import math
import random
import re
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.evaluate import write_tasks
from dg_lsp.cli.calibrate import app
from dg_lsp.core import polish
from dg_lsp.core.calibration import Calibration
from dg_lsp.core.confidence import Threshold, is_sure
from dg_lsp.core.values import Calibrated, Ranked
from dg_lsp.engine import backends
from dg_lsp.engine.backends import fim
from dg_lsp.engine.backends.remote import RemoteFiller
from dg_lsp.engine.backends.vllm import connect
from dg_lsp.engine.causal import layout
from dg_lsp.engine.common import calibration_store
from dg_lsp.engine.common.calibration_store import ModelId
from dg_lsp.engine.common.task import Filler
from dg_lsp.engine.diffusion.layout import CanvasProfile
from dg_lsp.engine.model.vocabulary import Vocabulary
from dg_lsp.engine.model.weights import checkpoint
from dg_lsp.evaluate import fitting
from dg_lsp.evaluate.fitting import Judged, Sample
from dg_lsp.evaluate.tasks import EvalError, Task
from dg_lsp.wire.config import Config
from tests.checkpoints import dump_profile, gemma_like_tokenizer
from tests.engine.backends_kit import rules, serving
from tests.evaluate.noisy_servers import NoisyVllm, numbered, openai, openai_that_knows

N_FITTED, N_JUDGED = 400, 800


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's empty folder of calibrations."""
    monkeypatch.setattr(calibration_store, "folder", lambda: tmp_path / "user" / "calibration")
    return tmp_path / "user" / "calibration"


# --- Backends ---------------------------------------------------------------------------------------------------------


@contextmanager
def fim_filler() -> Iterator[Filler]:
    with openai() as url:
        filler = fim.connect("openai", url, "a-model", Config(), {})
        try:
            yield filler
        finally:
            filler.close()


@contextmanager
def vllm_filler(folder: Path) -> Iterator[Filler]:
    gemma_like_tokenizer().save(str(folder / "tokenizer.json"))
    vocabulary = Vocabulary.from_file(folder / "tokenizer.json")
    # Numbers of four digits, so that every answer has the same number of tokens, and only one gap length is tried.
    n_tokens = len(vocabulary.encode("a - 1000"))
    profile = CanvasProfile(held_tokens=4, line_gaps=(n_tokens,), prefix_tokens=512, suffix_tokens=64)
    (folder / "dg_lsp.json").write_text(dump_profile(profile))
    with serving(NoisyVllm(vocabulary, rules, canvas=32).routes()) as url:
        filler: RemoteFiller = connect(url, str(folder), Config())
        try:
            yield filler
        finally:
            filler.close()


@pytest.mark.slow
@pytest.mark.parametrize("which", ["fim", "vllm"])
def test_a_fitted_backend_is_calibrated_on_unseen_holes(which: str, tmp_path: Path) -> None:
    with fim_filler() if which == "fim" else vllm_filler(tmp_path) as filler:
        fit_result = fitting.fitted(fitting.samples(filler, numbered(1000, N_FITTED)))
        unseen = fitting.samples(filler, numbered(1000 + N_FITTED, N_JUDGED))
    assert fit_result.n_answered == N_FITTED
    judged = fitting.judge(unseen, fit_result.calibration)
    figures = fitting.measure(judged)
    assert figures.n == N_JUDGED
    assert figures.calibration_error.value < 0.05
    assert figures.brier_skill.low > 0
    # Among the answers that pass, the fraction of right ones matches the stated probability and is not below the threshold.
    for least in (0.3, 0.6, 0.8):
        passing = [each for each in judged if is_sure(Calibrated(each.probability), Threshold(least))]
        right = sum(each.right for each in passing) / len(passing)
        assert right == pytest.approx(sum(each.probability for each in passing) / len(passing), abs=0.07)
        assert right > least


def test_a_server_without_log_probabilities_ranks_until_it_is_calibrated() -> None:
    with openai(logprobs=False) as url:
        filler = fim.connect("openai", url, "a-model", Config(), {})
        try:
            sample_list = fitting.samples(filler, numbered(1000, 60))
            fit_result = fitting.fitted(sample_list)
            [task] = numbered(5000, 1)
            assert best(filler, task) == Ranked(0)
            filler.calibrations.watch(ModelId("fim:x", "m"))
            calibration_store.write(ModelId("fim:x", "m"), fit_result.calibration, {})
            confidence = best(filler, task)
        finally:
            filler.close()
    share = sum(sample.right[0] for sample in sample_list) / len(sample_list)
    assert isinstance(confidence, Calibrated)
    assert confidence.probability == pytest.approx(share, abs=0.15)


def best(filler: Filler, task: Task) -> Calibrated | Ranked:
    work = filler.start(task.request())
    while work.step():
        pass
    return work.candidates()[0].confidence


# --- The command ------------------------------------------------------------------------------------------------------


def source(name: str, n: int) -> str:
    parts = [
        f"def {name}_{i}(left, right):\n    total_{i} = left * {i + 2} + right\n    return total_{i} - {i + 3}\n"
        for i in range(n)
    ]
    return "\n\n".join(parts)


@pytest.fixture
def repo(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    sources = {f"{name}.py": source(name, 8) for name in ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")}
    folder = tmp_path / "repo"
    folder.mkdir()
    for name, text in sources.items():
        (folder / name).write_text(text)
    return folder, sources


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def test_the_engine_uses_the_calibration_that_the_command_wrote(repo: tuple[Path, dict[str, str]], own_folder: Path) -> None:
    folder, sources = repo
    with openai_that_knows(sources) as url:
        name = f"fim:openai:{url}#m"
        running = backends.load_filler(name)
        task = replace(numbered(7, 1)[0], language="python")
        assert isinstance(best(running, task), Ranked)
        code, out, err = run("--model", name, "--repo", str(folder), "--holes", "120")
        assert (code, f"holes is sent to {name}" in err) == (0, True), err
        assert re.search(r"^dg-lsp: filling \(0 of \d+\)\ndg-lsp: fitting$", err, re.MULTILINE), err
        assert isinstance(best(running, task), Calibrated)
        assert isinstance(best(backends.load_filler(name), task), Calibrated)
        [file] = own_folder.iterdir()
        stated = json.loads(file.read_text())
        code, checked, err = run("--model", name, "--repo", str(folder), "--holes", "80", "--seed", "5", "--check")
        assert (code, "Stored" in checked) == (0, False), err
        assert float(re.search(r"Brier skill over the base rate +(\S+)", checked)[1]) > 0  # type: ignore[index]
        code, _, err = run("--model", name, "--forget")
        assert (code, "is removed" in err) == (0, True)
        assert isinstance(best(running, task), Ranked)
        code, _, err = run("--model", name, "--repo", str(folder), "--check")
        assert (code, "has no calibration to check" in err) == (2, True)
    facts, skill = stated["facts"], stated["facts"]["reliability"]["brier_skill"]
    assert (stated["model"]["name"], f"Stored in {file}" in out) == (name, True)
    assert 60 < facts["answered"] <= facts["holes"] <= 120
    assert skill["low"] <= skill["value"] <= skill["high"]


def test_local_only_files_are_not_sent(repo: tuple[Path, dict[str, str]]) -> None:
    folder, sources = repo
    for pattern in ("*.py", f"{folder.name}/"):
        (folder / ".dg-lsp.toml").write_text(f'[privacy]\nlocal_only = ["{pattern}"]\n')
        with openai_that_knows(sources) as url:
            code, _, err = run("--model", f"fim:openai:{url}#m", "--repo", str(folder))
        assert (code, "nothing can be cut" in err) == (2, True)


def test_an_unreachable_server_is_reported_in_one_sentence(repo: tuple[Path, dict[str, str]]) -> None:
    code, out, err = run("--model", "fim:openai:http://127.0.0.1:9#m", "--repo", str(repo[0]), "--holes", "20")
    assert (code, out) == (2, "")
    assert "can't be reached" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--repo", "/no/such/folder"), "/no/such/folder is not a folder"),
        (("--tasks", "/no/such/file"), "can't be read"),
    ],
)
def test_bad_input_is_reported_in_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    code, _, err = run("--model", "fim:openai:http://127.0.0.1:9#m", *arguments)
    assert code == 2
    assert sentence in err


@pytest.mark.slow
def test_a_local_checkpoint_is_calibrated_on_tasks_of_a_file(trained_layout: Path, tmp_path: Path, own_folder: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for path in trained_layout.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "dg_lsp.json").write_text(dump_profile(replace(causal_profile(folder), calibration=None)))
    filler = backends.load_filler(str(folder))
    holes = [replace(task, language="") for task in numbered(10, 60)]
    first = best(filler, holes[0])
    assert isinstance(first, Ranked)
    # An untrained model is right only if its text happens to be the expected one.
    own = [replace(task, answer=written(filler, task)) if place % 2 else task for place, task in enumerate(holes)]
    assert sum(bool(task.answer) for task in own) > 50
    write_tasks(tmp_path / "own.jsonl", own)
    code, out, err = run("--tasks", str(tmp_path / "own.jsonl"), "--model", str(folder))
    assert code == 0, err
    assert f"Stored in {own_folder}" in out
    assert isinstance(best(backends.load_filler(str(folder)), holes[0]), Calibrated)


def causal_profile(folder: Path) -> layout.CausalProfile:
    return checkpoint.load_profile(folder, layout.CausalProfile, None)


def written(filler: Filler, task: Task) -> str:
    work = filler.start(task.request(seed=0))
    while work.step():
        pass
    for candidate in work.candidates():
        if edits := polish.to_edits(candidate, (task.hole,), task.document).edits:
            return edits[0].text
    return ""


# --- Figures ----------------------------------------------------------------------------------------------------------


def test_the_figures_of_a_small_table_match_hand_calculation() -> None:
    pairs = [(0.0, False), (0.5, True), (0.5, False), (1.0, True)]
    assert fitting.brier_skill(pairs) == pytest.approx(0.5)
    assert fitting.calibration_error([(0.5, True), (0.5, False)] * 20) == pytest.approx(0.0)
    assert fitting.calibration_error([(0.9, True), (0.9, False)] * 20) == pytest.approx(0.4)


def test_random_probabilities_have_no_skill() -> None:
    draw = random.Random(3)
    figures = fitting.measure([Judged(str(n), draw.random(), draw.random() < 0.5) for n in range(300)])
    assert figures.brier_skill.high < 0
    assert figures.calibration_error.value > 0.15


def test_useless_features_give_the_base_rate() -> None:
    draw = random.Random(5)
    samples = [Sample(str(n), ({"mean": draw.gauss(0, 1)},), (draw.random() < 0.3,)) for n in range(400)]
    judged = fitting.cross_judged(samples)
    assert sum(each.probability for each in judged) / len(judged) == pytest.approx(0.3, abs=0.08)
    assert max(each.probability for each in judged) < 0.5


def test_too_few_right_answers_cannot_be_fitted() -> None:
    samples = [Sample(str(n), ({"mean": 0.1 * n},), (n < 3,)) for n in range(50)]
    with pytest.raises(EvalError, match="only 3 of 50 holes had an answer that is right"):
        fitting.fitted(samples)


def test_a_file_in_another_format_is_not_a_calibration(own_folder: Path) -> None:
    model = ModelId("m", "1")
    path = calibration_store.write(model, Calibration(0.5, {"mean": 2.0}), {"note": 1})
    assert calibration_store.read(model) == Calibration(0.5, {"mean": 2.0})
    assert calibration_store.read(ModelId("m", "2")) is None
    for text in ("", "[]", '{"calibration": {"intercept": NaN, "weights": {}}}', '{"calibration": 1}'):
        path.write_text(text)
        assert calibration_store.read(model) is None
    assert [each.name for each in own_folder.iterdir()] == [path.name]


def test_every_third_hole_gets_a_short_context() -> None:
    before, after = "".join(f"a{n} = 1\n" for n in range(60)), "".join(f"\nb{n} = 2" for n in range(60))
    tasks = [Task(f"line/x/{n}", before + "c = ", after, "3") for n in range(9)]
    shorter_tasks = fitting.with_small_files(tasks, 1)
    assert [one == other for one, other in zip(tasks, shorter_tasks, strict=True)] == [True, True, False] * 3
    for task in shorter_tasks[2::3]:
        assert before.endswith(task.prompt.removesuffix("c = "))
        assert after.startswith(task.suffix)
        assert 2 <= task.prompt.count("\n") <= 20
        assert 2 <= task.suffix.count("\n") <= 20


# The choice among the answers of a hole


def sample(number: int, features: list[dict[str, float]], right: list[bool]) -> Sample:
    return Sample(f"file {number % 40}", tuple(features), tuple(right))


def test_what_holds_within_a_hole_decides_and_not_what_holds_between_holes() -> None:
    """Easy holes have long candidates, but of the two candidates of a hole the short one is right."""
    draw, samples = random.Random(3), []
    for number in range(400):
        is_easy = draw.random() < 0.5
        has_right = draw.random() < (0.9 if is_easy else 0.05)
        base = 4.0 if is_easy else 0.0
        pair = [{"length": base + extra + draw.gauss(0, 0.1), "ease": base} for extra in (0.0, 2.0)]
        samples.append(sample(number, pair, [has_right, False]))
    fitted = fitting.fit(samples)
    assert all(fitting.best(each, fitted) == 0 for each in samples)


def test_several_candidates_of_a_hole_can_be_right() -> None:
    draw = random.Random(4)
    samples = []
    for number in range(200):
        known = [draw.gauss(0, 1) for _ in range(4)]
        samples.append(sample(number, [{"known": value} for value in known], [value > 0.3 for value in known]))
    fitted = fitting.fit(samples)
    assert fitted.weights["known"] > 0
    assert all(
        judged.right == (judged.probability > 0.5)
        for judged in fitting.judge(samples, fitted)
        if abs(judged.probability - 0.5) > 0.4
    )


def test_of_one_candidate_the_choice_is_a_logistic_regression() -> None:
    """The one-dimensional problem has a solution that can be checked: the gradient of the penalised loss is zero there."""
    draw = random.Random(5)
    values = [draw.gauss(0, 1) for _ in range(300)]
    right = [draw.random() < 1 / (1 + math.exp(-(2 * value - 1))) for value in values]
    fitted = fitting.logistic([{"x": value} for value in values], right)
    weight, spread = fitted.weights["x"], statistics.pstdev(values)
    chances = [1 / (1 + math.exp(-(fitted.intercept + weight * value))) for value in values]
    errors = [chance - is_right for chance, is_right in zip(chances, right, strict=True)]
    assert sum(errors) == pytest.approx(0.0, abs=0.05)
    slope = sum(error * value / spread for error, value in zip(errors, values, strict=True)) + fitting.PENALTY * weight * spread
    assert slope == pytest.approx(0.0, abs=0.05)


def test_the_order_changes_only_if_that_helps() -> None:
    """Noise helps by chance where it was fitted; what tells right answers from wrong ones helps on other holes too."""
    for helps in (False, True):
        draw, samples = random.Random(6), []
        for number in range(60):
            right = draw.randrange(3) if helps else 0
            joints = sorted((draw.gauss(-8, 3) for _ in range(3)), reverse=True)
            features = [
                {"joint": joint, "clue": float(place == right and helps)} | {f"noise {n}": draw.gauss(0, 1) for n in range(20)}
                for place, joint in enumerate(joints)
            ]
            samples.append(sample(number, features, [place == right and draw.random() < 0.7 for place in range(3)]))
        fitted = fitting.fit(samples)
        assert fitted.reorders == helps
        assert helps or all(fitting.best(each, fitted) == 0 for each in samples)
